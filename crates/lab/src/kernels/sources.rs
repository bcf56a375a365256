//! The machine's package sources, and from them those of Debian 12: its mirror, other suites.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

/// One archive that apt knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    uri: String,
    suite: String,
    /// Keyring, if the source names one.
    signed_by: Option<String>,
}

/// All in /etc/apt.
pub(super) fn of_this_machine() -> Vec<Source> {
    let parts = fs::read_dir("/etc/apt/sources.list.d")
        .into_iter()
        .flatten()
        .flatten();
    let mut files: Vec<PathBuf> = parts.map(|entry| entry.path()).collect();
    files.push(PathBuf::from("/etc/apt/sources.list"));
    let mut sources = vec![];
    for file in files {
        let text = fs::read_to_string(&file).unwrap_or_default();
        match file.extension().and_then(|end| end.to_str()) {
            Some("list") => sources.extend(text.lines().filter_map(one_line)),
            Some("sources") => sources.extend(text.split("\n\n").flat_map(stanza)),
            _ => {}
        }
    }
    sources
}

/// `deb [signed-by=KEYRING] URI SUITE main ...`
fn one_line(line: &str) -> Option<Source> {
    let rest = line.trim().strip_prefix("deb ")?.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => ("", rest),
    };
    let mut words = rest.split_whitespace();
    let signed_by = options
        .split_whitespace()
        .find_map(|option| option.strip_prefix("signed-by="));
    let source = Source {
        uri: words.next()?.to_owned(),
        suite: words.next()?.to_owned(),
        signed_by: signed_by.map(str::to_owned),
    };
    words.any(|component| component == "main").then_some(source)
}

/// The deb822 form: `URIs: ...`, `Suites: ...`, each with several values.
fn stanza(text: &str) -> Vec<Source> {
    let field = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        lines
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
    };
    let words = |name| field(name).unwrap_or_default().split_whitespace();
    if !words("Types").any(|kind| kind == "deb") || !words("Components").any(|part| part == "main")
    {
        return vec![];
    }
    let signed_by = field("Signed-By").filter(|keyring| !keyring.is_empty());
    let sources = words("URIs").flat_map(|uri| words("Suites").map(move |suite| (uri, suite)));
    let sources = sources.map(|(uri, suite)| Source {
        uri: uri.to_owned(),
        suite: suite.to_owned(),
        signed_by: signed_by.map(str::to_owned),
    });
    sources.collect()
}

/// The machine's Debian mirror, and the keyring that it is signed by, if the source names one.
///
/// # Errors
///
/// The machine has none.
pub(super) fn mirror(sources: &[Source]) -> Result<(&str, Option<&str>)> {
    let debian = sources.iter().find(|source| source.is_named("debian"));
    let debian = debian.context("/etc/apt names no Debian mirror")?;
    Ok((
        debian.uri.trim_end_matches('/'),
        debian.signed_by.as_deref(),
    ))
}

/// The lines for Debian 12, its security updates and its backports at the machine's own mirror.
///
/// # Errors
///
/// The machine has no Debian mirror.
pub(super) fn debian_12(sources: &[Source]) -> Result<String> {
    let (base, signed_by) = mirror(sources)?;
    let security = sources
        .iter()
        .find(|source| source.is_named("debian-security"));
    let security = security.map_or_else(|| format!("{base}-security"), |source| source.uri.clone());
    let options = match signed_by {
        Some(keyring) => format!("[signed-by={keyring}] "),
        None => String::new(),
    };
    Ok(format!(
        "deb {options}{base} bookworm main\n\
         deb {options}{security} bookworm-security main\n\
         deb {options}{base} bookworm-backports main\n"
    ))
}

impl Source {
    /// Whether its address ends in this.
    fn is_named(&self, last: &str) -> bool {
        self.uri.trim_end_matches('/').rsplit('/').next() == Some(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_is_read_with_its_keyring() {
        let source =
            one_line("deb [arch=amd64 signed-by=/k.gpg] http://mirror/debian trixie main contrib");
        let source = source.unwrap();
        assert_eq!(
            (source.uri.as_str(), source.suite.as_str()),
            ("http://mirror/debian", "trixie")
        );
        assert_eq!(source.signed_by.as_deref(), Some("/k.gpg"));
        assert_eq!(one_line("deb-src http://mirror/debian trixie main"), None);
        assert_eq!(one_line("# deb http://mirror/debian trixie main"), None);
        assert_eq!(one_line("deb http://other/apt some other"), None);
    }

    #[test]
    fn stanza_is_a_source_for_each_suite() {
        let text = "Types: deb\n# comment\nURIs: http://mirror/debian\nSuites: bookworm bookworm-updates\n\
                    Components: main\nSigned-By: /k.gpg\n";
        let suites: Vec<_> = stanza(text)
            .into_iter()
            .map(|source| source.suite)
            .collect();
        assert_eq!(suites, ["bookworm", "bookworm-updates"]);
        assert_eq!(stanza(&text.replace("deb\n", "deb-src\n")), []);
    }

    #[test]
    fn debian_12_is_at_the_machines_mirror() {
        let source = |uri: &str, suite: &str| Source {
            uri: uri.to_owned(),
            suite: suite.to_owned(),
            signed_by: Some("/k.gpg".to_owned()),
        };
        let known = [
            source("http://other/apt", "x"),
            source("http://mirror/debian/", "trixie"),
        ];
        assert_eq!(
            debian_12(&known).unwrap(),
            "deb [signed-by=/k.gpg] http://mirror/debian bookworm main\n\
             deb [signed-by=/k.gpg] http://mirror/debian-security bookworm-security main\n\
             deb [signed-by=/k.gpg] http://mirror/debian bookworm-backports main\n"
        );
        let security = source("http://updates/debian-security", "trixie-security");
        let lines = debian_12(&[known[1].clone(), security]).unwrap();
        assert!(
            lines.contains("http://updates/debian-security bookworm-security"),
            "{lines}"
        );
        assert!(debian_12(&known[..1]).is_err());
    }
}
