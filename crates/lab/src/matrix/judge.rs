//! What has to be so in a cell, whatever its fault: the judges, on what was found and nothing else.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use flexcp_faults::{Counters, Fault, Faults, Rate};

use super::cell::{Cell, Side, Way};
use super::rows::{Joins, Verdict};
use super::scene::Joined;
use crate::fault::Direction;
use crate::link::LinkCounters;
use crate::transfer::{Job, Report, ServerReport};

/// What was found in a cell.
#[derive(Debug)]
pub(super) struct Evidence<'a> {
    pub(super) job: &'a Job,
    /// The client's word.
    pub(super) report: &'a Report,
    /// The server's word on each connection that it accepted.
    pub(super) served: &'a [ServerReport],
    /// What the links did, by link.
    pub(super) links: Vec<LinkCounters>,
    pub(super) joins: Joined,
    /// The longest time that a thread waited for a processor.
    pub(super) starved: Duration,
}

/// The luck of a draw: a cell that shows nothing is drawn again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Draw {
    /// It shows what it is for.
    Shows,
    /// It does not, for this reason.
    Void(String),
}

/// Whether bytes are right at both ends, and the transfer ended as the row demands.
///
/// The server checks each byte against the place that it has to have, so its count of right bytes stands for a digest and
/// for the order as well. A wrong byte, a stream that is cut off as if it were whole, and bytes that nobody sent are
/// failures whatever the row allows.
pub(super) fn judge_bytes(cell: &Cell, found: &Evidence<'_>) -> Result<()> {
    let Evidence {
        job,
        report,
        served,
        joins,
        ..
    } = found;
    if report.failure_kind() == "data" {
        bail!("wrong bytes at the client: {:?}", report.failure);
    }
    for served in *served {
        judge_server(job, report, served)?;
    }
    let Some(failure) = &report.failure else {
        ensure!(
            report.up == job.up && report.down == job.down,
            "{} bytes up, {} down of {} and {}",
            report.up,
            report.down,
            job.up,
            job.down
        );
        return judge_success(job, served, joins.bypassed);
    };
    ensure!(
        may_fail(cell),
        "the transfer failed: {} ({}) after {} bytes up, {} down",
        failure.message,
        failure.during,
        report.up,
        report.down
    );
    Ok(())
}

/// Whether the row lets the transfer of this cell end with an error.
pub(super) fn may_fail(cell: &Cell) -> bool {
    match cell.row.verdict {
        Verdict::Exact => false,
        Verdict::ExactIfJoined => cell.subflows == 1,
        Verdict::MayFail => true,
    }
}

/// What holds of every connection at the server, also of one that failed.
fn judge_server(job: &Job, report: &Report, served: &ServerReport) -> Result<()> {
    let kind = served.failure_kind();
    ensure!(
        kind != "data",
        "wrong bytes at the server: {:?}",
        served.failure
    );
    if let Some(read) = &served.job {
        ensure!(
            read == job,
            "the server read a request that nobody sent: {read:?}"
        );
    }
    ensure!(
        served.up <= report.up,
        "the server got {} bytes of {} that were sent",
        served.up,
        report.up
    );
    // An end that is no reset says that this is all.
    ensure!(
        kind != "eof" || served.up == report.up,
        "the stream up ended as if it were whole after {} of {} bytes",
        served.up,
        report.up
    );
    ensure!(
        report.failure_kind() != "eof" || report.down >= served.down,
        "the stream down ended as if it were whole after {} of {} bytes",
        report.down,
        served.down
    );
    Ok(())
}

/// What holds at the server when the client is content.
///
/// An aggregation server may have connected before it was passed by: that connection asks for nothing.
fn judge_success(job: &Job, served: &[ServerReport], bypassed: bool) -> Result<()> {
    let asked = served.iter();
    let asked: Vec<_> = asked
        .filter(|served| !bypassed || served.job.is_some())
        .collect();
    let [served] = asked[..] else {
        bail!("the server had {} connections for one", served.len());
    };
    ensure!(
        served.failure.is_none() && served.up == job.up && served.down == job.down,
        "the client is content, the server is not: {served:?}"
    );
    Ok(())
}

