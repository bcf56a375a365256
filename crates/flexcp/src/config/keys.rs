//! The keys of the configuration file, once: the reader knows no others, and the file's [schema](super::schema()) is made of
//! them.

/// A section's keys.
pub(super) type Keys = &'static [Key];

/// A key, and what may stand behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// What holds when it is left out, if a file could say so.
    pub(super) default: Option<Value>,
    pub(super) is_required: bool,
    pub(super) about: &'static str,
}

/// A value as a file has it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Text(&'static str),
    Number(i64),
    Flag(bool),
}

/// What a value may be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// One word.
    Name,
    /// Of a network device.
    Interface,
    /// From the root on.
    Path,
    /// From, to.
    Number(i64, i64),
    Flag,
    /// Seconds, or "2h5m".
    Duration,
    /// "512MB".
    Memory,
    /// "100Mbit".
    Rate,
    /// 2, or 0.5.
    Percent,
    /// { dsl = 30, lte = 70 }.
    Weights,
    OneOf(&'static [&'static str]),
    /// "192.0.2.0/24".
    Prefix,
    /// "192.0.2.1".
    Address,
    /// "192.0.2.1:443".
    Socket,
    /// "192.0.2.1:443", or with a weight: { address = "192.0.2.1:443", weight = 3 }.
    Backend,
    /// { address = "192.0.2.1:7124", mode = "convert" }.
    Server,
    /// "192.0.2.0/24", or { prefix = "192.0.2.0/24", ports = [22] }.
    Exception,
    /// { every = "2s", timeout = "1s", fall = 3, rise = 2 }.
    Check,
    /// "192.0.2.1", or with a port.
    Announce,
    /// 80, or "8000-8999".
    Ports,
    /// "name:password".
    User,
    /// Any number of them.
    List(&'static Self),
    /// One of them at least.
    Some(&'static Self),
}

/// The names of keys.
pub(super) fn names(keys: &[Key]) -> Vec<&'static str> {
    keys.iter().map(|key| key.name).collect()
}

const fn key(name: &'static str, kind: Kind, about: &'static str) -> Key {
    Key {
        name,
        kind,
        default: None,
        is_required: false,
        about,
    }
}

impl Key {
    const fn required(self) -> Self {
        Self {
            is_required: true,
            ..self
        }
    }

    const fn or(self, default: Value) -> Self {
        Self {
            default: Some(default),
            ..self
        }
    }
}

/// Sections that stand once, by their names.
pub(super) const SECTIONS: &[(&str, Keys)] = &[
    ("device", DEVICE),
    ("offload", OFFLOAD),
    ("control", CONTROL),
    ("limits", LIMITS),
    ("timeouts", TIMEOUTS),
    ("responder", RESPONDER),
];

/// Sections that may stand several times. `service` is among them, and has a mode's keys, too.
pub(super) const LISTS: &[(&str, Keys)] =
    &[("service", SERVICE), ("access", ACCESS), ("rule", RULE)];

/// `[device]`
pub(super) const DEVICE: Keys = &[
    key(
        "name",
        Kind::Interface,
        "Of the TUN device that FlexCP makes.",
    )
    .or(Value::Text("flexcp0")),
    key(
        "table",
        Kind::Number(1, u32::MAX as i64),
        "Number of the routing table that leads to the device.",
    )
    .or(Value::Number(7300)),
    key("workers", Kind::Number(1, 64), "Threads that translate.").or(Value::Number(1)),
    key(
        "placement",
        Kind::OneOf(&["owner", "kernel", "scatter"]),
        "How packets come to one of several workers.",
    )
    .or(Value::Text("owner")),
    key("pin", Kind::Flag, "Each worker to a CPU of its own.").or(Value::Flag(false)),
    key(
        "vrf",
        Kind::Interface,
        "The VRF that the device is put into.",
    ),
];

