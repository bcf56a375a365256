//! Who connects on for a box, `{ address = "203.0.113.5:7124", mode = "convert" }`, and what a box leaves alone, `"192.0.2.0/24"` or
//! `{ prefix = "0.0.0.0/0", ports = [22] }`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use flexcp_translator::{Approach, Excepted, Protocol, User};
use toml::de::{DeTable, DeValue};

use super::read::{FromValue, Ports, hint};
use super::value;

/// An aggregation server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AggregationServer {
    /// Its address and port.
    pub addr: SocketAddr,
    /// How it is asked to connect on.
    pub approach: Approach,
    /// `name`: by which logs and `flexcp show servers` name it; its address when left out.
    pub named: Option<String>,
    /// `probe`: the UDP port at which its responder answers probes; without it only handshakes and transfers tell how far it is.
    pub probe: Option<SocketAddr>,
    /// `key_file`: its first line is the key that it shares with this box.
    pub key_file: Option<PathBuf>,
}

impl AggregationServer {
    /// What it is called.
    #[must_use]
    pub fn name(&self) -> String {
        let address = || self.addr.to_string();
        self.named.clone().unwrap_or_else(address)
    }
}

impl fmt::Display for AggregationServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.approach.protocol {
            Protocol::Convert => CONVERT,
            Protocol::Socks5 => SOCKS5,
        };
        if let Some(name) = &self.named {
            write!(f, "{name} ")?;
        }
        write!(f, "{} ({mode})", self.addr)
    }
}

impl FromValue for AggregationServer {
    const EXAMPLE: &'static str = "{ address = \"203.0.113.5:7124\", mode = \"convert\" }";

    fn from_value(value: &DeValue<'_>) -> Result<Option<Self>, String> {
        let Some(table) = value.as_table() else {
            return Ok(None);
        };
        known(table, SERVER_KEYS, "a server")?;
        let (Some(addr), Some(mode)) = (table.get("address"), table.get("mode")) else {
            return Err(format!(
                "a server has an `address` and a `mode`; write {}",
                Self::EXAMPLE
            ));
        };
        let Some(addr) = addr.get_ref().as_str() else {
            return Err("`address` is no string; write one like \"203.0.113.5:7124\"".into());
        };
        let protocol = match mode.get_ref().as_str() {
            Some(CONVERT) => Protocol::Convert,
            Some(SOCKS5) => Protocol::Socks5,
            _ => {
                return Err(format!(
                    "`mode` is what the server speaks; write \"{CONVERT}\" or \"{SOCKS5}\""
                ));
            }
        };
        let user = match table.get("user").map(|user| user.get_ref().as_str()) {
            None => None,
            Some(_) if protocol == Protocol::Convert => {
                return Err("a converter asks nobody who he is; remove `user`".into());
            }
            Some(Some(user)) => Some(value::user(user)?),
            Some(None) => return Err("`user` is no string; write \"name:password\"".into()),
        };
        let text = |key: &str, example: &str| match table.get(key).map(|it| it.get_ref().as_str()) {
            Some(None) => Err(format!("`{key}` is no string; write one like {example}")),
            it => Ok(it.flatten()),
        };
        let key_file = text("key_file", "\"/etc/flexcp/probe.key\"")?;
        if let Some(relative) = key_file.filter(|file| !file.starts_with('/')) {
            return Err(format!("`{relative}` must begin with /"));
        }
        Ok(Some(Self {
            addr: value::socket(addr)?,
            approach: approach(table, protocol, user)?,
            named: text("name", "\"fra\"")?.map(Into::into),
            probe: text("probe", "\"203.0.113.5:7125\"")?
                .map(value::socket)
                .transpose()?,
            key_file: key_file.map(PathBuf::from),
        }))
    }
}

/// How a server that speaks this is asked, and whether its SYN/ACK says that it has connected on.
fn approach(
    table: &DeTable<'_>,
    protocol: Protocol,
    user: Option<User>,
) -> Result<Approach, String> {
    let early = match table.get("early").map(|early| early.get_ref().as_bool()) {
        None | Some(Some(false)) => false,
        Some(Some(true)) if protocol == Protocol::Convert => true,
        Some(Some(true)) => return Err("`early` is a converter's; remove it".into()),
        Some(None) => return Err("`early` is neither true nor false".into()),
    };
    Ok(Approach {
        protocol,
        user,
        early,
    })
}

/// Servers whose connections a box leaves alone.
pub(super) struct Exception(pub(super) Excepted);

impl FromValue for Exception {
    const EXAMPLE: &'static str =
        "\"192.0.2.0/24\", or { prefix = \"192.0.2.0/24\", ports = [22] }";

    fn from_value(value: &DeValue<'_>) -> Result<Option<Self>, String> {
        if let Some(text) = value.as_str() {
            return Ok(Some(Self(Excepted {
                servers: value::prefix(text)?,
                ports: Vec::new(),
            })));
        }
        let Some(table) = value.as_table() else {
            return Ok(None);
        };
        known(table, EXCEPTION_KEYS, "an exception")?;
        let prefix = table.get("prefix").map(|prefix| prefix.get_ref().as_str());
        let Some(Some(prefix)) = prefix else {
            return Err(format!(
                "an exception has a `prefix`; write {}",
                Self::EXAMPLE
            ));
        };
        let servers = value::prefix(prefix)?;
        let Some(ports) = table.get("ports") else {
            let ports = Vec::new();
            return Ok(Some(Self(Excepted { servers, ports })));
        };
        let Some(list) = ports.get_ref().as_array() else {
            return Err("`ports` is no list; write one like [22, \"8000-8999\"]".into());
        };
        let ports = list.iter().map(|ports| {
            let read = Ports::from_value(ports.get_ref())?;
            read.map(|ports| ports.0)
                .ok_or_else(|| format!("a port is {}", Ports::EXAMPLE))
        });
        let ports = ports.collect::<Result<Vec<_>, _>>()?;
        if ports.is_empty() {
            return Err("`ports` is empty; name one, or leave it out for all".into());
        }
        Ok(Some(Self(Excepted { servers, ports })))
    }
}

fn known(table: &DeTable<'_>, keys: &[&str], what: &str) -> Result<(), String> {
    let names = table.keys().map(|key| key.get_ref().as_ref());
    match { names }.find(|name| !keys.contains(name)) {
        Some(unknown) => {
            let hint = hint(unknown, keys, &[]);
            Err(format!("unknown key `{unknown}` in {what}; {hint}"))
        }
        None => Ok(()),
    }
}

/// What an aggregation server can speak, as the modes of a FlexCP that is one.
const CONVERT: &str = "convert";
const SOCKS5: &str = "socks5";

const SERVER_KEYS: &[&str] = &[
    "address", "mode", "user", "early", "name", "probe", "key_file",
];
const EXCEPTION_KEYS: &[&str] = &["prefix", "ports"];