/// Whether each fault of the row did something on one of its links at least.
pub(super) fn judge_hits(cell: &Cell, found: &Evidence<'_>) -> Draw {
    let way = cell.direction();
    for (text, direction) in [(cell.row.faults, way), (cell.row.back, way.other())] {
        // The cells' own tests read every list.
        let faults: Faults = text.parse().unwrap_or_default();
        for fault in &faults.0 {
            let links = (1..).zip(&found.links);
            let hits = links
                .filter(|(link, _)| cell.reaches(*link))
                .map(|(_, counters)| hits(fault, counters, direction));
            if hits.sum::<u64>() == 0 {
                return Draw::Void(format!("`{fault}` hit nothing"));
            }
        }
    }
    Draw::Shows
}

/// What a fault did on a link. What has no counter of its own meets every packet.
fn hits(fault: &Fault, link: &LinkCounters, direction: Direction) -> u64 {
    let (there, back) = match direction {
        Direction::Up => (&link.up, &link.down),
        Direction::Down => (&link.down, &link.up),
    };
    let count: fn(&Counters) -> u64 = match fault {
        Fault::Loss(_) => |c| c.lost_loss,
        Fault::Burst(_) => |c| c.lost_burst,
        Fault::Drop(_) => |c| c.lost_drop,
        Fault::Blackhole { .. } => |c| c.lost_blackhole,
        Fault::Flap { .. } => |c| c.lost_flap,
        Fault::Reorder(_) => |c| c.reordered,
        Fault::Duplicate(_) => |c| c.duplicated,
        Fault::Corrupt(_) => |c| c.corrupted,
        Fault::Strip(_) => |c| c.stripped,
        Fault::WindowScale(_)
        | Fault::MssClamp(_)
        | Fault::TimestampShift(_)
        | Fault::DoubleOption { .. } => |c| c.rewritten,
        Fault::Resegment { .. } => |c| c.split,
        Fault::Coalesce(_) => |c| c.joined,
        // What comes back to the old port shows that there is a new one.
        Fault::Nat(rule) if !rule.at.is_empty() || rule.every.is_some() => {
            return there.lost_nat + back.lost_nat;
        }
        Fault::Nat(_) => |c| c.translated,
        Fault::IsnRandomiser => |c| c.shifted,
        Fault::CeMark(_) => |c| c.marked,
        Fault::Delay(_) | Fault::Jitter(_) | Fault::Rate(_) => |c| c.packets_in,
    };
    count(there)
}

/// Whether as many subflows joined as the row demands.
///
/// A client that has not come to join before the end, and a join that a link lost, make another draw; a join that was
/// asked for and not granted is an error. So is one that a box did not ask for where no link lost anything: it asks as soon as its server
/// has shown that it has the keys.
pub(super) fn judge_joins(cell: &Cell, found: &Evidence<'_>) -> Result<Draw> {
    let Joined {
        asked,
        joined,
        bypassed,
        keyless,
    } = found.joins;
    let others = u64::from(cell.subflows) - 1;
    let wanted = match cell.row.joins {
        Joins::All => others,
        Joins::Some => others.min(1),
        Joins::Prevented(_) => {
            ensure!(
                joined == 0,
                "{joined} subflows joined, which the fault prevents"
            );
            return Ok(Draw::Shows);
        }
        Joins::Unjudged(_) => return Ok(Draw::Shows),
    };
    // What loses the first SYN each time shows that the server itself is asked.
    if bypassed && has(cell, |fault| matches!(fault, Fault::Drop(_))) {
        return Ok(Draw::Shows);
    }
    if bypassed {
        let text = "the aggregation server was too late, and the server itself asked";
        return Ok(Draw::Void(text.to_owned()));
    }
    if keyless && keys_may_be_late(cell) {
        let text = "the server heard data before the keys, and fell back";
        return Ok(Draw::Void(text.to_owned()));
    }
    if joined >= wanted {
        return Ok(Draw::Shows);
    }
    let text = format!("{joined} of {wanted} subflows joined");
    if asked < wanted && matches!(cell.side, Side::Proxy | Side::Kernel) {
        return Ok(Draw::Void(format!(
            "{text}, the client asked {asked} times"
        )));
    }
    // Joins go over the links behind the first; the keys that a box waits for over the first.
    let first = usize::from(asked >= wanted);
    let theirs = found.links.iter().skip(first);
    let lost: u64 = theirs.map(lost).sum();
    ensure!(
        lost > 0,
        "{text}, and their links lost no packet ({asked} were asked for)"
    );
    Ok(Draw::Void(format!(
        "{text}, their links lost {lost} packets"
    )))
}