/// `[offload]`
pub(super) const OFFLOAD: Keys = &[
    key(
        "enabled",
        Kind::Flag,
        "Whether programs in the kernel translate what needs no decision.",
    )
    .or(Value::Flag(true)),
    key(
        "connections",
        Kind::Number(1, 1 << 20),
        "So many at a time at most.",
    )
    .or(Value::Number(4096)),
    key(
        "attach",
        Kind::OneOf(&["auto", "clsact"]),
        "How the programs get at packets.",
    )
    .or(Value::Text("auto")),
    key(
        "mark",
        Kind::Number(0, u32::MAX as i64),
        "Bits that they set in the mark of plain TCP on the path; 0: it passes through FlexCP.",
    )
    .or(Value::Number(0x1000_0000)),
];

/// `[control]`
pub(super) const CONTROL: Keys = &[
    key(
        "socket",
        Kind::Path,
        "The Unix socket on which a running FlexCP is asked.",
    )
    .or(Value::Text("/run/flexcp/flexcp.sock")),
    key(
        "state_dir",
        Kind::Path,
        "Where FlexCP notes what it has changed in the kernel.",
    )
    .or(Value::Text("/run/flexcp")),
    key(
        "rules_file",
        Kind::Path,
        "The file that keeps rules which the API has set.",
    ),
    key(
        "listen",
        Kind::Socket,
        "An address of TCP on which it is asked, too; needs token_file.",
    ),
    key(
        "token_file",
        Kind::Path,
        "The file whose first line is the token that whoever asks over TCP has to send.",
    ),
];

/// `[limits]`
pub(super) const LIMITS: Keys = &[
    key("connections", COUNT, "Of all services together.").or(Value::Number(1_048_576)),
    key(
        "half_open",
        COUNT,
        "Connections whose handshake is not complete.",
    )
    .or(Value::Number(16_384)),
    key("subflows", Kind::Number(1, 8), "Of one connection.").or(Value::Number(8)),
    key(
        "half_open_joins",
        COUNT,
        "Joins of one connection that have not authenticated themselves.",
    )
    .or(Value::Number(4)),
    key(
        "mappings",
        COUNT,
        "Runs of unacknowledged data on one subflow and direction.",
    )
    .or(Value::Number(4096)),
    key(
        "memory",
        Kind::Memory,
        "What all connections together take; a quarter of the machine's when left out.",
    ),
    key(
        "client_connections",
        COUNT,
        "Of one client that names its servers: an IPv4 address, or 64 bits of an IPv6 one.",
    )
    .or(Value::Number(4096)),
    key(
        "client_rate",
        Kind::Number(1, 1_000_000),
        "Connections that such a client opens in a second.",
    )
    .or(Value::Number(1024)),
];

/// `[timeouts]`
pub(super) const TIMEOUTS: Keys = &[
    key(
        "idle",
        Kind::Duration,
        "An established connection without a packet.",
    )
    .or(Value::Text("2h5m")),
    key(
        "half_open",
        Kind::Duration,
        "A connection whose handshake does not complete.",
    )
    .or(Value::Text("4m")),
    key(
        "rejoin",
        Kind::Duration,
        "A connection whose last subflow is gone.",
    )
    .or(Value::Text("60s")),
    key(
        "linger",
        Kind::Duration,
        "A connection that both ends have closed.",
    )
    .or(Value::Text("10s")),
    key(
        "add_addr",
        Kind::Duration,
        "Between two copies of an announced address.",
    )
    .or(Value::Text("1s")),
    key(
        "silence",
        Kind::Duration,
        "Silence with data outstanding, after which a subflow is left.",
    )
    .or(Value::Text("100ms")),
    key(
        "drain",
        Kind::Duration,
        "What connections have to end by themselves at a stop.",
    )
    .or(Value::Text("5s")),
];

/// `[responder]`
pub(super) const RESPONDER: Keys = &[
    key(
        "listen",
        Kind::Some(&Kind::Socket),
        "Addresses and UDP ports at which probes of boxes are answered.",
    )
    .required(),
    key(
        "key_file",
        Kind::Path,
        "The file of the boxes' keys, one a line; nobody is answered without one of them.",
    )
    .required(),
    key(
        "content",
        Kind::List(&Kind::Prefix),
        "Content servers to which boxes may ask for the own leg; none when left out.",
    ),
    key(
        "ports",
        Kind::List(&Kind::Number(1, 65_535)),
        "Their ports; any when left out.",
    ),
    key(
        "content_rate",
        Kind::Rate,
        "What the own leg lets through; not known when left out.",
    ),
];

