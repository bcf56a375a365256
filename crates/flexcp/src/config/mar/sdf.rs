//! Flow descriptions of SDF filters (`IPFilterRule` of RFC 6733 section 4.3.1, as 3GPP TS 29.212 section 5.4.2 narrows it).

use super::{Ports, Traffic};

/// What connections a description is for: "permit out ip from 198.51.100.0/24 443 to assigned". `out` is toward the client, so
/// that the server's side comes first.
pub(super) fn read(text: &str) -> Result<Traffic, String> {
    let mut words = text.split_ascii_whitespace().peekable();
    let mut fixed = |expected: &[&str], why: &str| {
        let word = words.next().unwrap_or_default();
        if expected.contains(&word) {
            return Ok(());
        }
        Err(format!(
            "`{word}` stands where {why}; write it like \"{EXAMPLE}\""
        ))
    };
    fixed(&["permit"], "`permit` has to, as rules refuse nothing")?;
    fixed(&["out"], "`out` has to, which stands for both directions")?;
    fixed(
        &["ip", "6", "tcp"],
        "`ip` or 6 has to, as FlexCP steers TCP alone",
    )?;
    fixed(&["from"], "`from` has to")?;
    let server = words.next().unwrap_or_default();
    let ports = words.next_if(|word| *word != "to");
    if words.next() != Some("to") {
        return Err(format!(
            "there is no `to` behind the server's side; write it like \"{EXAMPLE}\""
        ));
    }
    let client = words.next().unwrap_or_default();
    if let Some(more) = words.next() {
        return Err(format!(
            "`{more}` stands behind the client's address, and rules know neither its port nor options; leave it out"
        ));
    }
    Ok(Traffic {
        services: vec![],
        servers: address(server, &["any"])?,
        ports: ports.map_or_else(Vec::new, |ports| {
            ports
                .split(',')
                .map(|text| Ports::Text(text.into()))
                .collect()
        }),
        clients: address(client, &["any", "assigned"])?,
    })
}

/// A prefix, or none where `any` stands.
fn address(word: &str, any: &[&str]) -> Result<Vec<String>, String> {
    if any.contains(&word) {
        return Ok(vec![]);
    }
    crate::config::prefix(word)?;
    Ok(vec![word.to_owned()])
}

const EXAMPLE: &str = "permit out ip from 198.51.100.0/24 443 to assigned";
