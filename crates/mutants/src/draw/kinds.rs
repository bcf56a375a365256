//! The kinds of bugs that are drawn.

use std::ops::Range;

use super::Change;
use super::syntax::{arms, body, branch_end, calls, fields, is_keyword, returns_a_value, split};
use crate::item::{Item, Source};
use crate::token::{self, Language};

/// A kind: what it is called, and where it can be put into a function.
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) find: fn(&Source, &Item) -> Vec<Change>,
}

/// All kinds.
pub(super) static KINDS: &[Kind] = &[
    Kind {
        name: "every 200th call returns at once",
        find: returns_now_and_then,
    },
    Kind {
        name: "a call left out",
        find: call_left_out,
    },
    Kind {
        name: "every 200th time a call left out",
        find: call_left_out_now_and_then,
    },
    Kind {
        name: "every 200th time a call made twice",
        find: call_made_twice,
    },
    Kind {
        name: "a field not set",
        find: field_not_set,
    },
    Kind {
        name: "another candidate",
        find: another_candidate,
    },
    Kind {
        name: "one condition of several forgotten",
        find: condition_forgotten,
    },
    Kind {
        name: "a case that returns early forgotten",
        find: early_return_forgotten,
    },
    Kind {
        name: "two arguments swapped",
        find: arguments_swapped,
    },
    Kind {
        name: "a match arm that does what its neighbour does",
        find: arm_of_its_neighbour,
    },
    Kind {
        name: "wrong order of bytes",
        find: order_of_bytes,
    },
];

/// How often what happens now and then does.
const EVERY: u32 = 200;

/// A condition that holds every so many times.
fn now_and_then(language: Language) -> String {
    match language {
        Language::Rust => format!(
            "{{ use core::sync::atomic::{{AtomicU32, Ordering}}; static TIMES: AtomicU32 = AtomicU32::new(0); \
             TIMES.fetch_add(1, Ordering::Relaxed) % {EVERY} == {EVERY} - 1 }}"
        ),
        Language::C => format!("bpf_get_prandom_u32() % {EVERY} == 0"),
    }
}

/// `if` with a condition that holds now and then, or does not.
fn sometimes(language: Language, not: bool, then: &str) -> String {
    let condition = now_and_then(language);
    match (language, not) {
        (Language::Rust, false) => format!("if {condition} {{ {then} }}"),
        (Language::Rust, true) => format!("if !{condition} {{ {then} }}"),
        (Language::C, false) => format!("if ({condition}) {{ {then} }}"),
        (Language::C, true) => format!("if (!({condition})) {{ {then} }}"),
    }
}

fn call_left_out(source: &Source, item: &Item) -> Vec<Change> {
    let calls = calls(source, item).into_iter();
    calls.map(|call| Change::new(source, call, "{}")).collect()
}

fn call_left_out_now_and_then(source: &Source, item: &Item) -> Vec<Change> {
    let change = |call: Range<usize>| {
        let then = sometimes(source.language, true, source.written(call.clone()));
        Change::new(source, call, then)
    };
    calls(source, item).into_iter().map(change).collect()
}

fn call_made_twice(source: &Source, item: &Item) -> Vec<Change> {
    let change = |call: Range<usize>| {
        let text = source.written(call.clone());
        let then = format!("{text} {}", sometimes(source.language, false, text));
        Change::new(source, call, format!("{{ {then} }}"))
    };
    calls(source, item).into_iter().map(change).collect()
}

fn field_not_set(source: &Source, item: &Item) -> Vec<Change> {
    let fields = fields(source, item).into_iter();
    fields
        .map(|field| Change::new(source, field, "{}"))
        .collect()
}

/// Returns what the function returns elsewhere, or nothing, at its start.
fn returns_now_and_then(source: &Source, item: &Item) -> Vec<Change> {
    let body = body(item);
    let header = item.tokens.start..body.start;
    let arrow = header
        .clone()
        .any(|index| source.at(index) == "-" && source.at(index + 1) == ">");
    let void = header.clone().any(|index| source.at(index) == "void");
    let nothing = match source.language {
        Language::Rust => !arrow,
        Language::C => void && source.at(header.start) != "(" && !returns_a_value(source, &body),
    };
    if nothing {
        let start = sometimes(source.language, false, "return;");
        return vec![Change::new(
            source,
            header.clone(),
            format!("{} {start}", source.written(header)),
        )];
    }
    let returned = body
        .clone()
        .filter(|&index| source.at(index) == "return" && source.at(index + 1) != ";");
    returned
        .filter_map(|at| {
            let end = (at..body.end).find(|&end| matches!(source.at(end), ";" | "}"))?;
            let value = source.written(at..end);
            let start = sometimes(source.language, false, &format!("{value};"));
            let header = source.written(header.clone());
            Some(Change {
                old: header.to_owned(),
                new: format!("{header} {start}"),
            })
        })
        .collect()
}

