//! The state of a connection in its steady course, as it is installed in a fast path: programs in the kernel that
//! translate what comes as expected and leave everything else to the translator.
//!
//! A [`FlowEntry`] is all that the fast path knows. It counts on in it, and gives it back on demand; from then on it
//! leaves the connection alone until it gets the next one. Layouts are those of `bpf/offload.h`.

mod installation;

use core::fmt::Debug;
use core::net::IpAddr;

use flexcp_wire::Ends;

pub(crate) use self::installation::{FEW, Hold, Installation};

/// Subflows that a flow entry has room for; a connection with more is not installed.
pub const ENTRY_SUBFLOWS: usize = 4;
/// Runs of mappings that a flow entry has room for.
pub const ENTRY_RUNS: usize = 128;
/// Stretches of the client's data on a subflow that a flow entry has room for.
pub const ENTRY_UPS: usize = 16;
/// Holes in the server's data that a flow entry has room for.
pub const ENTRY_HOLES: usize = 4;

/// What the translator asks of a fast path.
///
/// Every call is an exchange of plain state. Between [`install`](Self::install) and [`evict`](Self::evict) the
/// state is the fast path's.
pub trait FastPath: Debug + Send {
    /// Installs a connection. `slot`: where it was installed before, unless that was [released](Self::release). `passed`: only
    /// if so many of its packets have been [punted](Self::punted) and no more, as a later one would overtake those.
    fn install(&mut self, slot: Option<u32>, entry: &FlowEntry, passed: Option<u32>) -> Installed;
    /// Takes a connection back: when this returns, the fast path touches it no more.
    fn evict(&mut self, slot: u32) -> FlowEntry;
    /// An installed connection as it is now; it stays installed.
    fn peek(&self, slot: u32) -> FlowEntry;
    /// Calls `each` with every installed connection as it is now; they stay installed.
    fn peek_all(&self, each: &mut dyn FnMut(&FlowEntry));
    /// Frees a slot whose connection has been evicted.
    fn release(&mut self, slot: u32);
    /// Slots that are not free.
    fn held(&self) -> u32;
    /// Calls `each` with the [`account`](FlowEntry::account) of flow entries, and the bytes that have gone down on that account
    /// since the last call.
    fn carried(&mut self, _each: &mut dyn FnMut(u32, u64)) {}
    /// How many packets of the connection that has the slot have passed the fast path on their way up to the
    /// translator, installed or not, from some beginning on and modulo 2^32; `None`: it does not know.
    fn punted(&self, _slot: u32) -> Option<u32> {
        None
    }
    /// Lets what passes between these ends go its way without the translator, in both directions, until a SYN comes from
    /// one to the other: plain TCP on the path. `false`: it can't; the translator forwards it.
    fn pass_by(&mut self, _ends: Ends) -> bool {
        false
    }
    /// Whether the SYN between these ends, which has just come, has passed the fast path, and what follows it will go to the host's
    /// socket that has the connection, without the translator. `false`: it would be lost.
    fn leaves_to_socket(&mut self, _ends: Ends) -> bool {
        false
    }
    /// Installs no connection to these servers from here on: they are on this host itself, where it sees nothing.
    fn leave_out(&mut self, _servers: &[IpAddr]) {}
}

/// What came of installing a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Installed {
    /// It is installed, in this slot.
    Slot(u32),
    /// Another of its packets has passed the fast path on its way up.
    NotNow,
    /// There is no room, or the fast path can't have it.
    NoRoom,
    /// Its packets have to pass rules of the host that the fast path does not apply.
    Never,
}

/// Equally long mappings one behind the other.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MappingRun {
    /// SSN of the first.
    pub ssn: u32,
    /// Bytes of each.
    pub len: u16,
    /// How many there are.
    pub count: u16,
}

/// Data of the server's that later data has overtaken: its place on the active subflow is kept.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Hole {
    /// TCP sequence number of its first byte on the server's side.
    pub seq: u32,
    /// Its bytes; 0: none.
    pub len: u32,
}

/// The client's data between two numbers of a subflow: one stretch of both spaces.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct UpRun {
    /// DSN of its first byte, the low half.
    pub dsn: u32,
    /// Its bytes.
    pub len: u32,
}

/// Round-trip times of a subflow, in microseconds.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct EntryRtt {
    /// SRTT of data (RFC 6298); 0: not known.
    pub smoothed: u32,
    /// RTTVAR.
    pub variation: u32,
    /// The last sample of data; 0: there is none.
    pub last: u32,
    /// The shorter of the last two.
    pub recent: u32,
    /// The least of the last minutes, the handshake's among them; 0: not known.
    pub least: u32,
    /// When that was, in steps of 2^20 microseconds.
    pub least_at: u32,
}

