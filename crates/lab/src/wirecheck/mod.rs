//! The rules of the wire, checked on captures that were taken on both sides of FlexCP.
//!
//! Files are merged by time. A capture does not say which way a packet went: the client's end of a
//! flow is the one that sent its SYN, so flows whose SYN was not captured can't be judged.

mod frames;
mod packets;

use std::cmp::Reverse;
use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
pub use flexcp_invariants::Preamble;
use flexcp_invariants::{Checker, Observation, Options, Point, Violation};
use flexcp_wire::{ChecksumState, Offload, TcpFlags, TcpSeq};

use frames::{Frame, Frames};
use packets::tcp_ends;
pub use packets::{Taken, packets};

/// Captures to check.
#[derive(Clone, Debug)]
pub struct WireCheck {
    /// From the interfaces on the clients' side.
    pub client: Vec<PathBuf>,
    /// From those on the servers' side.
    pub server: Vec<PathBuf>,
    /// The interfaces cut packets and complete checksums by software before they were captured
    /// (`ethtool -K ... off`), so that lengths and checksums are those of the wire.
    pub offloads_off: bool,
    /// Programs in the kernel translate, too: those of two processors, on which packets of two subflows have come, send
    /// at the same time, and which packet reaches a device first is chance.
    pub offload: bool,
    /// Where FlexCP has clients name their server, and how: what they say before their stream is judged as well.
    pub explicit: Vec<(SocketAddr, Preamble)>,
}

/// What the captures say.
#[derive(Debug)]
pub struct Findings {
    /// TCP packets that were judged.
    pub packets: u64,
    /// Flows whose SYN was seen, with clients and with servers.
    pub flows: [usize; 2],
    /// TCP packets of flows whose SYN was not captured.
    pub strays: u64,
    /// Packets that those of another processor overtook: by 50 us at most, ACKs alone by 20 ms.
    pub overtaken: u64,
    /// How often a rule was broken.
    pub violations: u64,
    /// The first of them.
    pub found: Vec<Found>,
}

/// A broken rule and the packet that broke it.
#[derive(Debug)]
pub struct Found {
    /// The file.
    pub file: PathBuf,
    /// The packet's place in it, from 1.
    pub number: u64,
    /// Which rule, when (microseconds since 1970), and how.
    pub violation: Violation,
}

/// What to believe where a packet stands behind one of its flow and its way whose time is later.
///
/// The kernel chooses a packet's place in the capture at one moment and looks at the clock at another: afterwards, or, as
/// long as any socket of the machine wants timestamps, before (`netstamp_needed_key`). What comes between, another
/// processor's packets among it, has the right place in the first case and the right time in the second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Belief {
    Place,
    Clock,
}

impl WireCheck {
    /// Checks all files together. A rule is broken if it is whichever of place and clock is believed.
    ///
    /// # Errors
    ///
    /// A file can't be read, or nothing in the captures can be judged.
    pub fn run(&self) -> Result<Findings> {
        let by_place = self.read(Belief::Place)?;
        if by_place.violations == 0 {
            return Ok(by_place);
        }
        Ok(by_place.unless_clean(self.read(Belief::Clock)?))
    }

    fn read(&self, belief: Belief) -> Result<Findings> {
        let mut files = vec![];
        for (side, paths) in [(Side::Client, &self.client), (Side::Server, &self.server)] {
            for path in paths {
                files.push(Source::open(side, path, self.offload, belief)?);
            }
        }
        let options = Options {
            checksums: self.offloads_off,
            segments: self.offloads_off,
            ..Options::capture()
        };
        let mut judge = Judge::new(options);
        for &(listen, preamble) in &self.explicit {
            judge.checker.expect_preambles(listen, preamble);
        }
        let mut ends = [HashSet::new(), HashSet::new()];
        for file in &mut files {
            file.advance(&mut ends)?;
        }
        // What comes in goes first: what went out in the same moment may be caused by it.
        while let Some(file) = files
            .iter_mut()
            .filter(|file| file.head.is_some())
            .min_by_key(|file| file.order())
        {
            if let Some(head) = file.head.take() {
                judge.packet(file.frames.path(), &head);
            }
            file.advance(&mut ends)?;
        }
        let strays = files.iter().map(|file| file.strays).sum();
        let overtaken = files.iter().map(|file| file.overtaken).sum();
        judge.findings(ends.map(|ends| ends.len()), strays, overtaken)
    }
}

