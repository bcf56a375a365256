//! Installing a connection: whether it can be installed, its state as a fast path gets it, and the way back.
//!
//! A fast path follows a few of this crate's rules and knows no others. So a connection is installed only while none
//! of the others could apply to the packets that the fast path takes: nothing is to be repeated, filled, announced
//! or closed, all that is outstanding downwards stands on one subflow, and no subflow has a hole.

use flexcp_wire::{Dsn, Ssn};

use super::delivery::Delivery;
use super::rtt::Rtt;
use super::subflow::Timed;
use super::to_tcp::PATIENCE;
use super::{Asking, Connection, Subflow, SubflowState};
use crate::config::Settings;
use crate::dtree::Lane;
use crate::handle::{INITIAL, SubflowIndex, SubflowSet};
use crate::hosted::Passage;
use crate::offload::{
    ENTRY_HOLES, ENTRY_RUNS, ENTRY_SUBFLOWS, ENTRY_UPS, EntrySubflow, FlowEntry, UpRun,
};
use crate::service::Services;
use crate::time::Instant;

/// More than this between two numbers of a subflow, and their order is in doubt.
const FAR: u64 = 1 << 30;

impl Connection {
    /// The connection as a fast path gets it; `None`: it is not in its steady course, or nothing that a fast path
    /// could take a part in. `untimed`: all the same when it goes without timestamps.
    pub(crate) fn entry(
        &self,
        config: &Settings,
        services: &Services,
        untimed: bool,
    ) -> Option<FlowEntry> {
        let installed = self.eligible(config, services, untimed)?;
        Some(self.export(config, installed, self.passage()?))
    }

    /// The subflows that a flow entry of the connection would have; `None`: there is none to be had for now.
    pub(crate) fn eligible(
        &self,
        config: &Settings,
        services: &Services,
        untimed: bool,
    ) -> Option<SubflowSet> {
        if !self.is_steady(services) || !self.is_timed_steadily(untimed) {
            return None;
        }
        self.passage()?;
        if self.has_small_window() {
            // What uses it up is pushed.
            return None;
        }
        let room = config.limits.mappings;
        if !self.subflow(self.mptcp.active).is_active_steady(room)
            || self.standing(self.mptcp.active).backup
            || self.has_hole(self.mptcp.active)
            || !self.stands_on(self.mptcp.active)
        {
            return None;
        }
        let mut installed = 0_u8;
        for index in self.indices().filter(|&i| self.subflow(i).lives()) {
            let subflow = self.subflow(index);
            if subflow.state == SubflowState::Joining {
                continue;
            }
            if !self.is_subflow_steady(index) {
                return None;
            }
            let fits = usize::from(index) < ENTRY_SUBFLOWS
                && subflow.remote.is_ipv4() == self.tcp.backend.is_ipv4()
                && subflow.send.edge.is_some()
                && (subflow.clock.is_some() || untimed);
            let brings = subflow.has_outstanding_to_tcp();
            if !fits && (index == self.mptcp.active || brings)
                || brings && !self.brings_steadily(index)
            {
                return None;
            }
            installed |= u8::from(fits) << index;
        }
        Some(installed)
    }

    /// Takes the connection back as the fast path has left it: as if the translator had handled those packets.
    pub(crate) fn import(&mut self, entry: &FlowEntry) {
        self.import_to_mptcp(entry);
        self.import_to_tcp(entry);
        for (subflow, installed) in self.mptcp.subflows.iter_mut().zip(&entry.subflows) {
            if installed.installed != 0 {
                subflow.import(installed);
            }
        }
        if let Ok(heard) = SubflowIndex::try_from(entry.heard)
            && usize::from(heard) < self.mptcp.subflows.len()
        {
            self.mptcp.heard = heard;
        }
        self.to_mptcp.next = Dsn(entry.down_next);
        self.to_mptcp.acked = Dsn(entry.down_acked);
        self.to_mptcp.edge = Dsn(entry.down_edge);
        self.to_tcp.next = Dsn(entry.up_next);
        if self.to_tcp.acked != Dsn(entry.up_acked) {
            self.to_tcp.repeated = 0;
        }
        self.to_tcp.acked = Dsn(entry.up_acked);
        self.to_mptcp.window = entry.client_window;
        self.tcp.label = entry.label_up;
        self.mptcp.label = entry.label_down;
        self.last_packet = Instant(entry.last_packet);
        let server = &mut self.tcp;
        server.window.edge = Some(Dsn(entry.server_edge));
        server.window.offered = u16::try_from(entry.server_window).unwrap_or(u16::MAX);
        server.window.max = entry.server_window_max;
        if let Some(clock) = &mut server.clock {
            clock.sent = entry.ts_sent;
            clock.sent_at = Instant(entry.ts_sent_at);
            clock.heard = entry.ts_heard;
            clock.echo = entry.ts_echo;
            clock.again = entry.ts_again;
        }
    }

