//! Where the functions and constants of a source stand: what a seeded bug is addressed by.

use std::ops::Range;

use crate::token::{Kind, Language, Token, tokens};

/// A function, constant or macro.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Item {
    /// Its path below the file: `Type::function`, `module::function`, `CONSTANT`, `macro!`; in C its name.
    pub(crate) path: String,
    /// Its tokens, from `fn` or `const` on; in C from the start of the line of its name on.
    pub(crate) tokens: Range<usize>,
    /// The tokens between the braces of a function; `None`: it is none.
    pub(crate) body: Option<Range<usize>>,
}

/// A source with its tokens and items.
pub(crate) struct Source {
    pub(crate) text: String,
    pub(crate) language: Language,
    pub(crate) tokens: Vec<Token>,
    pub(crate) items: Vec<Item>,
}

impl Source {
    /// Reads the tokens and items of a text.
    pub(crate) fn new(text: String, language: Language) -> Self {
        let tokens = tokens(&text, language);
        let mut source = Self {
            text,
            language,
            tokens,
            items: Vec::new(),
        };
        let all = 0..source.tokens.len();
        match language {
            Language::Rust => source.scan_rust(all, ""),
            Language::C => source.scan_c(),
        }
        source
    }

    /// The text of a token; empty behind the last.
    pub(crate) fn at(&self, index: usize) -> &str {
        self.tokens
            .get(index)
            .map_or("", |token| token.text(&self.text))
    }

    /// What stands from one token to before another, as it is written.
    pub(crate) fn written(&self, tokens: Range<usize>) -> &str {
        match (self.tokens.get(tokens.start), tokens.end.checked_sub(1)) {
            (Some(first), Some(last)) if last >= tokens.start => {
                &self.text[first.at.start..self.tokens[last].at.end]
            }
            _ => "",
        }
    }

    /// The first and the last line of an item.
    pub(crate) fn lines(&self, item: &Item) -> [usize; 2] {
        [item.tokens.start, item.tokens.end - 1].map(|token| {
            let before = &self.text[..self.tokens[token].at.start];
            before.matches('\n').count() + 1
        })
    }