/// Nanoseconds between two packets of programs that run on two processors at the same time.
const SIDE_BY_SIDE: u64 = 50_000;

/// Nanoseconds for which a worker may be kept from sending the ACK alone with which it has installed a connection. Meanwhile
/// the programs send later ones.
const KEPT_FROM_SENDING: u64 = 20_000_000;

/// So many packets may be overtaken in any capture, and one in a thousand.
const OVERTAKEN_FEW: u64 = 2;

/// A side of FlexCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Client,
    Server,
}

/// Two ends of a flow: the one that opened it, and the other.
type Ends = (SocketAddr, SocketAddr);

/// A file and its next packet.
struct Source {
    frames: Frames,
    side: Side,
    head: Option<Head>,
    /// Behind `head`, where packets are put in the order in which they were translated.
    ahead: VecDeque<Head>,
    /// When the last that was read was captured; no later packet can have been overtaken by an earlier one than that.
    read_until: u64,
    side_by_side: bool,
    belief: Belief,
    strays: u64,
    overtaken: u64,
}

struct Head {
    frame: Frame,
    point: Point,
    ends: Ends,
    ack: TcpSeq,
    tsval: Option<u32>,
    /// It carries an ACK alone.
    alone: bool,
}

impl Head {
    /// Whether this packet was translated after `later`, which stands behind it in the capture: its ACK is the newer one, or
    /// its timestamp with the same ACK.
    fn overtook(&self, later: &Self) -> bool {
        self.is_newer(later) && self.time_to(later) <= SIDE_BY_SIDE
    }

    /// Whether `later` is an ACK alone to the client that was kept from being sent while this packet left.
    fn made_late(&self, later: &Self) -> bool {
        let kept = later.alone && later.point == Point::ToClient;
        kept && self.is_newer(later) && self.time_to(later) <= KEPT_FROM_SENDING
    }

    fn is_newer(&self, later: &Self) -> bool {
        !self.point.is_input()
            && self.point == later.point
            && self.ends == later.ends
            && (later.ack.before(self.ack) || later.ack == self.ack && self.has_later_clock(later))
    }

    fn has_later_clock(&self, later: &Self) -> bool {
        let pair = self.tsval.zip(later.tsval);
        pair.is_some_and(|(own, other)| TcpSeq(other).before(TcpSeq(own)))
    }

    fn time_to(&self, later: &Self) -> u64 {
        later.frame.time.saturating_sub(self.frame.time)
    }
}

impl Source {
    fn open(side: Side, path: &Path, side_by_side: bool, belief: Belief) -> Result<Self> {
        Ok(Self {
            frames: Frames::open(path)?,
            side,
            head: None,
            ahead: VecDeque::new(),
            read_until: 0,
            side_by_side,
            belief,
            strays: 0,
            overtaken: 0,
        })
    }

    fn order(&self) -> (u64, Reverse<bool>) {
        self.head
            .as_ref()
            .map_or((u64::MAX, Reverse(false)), |head| {
                (head.frame.time, Reverse(head.point.is_input()))
            })
    }

    /// Moves on to the next packet that can be judged.
    fn advance(&mut self, ends: &mut [HashSet<Ends>; 2]) -> Result<()> {
        while self
            .ahead
            .front()
            .is_none_or(|front| self.read_until <= front.frame.time + KEPT_FROM_SENDING)
        {
            let Some(head) = self.read(ends)? else {
                break;
            };
            self.read_until = head.frame.time;
            let late = |earlier: &Head| !earlier.overtook(&head) && earlier.made_late(&head);
            if self.side_by_side && self.ahead.iter().any(late) {
                // Whoever gets it has heard all that it says, over other subflows too.
                self.overtaken += 1;
                continue;
            }
            let overtaken = put_in_order(&mut self.ahead, head, self.side_by_side, self.belief);
            self.overtaken += u64::from(overtaken);
        }
        self.head = self.ahead.pop_front();
        Ok(())
    }