/// What carries connections.
const CARRIER: Kind = Kind::OneOf(&["splitless", "split", "auto"]);

/// `[[service]]`, whatever its mode.
pub(super) const SERVICE: Keys = &[
    key(
        "name",
        Kind::Name,
        "By which logs name it, and a reload knows it.",
    )
    .required(),
    key(
        "mode",
        Kind::OneOf(&["transparent", "reverse", "convert", "socks5", "box"]),
        "How clients and servers meet.",
    )
    .required(),
    key(
        "interfaces",
        Kind::List(&Kind::Interface),
        "On which the clients' packets come in; any when left out.",
    ),
    key(
        "announce",
        Kind::List(&Kind::Announce),
        "Further addresses that clients may join.",
    ),
    key(
        "offload",
        Kind::OneOf(&["auto", "off"]),
        "Whether programs in the kernel may translate its connections.",
    )
    .or(Value::Text("auto")),
    key(
        "carrier",
        CARRIER,
        "What carries its connections unless a rule says otherwise; rules can't when left out, and it is FlexCP's translation.",
    ),
];

/// What a service with `mode = "transparent"` has beside.
pub(super) const TRANSPARENT: Keys = &[
    key(
        "destinations",
        Kind::Some(&Kind::Prefix),
        "The servers' prefixes.",
    )
    .required(),
    key(
        "ports",
        Kind::List(&Kind::Ports),
        "The servers' ports; all when left out.",
    ),
    key(
        "end_to_end",
        Kind::Flag,
        "Whether a server that speaks MPTCP may answer the client itself.",
    )
    .or(Value::Flag(true)),
];

/// What a service with `mode = "reverse"` has beside.
pub(super) const REVERSE: Keys = &[
    key(
        "listen",
        Kind::Some(&Kind::Socket),
        "Where clients connect to.",
    )
    .required(),
    key(
        "backends",
        Kind::Some(&Kind::Backend),
        "The servers, taken in turn, or by their weights.",
    )
    .required(),
    key(
        "check",
        Kind::Check,
        "How they are asked at regular times whether they answer; they are not when left out.",
    ),
    key(
        "proxy_protocol",
        Kind::OneOf(&["off", "v2"]),
        "Whether a header before each stream tells them who the client is.",
    )
    .or(Value::Text("off")),
    key(
        "source",
        Kind::List(&Kind::Address),
        "FlexCP's addresses towards them; the kernel's choice when left out.",
    ),
    key("source_ports", Kind::Ports, "FlexCP's ports towards them.").or(Value::Text("61000-65534")),
];

/// What a service with `mode = "convert"` has beside.
pub(super) const CONVERT: Keys = &[
    key(
        "listen",
        Kind::Some(&Kind::Socket),
        "Where clients connect to.",
    )
    .required(),
    key(
        "allow",
        Kind::Some(&Kind::Prefix),
        "Prefixes of the servers that clients may name; a private or own one takes a prefix of its own.",
    )
    .required(),
    key(
        "ports",
        Kind::List(&Kind::Ports),
        "The servers' ports; all when left out.",
    ),
    key(
        "source",
        Kind::List(&Kind::Address),
        "FlexCP's addresses towards them; those of `listen` when left out.",
    ),
    key("source_ports", Kind::Ports, "FlexCP's ports towards them.").or(Value::Text("61000-65534")),
    key(
        "cookies",
        Kind::Flag,
        "Clients have to bring a cookie, which they are given at their first attempt.",
    )
    .or(Value::Flag(false)),
];

/// What a service with `mode = "socks5"` has beside.
pub(super) const SOCKS5: Keys = &[
    CONVERT[0],
    CONVERT[1],
    CONVERT[2],
    CONVERT[3],
    CONVERT[4],
    key(
        "users",
        Kind::List(&Kind::User),
        "Who may come in; nobody is asked who he is when left out.",
    ),
];