    /// Whether nothing about the connection as a whole is out of the ordinary.
    fn is_steady(&self, services: &Services) -> bool {
        let announced = self.mptcp.announce.started || services.announced(self.service).mask() == 0;
        let within_window = |edge: Dsn| !self.to_tcp.next.after(edge);
        self.phase.is_established()
            && self.mptcp.peer_key.is_some()
            && self.to_tcp.fin.is_none()
            && self.to_mptcp.fin.is_none()
            && self.mptcp.owed == 0
            && self.mptcp.asked == 0
            && self.phase.orphaned().is_none()
            && !self.mptcp.steered.copies()
            && self.to_mptcp.stuck.is_none()
            && self.mptcp.spare.is_none()
            && self.front.is_none()
            && self.asking.as_deref().is_none_or(Asking::is_steady)
            && self.to_tcp.repeated < PATIENCE
            && announced
            && !self.tcp.window.of_syn
            && self.tcp.window.edge.is_some_and(within_window)
    }

    /// Whether the server's clock is one that a fast path can keep. A fast path does not know where a repetition went, and
    /// takes the active subflow for that place. `untimed`: all the same when there is no clock.
    fn is_timed_steadily(&self, untimed: bool) -> bool {
        let on_active = self.to_mptcp.repeated_on == self.mptcp.active;
        let clock = self.tcp.clock;
        clock.map_or(untimed, |clock| on_active || !clock.is_repetition_open())
    }

    /// How the server's packets pass to the client; `None`: not in a way that a fast path knows.
    fn passage(&self) -> Option<Passage> {
        let sent_scale = self.tcp.window.scale.unwrap_or(0);
        let echo = self.tcp.clock.map(|clock| clock.echo);
        self.hosted.as_ref().map_or_else(
            || Some(Passage::straight(sent_scale, self.tcp.sack)),
            |hosted| hosted.passage(echo),
        )
    }

    /// Whether nothing is to be done on a subflow but carry data: and only the active one has some outstanding
    /// downwards.
    fn is_subflow_steady(&self, index: SubflowIndex) -> bool {
        let subflow = self.subflow(index);
        // A window of another scale would have to be changed on its way down.
        let scales = subflow.agreed.scales || self.tcp.window.scale.is_none();
        let quiet = subflow.send.una == subflow.send.next && subflow.send.lane.len() == 0;
        subflow.state == SubflowState::Established
            && scales
            && !subflow.path.suspect
            // A flow entry does not say whether marks pass.
            && !subflow.agreed.ecn
            && subflow.send.filler.is_none()
            && subflow.send.fin.is_none()
            && subflow.recv.fin.is_none()
            && subflow.send.fin_due.is_none()
            && subflow.send.fin_copies == 0
            && subflow.path.bare_acks == 0
            && subflow.recv.told.is_empty()
            && (quiet || index == self.mptcp.active)
    }

    /// Whether all of the server's data that the client has not ACKed stands on this subflow, in one stretch.
    fn stands_on(&self, index: SubflowIndex) -> bool {
        let subflow = self.subflow(index);
        let Some((ssn, dsn)) = subflow.send.lane.declared_stretch() else {
            let nothing = subflow.send.lane.len() == 0;
            return nothing
                && subflow.send.una == subflow.send.next
                && self.to_mptcp.acked == self.to_mptcp.next;
        };
        subflow.send.lane.end() == Some(subflow.send.next)
            && subflow.send.lane.dsn_end() == Some(self.to_mptcp.next)
            && !ssn.after(subflow.send.una)
            && !dsn.after(self.to_mptcp.acked)
    }

