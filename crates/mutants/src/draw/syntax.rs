//! Statements, branches, arguments and arms, as far as tokens tell.

use std::ops::Range;

use crate::item::{Item, Source};
use crate::token::{Kind, Language};

pub(super) fn body(item: &Item) -> Range<usize> {
    item.body.clone().unwrap_or_default()
}

/// Statements of a body that end with a semicolon and start with a name: calls and assignments, as tokens.
pub(super) fn statements(source: &Source, item: &Item) -> Vec<Range<usize>> {
    let body = body(item);
    let mut found = Vec::new();
    for start in body.clone() {
        let opens = matches!(source.at(start - 1), "{" | "}" | ";")
            || source.language == Language::C && source.at(start - 1) == ")";
        let is_name = source.tokens[start].kind == Kind::Word && !is_keyword(source.at(start));
        if !opens || !is_name {
            continue;
        }
        let mut end = start;
        while end < body.end && !matches!(source.at(end), ";" | "," | "}" | ":")
            || is_path(source, end)
        {
            end = match source.at(end) {
                "(" | "[" | "{" => source.closing(end) + 1,
                _ => end + 1,
            };
        }
        if source.at(end) == ";" && end < body.end {
            found.push(start..end + 1);
        }
    }
    found
}

fn is_path(source: &Source, index: usize) -> bool {
    source.at(index) == ":" && (source.at(index + 1) == ":" || source.at(index - 1) == ":")
}

pub(super) fn is_keyword(word: &str) -> bool {
    matches!(
        word,
        "let"
            | "return"
            | "if"
            | "else"
            | "match"
            | "for"
            | "while"
            | "loop"
            | "break"
            | "continue"
            | "use"
            | "const"
            | "static"
            | "fn"
            | "unsafe"
            | "struct"
            | "enum"
            | "goto"
            | "switch"
            | "case"
            | "do"
            | "debug_assert"
            | "assert"
            | "debug_assert_eq"
            | "tracing"
            | "void"
            | "int"
            | "info"
            | "warn"
            | "debug"
            | "error"
            | "trace"
            | "println"
            | "eprintln"
            | "mod"
            | "impl"
            | "where"
            | "union"
            | "default"
    )
}

/// The `=` of an assignment; `None`: the statement is none.
fn assigns(source: &Source, statement: &Range<usize>) -> Option<usize> {
    let mut index = statement.start;
    while index < statement.end {
        match source.at(index) {
            "=" => {
                let beside = [source.at(index - 1), source.at(index + 1)];
                return (!beside
                    .iter()
                    .any(|text| matches!(*text, "=" | "<" | ">" | "!")))
                .then_some(index);
            }
            "(" | "[" | "{" => index = source.closing(index) + 1,
            _ => index += 1,
        }
    }
    None
}

/// Statements that are nothing but a call.
pub(super) fn calls(source: &Source, item: &Item) -> Vec<Range<usize>> {
    let is_call = |statement: &Range<usize>| {
        let last = statement.end - 2;
        let last = if source.at(last) == "?" {
            last - 1
        } else {
            last
        };
        assigns(source, statement).is_none()
            && source.at(last) == ")"
            && source.at(statement.start + 1) != "!"
            && !source.written(statement.clone()).contains("bpf_spin")
    };
    statements(source, item)
        .into_iter()
        .filter(is_call)
        .collect()
}

/// Assignments to fields, no new names and no locals.
pub(super) fn fields(source: &Source, item: &Item) -> Vec<Range<usize>> {
    let is_field = |statement: &Range<usize>| {
        assigns(source, statement).is_some_and(|equals| {
            (statement.start..equals).any(|index| {
                source.at(index) == "." || source.at(index) == "-" && source.at(index + 1) == ">"
            })
        })
    };
    statements(source, item)
        .into_iter()
        .filter(is_field)
        .collect()
}

/// Behind the branch of the `if` at `index`.
pub(super) fn branch_end(source: &Source, index: usize, limit: usize) -> Option<usize> {
    if source.language == Language::C {
        let behind = source.closing(index + 1) + 1;
        if source.at(behind) == "{" {
            return Some(source.closing(behind) + 1);
        }
        return (behind..limit)
            .find(|&at| source.at(at) == ";")
            .map(|at| at + 1);
    }
    let mut at = index + 1;
    while at < limit && source.at(at) != "{" {
        at = match source.at(at) {
            "(" | "[" => source.closing(at) + 1,
            _ => at + 1,
        };
    }
    (at < limit).then(|| source.closing(at) + 1)
}

/// What stands between the commas in the bracket at `open`.
pub(super) fn split(source: &Source, open: usize) -> Vec<Range<usize>> {
    let close = source.closing(open);
    let mut parts = Vec::new();
    let (mut start, mut index) = (open + 1, open + 1);
    while index <= close {
        match source.at(index) {
            "," => {
                parts.push(start..index);
                start = index + 1;
                index += 1;
            }
            "(" | "[" | "{" => index = source.closing(index) + 1,
            _ => index += 1,
        }
    }
    if start < close {
        parts.push(start..close);
    }
    parts
}

/// Arms of the `match` that opens at `open`: the whole of each, and its value.
pub(super) fn arms(source: &Source, open: usize) -> Vec<(Range<usize>, Range<usize>)> {
    let close = source.closing(open);
    let mut arms = Vec::new();
    let mut start = open + 1;
    while start < close {
        let mut arrow = start;
        while arrow < close && !(source.at(arrow) == "=" && source.at(arrow + 1) == ">") {
            arrow = match source.at(arrow) {
                "(" | "[" | "{" => source.closing(arrow) + 1,
                _ => arrow + 1,
            };
        }
        if arrow >= close {
            break;
        }
        let value = arrow + 2;
        let mut end = value;
        if source.at(value) == "{" {
            end = source.closing(value) + 1;
        } else {
            while end < close && source.at(end) != "," {
                end = match source.at(end) {
                    "(" | "[" | "{" => source.closing(end) + 1,
                    _ => end + 1,
                };
            }
        }
        arms.push((start..end, value..end));
        start = end + usize::from(source.at(end) == ",");
    }
    arms
}

pub(super) fn returns_a_value(source: &Source, body: &Range<usize>) -> bool {
    body.clone()
        .any(|index| source.at(index) == "return" && source.at(index + 1) != ";")
}