    /// The token that closes the bracket at `open`; the last one if none does.
    pub(crate) fn closing(&self, open: usize) -> usize {
        let mut depth = 0_usize;
        for index in open..self.tokens.len() {
            match self.at(index) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        return index;
                    }
                }
                _ => {}
            }
        }
        self.tokens.len().saturating_sub(1)
    }

    /// Items at one level of modules, types and traits.
    fn scan_rust(&mut self, range: Range<usize>, path: &str) {
        let mut index = range.start;
        while index < range.end {
            index = match self.at(index) {
                "fn" => self.rust_function(index, path),
                "const" | "static" => self.rust_constant(index, path),
                "mod" | "trait" | "impl" => self.rust_block(index, path),
                "macro_rules" => self.rust_macro(index, path),
                "(" | "[" | "{" => self.closing(index) + 1,
                _ => index + 1,
            };
        }
    }

    /// Where brackets are closed, from `from` on, the first of `marks`.
    fn first_of(&self, from: usize, marks: &[&str]) -> usize {
        let mut index = from;
        while index < self.tokens.len() {
            let text = self.at(index);
            if marks.contains(&text) {
                return index;
            }
            index = match text {
                "(" | "[" | "{" => self.closing(index) + 1,
                _ => index + 1,
            };
        }
        index
    }

    fn rust_function(&mut self, start: usize, path: &str) -> usize {
        if self
            .tokens
            .get(start + 1)
            .is_none_or(|token| token.kind != Kind::Word)
        {
            return start + 1;
        }
        let name = join(path, self.at(start + 1));
        let open = self.first_of(start + 2, &["{", ";"]);
        if self.at(open) != "{" {
            return open + 1;
        }
        let close = self.closing(open);
        self.items.push(Item {
            path: name.clone(),
            tokens: start..close + 1,
            body: Some(open + 1..close),
        });
        for inner in open + 1..close {
            if self.at(inner) == "fn" {
                self.rust_function(inner, &name);
            }
        }
        close + 1
    }

    fn rust_constant(&mut self, start: usize, path: &str) -> usize {
        let name = start + 1 + usize::from(self.at(start + 1) == "mut");
        if self.at(name + 1) != ":" || self.at(name) == "_" {
            return start + 1;
        }
        let end = self.first_of(name, &[";"]);
        let path = join(path, self.at(name));
        self.items.push(Item {
            path,
            tokens: start..(end + 1).min(self.tokens.len()),
            body: None,
        });
        end + 1
    }

    /// A macro of declarations is one item: what it makes has other names with each use.
    fn rust_macro(&mut self, start: usize, path: &str) -> usize {
        let close = self.closing(start + 3);
        let path = join(path, self.at(start + 2)) + "!";
        self.items.push(Item {
            path,
            tokens: start..close + 1,
            body: None,
        });
        close + 1
    }

    fn rust_block(&mut self, start: usize, path: &str) -> usize {
        let open = self.first_of(start + 1, &["{", ";"]);
        if self.at(open) != "{" {
            return open + 1;
        }
        let close = self.closing(open);
        let name = match self.at(start) {
            "impl" => self.implemented(start + 1..open),
            _ => start + 1,
        };
        let path = join(path, self.at(name));
        self.scan_rust(open + 1..close, &path);
        close + 1
    }

    /// The name of the type that an `impl` is for.
    fn implemented(&self, header: Range<usize>) -> usize {
        let mut from = header.start;
        if self.at(from) == "<" {
            from = self.behind_generics(from);
        }
        let for_type = |&index: &usize| self.at(index) == "for" && self.at(index + 1) != "<";
        if let Some(index) = header.clone().find(for_type) {
            from = index + 1;
        }
        let ends = |&index: &usize| matches!(self.at(index), "<" | "{" | "where");
        let end = (from..header.end).find(ends).unwrap_or(header.end);
        let is_word = |&index: &usize| self.tokens[index].kind == Kind::Word;
        (from..end).rev().find(is_word).unwrap_or(from)
    }

    fn behind_generics(&self, open: usize) -> usize {
        let mut depth = 0_usize;
        for index in open..self.tokens.len() {
            match self.at(index) {
                "<" => depth += 1,
                ">" if self.at(index - 1) != "-" => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return index + 1;
            }
        }
        self.tokens.len()
    }

    /// Function definitions of C: a name, its parameters and a brace, outside of all others.
    fn scan_c(&mut self) {
        let mut index = 0;
        let mut start = 0;
        while index < self.tokens.len() {
            match self.at(index) {
                "{" => {
                    let close = self.closing(index);
                    if let Some(name) = self.c_name(start..index) {
                        self.items.push(Item {
                            path: self.at(name).to_owned(),
                            tokens: start..close + 1,
                            body: Some(index + 1..close),
                        });
                    }
                    index = close + 1;
                    start = index;
                }
                ";" | "#" => {
                    index += 1;
                    start = index;
                }
                _ => index += 1,
            }
        }
    }

    /// The name before the last parameters of a header that ends with them.
    fn c_name(&self, header: Range<usize>) -> Option<usize> {
        let last = header
            .end
            .checked_sub(1)
            .filter(|&last| self.at(last) == ")")?;
        let open = header
            .clone()
            .rev()
            .find(|&index| self.at(index) == "(" && self.closing(index) == last)?;
        let name = open.checked_sub(1).filter(|name| header.contains(name))?;
        (self.tokens[name].kind == Kind::Word).then_some(name)
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        return name.to_owned();
    }
    format!("{path}::{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str, language: Language) -> Vec<String> {
        let source = Source::new(text.to_owned(), language);
        source.items.into_iter().map(|item| item.path).collect()
    }

    #[test]
    fn rust_functions_have_the_path_of_their_type_and_module() {
        let text = "
            use a::{b, c};
            pub const fn first(x: [u8; 4]) -> u8 { x[0] }
            static mut TABLE: [u8; 2] = [1, 2];
            impl<'a, T: Fn(u8) -> u8> Trait<T> for &'a inner::Type<T> where T: Copy {
                const LIMIT: u8 = { 3 };
                fn method(&self) -> impl Fn() + '_ { || { fn nested() {} } }
            }
            impl<F> Plain<F> { fn of(f: fn(u8) -> u8) {} }
            trait Trait { fn default(&self) { } fn required(&self); }
            macro_rules! m { () => { fn hidden() {} } }
            mod deep { mod deeper { fn last() {} } }";
        let expected = [
            "first",
            "TABLE",
            "Type::LIMIT",
            "Type::method",
            "Type::method::nested",
            "Plain::of",
            "Trait::default",
            "m!",
            "deep::deeper::last",
        ];
        assert_eq!(paths(text, Language::Rust), expected);
    }

    #[test]
    fn c_functions_are_found_between_structs_and_macros() {
        let text = "
            #define LEN(x) (sizeof(x))
            struct { __uint(type, 1); } map SEC(\".maps\");
            static __always_inline int judge(struct p *p, __u32 (*f)(int))
            { if (p) { return 1; } return 0; }
            SEC(\"tc\") int entry(struct __sk_buff *skb) { return judge(skb, 0); }";
        assert_eq!(paths(text, Language::C), ["judge", "entry"]);
    }

    #[test]
    fn body_is_what_stands_between_the_braces() {
        let text = "fn f(a: u8) -> u8 { a + 1 }";
        let source = Source::new(text.to_owned(), Language::Rust);
        let body = source.items[0].body.clone().unwrap_or_default();
        assert_eq!(source.written(body), "a + 1");
    }
}