    /// Whether what this subflow has brought, and the server has not, has no hole and finds room in a flow entry. What the
    /// server had before it came here is ACKed with the server's next packet, whatever that ACKs.
    fn brings_steadily(&self, index: SubflowIndex) -> bool {
        let subflow = self.subflow(index);
        let near = |(dsn, _): (Dsn, u32)| self.to_tcp.next.since(dsn) < FAR;
        let received = subflow
            .recv
            .lane
            .received(subflow.recv.ack, subflow.recv.high);
        let missing = |(_, dsn, _): (Ssn, Dsn, u32)| !dsn.before(self.to_tcp.acked);
        subflow.recv.lane.len() < ENTRY_UPS
            && subflow.recv.lane.front().is_none_or(missing)
            && received.is_some_and(|mut runs| runs.all(near))
    }

    fn export(&self, config: &Settings, installed: u8, passage: Passage) -> FlowEntry {
        let server = &self.tcp;
        let clock = server.clock.unwrap_or_default();
        let mut entry = FlowEntry {
            family: if server.backend.is_ipv4() { 4 } else { 6 },
            server_addr: server.backend.octets(),
            source_addr: server.source.octets(),
            server_port: server.backend.port(),
            source_port: server.source.port(),
            active: self.mptcp.active.into(),
            heard: self.mptcp.heard.into(),
            ordered: self.numbers.identity.into(),
            down_next: self.to_mptcp.next.0,
            down_acked: self.to_mptcp.acked.0,
            down_edge: self.to_mptcp.edge.0,
            up_next: self.to_tcp.next.0,
            up_acked: self.to_tcp.acked.0,
            server_edge: self.server_edge().0,
            seq_down: passage.seq(self.seq_to_mptcp(self.to_mptcp.next)).0,
            seq_up: self.seq_to_tcp(self.to_tcp.next).0,
            server_window: server.window.offered.into(),
            server_scale: server.window.scale.unwrap_or(0).into(),
            sent_scale: passage.sent_scale.into(),
            ts_shift: passage.ts_shift,
            server_window_max: server.window.max,
            server_mss: server.mss.into(),
            client_window: self.to_mptcp.window,
            initial_scale: self.subflow(INITIAL).agreed.window_scale.into(),
            server_sack: passage.sack.into(),
            ts_sent: clock.sent,
            ts_heard: clock.heard,
            ts_echo: clock.echo,
            ts_again: clock.again,
            label_up: self.tcp.label,
            label_down: self.mptcp.label,
            ts_sent_at: clock.sent_at.0,
            silence: u64::try_from(config.timeouts.silence.as_micros()).unwrap_or(u64::MAX),
            last_packet: self.last_packet.0,
            ..FlowEntry::default()
        };
        let places = entry.subflows.iter_mut().zip(&mut entry.ups);
        for (index, (place, ups)) in self.indices().zip(places) {
            if installed & (1 << index) != 0 {
                *place = self.subflow(index).export(ups);
            }
        }
        entry
    }

    /// Downwards: adds what was declared meanwhile to the active subflow's lane, and lets go of what is ACKed.
    fn import_to_mptcp(&mut self, entry: &FlowEntry) {
        let known = self.to_mptcp.next;
        let Some(installed) = entry.subflows.get(usize::from(self.mptcp.active)) else {
            return;
        };
        let (next, acked) = (Dsn(entry.down_next), Dsn(entry.down_acked));
        let subflow_acked = next.sub(u64::from(
            installed.snd_next.wrapping_sub(installed.snd_una),
        ));
        let both = acked.min(subflow_acked);
        let ssn_of = |dsn: Dsn| Ssn(installed.snd_next).sub(low(next.since(dsn)));
        let mut room = [Stretch::default(); ENTRY_RUNS + ENTRY_HOLES];
        let stretches = Stretch::all(entry, installed.snd_next, &mut room);
        // The fast path may have forgotten some in their midst; then those before are ACKed, too.
        let mut at = next.sub(stretches.iter().map(Stretch::bytes).sum());
        let lane = &mut self.subflow_mut(self.mptcp.active).send.lane;
        let mut passes = at.after(known);
        if passes || both.since(known) > FAR && both.after(known) {
            // More than the numbers of a subflow can tell apart may have gone down and been ACKed.
            passes = true;
            lane.let_go();
        }
        for stretch in stretches {
            let (len, mut count) = (stretch.len, stretch.count);
            if passes {
                let whole = stretch.whole_before(at, both);
                at = at.add(u64::from(whole) * u64::from(len));
                count -= whole;
                if count > 0 {
                    lane.pass(at, ssn_of(at), at.since(known));
                    passes = false;
                }
            }
            if stretch.declared {
                lane.append_equal(at, ssn_of(at), len, count);
            } else {
                lane.reserve(at, ssn_of(at), len);
            }
            at = at.add(u64::from(count) * u64::from(len));
        }
        if passes {
            lane.pass(at, ssn_of(at), at.since(known));
        }
        lane.release(Ssn(installed.snd_una), acked);
    }