/// What a subflow delivers.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct EntryDelivery {
    /// When the span being measured began.
    pub since: u64,
    /// What was ACKed then.
    pub from: u32,
    /// The most that was outstanding in it, in bytes.
    pub flight: u32,
    /// The same of the span before.
    pub window: u32,
    /// Bytes ACKed per second of the span before.
    pub rate: u32,
}

/// One subflow of an installed connection. Sequence numbers are those in TCP headers, times are microseconds.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct EntrySubflow {
    /// The client's address in network order, an IPv4 one in the first four bytes.
    pub remote_addr: [u8; 16],
    /// What the client addresses.
    pub local_addr: [u8; 16],
    /// The client's port.
    pub remote_port: u16,
    /// Port that the client addresses.
    pub local_port: u16,
    /// 1: part of the flow entry; 0: an empty or foreign slot.
    pub installed: u8,
    /// Shift of the windows that the client offers on it.
    pub window_scale: u8,
    /// 1: the fast path has taken a sample of the RTT.
    pub sampled: u8,
    /// What answers may take beyond two round trips, in milliseconds; at least 5.
    pub late: u8,
    /// Initial number of the client.
    pub isn_remote: u32,
    /// Initial number of FlexCP.
    pub isn_local: u32,
    /// The next number to go down.
    pub snd_next: u32,
    /// Everything before it is ACKed by the client.
    pub snd_una: u32,
    /// Right edge of the client's window as this subflow was told.
    pub snd_edge: u32,
    /// What FlexCP ACKs to the client.
    pub rcv_ack: u32,
    /// Behind the last number that the client has sent.
    pub rcv_high: u32,
    /// Added to the client's TSval to get the initial subflow's.
    pub clock_offset: u32,
    /// The latest TSval that the client sent.
    pub clock_heard: u32,
    /// A number whose ACK gives the next RTT sample, or a TSval whose echo does.
    pub timed: u32,
    /// 1: a number; 2: a TSval; 3: neither, but there has been a sample; 0: nothing.
    pub timed_as: u32,
    /// Round-trip times between FlexCP and the client.
    pub rtt: EntryRtt,
    /// Largest payload plus options that the client takes in a segment.
    pub mss: u32,
    /// The latest TSval that came with data from where the subflow's ACK stood.
    pub clock_recent: u32,
    /// First used entry of its `ups`.
    pub first_up: u16,
    /// Entries that are used, from there on and round the end.
    pub ups_used: u16,
    /// Bytes at the end of its `ups` that a mapping has announced, and no packet has brought.
    pub announced: u32,
    /// Bytes of the client's last data, in one stretch, that ended at `rcv_ack`; 0: not known.
    pub recent_len: u32,
    /// Their DSN.
    pub recent_dsn: u64,
    /// When that went down, or the sample was taken.
    pub timed_at: u64,
    /// What it delivers to the client.
    pub delivery: EntryDelivery,
    /// Last packet from the client.
    pub last_heard: u64,
    /// When the first byte that is not ACKed went down, or the client last showed that something arrived.
    pub outstanding_since: u64,
    /// Payload that came up on it.
    pub bytes_up: u64,
    /// Payload that went down on it.
    pub bytes_down: u64,
}

