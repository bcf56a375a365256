//! A rename in the sources, carried over to the lists: their addresses, fragments and replacements.

use std::fs;
use std::path::Path;

use crate::list::lists;
use crate::token::{Kind, Language, Token, tokens};

/// Renames in all lists of a directory; returns how many lines have changed.
///
/// `old` and `new` are names (`place_down`), paths (`Connection::place_down`), or places (`translator/dtree.rs`).
pub(crate) fn rename(directory: &Path, old: &str, new: &str) -> Result<usize, String> {
    let mut changed = 0;
    for file in lists(directory)? {
        let say = |error| format!("{}: {error}", file.display());
        let text = fs::read_to_string(&file).map_err(say)?;
        let renamed = rename_text(&text, old, new);
        let pairs = text.lines().zip(renamed.lines());
        changed += pairs.filter(|(before, after)| before != after).count();
        if renamed != text {
            fs::write(&file, renamed).map_err(say)?;
        }
    }
    if changed == 0 {
        return Err(format!("no address and no fragment has {old}"));
    }
    Ok(changed)
}

/// Renames in the text of a list; names and explanations of bugs stay.
fn rename_text(text: &str, old: &str, new: &str) -> String {
    let line = |line: &str| match line.get(..2) {
        Some("@ ") => rename_address(line, old, new),
        Some("- " | "+ ") => replace(line, old, new),
        _ => line.to_owned(),
    };
    let lines: Vec<_> = text.lines().map(line).collect();
    let end = if text.ends_with('\n') { "\n" } else { "" };
    lines.join("\n") + end
}

fn rename_address(line: &str, old: &str, new: &str) -> String {
    let Some((place, function)) = line[2..].split_once(' ') else {
        return line.to_owned();
    };
    let is_place = old.contains('/') || old.contains('.');
    if is_place
        && let Some(below) = place.strip_prefix(old)
        && (below.is_empty() || below.starts_with('/'))
    {
        return format!("@ {new}{below} {function}");
    }
    let function = if is_place {
        function.to_owned()
    } else {
        replace(function, old, new)
    };
    format!("@ {place} {function}")
}

/// `line` with all sequences of the tokens of `old` replaced.
fn replace(line: &str, old: &str, new: &str) -> String {
    // Rust's tokens do for one line of C, too.
    let wanted = tokens(old, Language::Rust);
    let here = tokens(line, Language::Rust);
    let text = |token: &Token| token.text(line).to_owned();
    let mut renamed = String::new();
    let (mut index, mut copied) = (0, 0);
    while index < here.len() {
        let rest = &here[index..];
        let same = rest.len() >= wanted.len()
            && rest
                .iter()
                .zip(&wanted)
                .all(|(here, there)| here.kind != Kind::Text && text(here) == there.text(old));
        if same && !wanted.is_empty() {
            renamed += &line[copied..rest[0].at.start];
            renamed += new;
            copied = rest[wanted.len() - 1].at.end;
            index += wanted.len();
        } else {
            index += 1;
        }
    }
    renamed + &line[copied..]
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "Explains place_down.\n\n== place_down fails\n@ translator/connection Connection::place_down\n- self.place_down(\"place_down\", place_downs)\n+ self.place_down(a);\n";

    #[test]
    fn name_is_renamed_in_addresses_and_fragments_not_in_words_around() {
        let renamed = rename_text(LIST, "place_down", "put");
        let expected = "Explains place_down.\n\n== place_down fails\n@ translator/connection Connection::put\n- self.put(\"place_down\", place_downs)\n+ self.put(a);\n";
        assert_eq!(renamed, expected);
    }

    #[test]
    fn path_is_renamed_where_it_stands_whole() {
        let renamed = rename_text(LIST, "Connection::place_down", "Lane::put");
        assert!(renamed.contains("@ translator/connection Lane::put\n"));
        assert!(renamed.contains("- self.place_down("));
    }

    #[test]
    fn place_is_renamed_in_addresses_alone() {
        let renamed = rename_text(LIST, "translator/connection", "translator/links");
        assert!(renamed.contains("@ translator/links Connection::place_down\n"));
        assert_eq!(rename_text(LIST, "translator", "other"), LIST);
    }
}