    /// Upwards: what each subflow has brought, and the server has not.
    fn import_to_tcp(&mut self, entry: &FlowEntry) {
        let next = Dsn(entry.up_next);
        for (index, subflow) in self.mptcp.subflows.iter_mut().enumerate() {
            let (Some(installed), Some(ups)) = (entry.subflows.get(index), entry.ups.get(index))
            else {
                break;
            };
            let ack = Ssn(installed.rcv_ack);
            if installed.installed == 0
                || (ack == subflow.recv.ack && installed.rcv_high == subflow.recv.high.0)
            {
                continue;
            }
            let used = ups.iter().cycle().skip(installed.first_up.into());
            let runs = used.take(usize::from(installed.ups_used).min(ENTRY_UPS));
            let place = |run: &UpRun| {
                (
                    next.sub(u64::from(low(next.0).wrapping_sub(run.dsn))),
                    run.len,
                )
            };
            subflow.recv.lane.set_received(ack, runs.map(place));
            if installed.recent_len > 0 {
                let recent = Dsn(installed.recent_dsn);
                subflow
                    .recv
                    .lane
                    .set_recent_before(ack, recent, installed.recent_len);
            }
        }
    }
}

impl Subflow {
    /// Whether new data goes down on it as a matter of course, and the mappings of a flow entry would find room.
    fn is_active_steady(&self, mappings: usize) -> bool {
        self.carries() && self.send.lane.len() + ENTRY_RUNS + ENTRY_HOLES <= mappings
    }

    /// Whether something came up on it, or was announced, that has not reached the server.
    fn has_outstanding_to_tcp(&self) -> bool {
        self.recv.ack != self.recv.high || self.recv.lane.len() > 0
    }

    fn export(&self, ups: &mut [UpRun; ENTRY_UPS]) -> EntrySubflow {
        let received = self.recv.lane.received(self.recv.ack, self.recv.high);
        let mut ups_used = 0;
        for (place, (dsn, len)) in ups.iter_mut().zip(received.into_iter().flatten()) {
            let dsn = low(dsn.0);
            *place = UpRun { dsn, len };
            ups_used += 1;
        }
        let recent = self.recv.lane.recent_before(self.recv.ack);
        let (timed_as, timed, timed_at) = self.path.timed.export();
        EntrySubflow {
            remote_addr: self.remote.octets(),
            local_addr: self.local.octets(),
            remote_port: self.remote.port(),
            local_port: self.local.port(),
            installed: 1,
            window_scale: self.agreed.window_scale,
            sampled: 0,
            late: self.path.late,
            isn_remote: self.agreed.isn_remote.0,
            isn_local: self.agreed.isn_local.0,
            snd_next: self.send.next.0,
            snd_una: self.send.una.0,
            snd_edge: self.send.edge.unwrap_or(self.send.una).0,
            rcv_ack: self.recv.ack.0,
            rcv_high: self.recv.high.0,
            clock_offset: self.clock.map_or(0, |clock| clock.offset),
            clock_heard: self.clock.map_or(0, |clock| clock.heard),
            timed,
            timed_as,
            rtt: self.path.rtt.export(),
            mss: self.agreed.mss.into(),
            clock_recent: self.clock.map_or(0, |clock| clock.recent),
            first_up: 0,
            ups_used,
            announced: self
                .recv
                .lane
                .end()
                .map_or(0, |end| end.since(self.recv.high)),
            recent_len: recent.map_or(0, |(_, len)| len),
            recent_dsn: recent.map_or(0, |(dsn, _)| dsn.0),
            timed_at,
            delivery: self.path.delivery.export(),
            last_heard: self.path.last_heard.0,
            outstanding_since: self.path.outstanding_since.0,
            bytes_up: self.traffic.bytes_up,
            bytes_down: self.traffic.bytes_down,
        }
    }