/// The last for the first, the least for the largest, the first alone.
fn another_candidate(source: &Source, item: &Item) -> Vec<Change> {
    const OTHERS: [(&str, &str); 12] = [
        ("min_by_key", "max_by_key"),
        ("max_by_key", "min_by_key"),
        ("first", "last"),
        ("last", "first"),
        ("front", "back"),
        ("back", "front"),
        ("pop_front", "pop_back"),
        ("pop_back", "pop_front"),
        ("any", "all"),
        ("find", "rfind"),
        ("rfind", "find"),
        ("position", "rposition"),
    ];
    let mut found = Vec::new();
    for index in body(item) {
        if source.at(index) != "." || source.at(index + 2) != "(" {
            continue;
        }
        let name = source.at(index + 1);
        // The receiver goes with the method, so that the fragment stands once more often.
        let call = index.saturating_sub(1)..source.closing(index + 2) + 1;
        let text = source.written(call.clone());
        if let Some((_, other)) = OTHERS.iter().find(|(known, _)| *known == name) {
            let new = text.replacen(&format!(".{name}("), &format!(".{other}("), 1);
            found.push(Change {
                old: text.to_owned(),
                new,
            });
        }
        if matches!(name, "iter" | "iter_mut" | "chain") {
            found.push(Change::new(source, call.clone(), format!("{text}.take(1)")));
        }
        if name == "rev" {
            found.push(Change::new(source, call, source.at(index - 1)));
        }
    }
    found
}

/// `a && b` without `b`, where a bracket or a semicolon ends it.
fn condition_forgotten(source: &Source, item: &Item) -> Vec<Change> {
    let body = body(item);
    let mut found = Vec::new();
    for index in body.clone() {
        let operator = source.at(index);
        if !matches!(operator, "&" | "|")
            || source.at(index + 1) != operator
            || source.at(index + 2) == operator
        {
            continue;
        }
        // A closure without arguments, or an argument of none: no operand stands before.
        if matches!(source.at(index - 1), "(" | "," | "=" | "{") {
            continue;
        }
        let mut end = index + 2;
        while end < body.end && !matches!(source.at(end), ")" | "]" | "}" | "{" | ";" | "," | "?") {
            let here = source.at(end);
            if matches!(here, "&" | "|") && source.at(end + 1) == here {
                break;
            }
            end = match here {
                "(" | "[" => source.closing(end) + 1,
                _ => end + 1,
            };
        }
        if source.at(end) != "?" {
            found.push(Change::new(source, index..end, ""));
        }
    }
    found
}

/// `if condition { ...; return x; }` without the whole.
fn early_return_forgotten(source: &Source, item: &Item) -> Vec<Change> {
    let body = body(item);
    let mut found = Vec::new();
    for index in body.clone() {
        if source.at(index) != "if" || !matches!(source.at(index - 1), "{" | "}" | ";") {
            continue;
        }
        let Some(end) = branch_end(source, index, body.end) else {
            continue;
        };
        let branch = index..end;
        let mut inside = branch.clone();
        if inside.any(|at| source.at(at) == "return") && source.at(end) != "else" {
            found.push(Change::new(source, branch, "{}"));
        }
    }
    found
}

/// Neighbours among the arguments of a call, if both are plain.
fn arguments_swapped(source: &Source, item: &Item) -> Vec<Change> {
    let mut found = Vec::new();
    for open in body(item) {
        let called = source.at(open) == "(" && source.tokens[open - 1].kind == token::Kind::Word;
        if !called || is_keyword(source.at(open - 1)) {
            continue;
        }
        let arguments = split(source, open);
        for pair in arguments.windows(2) {
            let [first, second] = pair else { continue };
            let [one, other] = [first, second].map(|range| source.written(range.clone()));
            let plain = |text: &str| !text.is_empty() && !text.contains(['(', '|', '{', '\n']);
            if one != other && plain(one) && plain(other) {
                // With the name and all before, so that the fragment stands once.
                let before = source.written(open - 1..first.start);
                found.push(Change::new(
                    source,
                    open - 1..second.end,
                    format!("{before} {other}, {one}"),
                ));
            }
        }
    }
    found
}

/// Arms of a `match`, the value of one given to the one before.
fn arm_of_its_neighbour(source: &Source, item: &Item) -> Vec<Change> {
    if source.language == Language::C {
        return Vec::new();
    }
    let body = body(item);
    let mut found = Vec::new();
    for index in body.clone().filter(|&index| source.at(index) == "match") {
        let Some(end) = branch_end(source, index, body.end) else {
            continue;
        };
        let open = (index..end)
            .rev()
            .find(|&at| source.at(at) == "{" && source.closing(at) == end - 1);
        let arms = open.map_or_else(Vec::new, |open| arms(source, open));
        for pair in arms.windows(2) {
            let [(arm, value), (_, other)] = pair else {
                continue;
            };
            let [value_text, other_text] =
                [value, other].map(|range| source.written(range.clone()));
            if value_text != other_text {
                let pattern = source.written(arm.start..value.start);
                found.push(Change::new(
                    source,
                    arm.clone(),
                    format!("{pattern} {other_text}"),
                ));
            }
        }
    }
    found
}

