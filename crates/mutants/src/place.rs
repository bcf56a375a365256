//! Where a bug goes: its fragment has to stand in its function exactly once, blind to white space, comments and the
//! comma behind the last of several.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::item::{Item, Source};
use crate::list::Bug;
use crate::token::{Language, Token, tokens};

/// The sources below a root, each read once.
pub(crate) struct Sources {
    root: PathBuf,
    read: BTreeMap<String, Vec<(PathBuf, Source)>>,
}

/// A place that was found.
#[derive(Debug)]
pub(crate) struct Site {
    /// Below the root.
    pub(crate) file: PathBuf,
    /// Bytes that are replaced.
    pub(crate) bytes: Range<usize>,
}

impl Sources {
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            read: BTreeMap::new(),
        }
    }

    /// The sources of a place, as a list names it.
    pub(crate) fn of(&mut self, place: &str) -> Result<&[(PathBuf, Source)], String> {
        if !self.read.contains_key(place) {
            let mut sources = Vec::new();
            let path = path_of(place);
            collect(&self.root, &path, &mut sources)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            self.read.insert(place.to_owned(), sources);
        }
        Ok(self.read.get(place).map_or(&[], Vec::as_slice))
    }

    /// The one place of a bug, or why there is none.
    pub(crate) fn find(&mut self, bug: &Bug) -> Result<Site, String> {
        let mut found = Vec::new();
        let mut functions = 0;
        for (file, source) in self.of(&bug.place)? {
            let wanted = code(&bug.old, source.language);
            for item in source.items.iter().filter(|item| item.path == bug.function) {
                functions += 1;
                found.extend(matches(source, item, &wanted).map(|bytes| Site {
                    file: file.clone(),
                    bytes,
                }));
            }
        }
        if functions == 0 {
            return Err(self.nowhere(bug));
        }
        match found.pop() {
            Some(site) if found.is_empty() => Ok(site),
            site => Err(format!(
                "its fragment stands {} times in {} of {}, not once",
                found.len() + usize::from(site.is_some()),
                bug.function,
                bug.place
            )),
        }
    }

    /// What to say of a function that is not there: where one of that name is.
    fn nowhere(&mut self, bug: &Bug) -> String {
        let name = bug.function.rsplit("::").next().unwrap_or_default();
        let mut known = Vec::new();
        for (_, source) in self.of(bug.area()).unwrap_or(&[]) {
            let same = |item: &&Item| item.path.rsplit("::").next() == Some(name);
            known.extend(
                source
                    .items
                    .iter()
                    .filter(same)
                    .map(|item| item.path.clone()),
            );
        }
        let advice = match known.as_slice() {
            [] => format!("no function is called {name} there"),
            known => format!("{} has {}", bug.area(), known.join(", ")),
        };
        format!(
            "no {} in {}: {advice}; after a rename: scripts/seeded-bugs rename OLD NEW",
            bug.function, bug.place
        )
    }
}

/// A text with its tokens, as far as they are compared.
struct Code<'a> {
    text: &'a str,
    tokens: Vec<Token>,
}

fn code(text: &str, language: Language) -> Code<'_> {
    Code {
        text,
        tokens: compared(text, &tokens(text, language)),
    }
}

/// Without commas behind the last of several.
fn compared(text: &str, tokens: &[Token]) -> Vec<Token> {
    let closes = |token: &Token| matches!(token.text(text), ")" | "]" | "}");
    let ends = |index: usize| tokens.get(index + 1).is_some_and(closes);
    let kept = |(index, token): &(usize, &Token)| token.text(text) != "," || !ends(*index);
    let kept = tokens.iter().enumerate().filter(kept);
    kept.map(|(_, token)| token.clone()).collect()
}

/// The bytes at which the fragment stands in a function.
fn matches<'a>(
    source: &'a Source,
    item: &Item,
    wanted: &'a Code<'_>,
) -> impl Iterator<Item = Range<usize>> + use<'a> {
    let tokens = compared(&source.text, &source.tokens[item.tokens.clone()]);
    let len = wanted.tokens.len();
    let places = tokens.len().saturating_sub(len) + 1;
    (0..places).filter_map(move |start| {
        let here = tokens.get(start..start + len)?;
        let (first, last) = (here.first()?, here.last()?);
        let mut pairs = here.iter().zip(&wanted.tokens);
        let same = pairs.all(|(here, there)| here.text(&source.text) == there.text(wanted.text));
        same.then_some(first.at.start..last.at.end)
    })
}

/// Below the root: `bpf` and its files, the sources of a crate and theirs.
fn path_of(place: &str) -> PathBuf {
    match place.split_once('/') {
        _ if place == "bpf" || place.starts_with("bpf/") => place.into(),
        Some((name, below)) => ["crates", name, "src", below].iter().collect(),
        None => ["crates", place, "src"].iter().collect(),
    }
}

fn collect(root: &Path, path: &Path, sources: &mut Vec<(PathBuf, Source)>) -> std::io::Result<()> {
    let full = root.join(path);
    if full.is_dir() {
        let mut names: Vec<_> = fs::read_dir(full)?
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        names.sort();
        return names
            .iter()
            .try_for_each(|name| collect(root, &path.join(name), sources));
    }
    if let Some(language) = path.to_str().and_then(Language::of) {
        let text = fs::read_to_string(full)?;
        sources.push((path.to_owned(), Source::new(text, language)));
    } else if !full.exists() {
        return Err(std::io::ErrorKind::NotFound.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a fragment stands in functions of one path of a text.
    fn find(text: &str, path: &str, fragment: &str) -> Result<String, String> {
        let source = Source::new(text.to_owned(), Language::Rust);
        let mut sources = Sources::new(Path::new("/nowhere"));
        let file = PathBuf::from("a.rs");
        sources.read.insert("a".to_owned(), vec![(file, source)]);
        let bug = Bug {
            place: "a".to_owned(),
            function: path.to_owned(),
            old: fragment.to_owned(),
            ..Bug::default()
        };
        sources.find(&bug).map(|site| text[site.bytes].to_owned())
    }

    const TEXT: &str = "
        fn other() { call(a, b); }
        impl Type {
            fn function(&self) {
                call(
                    a, // the first
                    b,
                );
                twice(); twice();
            }
        }";

    #[test]
    fn fragment_is_found_whatever_the_white_space_comments_and_last_comma() {
        let found = find(TEXT, "Type::function", "call(a,b) ;").unwrap();
        assert!(
            found.starts_with("call(") && found.ends_with(");"),
            "{found}"
        );
        assert!(find(TEXT, "Type::function", "call(a, b,);").is_ok());
        assert!(find("fn f() { call(a, b) }", "f", "call(a /* this */,\n b,\n)").is_ok());
    }

    #[test]
    fn fragment_of_another_function_or_half_a_word_is_not_found() {
        let error = find(TEXT, "other", "twice()").unwrap_err();
        assert!(error.contains("0 times"), "{error}");
        assert!(find(TEXT, "other", "cal").is_err());
    }

    #[test]
    fn fragment_that_stands_twice_is_no_place() {
        let error = find(TEXT, "Type::function", "twice();").unwrap_err();
        assert!(error.contains("2 times"), "{error}");
        assert!(find(TEXT, "Type::function", "twice(); twice();").is_ok());
    }

    #[test]
    fn function_that_is_not_there_is_said_with_what_is() {
        let error = find(TEXT, "Kind::function", "twice()").unwrap_err();
        assert!(error.contains("a has Type::function"), "{error}");
    }
}