/// What a link lost, and what it damaged so that its receiver did not take it.
fn lost(link: &LinkCounters) -> u64 {
    link.lost() + link.up.corrupted + link.down.corrupted
}

/// Whether the packets in which a box tells its keys, the third ACK and the first with data, may both come behind later data. A server
/// of the kernel falls back then, whoever sends them: from kernel to kernel with `drop-capable-data` as well.
fn keys_may_be_late(cell: &Cell) -> bool {
    let overtaken = |fault: &Fault| match fault {
        Fault::Reorder(_) => true,
        Fault::Jitter(jitter) => jitter.reorder,
        fault => loses(fault),
    };
    cell.way == Way::Up && has(cell, overtaken)
}

/// How many SYN+ACKs may come to a client whose subflow is open already, which answers each with a challenge ACK
/// (RFC 5961, section 4) and counts an error.
///
/// The cause is a SYN that came twice, or a handshake packet that was lost: the client repeats its SYN and FlexCP its
/// SYN+ACK, each by its own timer. In mirror it is the client in the LAN to whom they come; and a server gets as many SYNs at once that
/// have waited for a neighbour's answer, and leaves some of them without one (`tcp_oow_rate_limited`).
pub(super) fn second_syn_acks(cell: &Cell) -> u32 {
    let doubles = |fault: &Fault| loses(fault) || matches!(fault, Fault::Duplicate(_));
    if has(cell, doubles) {
        2 * u32::from(cell.subflows)
    } else {
        0
    }
}

/// How many subflows a client may reset at its end, where packets are lost: their join is not through, or data that
/// another subflow has brought meanwhile stands unread on them (Linux, `__tcp_close`).
pub(super) fn resets_at_end(cell: &Cell) -> u32 {
    if has(cell, loses) {
        u32::from(cell.subflows) - 1
    } else {
        0
    }
}

fn has(cell: &Cell, is_such: impl Fn(&Fault) -> bool) -> bool {
    let lists =
        [cell.row.faults, cell.row.back].map(|text| text.parse::<Faults>().unwrap_or_default());
    lists.iter().flat_map(|faults| &faults.0).any(is_such)
}

/// Whether it may lose single packets of a handshake.
const fn loses(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::Loss(_) | Fault::Burst(_) | Fault::Corrupt(_) | Fault::Drop(_)
    )
}

/// Whether neither end stood still for longer than the fault explains.
pub(super) fn judge_stall(cell: &Cell, found: &Evidence<'_>) -> Result<()> {
    if found.report.failure.is_some() {
        return Ok(());
    }
    // A timeout is made of round trips, and three of them double.
    let bound = stall(cell) + 7 * found.starved;
    let server = Duration::from_micros(found.report.server_gap_us.unwrap_or(0));
    for (end, gap) in [("client", found.report.longest_gap()), ("server", server)] {
        ensure!(
            gap <= bound,
            "the {end} stood still for {gap:?}, {bound:?} may be"
        );
    }
    Ok(())
}

/// The longest time without a byte that the faults of a cell explain.
///
/// Everything has the time of a retransmission and one back-off. A fault that loses packets may lose what is sent again,
/// twice; after an outage a sender may just have begun to wait for as long as it lasted, and its peer, who goes on at
/// once, may fill the queue that the next answer is lost in. Delays count for each round trip of a recovery.
pub(super) fn stall(cell: &Cell) -> Duration {
    let mut bound = backed_off(2);
    for text in [cell.row.faults, cell.row.back] {
        let faults: Faults = text.parse().unwrap_or_default();
        for fault in &faults.0 {
            bound += match fault {
                Fault::Loss(_) | Fault::Burst(_) | Fault::Corrupt(_) | Fault::Drop(_) => {
                    backed_off(4).saturating_sub(backed_off(2))
                }
                Fault::Blackhole { from, until } => {
                    4 * until.unwrap_or(*from).saturating_sub(*from)
                }
                Fault::Flap { down, .. } => 4 * *down,
                Fault::Delay(delay) => 8 * *delay,
                Fault::Rate(rate) => 8 * full_queue(rate),
                Fault::Jitter(jitter) => 8 * jitter.max,
                Fault::Reorder(reorder) => 8 * reorder.extra,
                // A path that dies, until another one takes over.
                Fault::Nat(rule) if !rule.at.is_empty() => backed_off(3),
                _ => Duration::ZERO,
            };
        }
    }
    bound
}

