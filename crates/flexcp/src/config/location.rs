//! How a box chooses among its aggregation servers, and `[responder]`: what answers its probes on such a server.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use flexcp_location::Rate;
use flexcp_translator::Prefix;
use toml::de::{DeTable, DeValue};

use super::file::{Config, Mode, Service, section};
use super::keys;
use super::read::{FromValue, Memory, Reader};
use super::span::{Diagnostics, Located};
use super::value;

/// By what a box orders its aggregation servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choose {
    /// "fixed": as the file lists them; nothing is measured.
    Fixed,
    /// "throughput": what they carry over all uplinks together, and on their own leg.
    Throughput,
    /// "latency": how far they are.
    Latency,
}

impl Choose {
    /// As written in the file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Throughput => "throughput",
            Self::Latency => "latency",
        }
    }
}

/// How a box chooses among its aggregation servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    /// `choose`: by what. Default "fixed".
    pub choose: Located<Choose>,
    /// `content`: the content server to which servers are asked for their own leg. Default: none.
    pub content: Option<Located<SocketAddr>>,
    /// `probe_interval`: between two rounds of probes over a path; 10 s to a day. Default "5m".
    pub interval: Located<Duration>,
    /// `probe_bytes`: of probes in any hour, both ways. Default "64MiB".
    pub bytes: Located<i64>,
}

impl Choice {
    /// Whether servers are probed.
    #[must_use]
    pub fn measures(&self) -> bool {
        self.choose.value != Choose::Fixed
    }
}

/// How a service chooses, if it is a box.
#[must_use]
pub fn choice_of(service: &Service) -> Option<&Choice> {
    match &service.mode {
        Mode::Box { choice, .. } => Some(choice),
        _ => None,
    }
}

/// Whether any box probes its servers.
#[must_use]
pub fn is_measured(config: &Config) -> bool {
    let mut choices = config.services.iter().filter_map(choice_of);
    choices.any(Choice::measures)
}

/// `[responder]`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Responder {
    /// Where it begins in the file.
    pub at: usize,
    /// `listen`: addresses and UDP ports at which probes are answered.
    pub listen: Vec<Located<SocketAddr>>,
    /// `key_file`: the boxes' keys, one a line; others than its owner and group must not be able to read it.
    pub key_file: Option<Located<PathBuf>>,
    /// `content`: prefixes of content servers to which boxes may ask for the own leg. Default: none.
    pub content: Vec<Located<Prefix>>,
    /// `ports`: of those; any when left out.
    pub ports: Vec<Located<i64>>,
    /// `content_rate`: what the own leg lets through, by the operator's word. Default: that is not known, and bounds nothing.
    pub content_rate: Option<Located<Rate>>,
}

/// What a box has about its choice.
pub(super) fn choice(section: &Reader<'_, '_>, out: &mut Diagnostics) -> Choice {
    Choice {
        choose: section.or("choose", Choose::Fixed, out),
        content: section.optional("content", out),
        interval: section.or("probe_interval", INTERVAL, out),
        bytes: section.optional::<Memory>("probe_bytes", out).map_or_else(
            || Located::default(BYTES),
            |it| Located::new(it.value.0, it.at),
        ),
    }
}

/// `[responder]`, if it is there.
pub(super) fn responder(root: &Reader<'_, '_>, out: &mut Diagnostics) -> Option<Responder> {
    let at = root.get("responder")?.span().start;
    let empty = DeTable::new();
    let section = section(root, "responder", &empty, keys::RESPONDER, out);
    let listen = "write the addresses at which boxes probe, like [\"203.0.113.5:7125\"]";
    let key_file = "without a key nobody is answered; write key_file = \"/etc/flexcp/probe.key\"";
    Some(Responder {
        at,
        listen: section.required_list("listen", listen, out),
        key_file: section.required("key_file", key_file, out),
        content: section.list("content", out),
        ports: section.list("ports", out),
        content_rate: section.optional("content_rate", out),
    })
}

/// Adds everything that is wrong with it to `out`.
pub(super) fn check(config: &Config, out: &mut Diagnostics) {
    for service in &config.services {
        servers(service, out);
        choices(service, out);
    }
    if let Some(responder) = &config.responder {
        answering(responder, out);
    }
}

/// Each server has a name of its own, and a key if it is probed.
fn servers(service: &Service, out: &mut Diagnostics) {
    let Mode::Box {
        servers, choice, ..
    } = &service.mode
    else {
        return;
    };
    let mut names = HashMap::new();
    for server in servers {
        let (at, server) = (server.at, &server.value);
        let name = server.name();
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c.is_control()) {
            out.error(
                at,
                format!("{name:?} is not a name for a server; write one word, like \"fra\""),
            );
        } else if *names.entry(name.clone()).or_insert(server.addr) != server.addr {
            out.error(
                at,
                format!("another server is called {name}, too; write another `name`"),
            );
        }
        match (&server.probe, &server.key_file) {
            (Some(_), None) => out.error(
                at,
                format!(
                    "server {name} has a `probe` and no `key_file`, and answers nobody without a key; write \
                     key_file = \"/etc/flexcp/probe.key\""
                ),
            ),
            (None, Some(_)) => out.warning(
                at,
                format!("`key_file` of server {name} is of no use without `probe`; write where it answers probes, or remove it"),
            ),
            (Some(probe), _) => {
                if let Some(wrong) = value::unusable(probe.ip()) {
                    out.error(at, format!("`probe` of server {name}: {wrong}"));
                }
                if !choice.measures() {
                    out.warning(
                        at,
                        format!("server {name} is not probed, as the order is fixed; write choose = \"throughput\" or \"latency\""),
                    );
                }
            }
            (None, None) => {}
        }
    }
}