/// A number that is not brought into the network's order, or out of it.
fn order_of_bytes(source: &Source, item: &Item) -> Vec<Change> {
    let mut found = Vec::new();
    for index in body(item) {
        let name = source.at(index);
        let other = match name {
            "to_be_bytes" => "to_le_bytes",
            "from_be_bytes" => "from_le_bytes",
            "to_ne_bytes" => "to_be_bytes",
            "bpf_htons" | "bpf_htonl" | "bpf_ntohs" | "bpf_ntohl" => "",
            _ => continue,
        };
        // With what stands before, so that the fragment stands once more often.
        let call = index.saturating_sub(3)..source.closing(index + 1) + 1;
        let before = source.written(call.start..index);
        let after = source.written(index + 1..call.end);
        found.push(Change::new(source, call, format!("{before}{other}{after}")));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a kind finds in the first function of a text: old and new.
    fn find(name: &str, text: &str, language: Language) -> Vec<(String, String)> {
        let source = Source::new(text.to_owned(), language);
        let kind = KINDS.iter().find(|kind| kind.name == name).unwrap();
        let found = (kind.find)(&source, &source.items[0]);
        found
            .into_iter()
            .map(|change| (change.old, change.new))
            .collect()
    }

    fn first(name: &str, text: &str, language: Language) -> (String, String) {
        find(name, text, language)
            .into_iter()
            .next()
            .unwrap_or_default()
    }

    const RUST: &str = "fn f(&mut self) -> bool {
        if self.a && self.b(1) { return false; }
        self.count = 1;
        let x = self.list.iter().min_by_key(|y| y.at);
        self.call(x, self.count)?;
        match x { Some(1) => self.one(), Some(_) => {} None => self.none() }
        x == 2
    }";
    const C: &str = "static int f(struct p *p, __u32 a) {
        if (!a || p->b)
            return 1;
        p->port = bpf_htons(a);
        call(p, a);
        return 0;
    }";

    #[test]
    fn calls_and_fields_are_statements_of_their_own() {
        let call = |text, language| first("a call left out", text, language);
        assert_eq!(
            call(RUST, Language::Rust),
            ("self.call(x, self.count)?;".into(), "{}".into())
        );
        assert_eq!(call(C, Language::C), ("call(p, a);".into(), "{}".into()));
        let field = |text, language| first("a field not set", text, language).0;
        assert_eq!(field(RUST, Language::Rust), "self.count = 1;");
        assert_eq!(field(C, Language::C), "p->port = bpf_htons(a);");
    }

    #[test]
    fn early_return_takes_a_value_that_the_function_returns() {
        let kind = "every 200th call returns at once";
        let (old, new) = first(kind, RUST, Language::Rust);
        assert_eq!(old, "fn f(&mut self) -> bool {");
        assert!(new.ends_with("== 200 - 1 } { return false; }"), "{new}");
        let found = find(kind, C, Language::C);
        assert_eq!(found.len(), 2);
        assert!(
            found[0]
                .1
                .ends_with("bpf_get_prandom_u32() % 200 == 0) { return 1; }")
        );
        let void = first(kind, "fn g() { a(); }", Language::Rust).1;
        assert!(void.ends_with("{ return; }"), "{void}");
    }

    #[test]
    fn conditions_candidates_arms_arguments_and_bytes() {
        let kind = |name, text, language| first(name, text, language);
        let forgotten = kind("one condition of several forgotten", RUST, Language::Rust);
        assert_eq!(forgotten, ("&& self.b(1)".into(), String::new()));
        let forgotten = kind("one condition of several forgotten", C, Language::C);
        assert_eq!(forgotten.0, "|| p->b");
        let early = kind("a case that returns early forgotten", C, Language::C);
        assert!(early.0.starts_with("if (!a") && early.0.ends_with("return 1;"));
        let candidate = find("another candidate", RUST, Language::Rust);
        assert!(candidate.iter().any(|(_, new)| new.contains("max_by_key")));
        assert!(
            candidate
                .iter()
                .any(|(_, new)| new.ends_with(".iter().take(1)"))
        );
        let arm = kind(
            "a match arm that does what its neighbour does",
            RUST,
            Language::Rust,
        );
        assert_eq!(
            arm,
            ("Some(1) => self.one()".into(), "Some(1) => {}".into())
        );
        let swapped = kind("two arguments swapped", RUST, Language::Rust);
        assert_eq!(
            swapped,
            ("call(x, self.count".into(), "call( self.count, x".into())
        );
        let bytes = kind("wrong order of bytes", C, Language::C);
        assert_eq!(bytes.1, ">port =(a)");
    }
}