    fn import(&mut self, installed: &EntrySubflow) {
        self.send.next = Ssn(installed.snd_next);
        self.send.una = Ssn(installed.snd_una);
        self.send.edge = Some(Ssn(installed.snd_edge));
        self.recv.ack = Ssn(installed.rcv_ack);
        self.recv.high = Ssn(installed.rcv_high);
        if let Some(clock) = &mut self.clock {
            clock.heard = installed.clock_heard;
            clock.recent = installed.clock_recent;
        }
        self.path.timed = Timed::import(installed);
        self.path.rtt = Rtt::import(&installed.rtt);
        self.path.delivery = Delivery::import(&installed.delivery);
        self.path.last_heard = Instant(installed.last_heard);
        self.path.outstanding_since = Instant(installed.outstanding_since);
        self.traffic.bytes_up = installed.bytes_up;
        self.traffic.bytes_down = installed.bytes_down;
    }
}

impl Timed {
    /// As `timed_as`, `timed` and `timed_at` of a flow entry.
    const fn export(self) -> (u32, u32, u64) {
        match self {
            Self::Nothing => (0, 0, 0),
            Self::Number(ssn, at) => (1, ssn.0, at.0),
            Self::Echo(val, at) => (2, val, at.0),
            Self::Measured(at) => (3, 0, at.0),
            Self::Behind(ssn, at) => (4, ssn.0, at.0),
        }
    }

    const fn import(entry: &EntrySubflow) -> Self {
        let at = Instant(entry.timed_at);
        match entry.timed_as {
            1 => Self::Number(Ssn(entry.timed), at),
            2 => Self::Echo(entry.timed, at),
            3 => Self::Measured(at),
            4 => Self::Behind(Ssn(entry.timed), at),
            _ => Self::Nothing,
        }
    }
}

/// The distance between two numbers, as the 32-bit numbers of a subflow show it.
#[allow(
    clippy::cast_possible_truncation,
    reason = "sequence numbers wrap at 32 bits"
)]
const fn low(distance: u64) -> u32 {
    distance as u32
}

/// Equally long mappings one behind the other, or a hole.
#[derive(Clone, Copy, Default)]
struct Stretch {
    /// Bytes from its start to the subflow's next number.
    back: u32,
    /// Bytes of each mapping.
    len: u32,
    /// Mappings; 1 for a hole.
    count: u32,
    declared: bool,
}

impl Stretch {
    /// How many of its mappings end before `both`, when the first starts at `at`.
    fn whole_before(&self, at: Dsn, both: Dsn) -> u32 {
        if self.declared {
            Lane::whole_before(at, self.len, self.count, both)
        } else {
            0
        }
    }

    fn bytes(&self) -> u64 {
        u64::from(self.len) * u64::from(self.count)
    }

    /// What a flow entry says of the server's data, in the order of the data, in `room`: mappings stand in a flow entry in the
    /// order in which they went down.
    fn all<'a>(entry: &FlowEntry, snd_next: u32, room: &'a mut [Self]) -> &'a [Self] {
        let used = entry.runs.iter().cycle();
        let first = entry.first_run as usize % ENTRY_RUNS;
        let count = (entry.runs_used as usize).min(ENTRY_RUNS);
        let runs = used.skip(first).take(count).map(|run| Self {
            back: snd_next.wrapping_sub(run.ssn),
            len: run.len.into(),
            count: run.count.into(),
            declared: true,
        });
        let holes = entry.holes.iter().map(|hole| Self {
            back: entry.seq_down.wrapping_sub(hole.seq),
            len: hole.len,
            count: 1,
            declared: false,
        });
        let known = runs.chain(holes).filter(|stretch| stretch.bytes() > 0);
        let mut count = 0;
        for (place, stretch) in room.iter_mut().zip(known) {
            *place = stretch;
            count += 1;
        }
        let all = &mut room[..count];
        all.sort_unstable_by_key(|stretch| core::cmp::Reverse(stretch.back));
        all
    }
}