/// What a service with `mode = "box"` has beside.
pub(super) const BOX: Keys = &[
    TRANSPARENT[0],
    TRANSPARENT[1],
    key(
        "except",
        Kind::List(&Kind::Exception),
        "Of those, servers whose connections pass as they are.",
    ),
    key(
        "servers",
        Kind::List(&Kind::Server),
        "Aggregation servers, which connect on: the next when one does not answer, the server itself without one.",
    ),
    key(
        "choose",
        Kind::OneOf(&["fixed", "throughput", "latency"]),
        "By what they are ordered; they are probed unless it is \"fixed\".",
    )
    .or(Value::Text("fixed")),
    key(
        "content",
        Kind::Socket,
        "The content server to which they are asked for their own leg.",
    ),
    key(
        "probe_interval",
        Kind::Duration,
        "Between two rounds of probes over a path, 10 s to a day.",
    )
    .or(Value::Text("5m")),
    key(
        "probe_bytes",
        Kind::Memory,
        "Of probes in any hour, both ways.",
    )
    .or(Value::Text("64MiB")),
    key(
        "join",
        Kind::List(&Kind::Prefix),
        "Of addresses at which connections join servers that announce them; none when left out.",
    ),
    key(
        "uplinks",
        Kind::Some(&Kind::Interface),
        "Interfaces that connections go out by: they begin on the first, and join over the others.",
    )
    .required(),
    key(
        "source_ports",
        Kind::Ports,
        "FlexCP's ports on the uplinks.",
    )
    .or(Value::Text("61000-65534")),
    key(
        "routes",
        Kind::Flag,
        "Whether FlexCP has what leaves from an uplink's address leave by that uplink.",
    )
    .or(Value::Flag(true)),
];

/// `[[access]]`
pub(super) const ACCESS: Keys = &[
    key(
        "name",
        Kind::Name,
        "By which rules and flexcp show name it.",
    )
    .required(),
    key(
        "clients",
        Kind::List(&Kind::Prefix),
        "Prefixes of the clients' ends; any when left out.",
    ),
    key(
        "addresses",
        Kind::List(&Kind::Address),
        "That clients address on it; any when left out.",
    ),
    key(
        "interfaces",
        Kind::List(&Kind::Interface),
        "By which packets leave for the clients' ends; any when left out.",
    ),
];

/// `[[rule]]`
pub(super) const RULE: Keys = &[
    key("name", Kind::Name, "By which flexcp show names it.").required(),
    key(
        "services",
        Kind::List(&Kind::Name),
        "Of these services; of any when left out.",
    ),
    key(
        "servers",
        Kind::List(&Kind::Prefix),
        "To these servers; to any when left out.",
    ),
    key(
        "ports",
        Kind::List(&Kind::Ports),
        "To these ports; to any when left out.",
    ),
    key(
        "clients",
        Kind::List(&Kind::Prefix),
        "Where the clients came from first; anywhere when left out.",
    ),
    key(
        "mode",
        Kind::OneOf(&[
            "active-standby",
            "smallest-delay",
            "load-balancing",
            "priority",
            "redundant",
            "random",
            "round-robin",
        ]),
        "Which of its paths a connection's download takes.",
    )
    .required(),
    key(
        "accesses",
        Kind::List(&Kind::Name),
        "The active one first, then those for when it fails or is congested.",
    ),
    key(
        "weights",
        Kind::Weights,
        "The parts of the bytes that accesses carry; where connections fare best when left out.",
    ),
    key(
        "max_rtt",
        Kind::Duration,
        "Round-trip time beyond which a path is left, or its data copied.",
    ),
    key(
        "max_loss",
        Kind::Percent,
        "What may be sent again, in percent, before a path is left, or its data copied.",
    ),
    key(
        "hold",
        Kind::Duration,
        "How long a connection stays where it was moved.",
    )
    .or(Value::Text("1s")),
    key(
        "fail_back",
        Kind::Duration,
        "How long it stays away from an access before those it was moved to.",
    )
    .or(Value::Text("5s")),
    key(
        "client_backup",
        Kind::Flag,
        "Whether a path that the client wants as backup is taken when no other is left alone.",
    )
    .or(Value::Flag(true)),
    key(
        "carrier",
        CARRIER,
        "What carries connections of services that have a carrier; what those say when left out.",
    ),
];

/// A bound on something that there may be billions of.
const COUNT: Kind = Kind::Number(1, u32::MAX as i64);
