//! The rows of the matrix: a fault each, and what may come of it.

use super::cell::Way;

/// A fault and what may come of it.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// The faults on the way that has them; see `flexcp_faults`.
    pub faults: &'static str,
    /// Faults on the same links, the other way.
    pub back: &'static str,
    /// Directions that the fault makes sense for.
    pub ways: &'static [Way],
    /// Numbers of subflows that it makes sense for.
    pub subflows: &'static [u8],
    /// Links that have it.
    pub reach: Reach,
    /// What has to come of the transfer.
    pub verdict: Verdict,
    /// Whether the other subflows have to come about.
    pub joins: Joins,
    /// Bytes each way: enough for the fault to meet them.
    pub bytes: u64,
    /// Forbidden counters that may move.
    pub allow: &'static [Allow],
    /// Sysctls of the client; those of `net.ipv4` of the server too.
    pub sysctls: &'static [(&'static str, &'static str)],
    /// What becomes of it where FlexCP is a box, which opens the connection with MPTCP.
    pub mirror: Mirror,
}

/// What becomes of a row in mirror.
#[derive(Clone, Copy, Debug)]
pub enum Mirror {
    /// It stays as it is: what it does to who opens with MPTCP, it does to the box.
    Same,
    /// It becomes this one; why stands beside it.
    Changed(fn(Row) -> Row),
}

/// Which links have a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Every link.
    All,
    /// The one of the initial subflow.
    First,
    /// Those of the joined subflows.
    Others,
}

/// What has to come of a transfer. A wrong byte is a failure in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every byte arrives.
    Exact,
    /// Every byte arrives if there is a second subflow; a connection of one may end with an error.
    ExactIfJoined,
    /// The connection may end with an error.
    MayFail,
}

/// Whether the subflows beyond the first have to come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joins {
    /// Each of them: the fault loses and changes nothing that a join needs.
    All,
    /// One at least: the fault may lose the packets of others, and they come again too late.
    Some,
    /// None may: the fault takes from the handshakes what a join needs. The reason.
    Prevented(&'static str),
    /// Some may or may not: for this reason.
    Unjudged(&'static str),
}

/// Reasons for which forbidden counters may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allow {
    /// Packets with a wrong checksum arrive.
    Checksum,
    /// The connection falls back to TCP.
    Fallback,
    /// Subflows are reset or refused.
    Reset,
    /// Packets that are late, come twice or come from a rebound port look out of place.
    OutOfPlace,
    /// Data whose ACKs were lost comes again, and the answers to what is there already are too many for the rate that the
    /// kernel answers at (`tcp_oow_rate_limited`).
    AckedBefore,
    /// What was repeated overtakes what was late, whose timestamps are older then: of 4 MB both ways over one such link
    /// plain TCP throws away 15 to 38 packets.
    Overtaken,
    /// D-SACKs for copies that the network made: a sender that did not retransmit as often does not
    /// believe them (Linux, `tcp_dsack_seen`) and takes the block for nonsense.
    NetworkCopies,
}

impl Allow {
    /// The counters.
    pub const fn counters(self) -> &'static [&'static str] {
        match self {
            Self::Checksum => &["TcpInCsumErrors", "TcpInErrs"],
            Self::Fallback => crate::FALLBACKS,
            Self::Reset => &["MPRstTx", "MPRstRx", "MPFastcloseRx", "MPFastcloseTx"],
            Self::AckedBefore => &["TCPACKSkippedSeq"],
            Self::Overtaken => crate::OVERTAKEN,
            Self::NetworkCopies => &["TCPSACKDiscard"],
            Self::OutOfPlace => &[
                "TCPChallengeACK",
                "TCPACKSkippedSeq",
                "TCPACKSkippedChallenge",
                "TCPACKSkippedPAWS",
                "TCPACKSkippedSynRecv",
                "TCPACKSkippedFinWait2",
                "TCPACKSkippedTimeWait",
                "PAWSOldAck",
                "BeyondWindow",
            ],
        }
    }
}

/// All rows.
pub fn rows() -> Vec<Row> {
    let mut rows = impairments();
    rows.extend(strips());
    rows.extend(drops());
    rows.extend(middleboxes());
    rows
}

/// So much that a transfer is still under way half a second after its beginning, on four links, too.
const LONG: u64 = 16_000_000;