/// An installed connection. Data sequence numbers are 64 bits long, times are microseconds.
///
/// All that is outstanding downwards stands on the active subflow, its SSNs and DSNs equally far apart: a byte
/// with SSN `s` has the DSN `down_next - (snd_next - s)`. What a subflow has brought up and the server has not
/// ACKed, from `rcv_ack` to `rcv_high`, are the stretches of its `ups`, with what is announced behind it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowEntry {
    /// The fast path's lock.
    pub lock: u32,
    /// 4 or 6.
    pub family: u32,
    /// The server's address in network order, an IPv4 one in the first four bytes.
    pub server_addr: [u8; 16],
    /// The address that the server sees.
    pub source_addr: [u8; 16],
    /// The server's port.
    pub server_port: u16,
    /// The port that the server sees.
    pub source_port: u16,
    /// Where new data goes down: an index of `subflows`.
    pub active: u32,
    /// The subflow that the client was heard on last.
    pub heard: u32,
    /// 1: data comes up in its order, or the translator has to see it.
    pub ordered: u32,
    /// Behind the last data that went down.
    pub down_next: u64,
    /// The client's data ACK.
    pub down_acked: u64,
    /// Right edge of the client's window.
    pub down_edge: u64,
    /// Behind the last data that went up.
    pub up_next: u64,
    /// The server's ACK.
    pub up_acked: u64,
    /// Right edge of the server's window, the furthest it has offered.
    pub server_edge: u64,
    /// TCP sequence number of `down_next` in the server's own packets.
    pub seq_down: u32,
    /// TCP sequence number of `up_next` on the server's side.
    pub seq_up: u32,
    /// Window that the server offered last, unscaled.
    pub server_window: u32,
    /// Shift of it, and of the windows that the client is told.
    pub server_scale: u16,
    /// Shift of the windows in the server's own packets.
    pub sent_scale: u16,
    /// The largest window that the server ever offered, in bytes.
    pub server_window_max: u32,
    /// MSS of the server.
    pub server_mss: u32,
    /// The largest window that the client ever offered, in bytes.
    pub client_window: u32,
    /// Shift of windows to the server: the initial subflow's.
    pub initial_scale: u16,
    /// 1: the server takes SACK.
    pub server_sack: u16,
    /// The latest TSval sent to the server.
    pub ts_sent: u32,
    /// The latest TSval from the server.
    pub ts_heard: u32,
    /// The latest echo of the server's TSval.
    pub ts_echo: u32,
    /// The server's TSval as it last repeated what the client ACKs next.
    pub ts_again: u32,
    /// IPv6 flow label of what goes up.
    pub label_up: u32,
    /// IPv6 flow label of what goes down.
    pub label_down: u32,
    /// First used entry of `runs`.
    pub first_run: u32,
    /// Entries of `runs` that are used, from `first_run` on and round the end.
    pub runs_used: u32,
    /// ACKs of FlexCP's own since it was installed.
    pub packets_made: u32,
    /// Where the bytes that go down are counted; 0: nowhere.
    pub account: u32,
    /// SRTT of the active subflow in microseconds above which the translator has to see what goes down; 0: any.
    pub patience: u32,
    /// What is added to the server's own TSvals to get what the client is told; `ts_heard` and `ts_echo` are the client's.
    pub ts_shift: u32,
    /// When `ts_sent` was sent.
    pub ts_sent_at: u64,
    /// What counts as silence of a path.
    pub silence: u64,
    /// The last packet of any end.
    pub last_packet: u64,
    /// Packets translated downwards since it was installed.
    pub packets_down: u64,
    /// Packets translated upwards since it was installed.
    pub packets_up: u64,
    /// What is missing of the server's data.
    pub holes: [Hole; ENTRY_HOLES],
    /// Its subflows, in the slots that they have with the translator.
    pub subflows: [EntrySubflow; ENTRY_SUBFLOWS],
    /// What the subflows have brought up, as their `first_up` and `ups_used` say.
    pub ups: [[UpRun; ENTRY_UPS]; ENTRY_SUBFLOWS],
    /// Mappings that were declared downwards since it was installed, in that order.
    pub runs: [MappingRun; ENTRY_RUNS],
}

impl Default for FlowEntry {
    fn default() -> Self {
        Self {
            lock: 0,
            family: 4,
            server_addr: [0; 16],
            source_addr: [0; 16],
            server_port: 0,
            source_port: 0,
            active: 0,
            heard: 0,
            ordered: 0,
            down_next: 0,
            down_acked: 0,
            down_edge: 0,
            up_next: 0,
            up_acked: 0,
            server_edge: 0,
            seq_down: 0,
            seq_up: 0,
            server_window: 0,
            server_scale: 0,
            sent_scale: 0,
            server_window_max: 0,
            server_mss: 0,
            client_window: 0,
            initial_scale: 0,
            server_sack: 0,
            ts_sent: 0,
            ts_heard: 0,
            ts_echo: 0,
            ts_again: 0,
            label_up: 0,
            label_down: 0,
            first_run: 0,
            runs_used: 0,
            packets_made: 0,
            account: 0,
            patience: 0,
            ts_shift: 0,
            ts_sent_at: 0,
            silence: 0,
            last_packet: 0,
            packets_down: 0,
            packets_up: 0,
            holes: [Hole::default(); ENTRY_HOLES],
            subflows: [EntrySubflow::default(); ENTRY_SUBFLOWS],
            ups: [[UpRun::default(); ENTRY_UPS]; ENTRY_SUBFLOWS],
            runs: [MappingRun::default(); ENTRY_RUNS],
        }
    }
}