    fn read(&mut self, ends: &mut [HashSet<Ends>; 2]) -> Result<Option<Head>> {
        while let Some(frame) = self.frames.next()? {
            let Some((from, to, segment)) = tcp_ends(&frame.packet) else {
                continue;
            };
            let flags = segment.header.flags;
            let opened = &mut ends[self.side as usize];
            if flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::ACK) {
                opened.insert((from, to));
            }
            let outward = match (opened.contains(&(from, to)), opened.contains(&(to, from))) {
                (true, _) => false,
                (_, true) => true,
                _ => {
                    self.strays += 1;
                    continue;
                }
            };
            let point = match (self.side, outward) {
                (Side::Client, false) => Point::FromClient,
                (Side::Client, true) => Point::ToClient,
                (Side::Server, false) => Point::ToServer,
                (Side::Server, true) => Point::FromServer,
            };
            return Ok(Some(Head {
                frame,
                point,
                ends: (from, to),
                ack: TcpSeq(segment.header.ack),
                tsval: segment.tsval,
                alone: segment.payload == 0 && flags == TcpFlags::ACK,
            }));
        }
        Ok(None)
    }
}

/// Takes a packet's time for those before it of its flow and its way whose time is later still.
///
/// Of one flow the order of the places is right where none was overtaken and places are believed, so that the one before was
/// there at the later one's time. All else is in the order of the times.
fn not_later_than(later: &Head, ahead: &mut VecDeque<Head>) {
    let same = |head: &&mut Head| head.point == later.point && head.ends == later.ends;
    for earlier in ahead.iter_mut().rev().filter(same) {
        if earlier.frame.time <= later.frame.time {
            break;
        }
        earlier.frame.time = later.frame.time;
    }
}

/// Puts a packet where its time is, or before the first of those that overtook it. `true`: one did.
fn put_in_order(
    ahead: &mut VecDeque<Head>,
    mut head: Head,
    side_by_side: bool,
    belief: Belief,
) -> bool {
    let overtook = |earlier: &Head| side_by_side && earlier.overtook(&head);
    let overtaker = ahead.iter().position(overtook);
    if let Some(place) = overtaker {
        // All of them left in the same moment.
        head.frame.time = ahead[place].frame.time;
        ahead.insert(place, head);
    } else {
        if belief == Belief::Place {
            not_later_than(&head, ahead);
        }
        ahead.push_back(head);
        ahead.make_contiguous().sort_by_key(|head| head.frame.time);
    }
    overtaker.is_some()
}

/// Puts packets before the checker and remembers which one broke a rule.
struct Judge {
    checker: Checker,
    found: Vec<Found>,
    time: u64,
}

impl Judge {
    fn new(options: Options) -> Self {
        Self {
            checker: Checker::new(options, None),
            found: vec![],
            time: 0,
        }
    }

    fn packet(&mut self, file: &Path, head: &Head) {
        self.time = self.time.max(head.frame.time / 1000);
        let offload = Offload {
            checksum: ChecksumState::Complete,
            gso: None,
        };
        let seen = Observation::whole(self.time, head.point, &head.frame.packet, offload);
        let Some(seen) = seen else {
            return;
        };
        self.checker.observe(&seen);
        for violation in self.checker.violations().iter().skip(self.found.len()) {
            self.found.push(Found {
                file: file.to_owned(),
                number: head.frame.number,
                violation: violation.clone(),
            });
        }
    }

    fn findings(self, flows: [usize; 2], strays: u64, overtaken: u64) -> Result<Findings> {
        for (side, flows) in ["clients", "servers"].iter().zip(flows) {
            if flows == 0 {
                bail!("no SYN in the captures of the {side}' side: nothing can be judged");
            }
        }
        Ok(Findings {
            packets: self.checker.packets(),
            flows,
            strays,
            overtaken,
            violations: self.checker.violation_count(),
            found: self.found,
        })
    }
}

impl Findings {
    /// These, unless another reading of the same captures breaks no rule.
    fn unless_clean(self, other: Self) -> Self {
        if other.violations == 0 { other } else { self }
    }