/// What links do.
fn impairments() -> Vec<Row> {
    const LATE: &[Allow] = &[Allow::OutOfPlace, Allow::Overtaken];
    vec![
        row("clean", ""),
        row("loss-0.1", "loss=0.1%").joins(Joins::Some),
        row("loss-1", "loss=1%").joins(Joins::Some),
        row("loss-5", "loss=5%").joins(Joins::Some),
        // A burst lasts for so many packets, not for a time: a sender that has nothing but one repetition after the other
        // would lose all of them in a longer one, and stand still for many seconds.
        row("burst", "burst=1%:50%").joins(Joins::Some),
        row("delay-10", "delay=10ms"),
        row("delay-100", "delay=100ms"),
        row("jitter", "jitter=5ms"),
        row("jitter-reorder", "jitter=5ms:reorder").allow(LATE),
        row("reorder-5", "reorder=5%:5ms").allow(LATE),
        row("reorder-25", "reorder=25%:5ms").allow(LATE),
        row("duplicate-1", "duplicate=1%").allow(&[Allow::OutOfPlace, Allow::NetworkCopies]),
        row("corrupt-payload", "corrupt=0.1%:payload")
            .joins(Joins::Some)
            .allow(&[Allow::Checksum]),
        row("corrupt-header", "corrupt=0.1%:header")
            .joins(Joins::Some)
            .allow(&[Allow::Checksum]),
        row("flap", "flap=800ms:200ms")
            .on(Reach::First)
            .joins(Joins::Some)
            .bytes(LONG),
        row("blackhole", "blackhole=200ms..1200ms")
            .on(Reach::First)
            .joins(Joins::Some)
            .bytes(LONG),
        row("rate-10-1", "rate=8mbit:100kb,delay=2ms")
            .on(Reach::Others)
            .with(&[2, 4]),
        row("ce-10", "ce=10%").sysctls(&[("net.ipv4.tcp_ecn", "1")]),
    ]
}

/// Middleboxes that remove options.
fn strips() -> Vec<Row> {
    const PLAIN: &[Allow] = &[Allow::Fallback];
    const JOIN: &[Allow] = &[Allow::Reset];
    const NO_MPTCP: Joins = Joins::Prevented("the connection is plain TCP");
    const NO_JOIN: Joins = Joins::Prevented("the joins' options go");
    const NOT_ALL: Joins =
        Joins::Unjudged("the connection or its other subflows may fall back first");
    vec![
        row("strip-capable-syn", "strip=mptcp@syn")
            .only(UP)
            .joins(NO_MPTCP)
            .allow(PLAIN),
        row("strip-capable-syn-ack", "strip=mptcp@syn-ack")
            .only(DOWN)
            .joins(NO_MPTCP)
            .allow(PLAIN)
            .on(Reach::First),
        row("strip-capable-ack", "strip=mp-capable@ack")
            .only(UP)
            .joins(NOT_ALL)
            .allow(PLAIN),
        row("strip-join-syn", "strip=mp-join@syn")
            .only(UP)
            .with(&[2, 4])
            .joins(NO_JOIN)
            .allow(JOIN),
        row("strip-join-syn-ack", "strip=mp-join@syn-ack")
            .only(DOWN)
            .with(&[2, 4])
            .joins(NO_JOIN)
            .allow(JOIN),
        row("strip-join-ack", "strip=mp-join@ack")
            .only(UP)
            .with(&[2, 4])
            .joins(NO_JOIN)
            .allow(JOIN),
        row("strip-dss-data", "strip=dss@data")
            .verdict(Verdict::MayFail)
            .joins(NOT_ALL)
            .allow(&[Allow::Fallback, Allow::Reset]),
        row("strip-mptcp-later", "strip=mptcp@any#200")
            .verdict(Verdict::MayFail)
            .joins(NOT_ALL)
            .allow(&[Allow::Fallback, Allow::Reset]),
        row("strip-timestamps", "strip=timestamps@syn").only(UP),
        row("strip-sack", "strip=sack-permitted@syn")
            .only(UP)
            .joins(Joins::Prevented("FlexCP takes no joins without SACK")),
        row("strip-window-scale", "strip=window-scale@syn").only(UP),
    ]
}

