//! Rust and C as tokens: enough to compare code blind to white space and comments. Operators of several
//! characters are several tokens, so nothing has to be known of them.

use std::ops::Range;

/// Which language a source is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Language {
    Rust,
    C,
}

impl Language {
    /// By the end of a file's name; `None`: neither.
    pub(crate) fn of(name: &str) -> Option<Self> {
        match name.rsplit_once('.')?.1 {
            "rs" => Some(Self::Rust),
            "c" | "h" => Some(Self::C),
            _ => None,
        }
    }
}

/// What a token is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// An identifier or a keyword.
    Word,
    Number,
    /// A string or a character.
    Text,
    Lifetime,
    /// One character of anything else.
    Mark,
}

/// A token and where it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    /// Bytes of the source.
    pub(crate) at: Range<usize>,
}

impl Token {
    /// Its text in `source`.
    pub(crate) fn text<'a>(&self, source: &'a str) -> &'a str {
        &source[self.at.clone()]
    }
}

/// All tokens of `source`, in order. What is cut off, as a string without its end, is a token to the end.
pub(crate) fn tokens(source: &str, language: Language) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(rest) = source.get(at..).filter(|rest| !rest.is_empty()) {
        let blank = blank(rest, language);
        if blank > 0 {
            at += blank;
            continue;
        }
        let (kind, len) = token(rest, language);
        tokens.push(Token {
            kind,
            at: at..at + len,
        });
        at += len;
    }
    tokens
}

/// Bytes of the white space or the comment at the start of `rest`.
fn blank(rest: &str, language: Language) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment(rest, language);
    }
    rest.len() - rest.trim_start().len()
}

/// Bytes of the comment that starts with `/*`; in Rust there may be others in it.
fn block_comment(rest: &str, language: Language) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        match rest.get(at..at + 2) {
            Some("/*") if depth == 0 || language == Language::Rust => {
                depth += 1;
                at += 2;
            }
            Some("*/") => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    rest.len()
}

/// The token at the start of `rest`, and its length.
fn token(rest: &str, language: Language) -> (Kind, usize) {
    let Some(first) = rest.chars().next() else {
        return (Kind::Mark, 0);
    };
    if language == Language::Rust
        && let Some(len) = prefixed_text(rest)
    {
        return (Kind::Text, len);
    }
    match first {
        '"' => (Kind::Text, quoted(rest, '"')),
        '\'' if language == Language::C || is_char(rest) => (Kind::Text, quoted(rest, '\'')),
        '\'' => (Kind::Lifetime, 1 + word_len(&rest[1..])),
        _ if first.is_ascii_digit() => (Kind::Number, number_len(rest)),
        _ if first.is_alphanumeric() || first == '_' => (Kind::Word, word_len(rest)),
        _ => (Kind::Mark, first.len_utf8()),
    }
}

/// The length of a raw, byte or C string or of a byte at the start.
fn prefixed_text(rest: &str) -> Option<usize> {
    let prefix = rest.len() - rest.trim_start_matches(['b', 'r', 'c']).len();
    if prefix == 0 || prefix > 2 {
        return None;
    }
    let body = &rest[prefix..];
    if rest[..prefix].ends_with('r') {
        let hashes = body.len() - body.trim_start_matches('#').len();
        body[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        let text = hashes + 1;
        let len = body[text..].find(&end).map(|at| text + at + end.len());
        return Some(prefix + len.unwrap_or(body.len()));
    }
    match body.chars().next()? {
        '"' => Some(prefix + quoted(body, '"')),
        '\'' if rest.starts_with("b'") => Some(prefix + quoted(body, '\'')),
        _ => None,
    }
}

/// Whether an apostrophe at the start opens a character, not a lifetime.
fn is_char(rest: &str) -> bool {
    let mut chars = rest.chars().skip(1);
    match chars.next() {
        Some('\\') => true,
        Some(_) => chars.next() == Some('\''),
        None => false,
    }
}

fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, char) in rest.char_indices().skip(1) {
        match char {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if char == quote => return at + char.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

fn word_len(rest: &str) -> usize {
    rest.find(|char: char| !char.is_alphanumeric() && char != '_')
        .unwrap_or(rest.len())
}

/// With its suffix and a fraction; `0..3` and `1.max(2)` are numbers before the points.
fn number_len(rest: &str) -> usize {
    let whole = word_len(rest);
    match rest[whole..].strip_prefix('.') {
        Some(fraction) if fraction.starts_with(|char: char| char.is_ascii_digit()) => {
            whole + 1 + word_len(fraction)
        }
        _ => whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str, language: Language) -> Vec<&str> {
        let tokens = tokens(source, language);
        tokens.iter().map(|token| token.text(source)).collect()
    }

    #[test]
    fn white_space_and_comments_are_no_tokens() {
        let source = "a/* b /* c */ d */ . // e\n f()";
        assert_eq!(texts(source, Language::Rust), ["a", ".", "f", "(", ")"]);
        assert_eq!(
            texts("a /* b /* c */ d", Language::C),
            ["a", "d"],
            "comments in C hold no others"
        );
    }

    #[test]
    fn lifetimes_and_characters_are_told_apart() {
        let source = r"fn f<'a>(x: &'a str) { x == '\'' || 'b' == b'{' }";
        let found = texts(source, Language::Rust);
        assert_eq!(found.iter().filter(|text| **text == "'a").count(), 2);
        assert!(found.contains(&r"'\''") && found.contains(&"'b'") && found.contains(&"b'{'"));
    }

    #[test]
    fn strings_hide_what_looks_like_code() {
        let source = r####"f("} \" // {", r#"" fn g() {"#, br"\", r)"####;
        let found = texts(source, Language::Rust);
        assert_eq!(
            found,
            [
                "f",
                "(",
                r#""} \" // {""#,
                ",",
                r###"r#"" fn g() {"#"###,
                ",",
                r#"br"\""#,
                ",",
                "r",
                ")"
            ]
        );
    }

    #[test]
    fn numbers_end_before_ranges_and_methods() {
        let source = "0..3 1.5e3 0xffu8 1.max(2)";
        let found = texts(source, Language::Rust);
        assert_eq!(
            found,
            [
                "0", ".", ".", "3", "1.5e3", "0xffu8", "1", ".", "max", "(", "2", ")"
            ]
        );
    }

    #[test]
    fn what_is_cut_off_ends_with_the_source() {
        for source in ["\"abc", "/* abc", "'", "r#\"abc", "b'"] {
            let end = tokens(source, Language::Rust)
                .last()
                .map(|token| token.at.end);
            assert!(end.is_none_or(|end| end == source.len()), "{source}");
        }
    }
}
