//! One capture file's packets, in the order in which FlexCP handled them as far as that can be told, and which way each went.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::path::Path;

use anyhow::Result;
use flexcp_invariants::Point;
use flexcp_wire::{TcpFlags, TcpSeq};

use super::flows::{Ends, Flows, Side};
use super::frames::{Frame, Frames};
use super::packets::tcp_ends;

/// What to believe where a packet stands behind one of its flow and its way whose time is later.
///
/// The kernel chooses a packet's place in the capture at one moment and looks at the clock at another: afterwards, or, as
/// long as any socket of the machine wants timestamps, before (`netstamp_needed_key`). What comes between, another
/// processor's packets among it, has the right place in the first case and the right time in the second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Belief {
    Place,
    Clock,
}

/// Nanoseconds between two packets of programs that run on two processors at the same time.
const SIDE_BY_SIDE: u64 = 50_000;

/// Nanoseconds for which a worker may be kept from sending the ACK alone with which it has installed a connection. Meanwhile
/// the programs send later ones.
const KEPT_FROM_SENDING: u64 = 20_000_000;

/// A file and its next packet.
pub(super) struct Source {
    pub(super) frames: Frames,
    side: Side,
    pub(super) head: Option<Head>,
    /// Behind `head`, where packets are put in the order in which they were translated.
    ahead: VecDeque<Head>,
    /// When the last that was read was captured; no later packet can have been overtaken by an earlier one than that.
    read_until: u64,
    side_by_side: bool,
    belief: Belief,
    pub(super) strays: u64,
    pub(super) overtaken: u64,
}

pub(super) struct Head {
    pub(super) frame: Frame,
    pub(super) point: Point,
    ends: Ends,
    ack: TcpSeq,
    /// It has one: that of a SYN to somebody is none.
    acks: bool,
    tsval: Option<u32>,
    /// As it stands in the header, but for SYNs, whose windows are not scaled.
    window: Option<u16>,
    /// It carries an ACK alone.
    alone: bool,
}

impl Head {
    /// Whether this packet was translated after `later`, which stands behind it in the capture: its ACK is the newer one, or
    /// its timestamp with the same ACK, or its window with the same of both.
    fn overtook(&self, later: &Self) -> bool {
        let newer = self.is_newer(later) || self.differs_in_window(later);
        newer && self.time_to(later) <= SIDE_BY_SIDE
    }

    /// Whether `later` is an ACK alone to the client that was kept from being sent while this packet left.
    fn made_late(&self, later: &Self) -> bool {
        let kept = later.alone && later.point == Point::ToClient;
        kept && self.is_newer(later) && self.time_to(later) <= KEPT_FROM_SENDING
    }

    fn is_newer(&self, later: &Self) -> bool {
        self.is_beside(later)
            && (later.ack.before(self.ack) || later.ack == self.ack && self.has_later_clock(later))
    }

    /// Whether nothing but the window to a TCP end tells which was translated first: its right edge never moves left. That of MPTCP
    /// is counted from the data ACK (RFC 8684 section 3.3.5), which moves on with the same ACK.
    fn differs_in_window(&self, later: &Self) -> bool {
        let alike = self.ack == later.ack && self.tsval == later.tsval;
        let same = alike && self.point == Point::ToServer;
        let narrower = later
            .window
            .is_some_and(|window| self.window > Some(window));
        self.is_beside(later) && same && narrower
    }

    /// Whether FlexCP has sent both the same way on one flow, and this one has an ACK.
    fn is_beside(&self, later: &Self) -> bool {
        !self.point.is_input() && self.acks && self.point == later.point && self.ends == later.ends
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
    pub(super) fn open(
        side: Side,
        path: &Path,
        side_by_side: bool,
        belief: Belief,
    ) -> Result<Self> {
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

    pub(super) fn order(&self) -> (u64, Reverse<bool>) {
        self.head
            .as_ref()
            .map_or((u64::MAX, Reverse(false)), |head| {
                (head.frame.time, Reverse(head.point.is_input()))
            })
    }

    /// Moves on to the next packet that can be judged.
    pub(super) fn advance(&mut self, flows: &mut Flows) -> Result<()> {
        while self
            .ahead
            .front()
            .is_none_or(|front| self.read_until <= front.frame.time + KEPT_FROM_SENDING)
        {
            let Some(head) = self.read(flows)? else {
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

    fn read(&mut self, flows: &mut Flows) -> Result<Option<Head>> {
        while let Some(frame) = self.frames.next()? {
            let Some((from, to, segment)) = tcp_ends(&frame.packet) else {
                continue;
            };
            let Some(point) = flows.point(self.side, (from, to), &segment) else {
                self.strays += 1;
                continue;
            };
            return Ok(Some(Head {
                frame,
                point,
                ends: (from, to),
                ack: TcpSeq(segment.header.ack),
                acks: segment.header.flags.contains(TcpFlags::ACK),
                tsval: segment.tsval,
                window: (!segment.header.flags.contains(TcpFlags::SYN))
                    .then_some(segment.header.window),
                alone: segment.payload == 0 && segment.header.flags == TcpFlags::ACK,
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

#[cfg(test)]
mod tests {
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
            acks: true,
            tsval: None,
            window: Some(9),
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
        let syn = Head {
            acks: false,
            ..head(1000, 0, Point::ToClient, 1)
        };
        let below_zero = later(1, u32::MAX - 5, true);
        assert!(!syn.made_late(&below_zero), "behind a SYN");
        // Older ACKs go to the server where the client's subflows have sent them so.
        let up = |ack| Head {
            alone: true,
            ..head(1000, ack, Point::ToServer, 1)
        };
        assert!(!up(5).made_late(&up(4)));
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
        let narrower = |head| Head {
            window: Some(8),
            ..head
        };
        assert!(at(5, 7).overtook(&narrower(at(5, 7))), "a wider window");
        assert!(!narrower(at(5, 7)).overtook(&at(5, 7)), "a narrower one");
        assert!(!at(5, 7).overtook(&narrower(at(6, 7))), "a newer ACK");
        let syn = Head {
            window: None,
            ..at(5, 7)
        };
        assert!(!syn.overtook(&at(5, 7)), "behind a SYN");
        assert!(!at(5, 7).overtook(&syn), "a SYN");
        let mptcp = |window| Head {
            window,
            ..head(1000, 5, Point::ToClient, 1)
        };
        assert!(!mptcp(Some(9)).overtook(&mptcp(Some(8))), "of MPTCP");
        assert!(!at(5, 7).overtook(&narrower(at(5, 8))), "a newer timestamp");
        assert!(!at(5, 7).made_late(&narrower(at(5, 7))), "not kept");
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
}