fn choices(service: &Service, out: &mut Diagnostics) {
    let Mode::Box {
        servers, choice, ..
    } = &service.mode
    else {
        return;
    };
    let choose = &choice.choose;
    if choice.measures() && servers.is_empty() {
        out.error(
            choose.at,
            format!(
                "`choose` is \"{}\", and there is no server to choose; list them in `servers`",
                choose.value.name()
            ),
        );
    }
    if let Some(content) = choice.content.as_ref().filter(|_| !choice.measures()) {
        out.warning(
            content.at,
            "`content` is of no use while the order is fixed; write choose = \"throughput\" or \"latency\", or remove it",
        );
    }
    if let Some(content) = &choice.content
        && let Some(wrong) = value::unusable(content.value.ip())
    {
        out.error(content.at, format!("`content`: {wrong}"));
    }
    let interval = &choice.interval;
    if !(LEAST_INTERVAL..=MOST_INTERVAL).contains(&interval.value) {
        out.error(
            interval.at,
            "`probe_interval` is from 10 seconds to a day; write one like \"5m\"",
        );
    }
    if choice.bytes.value < LEAST_BYTES {
        out.error(
            choice.bytes.at,
            "`probe_bytes` does not pay for one round in an hour; write at least \"200kB\"",
        );
    }
}

fn answering(responder: &Responder, out: &mut Diagnostics) {
    let mut known = HashSet::new();
    for listen in &responder.listen {
        if let Some(wrong) = value::unusable(listen.value.ip()) {
            out.error(listen.at, format!("`listen` of [responder]: {wrong}"));
        }
        if !known.insert(listen.value) {
            let said = format!("{} is listed twice; remove one", listen.value);
            out.error(listen.at, said);
        }
    }
    for port in &responder.ports {
        if !(1..=i64::from(u16::MAX)).contains(&port.value) {
            let said = format!("{} is no port; write one from 1 to 65535", port.value);
            out.error(port.at, said);
        }
    }
    let rules = responder.content.len() * responder.ports.len().max(1);
    if rules > MOST_RULES {
        let at = responder.content.first().map_or(responder.at, |it| it.at);
        let said = format!(
            "`content` and `ports` make {rules} pairs, and there can be {MOST_RULES}; write wider prefixes, or fewer ports"
        );
        out.error(at, said);
    }
    if responder.content.is_empty() {
        let of_no_use = [
            ("ports", responder.ports.first().map(|port| port.at)),
            ("content_rate", responder.content_rate.map(|rate| rate.at)),
        ];
        for (key, at) in of_no_use {
            if let Some(at) = at {
                let said = format!(
                    "`{key}` is of no use without `content`; list prefixes there, or remove it"
                );
                out.warning(at, said);
            }
        }
    }
}

impl FromValue for Choose {
    const EXAMPLE: &'static str = "\"fixed\", \"throughput\" or \"latency\"";

    fn from_value(value: &DeValue<'_>) -> Result<Option<Self>, String> {
        let Some(word) = value.as_str() else {
            return Ok(None);
        };
        let all = [Self::Fixed, Self::Throughput, Self::Latency];
        let found = all.into_iter().find(|choose| choose.name() == word);
        let wrong = || {
            format!(
                "servers can't be chosen by `{word}`; write {}",
                Self::EXAMPLE
            )
        };
        found.map(Some).ok_or_else(wrong)
    }
}

impl FromValue for Rate {
    const EXAMPLE: &'static str = "\"100Mbit\"";

    fn from_value(value: &DeValue<'_>) -> Result<Option<Self>, String> {
        let Some(text) = value.as_str() else {
            return Ok(None);
        };
        let wrong =
            || format!("`{text}` is no rate; write it like \"500kbit\", \"100Mbit\" or \"1Gbit\"");
        let unit = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, unit) = text.split_at(unit);
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let kbit = match unit {
            "kbit" => 1,
            "Mbit" => 1000,
            "Gbit" => 1_000_000,
            _ => return Err(wrong()),
        };
        let rate = number.checked_mul(kbit).filter(|rate| *rate > 0);
        rate.map(|rate| Some(Self::from_kbit(rate)))
            .ok_or_else(wrong)
    }
}

const INTERVAL: Duration = Duration::from_secs(300);
const LEAST_INTERVAL: Duration = Duration::from_secs(10);
const MOST_INTERVAL: Duration = Duration::from_secs(86_400);
const BYTES: i64 = 64 << 20;
/// Two servers' shortest rounds.
const LEAST_BYTES: i64 = 200_000;
/// Pairs of a prefix and a port that legs are asked to.
const MOST_RULES: usize = 256;