/// The delay of a bottleneck whose queue is full.
fn full_queue(rate: &Rate) -> Duration {
    let millis = rate.queue_bytes.saturating_mul(8 * 1000) / rate.bits_per_second.max(1);
    Duration::from_millis(millis)
}

/// That many retransmission timeouts one after the other, each twice as long as the one before.
fn backed_off(times: u32) -> Duration {
    RTO * (2_u32.pow(times) - 1)
}

/// The shortest retransmission timeout of Linux (`TCP_RTO_MIN`), with what an RTT of the lab adds.
const RTO: Duration = Duration::from_millis(220);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::Failure;

    const BYTES: u64 = 2_000_000;

    fn cell(name: &str) -> Cell {
        let sides = [Side::Proxy, Side::Box, Side::Converter];
        let mut cells = sides.into_iter().flat_map(Cell::all);
        cells.find(|cell| cell.name() == name).expect("such a cell")
    }

    fn failure(kind: &str) -> Option<Failure> {
        Some(Failure {
            kind: kind.to_owned(),
            during: "read",
            message: "as made up".to_owned(),
        })
    }

    /// A transfer as both ends saw it.
    struct Found {
        job: Job,
        report: Report,
        served: Vec<ServerReport>,
        links: Vec<LinkCounters>,
        joins: Joined,
        starved: Duration,
    }

    impl Found {
        fn all_right() -> Self {
            let job = Job::both(BYTES);
            Self {
                job,
                report: Report {
                    up: BYTES,
                    down: BYTES,
                    ..Report::default()
                },
                served: vec![ServerReport {
                    peer: ([10, 1, 1, 2], 40_000).into(),
                    job: Some(job),
                    up: BYTES,
                    down: BYTES,
                    total_us: 0,
                    failure: None,
                }],
                links: vec![LinkCounters::default(); 2],
                joins: Joined {
                    asked: 1,
                    joined: 1,
                    bypassed: false,
                    keyless: false,
                },
                starved: Duration::ZERO,
            }
        }

        /// One that the client gave up after so many bytes each way.
        fn given_up(kind: &str, server: &str, up: u64) -> Self {
            let mut found = Self::all_right();
            found.report.failure = failure(kind);
            found.report.up = 500_000;
            found.served[0].failure = failure(server);
            found.served[0].up = up;
            found
        }

        fn evidence(&self) -> Evidence<'_> {
            Evidence {
                job: &self.job,
                report: &self.report,
                served: &self.served,
                links: self.links.clone(),
                joins: self.joins,
                starved: self.starved,
            }
        }

        fn bytes(&self, cell: &Cell) -> String {
            let judged = judge_bytes(cell, &self.evidence());
            judged
                .err()
                .map_or_else(String::new, |error| error.to_string())
        }
    }

    /// Cells whose transfers may end with an error.
    fn lenient() -> [Cell; 2] {
        ["strip-dss-data/v4/up/1/plain", "nat-rebind/v4/up/1/plain"].map(cell)
    }

    #[test]
    fn transfer_that_both_ends_are_content_with_passes() {
        for cell in lenient() {
            assert_eq!(Found::all_right().bytes(&cell), "");
        }
    }

    #[test]
    fn second_syn_ack_has_a_fault_that_explains_it() {
        let of = |name| second_syn_acks(&cell(name));
        assert_eq!(of("duplicate-1/v6/up/4/plain"), 8);
        assert_eq!(of("loss-1/v4/down/1/plain"), 2);
        assert_eq!(of("drop-join-syn-ack/v4/down/2/plain"), 4);
        assert_eq!(of("clean/v4/up/4/plain"), 0);
        assert_eq!(of("reorder-25/v4/up/4/plain"), 0);
        assert_eq!(of("delay-100/v4/up/1/plain"), 0);
    }

    #[test]
    fn reset_of_a_subflow_has_a_loss_that_explains_it() {
        let of = |name| resets_at_end(&cell(name));
        assert_eq!(of("burst/v4/down/4/plain"), 3);
        assert_eq!(of("loss-5/v4/down/1/plain"), 0);
        assert_eq!(of("duplicate-1/v6/up/4/plain"), 0);
    }

    #[test]
    fn error_passes_only_where_the_row_allows_it() {
        let found = Found::given_up("timeout", "ECONNRESET", 400_000);
        for cell in lenient() {
            assert_eq!(found.bytes(&cell), "");
        }
        let said = found.bytes(&cell("loss-1/v4/up/1/plain"));
        assert!(said.starts_with("the transfer failed"), "{said}");
        let said = found.bytes(&cell("nat-rebind/v4/up/2/plain"));
        assert!(said.starts_with("the transfer failed"), "{said}");
    }

    #[test]
    fn corrupted_upload_fails_whatever_the_row_allows() {
        for cell in lenient() {
            let said = Found::given_up("ECONNRESET", "data", 400_000).bytes(&cell);
            assert!(said.starts_with("wrong bytes at the server"), "{said}");
        }
    }

    #[test]
    fn corrupted_download_fails_whatever_the_row_allows() {
        for cell in lenient() {
            let said = Found::given_up("data", "ECONNRESET", 400_000).bytes(&cell);
            assert!(said.starts_with("wrong bytes at the client"), "{said}");
        }
    }

    #[test]
    fn stream_cut_off_as_if_it_were_whole_fails_whatever_the_row_allows() {
        for cell in lenient() {
            let said = Found::given_up("timeout", "eof", 400_000).bytes(&cell);
            assert!(said.starts_with("the stream up ended"), "{said}");
            assert_eq!(Found::given_up("timeout", "eof", 500_000).bytes(&cell), "");
            let mut found = Found::given_up("eof", "timeout", 400_000);
            found.report.down = 7;
            let said = found.bytes(&cell);
            assert!(said.starts_with("the stream down ended"), "{said}");
        }
    }

    #[test]
    fn bytes_that_nobody_sent_fail_whatever_the_row_allows() {
        for cell in lenient() {
            let said = Found::given_up("timeout", "timeout", 600_000).bytes(&cell);
            assert!(said.contains("600000 bytes of 500000"), "{said}");
            let mut found = Found::given_up("timeout", "timeout", 400_000);
            found.served[0].job = Some(Job::down(1));
            let said = found.bytes(&cell);
            assert!(said.contains("a request that nobody sent"), "{said}");
        }
    }

    #[test]
    fn server_that_is_not_content_fails_a_content_client() {
        let cell = cell("clean/v4/up/2/plain");
        let mut found = Found::all_right();
        found.served[0].failure = failure("ECONNRESET");
        assert!(found.bytes(&cell).contains("the server is not"));
        found.served.clear();
        assert!(found.bytes(&cell).contains("0 connections"));
    }

    #[test]
    fn fault_that_did_nothing_makes_a_void_draw() {
        let cell = cell("loss-0.1/v4/up/2/plain");
        let mut found = Found::all_right();
        let void = Draw::Void("`loss=0.1%` hit nothing".to_owned());
        assert_eq!(judge_hits(&cell, &found.evidence()), void);
        // The other direction has none.
        found.links[0].down.lost_loss = 3;
        assert_eq!(judge_hits(&cell, &found.evidence()), void);
        found.links[1].up.lost_loss = 1;
        assert_eq!(judge_hits(&cell, &found.evidence()), Draw::Shows);
    }

    #[test]
    fn fault_is_looked_for_on_its_own_links() {
        let cell = cell("flap/v4/down/2/plain");
        let mut found = Found::all_right();
        found.links[1].down.lost_flap = 9;
        assert_ne!(judge_hits(&cell, &found.evidence()), Draw::Shows);
        found.links[0].down.lost_flap = 1;
        assert_eq!(judge_hits(&cell, &found.evidence()), Draw::Shows);
    }

    #[test]
    fn rebinding_shows_by_what_comes_back_to_the_old_port() {
        let cell = cell("nat-rebind/v4/up/2/plain");
        let mut found = Found::all_right();
        found.links[0].up.translated = 900;
        assert_ne!(judge_hits(&cell, &found.evidence()), Draw::Shows);
        found.links[0].down.lost_nat = 1;
        assert_eq!(judge_hits(&cell, &found.evidence()), Draw::Shows);
    }

    #[test]
    fn every_fault_of_a_row_has_to_hit() {
        let cell = cell("firewall/v4/up/1/plain");
        let mut found = Found::all_right();
        found.links.truncate(1);
        let up = &mut found.links[0].up;
        (up.shifted, up.rewritten, up.translated) = (5, 5, 5);
        let judged = judge_hits(&cell, &found.evidence());
        assert_eq!(
            judged,
            Draw::Void("`resegment=700:20%` hit nothing".to_owned())
        );
    }

    #[test]
    fn join_that_was_asked_for_and_not_granted_is_an_error() {
        let cell = cell("clean/v4/up/2/plain");
        let mut found = Found::all_right();
        assert_eq!(
            judge_joins(&cell, &found.evidence()).ok(),
            Some(Draw::Shows)
        );
        found.joins.joined = 0;
        assert!(judge_joins(&cell, &found.evidence()).is_err());
        // A client that did not ask, or a link that lost what it said, makes another draw.
        found.joins.asked = 0;
        assert!(matches!(
            judge_joins(&cell, &found.evidence()),
            Ok(Draw::Void(_))
        ));
        found.joins.asked = 1;
        found.links[0].up.lost_loss = 1;
        assert!(judge_joins(&cell, &found.evidence()).is_err());
        found.links[1].up.lost_loss = 1;
        assert!(matches!(
            judge_joins(&cell, &found.evidence()),
            Ok(Draw::Void(_))
        ));
    }

    #[test]
    fn join_that_a_box_did_not_ask_for_is_an_error_unless_packets_were_lost() {
        let cell = cell("clean/v4/up/2/plain/box");
        let mut found = Found::all_right();
        (found.joins.asked, found.joins.joined) = (0, 0);
        assert!(judge_joins(&cell, &found.evidence()).is_err());
        found.links[0].up.lost_loss = 1;
        let judged = judge_joins(&cell, &found.evidence());
        assert!(matches!(judged, Ok(Draw::Void(_))));
    }

    #[test]
    fn fall_back_of_a_server_is_luck_where_its_keys_may_come_late_alone() {
        let judged = |name| {
            let mut found = Found::all_right();
            (found.joins.joined, found.joins.keyless) = (0, true);
            judge_joins(&cell(name), &found.evidence()).ok()
        };
        for luck in ["reorder-5/v4/up/2/plain/box", "loss-5/v4/up/2/plain/box"] {
            assert!(matches!(judged(luck), Some(Draw::Void(_))), "{luck}");
        }
        for error in ["reorder-5/v4/down/2/plain/box", "clean/v4/up/2/plain/box"] {
            assert_eq!(judged(error), None, "{error}");
        }
    }

    #[test]
    fn cell_past_its_aggregation_server_shows_nothing() {
        let cell = cell("loss-1/v4/up/2/offloads/converter");
        let mut found = Found::all_right();
        found.joins.bypassed = true;
        let judged = judge_joins(&cell, &found.evidence());
        assert!(matches!(judged, Ok(Draw::Void(_))));
    }

    #[test]
    fn join_that_the_fault_prevents_is_an_error() {
        let cell = cell("strip-join-syn/v4/up/2/plain");
        let found = Found::all_right();
        assert!(judge_joins(&cell, &found.evidence()).is_err());
    }

    #[test]
    fn stall_beyond_what_the_fault_explains_is_an_error() {
        let cells = ["clean/v4/up/2/plain", "blackhole/v4/up/2/plain"].map(cell);
        let mut found = Found::all_right();
        found.report.longest_gap_us = 2_000_000;
        assert!(judge_stall(&cells[0], &found.evidence()).is_err());
        assert!(judge_stall(&cells[1], &found.evidence()).is_ok());
        found.report.longest_gap_us = 0;
        found.report.server_gap_us = Some(2_000_000);
        assert!(judge_stall(&cells[0], &found.evidence()).is_err());
        found.starved = Duration::from_secs(1);
        assert!(judge_stall(&cells[0], &found.evidence()).is_ok());
    }

    #[test]
    fn full_queue_counts_as_the_delay_that_it_is() {
        let bound = |name| stall(&cell(name)).as_millis();
        // 100 kB at 8 Mbit/s, and 2 ms of delay.
        assert_eq!(bound("rate-10-1/v4/up/2/plain"), 660 + 8 * 100 + 8 * 2);
        assert_eq!(bound("clean/v4/up/2/plain"), 660);
    }

    #[test]
    fn no_cell_may_stall_for_as_long_as_its_client_is_patient() {
        for cell in [Side::Proxy, Side::Box].map(Cell::all).concat() {
            assert!(stall(&cell) < Duration::from_secs(5), "{}", cell.name());
        }
    }
}