    /// # Errors
    ///
    /// Rules were broken; the text tells which, and by which packets. Or too many packets were overtaken.
    pub fn ok(&self) -> Result<()> {
        ensure!(self.violations == 0, "{self}");
        let few = OVERTAKEN_FEW + self.packets / 1000;
        ensure!(self.overtaken <= few, "{self}; {few} may be overtaken");
        Ok(())
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for found in &self.found {
            let file = found.file.file_name().unwrap_or_default().display();
            writeln!(f, "{file} #{}: {}", found.number, found.violation)?;
        }
        let [client, server] = self.flows;
        write!(
            f,
            "{} packets of {client} flows with clients and {server} with servers: {} violations",
            self.packets, self.violations
        )?;
        if self.overtaken > 0 {
            write!(f, "; {} packets overtaken", self.overtaken)?;
        }
        if self.strays > 0 {
            write!(
                f,
                "; {} packets of flows without a SYN not judged",
                self.strays
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use flexcp_testkit::Packet;

    use super::*;

    fn head(time: u64, ack: u32, point: Point, port: u16) -> Head {
        let frame = Frame {
            number: 1,
            time,
            packet: vec![],
        };
        Head {
            frame,
            point,
            ends: (([10, 1, 1, 2], port).into(), ([10, 9, 1, 2], 80).into()),
            ack: TcpSeq(ack),
            tsval: None,
            alone: false,
        }
    }

    #[test]
    fn ack_alone_to_the_client_may_be_kept_from_being_sent_for_longer() {
        let first = head(1000, 5, Point::ToClient, 1);
        let later = |time, ack, alone| Head {
            alone,
            ..head(1000 + time, ack, Point::ToClient, 1)
        };
        assert!(first.made_late(&later(KEPT_FROM_SENDING, 4, true)));
        assert!(!first.made_late(&later(KEPT_FROM_SENDING + 1, 4, true)));
        assert!(!first.made_late(&later(1, 4, false)), "data");
        assert!(!first.made_late(&later(1, 5, true)), "no older");
        // Older ACKs go to the server where the client's subflows have sent them so.
        let up = |ack| Head {
            alone: true,
            ..head(1000, ack, Point::ToServer, 1)
        };
        assert!(!up(5).made_late(&up(4)));
    }

    #[test]
    fn payload_is_what_the_packet_says_though_not_all_was_kept() {
        let ends: [[SocketAddr; 2]; 2] = [
            [([10, 1, 1, 2], 1).into(), ([10, 9, 1, 2], 80).into()],
            [([0xfd01; 8], 1).into(), ([0xfd09; 8], 80).into()],
        ];
        for [from, to] in ends {
            let payload = |len| {
                let mut packet = Packet::new(from, to).with_payload(vec![0; len]).bytes();
                packet.truncate(61);
                tcp_ends(&packet).unwrap().2.payload
            };
            assert_eq!([payload(0), payload(1), payload(1400)], [0, 1, 1400]);
        }
    }

    #[test]
    fn packet_with_the_newer_ack_overtook_the_one_behind_it() {
        let to_server = |time, ack| head(time, ack, Point::ToServer, 1);
        let first = to_server(1000, 5);
        assert!(first.overtook(&to_server(1000, 4)));
        assert!(first.overtook(&to_server(1000 + SIDE_BY_SIDE, 4)));
        assert!(!first.overtook(&to_server(1001 + SIDE_BY_SIDE, 4)), "late");
        assert!(!first.overtook(&to_server(1000, 5)), "the same ACK");
        assert!(!first.overtook(&to_server(1000, 6)), "a newer ACK");
        let at = |ack, tsval| Head {
            tsval: Some(tsval),
            ..to_server(1000, ack)
        };
        assert!(at(5, 0).overtook(&at(5, u32::MAX)), "a newer timestamp");
        assert!(!at(5, 7).overtook(&at(5, 7)), "the same timestamp");
        assert!(!at(5, 7).overtook(&at(6, 6)), "a newer ACK, what the time");
        assert!(!at(5, 7).overtook(&to_server(1000, 5)), "no timestamp");
        let other = head(1000, 4, Point::ToServer, 2);
        assert!(!first.overtook(&other), "another flow");
        let to_client = |ack| head(1000, ack, Point::ToClient, 1);
        assert!(to_client(5).overtook(&to_client(4)));
        assert!(!to_client(5).overtook(&to_server(1000, 4)), "another way");
        let answer = head(1000, 5, Point::FromServer, 1);
        assert!(
            !answer.overtook(&head(1000, 4, Point::FromServer, 1)),
            "the server's own"
        );
    }

    #[test]
    fn packet_goes_before_all_that_overtook_it() {
        let to_server = |time, ack, port| head(time, ack, Point::ToServer, port);
        let mut ahead = VecDeque::new();
        for (time, ack, port) in [(1, 4, 1), (2, 9, 2), (3, 6, 1), (4, 6, 1), (5, 7, 1)] {
            assert!(!put_in_order(
                &mut ahead,
                to_server(time, ack, port),
                true,
                Belief::Place
            ));
        }
        assert!(put_in_order(
            &mut ahead,
            to_server(6, 5, 1),
            true,
            Belief::Place
        ));
        let order: Vec<_> = ahead
            .iter()
            .map(|head| (head.frame.time, head.ack.0))
            .collect();
        assert_eq!(order, [(1, 4), (2, 9), (3, 5), (3, 6), (4, 6), (5, 7)]);
    }

    #[test]
    fn place_counts_within_a_flow_and_time_among_flows() {
        let mut ahead = VecDeque::new();
        let out = |time, ack, port| head(time, ack, Point::ToClient, port);
        let input = head(85, 1, Point::FromClient, 1);
        for head in [
            out(10, 1, 1),
            out(90, 2, 1),
            out(80, 3, 1),
            out(86, 1, 2),
            input,
        ] {
            assert!(!put_in_order(&mut ahead, head, true, Belief::Place));
        }
        assert!(!put_in_order(
            &mut ahead,
            out(30, 4, 1),
            true,
            Belief::Place
        ));
        let order: Vec<_> = ahead
            .iter()
            .map(|head| (head.frame.time, head.ack.0))
            .collect();
        assert_eq!(
            order,
            [(10, 1), (30, 2), (30, 3), (30, 4), (85, 1), (86, 1)]
        );
    }

    /// Two processors' packets of one flow: the one that stands behind was seen first, and the other's cause after that.
    #[test]
    fn clock_counts_where_places_are_not_believed() {
        let mut ahead = VecDeque::new();
        for (time, ack) in [(464, 1), (453, 2)] {
            let out = head(time, ack, Point::ToServer, 1);
            assert!(!put_in_order(&mut ahead, out, false, Belief::Clock));
        }
        let order: Vec<_> = ahead
            .iter()
            .map(|head| (head.frame.time, head.ack.0))
            .collect();
        assert_eq!(order, [(453, 2), (464, 1)]);
    }

    #[test]
    fn without_programs_nothing_overtakes() {
        let mut ahead = VecDeque::new();
        for ack in [5, 4] {
            let head = head(1, ack, Point::ToServer, 1);
            assert!(!put_in_order(&mut ahead, head, false, Belief::Place));
        }
        assert_eq!(ahead[0].ack, TcpSeq(5));
    }

    #[test]
    fn rule_is_broken_only_if_it_is_by_both_readings() {
        let read = |violations, packets| Findings {
            packets,
            flows: [1, 1],
            strays: 0,
            overtaken: 0,
            violations,
            found: vec![],
        };
        assert_eq!(read(2, 1).unless_clean(read(0, 2)).packets, 2);
        assert_eq!(read(2, 1).unless_clean(read(1, 2)).packets, 1);
    }

    #[test]
    fn many_packets_overtaken_are_a_finding() {
        let overtaken = |overtaken| Findings {
            packets: 3000,
            flows: [1, 1],
            strays: 0,
            overtaken,
            violations: 0,
            found: vec![],
        };
        assert!(overtaken(5).ok().is_ok());
        assert!(overtaken(6).ok().is_err());
    }
}