/// Packets that matter, lost once.
fn drops() -> Vec<Row> {
    const JOIN: &[Allow] = &[Allow::Reset, Allow::OutOfPlace];
    vec![
        row("drop-syn", "drop=1:mp-capable")
            .only(UP)
            .on(Reach::First),
        row("drop-syn-ack", "drop=1:mp-capable")
            .only(DOWN)
            .on(Reach::First)
            .allow(&[Allow::OutOfPlace]),
        row("drop-third-ack", "drop=2:mp-capable")
            .only(UP)
            .on(Reach::First)
            .allow(&[Allow::OutOfPlace]),
        row("drop-capable-data", "drop=2..3:mp-capable")
            .only(UP)
            .on(Reach::First)
            .allow(&[Allow::OutOfPlace])
            // The next data is the first that the server hears, without keys: a server of the kernel falls back, to a client of the
            // kernel as well (`--side kernel`).
            .mirror(|row| {
                row.joins(Joins::Unjudged("the server falls back"))
                    .allow(&[Allow::OutOfPlace, Allow::Fallback])
            }),
        row("drop-join-syn", "drop=1:mp-join")
            .only(UP)
            .joins(Joins::Some)
            .bytes(LONG)
            .with(&[2, 4]),
        row("drop-join-syn-ack", "drop=1:mp-join")
            .only(DOWN)
            .joins(Joins::Some)
            .bytes(LONG)
            .with(&[2, 4])
            .allow(JOIN),
        row("drop-join-ack", "drop=2:mp-join")
            .only(UP)
            .joins(Joins::Some)
            .bytes(LONG)
            .with(&[2, 4])
            .allow(JOIN),
        row("drop-first-data", "drop=1:data"),
        row("drop-three-data", "drop=20..22:data"),
        row("drop-acks", "drop=10..20:ack").allow(&[Allow::AckedBefore]),
        row("drop-fin", "drop=1..2:fin"),
    ]
}

/// Middleboxes that rewrite.
fn middleboxes() -> Vec<Row> {
    const NO_MPTCP: Joins = Joins::Unjudged("a SYN with two MP_CAPABLE may be taken or not");
    vec![
        row("resegment-500", "resegment=500"),
        row("resegment-1", "resegment=1:10%"),
        // FlexCP gives each packet down a mapping of its own, and segments with other options are not joined.
        Row {
            back: "mss=536",
            ..row("coalesce", "mss=536,coalesce=2ms:1400")
                .only(UP)
                // What FlexCP sends goes the other way.
                .mirror(|row| row.only(DOWN))
        },
        Row {
            back: "mss=536",
            ..row("mss-536", "mss=536")
        },
        // The server's windows look like an eighth to the client, and those of the client like a sixty-fourth to the
        // server. The other way round a client would send one segment at a time, and wait for the delayed ACK of each.
        row("window-scale-4", "wscale=4").only(UP),
        row("window-scale-7", "wscale=7").only(DOWN),
        row("shift-timestamps", "shift-ts=100000"),
        row("double-capable", "double=mptcp@syn")
            .only(UP)
            .joins(NO_MPTCP)
            .allow(&[Allow::Fallback, Allow::Reset]),
        row("nat", "nat").only(UP),
        row("nat-rebind", "nat=at250ms")
            .only(UP)
            .bytes(LONG)
            .on(Reach::First)
            .verdict(Verdict::ExactIfJoined)
            .allow(&[Allow::Reset, Allow::OutOfPlace])
            // A box whose only subflow goes hears that by the server's RST, and joins anew.
            .mirror(|row| row.verdict(Verdict::Exact)),
        row("isn", "isn"),
        row("firewall", "isn,shift-ts=100000,nat,resegment=700:20%").only(UP),
    ]
}

/// Each way, unless the row needs more.
const BYTES: u64 = 2_000_000;

const UP: &[Way] = &[Way::Up];
const DOWN: &[Way] = &[Way::Down];

const fn row(name: &'static str, faults: &'static str) -> Row {
    Row {
        name,
        faults,
        back: "",
        ways: &[Way::Up, Way::Down],
        subflows: &[1, 2, 4],
        reach: Reach::All,
        verdict: Verdict::Exact,
        joins: Joins::All,
        bytes: BYTES,
        allow: &[],
        sysctls: &[],
        mirror: Mirror::Same,
    }
}

impl Row {
    const fn only(mut self, ways: &'static [Way]) -> Self {
        self.ways = ways;
        self
    }

    const fn with(mut self, subflows: &'static [u8]) -> Self {
        self.subflows = subflows;
        self
    }

    const fn on(mut self, reach: Reach) -> Self {
        self.reach = reach;
        self
    }

    const fn verdict(mut self, verdict: Verdict) -> Self {
        self.verdict = verdict;
        self
    }

    const fn allow(mut self, allow: &'static [Allow]) -> Self {
        self.allow = allow;
        self
    }

    const fn joins(mut self, joins: Joins) -> Self {
        self.joins = joins;
        self
    }

    const fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }

    const fn sysctls(mut self, sysctls: &'static [(&'static str, &'static str)]) -> Self {
        self.sysctls = sysctls;
        self
    }

    const fn mirror(mut self, change: fn(Self) -> Self) -> Self {
        self.mirror = Mirror::Changed(change);
        self
    }
}
