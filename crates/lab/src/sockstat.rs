//! MPTCP connections and their subflows as the kernel shows them (`ss`).

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;

use crate::namespace::Namespace;
use crate::process::text;

/// One line of `ss`, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SocketLine {
    /// `ESTAB`, `FIN-WAIT-1`, ...
    pub state: String,
    /// Address and port, perhaps with `%device`.
    pub local: String,
    /// Address and port.
    pub peer: String,
    /// `key:value` fields; a word without a colon is a key with an empty value.
    pub fields: BTreeMap<String, String>,
}

impl SocketLine {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let state = words.next()?.to_owned();
        let (local, peer) = (words.nth(2)?.to_owned(), words.next()?.to_owned());
        let mut fields = BTreeMap::new();
        for word in words {
            let (key, value) = word.split_once(':').unwrap_or((word, ""));
            fields.insert(key.to_owned(), value.to_owned());
        }
        Some(Self {
            state,
            local,
            peer,
            fields,
        })
    }

    /// A field's value, if it is there.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }

    /// A field's value as a number; 0 if it is not there.
    pub fn number(&self, name: &str) -> u64 {
        self.field(name)
            .and_then(|value| value.parse().ok())
            .unwrap_or(0)
    }

    /// True for a connection that has become plain TCP.
    pub fn is_fallback(&self) -> bool {
        self.fields.contains_key("fallback")
    }

    /// True for a subflow that joined; false for the initial one.
    pub fn is_join(&self) -> bool {
        self.field("flags")
            .is_some_and(|flags| flags.contains(['J', 'j']))
    }
}

/// The MPTCP connections of a namespace, listeners not included.
pub fn mptcp_connections(namespace: &Namespace) -> Result<Vec<SocketLine>> {
    ss(namespace, "-HMinO")
}

/// The MPTCP subflows of a namespace: TCP sockets below MPTCP connections.
pub fn mptcp_subflows(namespace: &Namespace) -> Result<Vec<SocketLine>> {
    let mut lines = ss(namespace, "-HtinO")?;
    lines.retain(|line| line.fields.contains_key("tcp-ulp-mptcp"));
    Ok(lines)
}

fn ss(namespace: &Namespace, flags: &str) -> Result<Vec<SocketLine>> {
    let listing = text(namespace.command("ss").arg(flags))?;
    Ok(listing.lines().filter_map(SocketLine::parse).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subflow_line_is_taken_apart() {
        let line = "ESTAB 0 0 10.1.2.2%a2:50597 10.1.1.1:5201 cubic rto:204 rtt:0.018/0.01 \
                    bytes_received:2 tcp-ulp-mptcp flags:Jjec token:fe1c3d7(id:0)/4587d9c2(id:1)";
        let line = SocketLine::parse(line).unwrap();
        assert_eq!(
            (line.local.as_str(), line.peer.as_str()),
            ("10.1.2.2%a2:50597", "10.1.1.1:5201")
        );
        assert_eq!(line.number("bytes_received"), 2);
        assert_eq!(line.field("rtt"), Some("0.018/0.01"));
        assert!(line.is_join() && !line.is_fallback());
    }
}
