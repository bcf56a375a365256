//! The harness: a translator, a virtual clock, and peers that speak in lines of text.
//!
//! A test has three parts: given (a constructor), when (`client`, `server`, `timeout` at a time), then
//! (`gives` what goes out, and `moved` the counters that moved). A scenario that ends with counters
//! that moved and that nobody asked for fails.

mod causes;
mod icmp;
mod judge;
mod net;
mod notation;
mod order;
mod queue;
mod read;
mod reload;
mod setup;
mod show;
mod twin;

use flexcp_invariants::{Checker, Observation, Options, Payload as Seeing, Point, Side};
use flexcp_translator::{
    Config, ConnectionState, ConnectionView, Counters, Drops, Frame, HEADROOM, Install, Instant,
    Step, SubflowRecord, Translator, Verdict,
};
use flexcp_wire::{ChecksumState, GsoKind, IpHeader, Offload, Sum, TcpFlags, TcpHeader, protocol};

use self::judge::Judge;
use self::net::connection_of;
pub(crate) use self::net::{FLOWS_PER_CONNECTION, Leg, Net};
use self::notation::{build, parse};
pub(crate) use self::setup::{Setup, millis};
use self::show::{Seen, show};
pub(crate) use self::twin::Shelf;
use self::twin::{Done, Twin, finish};

/// A translator among its peers.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) translator: Translator,
    pub(crate) net: Net,
    judge: Judge,
    /// Sees every packet, and judges those of FlexCP's.
    checker: Checker,
    /// Connections that FlexCP had let go of when the checker was told last.
    closed: u64,
    now: Instant,
    headroom: usize,
    seen: (Counters, Drops),
    asked: bool,
    server_window: u16,
    /// Translators with a fast path, which have to do the same.
    twins: [Twin; 2],
    /// They are compared with it.
    compares: bool,
    /// Behind each packet others wait.
    backlog: bool,
    /// What the last packet asked for.
    pub(crate) install: Install,
}

/// What FlexCP does with one packet or timeout.
#[derive(Debug)]
#[must_use]
pub(crate) struct Outcome {
    what: String,
    lines: Vec<String>,
    /// State of the checksum of each packet sent.
    pub(crate) checksums: Vec<ChecksumState>,
    /// The packet went on, and as a new ACK.
    pub(crate) new_ack: bool,
}

impl Outcome {
    /// Compares what goes out with `expected`, line by line.
    #[track_caller]
    pub(crate) fn gives(&self, expected: &[&str]) {
        if self.lines != expected {
            let show = |lines: &[String]| {
                if lines.is_empty() {
                    "    nothing".into()
                } else {
                    lines.join("\n    ")
                }
            };
            let wanted: Vec<String> = expected.iter().map(ToString::to_string).collect();
            panic!(
                "{}\n  gives\n    {}\n  not\n    {}",
                self.what,
                show(&self.lines),
                show(&wanted)
            );
        }
    }

    /// The lines, for tests that look at a part of them.
    pub(crate) fn lines(&self) -> &[String] {
        &self.lines
    }
}

impl Scenario {
    pub(crate) fn new(config: Config, seed: [u8; 32], net: Net) -> Self {
        let twins = [false, true].map(|works| Twin::new(config.clone(), seed, works));
        Self {
            twins,
            compares: true,
            backlog: false,
            install: Install::No,
            net,
            judge: Judge::default(),
            checker: Checker::new(
                Options {
                    hostile: true,
                    bounds: Some(causes::bounds(&config)),
                    ..Options::default()
                },
                None,
            ),
            closed: 0,
            translator: Translator::new(config, seed),
            now: Instant::default(),
            headroom: HEADROOM,
            seen: (Counters::default(), Drops::default()),
            asked: true,
            server_window: 64,
        }
    }

    /// It is now so many milliseconds since the start.
    pub(crate) fn at(&mut self, millis: u64) {
        let now = Instant::from_millis(millis);
        assert!(now >= self.now, "time goes on");
        self.now = now;
    }

    /// The carrier leaves less room before packets.
    pub(crate) const fn headroom(&mut self, len: usize) {
        self.headroom = len;
    }

    /// A packet of a client's, on flow `id`.
    #[track_caller]
    pub(crate) fn client(&mut self, id: usize, line: &str) -> Outcome {
        self.packet(Leg::Client(id), line, |_| {})
    }

    /// A packet of the server's.
    #[track_caller]
    pub(crate) fn server(&mut self, line: &str) -> Outcome {
        self.server_of(0, line)
    }

    /// A packet of the server of another connection.
    #[track_caller]
    pub(crate) fn server_of(&mut self, connection: usize, line: &str) -> Outcome {
        let backend = self.net.connections[connection].backend;
        self.packet(
            Leg::Server {
                connection,
                backend,
            },
            line,
            |_| {},
        )
    }

    /// A packet of another back end's.
    #[track_caller]
    pub(crate) fn backend(&mut self, backend: usize, line: &str) -> Outcome {
        self.backend_of(0, backend, line)
    }

    /// The same for another connection.
    #[track_caller]
    pub(crate) fn backend_of(&mut self, connection: usize, backend: usize, line: &str) -> Outcome {
        let of = &mut self.net.connections[connection];
        of.backend = backend;
        of.flows[0].isn_flexcp = of.server_isn_of(backend);
        self.server_of(connection, line)
    }

    /// A packet whose bytes, from the IP header on, are changed on the way.
    #[track_caller]
    pub(crate) fn edited(
        &mut self,
        leg: Leg,
        line: &str,
        edit: impl FnOnce(&mut Vec<u8>),
    ) -> Outcome {
        self.packet(leg, line, edit)
    }

    #[track_caller]
    fn packet(&mut self, leg: Leg, line: &str, edit: impl FnOnce(&mut Vec<u8>)) -> Outcome {
        self.net.current = connection_of(leg);
        let (mut bytes, offload) = self.bytes(leg, line);
        edit(&mut bytes);
        let what = format!("{} {line}", self.net.name(leg));
        self.raw(what, &bytes, offload)
    }

    /// The packet that a line says, and what follows from its having been sent.
    pub(crate) fn bytes(&mut self, leg: Leg, line: &str) -> (Vec<u8>, Offload) {
        let mut parsed = parse(&self.net, leg, line);
        if let Leg::Client(id) = leg
            && parsed.flags.contains(TcpFlags::SYN)
            && id.is_multiple_of(FLOWS_PER_CONNECTION)
            && self.state_of(id / FLOWS_PER_CONNECTION).is_none()
        {
            self.net.connection_mut(leg).flexcp_key = None;
        }
        let window = match leg {
            Leg::Client(id) => &mut self.net.flow_mut(id).window,
            Leg::Server { .. } => &mut self.server_window,
        };
        match parsed.window {
            Some(said) if !parsed.flags.intersects(TcpFlags::SYN | TcpFlags::RST) => *window = said,
            Some(_) => {}
            None => parsed.window = Some(*window),
        }
        if let (Leg::Client(id), Some(mapping)) = (leg, parsed.mapping) {
            let mapped = &mut self.net.flow_mut(id).mapped;
            if mapping.1 > 0 && !mapped.contains(&mapping) {
                mapped.push(mapping);
            }
        }
        self.judge.sent(leg, parsed.flags, &parsed.options);
        build(&self.net, leg, &parsed)
    }

    /// Any bytes as a packet.
    #[track_caller]
    pub(crate) fn raw(&mut self, what: String, bytes: &[u8], offload: Offload) -> Outcome {
        let mut buf = vec![0xa5; self.headroom + bytes.len()];
        buf[self.headroom..].copy_from_slice(bytes);
        let mut frame = Frame::new(
            &mut buf,
            self.headroom..self.headroom + bytes.len(),
            offload,
        );
        self.observe_input(bytes, offload);
        let translating = self.translating();
        let before = (*self.translator.counters(), *self.translator.drops());
        let Step { verdict, install } = self.translator.handle_packet(self.now, &mut frame);
        self.install = install;
        let after = (*self.translator.counters(), *self.translator.drops());
        assert_eq!(after.0.packets_in, before.0.packets_in + 1);
        let forwarded = u64::from(verdict == Verdict::Forward);
        assert_eq!(
            after.0.packets_forwarded,
            before.0.packets_forwarded + forwarded
        );
        assert_eq!(
            after.0.offload_installed, before.0.offload_installed,
            "what was forwarded before may be kept"
        );
        if install == Install::BeforeSent {
            self.translator.sent(self.now);
        }
        let drops = |drops: &Drops| drops.iter().map(|(_, count)| count).sum::<u64>();
        let dropped = u64::from(matches!(verdict, Verdict::Drop(_)));
        assert_eq!(drops(&after.1), drops(&before.1) + dropped);

        let done = finish(&mut self.translator, verdict, Some(&frame));
        causes::judge(
            &before.0,
            &after.0,
            &done.out[usize::from(verdict == Verdict::Forward)..],
        );
        if self.backlog {
            self.translator.busy(self.now);
        } else {
            self.translator.idle(self.now);
            self.install = Install::No;
        }
        for twin in self.twins.iter_mut().filter(|_| self.compares) {
            twin.packet(self.now, self.headroom, bytes, offload, &done);
        }
        let mut outcome = Outcome {
            what,
            lines: Vec::new(),
            checksums: Vec::new(),
            new_ack: verdict == Verdict::Forward && frame.is_new_ack(),
        };
        if let Verdict::Drop(reason) = verdict {
            outcome.lines.push(format!("drop {}", reason.name()));
        }
        self.emit_all(&mut outcome, &done, Some(bytes), translating);
        self.forget_closed();
        outcome
    }

    /// Does what is due.
    pub(crate) fn timeout(&mut self) -> Outcome {
        let what = format!("timeout at {} ms", self.now.0 / 1000);
        let mut outcome = Outcome {
            what,
            lines: Vec::new(),
            checksums: Vec::new(),
            new_ack: false,
        };
        let translating = self.translating();
        self.checker.observe_timeout();
        let before = *self.translator.counters();
        self.translator.handle_timeout(self.now);
        assert!(
            self.translator
                .poll_timeout()
                .is_none_or(|next| next > self.now),
            "timer left over"
        );
        let done = finish(&mut self.translator, Verdict::Consume, None);
        causes::judge(&before, self.translator.counters(), &done.out);
        for twin in self.twins.iter_mut().filter(|_| self.compares) {
            twin.timeout(self.now, &done);
        }
        self.emit_all(&mut outcome, &done, None, translating);
        self.forget_closed();
        outcome
    }

    /// FlexCP's rules or routes were missing for a while.
    pub(crate) fn note_astray(&mut self) {
        let now = self.now;
        self.translators()
            .for_each(|translator| translator.note_astray(now));
    }

    /// From here on FlexCP takes no connection.
    pub(crate) fn drain(&mut self) {
        self.checker.observe_end();
        self.translators().for_each(Translator::drain);
    }

    /// The ends of all connections are told that those are over, so many places of the table at a time.
    pub(crate) fn end(&mut self, places: usize) -> Outcome {
        self.tell(&|translator, now| while translator.end_some(now, places) {})
    }

    /// Has the translators tell the ends of connections something, in a way.
    pub(crate) fn tell(&mut self, how: &dyn Fn(&mut Translator, Instant)) -> Outcome {
        let mut outcome = Outcome {
            what: "the end".into(),
            lines: Vec::new(),
            checksums: Vec::new(),
            new_ack: false,
        };
        let translating = self.translating();
        self.checker.observe_timeout();
        let before = *self.translator.counters();
        how(&mut self.translator, self.now);
        let done = finish(&mut self.translator, Verdict::Consume, None);
        causes::judge(&before, self.translator.counters(), &done.out);
        for twin in &mut self.twins {
            how(&mut twin.translator, self.now);
            let same = finish(&mut twin.translator, Verdict::Consume, None);
            assert_eq!(done, same, "the twin does something else");
        }
        self.emit_all(&mut outcome, &done, None, translating);
        outcome
    }

    /// An earlier run has left subflows behind, by their flows, each with the client's key or none.
    pub(crate) fn adopt(&mut self, left: &[(usize, Option<u64>)]) {
        self.checker.observe_end();
        let records: Vec<_> = left.iter().map(|&(id, key)| self.record(id, key)).collect();
        for translator in self.translators() {
            translator.adopt(Instant::default(), records.clone(), (0, 1));
        }
    }

    /// What is written down of a flow.
    pub(crate) fn record(&self, id: usize, key: Option<u64>) -> SubflowRecord {
        let connection = &self.net.connections[id / FLOWS_PER_CONNECTION];
        let initial = &connection.flows[0];
        let flow = self.net.flow(id);
        SubflowRecord {
            source: connection.sources[connection.backend].unwrap_or(initial.client),
            backend: self.net.backends[connection.backend],
            client: flow.client,
            local: flow.local,
            key,
        }
    }

    pub(crate) fn translators(&mut self) -> impl Iterator<Item = &mut Translator> {
        let twins = self.twins.iter_mut().map(|twin| &mut twin.translator);
        std::iter::once(&mut self.translator).chain(twins)
    }

    /// Milliseconds, from the start on, to when a timeout is wanted.
    pub(crate) fn next_timeout(&self) -> Option<u64> {
        self.translator.poll_timeout().map(|at| at.0 / 1000)
    }

    /// A back end whose mark has changed.
    pub(crate) fn poll_backend(&mut self) -> Option<flexcp_translator::BackendState> {
        self.translator.poll_backend()
    }

    /// Counters and drops that have moved since the last call, packets in and out apart.
    pub(crate) fn moved(&mut self) -> String {
        self.asked = true;
        let now = (*self.translator.counters(), *self.translator.drops());
        let text = self.unasked();
        self.seen = now;
        text
    }

    fn unasked(&self) -> String {
        let (counters, drops) = (self.translator.counters(), self.translator.drops());
        let names = counters.iter().chain(drops.iter());
        let old = self.seen.0.iter().chain(self.seen.1.iter());
        let moved: Vec<String> = names
            .zip(old)
            .filter(|((name, new), (_, old))| new != old && !name.starts_with("packets_"))
            .map(|((name, new), (_, old))| format!("{name}+{}", new - old))
            .collect();
        moved.join(" ")
    }

    /// The first connection, as an operator sees it.
    pub(crate) fn view(&self) -> Option<ConnectionView> {
        self.view_of(0)
    }

    pub(crate) fn view_of(&self, connection: usize) -> Option<ConnectionView> {
        let client = self.net.connections[connection].flows[0].client;
        self.translator
            .connections(self.now)
            .find(|view| view.client == client)
    }

    /// Its state in one word; `gone` when there is none.
    pub(crate) fn state(&self) -> &'static str {
        self.state_of(0).map_or("gone", ConnectionState::name)
    }

    pub(crate) fn state_of(&self, connection: usize) -> Option<ConnectionState> {
        self.view_of(connection).map(|view| view.state)
    }

    /// Its subflows in one line each: `0 active`, `1 backup`, ...
    pub(crate) fn subflows(&self) -> Vec<String> {
        let view = self.view().expect("a connection");
        let connection = &self.net.connections[0];
        let show = |subflow: &flexcp_translator::SubflowView| {
            let of =
                |flow: &net::Flow| (flow.client, flow.local) == (subflow.client, subflow.local);
            let id = connection.flows.iter().position(of).expect("a known flow");
            let mark = |is: bool, text: &str| {
                if is {
                    format!(" {text}")
                } else {
                    String::new()
                }
            };
            format!(
                "{id}{}{}{}",
                mark(subflow.active, "active"),
                mark(subflow.backup, "backup"),
                mark(!subflow.established, "down")
            )
        };
        view.subflows.iter().map(show).collect()
    }

    /// From now on flow `id` comes from where flow `other` came from, which is over.
    pub(crate) fn take_port(&mut self, id: usize, other: usize) {
        let (new, old) = (self.net.flow(other).client, self.net.flow(id).client);
        self.net.flow_mut(id).client = new;
        self.net.flow_mut(other).client = old;
    }

    /// The client starts flow `id` anew, with other numbers.
    pub(crate) fn restart(&mut self, id: usize) {
        let initial = id.is_multiple_of(FLOWS_PER_CONNECTION);
        let flow = self.net.flow_mut(id);
        flow.isn_client = flow.isn_client.wrapping_add(0x1357_9bdf);
        flow.nonce_client ^= 0xff00_00ff;
        flow.mapped.clear();
        flow.isn_flexcp = 0;
        let connection = id / FLOWS_PER_CONNECTION;
        self.judge.forget(id, initial.then_some(connection));
        if initial {
            let connection = &mut self.net.connections[connection];
            connection.flexcp_key = None;
            connection.server_isn = connection.server_isn.wrapping_add(0x0246_8ace);
            connection.flows[0].isn_flexcp = connection.server_isn;
        }
    }

    fn translating(&self) -> bool {
        let translates = |view: &ConnectionView| {
            matches!(
                view.state,
                ConnectionState::Translating
                    | ConnectionState::HalfClosed
                    | ConnectionState::Closed
            )
        };
        let mut connections = self.translator.connections(self.now).peekable();
        connections.peek().is_some() && connections.all(|view| translates(&view))
    }

    /// Checks what goes out and adds its lines; `came`: the packet that it is an answer to.
    fn emit_all(
        &mut self,
        outcome: &mut Outcome,
        done: &Done,
        came: Option<&[u8]>,
        translating: bool,
    ) {
        for (place, out) in done.out.iter().enumerate() {
            let in_hand = done.verdict == Verdict::Forward && place == 0;
            let same = in_hand && came == Some(&out.bytes[..]);
            if same && (out.offload.gso.is_some() || !is_well_formed(&out.bytes)) {
                outcome.lines.push("the same".into());
            } else {
                self.emit(outcome, &out.bytes, out.offload, out.filler, translating);
            }
        }
    }

    /// Checks a packet and adds its line.
    fn emit(
        &mut self,
        outcome: &mut Outcome,
        packet: &[u8],
        offload: Offload,
        filler: bool,
        translating: bool,
    ) {
        let ip = IpHeader::parse(packet).expect("an IP packet");
        assert_eq!(ip.total_len, packet.len(), "IP total length");
        if !ip.is_v6() {
            assert_eq!(
                Sum::of(&packet[..ip.header_len]).fold(),
                0xffff,
                "IP header checksum"
            );
        }
        if matches!(ip.protocol, protocol::ICMP | protocol::ICMPV6) {
            outcome.lines.push(icmp::show(&mut self.net, &ip, packet));
            return;
        }
        assert_eq!(ip.protocol, protocol::TCP, "protocol");
        let segment = &packet[ip.header_len..];
        let (tcp, options) = TcpHeader::parse(segment).expect("a TCP segment");
        let payload = segment[tcp.header_len..].to_vec();
        let pseudo = ip.pseudo_header_sum(segment.len());
        let sum_is_right = match offload.checksum {
            ChecksumState::Partial => tcp.checksum == pseudo.fold(),
            _ => pseudo.add(Sum::of(segment)).fold() == 0xffff,
        };
        if let Some(gso) = offload.gso {
            assert_eq!(
                gso.kind == GsoKind::TcpV6,
                ip.is_v6(),
                "segmentation of the wrong family"
            );
            assert!(
                usize::from(gso.size) < payload.len(),
                "segmentation of one segment"
            );
            assert_ne!(
                offload.checksum,
                ChecksumState::Complete,
                "segmentation needs the checksum"
            );
        }
        let (from, to) = ((ip.src, tcp.src_port).into(), (ip.dst, tcp.dst_port).into());
        let syn = tcp.flags.contains(TcpFlags::SYN) && !tcp.flags.contains(TcpFlags::ACK);
        let Some(leg) = self.net.leg_to(from, to, syn.then_some(tcp.seq)) else {
            outcome.lines.push(format!("{from} > {to} {}", tcp.flags));
            return;
        };
        let seen = Seen {
            leg,
            tcp,
            options: options.to_vec(),
            payload,
            ip,
        };
        let mut line = show(&mut self.net, &seen, offload, filler);
        if !sum_is_right {
            line.push_str(" bad");
        }
        outcome.lines.push(line);
        outcome.checksums.push(offload.checksum);
        let segment_len = offload
            .gso
            .map_or(seen.payload.len(), |gso| usize::from(gso.size));
        let wrong = self
            .judge
            .violations(&self.net, &seen, segment_len, translating, filler);
        outcome.lines.extend(wrong);
        outcome
            .lines
            .extend(self.observe_output(packet, offload, filler));
    }

    /// Shows the checker a packet that goes in.
    fn observe_input(&mut self, packet: &[u8], offload: Offload) {
        let servers = &self.net.backends;
        let of_server = |ip: IpHeader| servers.iter().any(|server| server.ip() == ip.src);
        let point = if IpHeader::parse(packet).is_ok_and(of_server) {
            Point::FromServer
        } else {
            Point::FromClient
        };
        match Observation::whole(self.now.0, point, packet, offload) {
            Some(seen) => self.checker.observe(&seen),
            None => self.checker.observe_timeout(),
        }
    }

    /// Shows the checker a packet that goes out; what is wrong with it.
    fn observe_output(&mut self, packet: &[u8], offload: Offload, filler: bool) -> Vec<String> {
        let servers = &self.net.backends;
        let to_server = |ip: IpHeader| servers.iter().any(|server| server.ip() == ip.dst);
        let point = if IpHeader::parse(packet).is_ok_and(to_server) {
            Point::ToServer
        } else {
            Point::ToClient
        };
        let Some(mut seen) = Observation::whole(self.now.0, point, packet, offload) else {
            return Vec::new();
        };
        if filler {
            seen.payload = Seeing::Zeros;
        }
        let before = self.checker.violations().len();
        self.checker.observe(&seen);
        let new = &self.checker.violations()[before..];
        new.iter()
            .map(|violation| format!("! {violation}"))
            .collect()
    }

    /// Tells the checker which connections FlexCP has let go of.
    fn forget_closed(&mut self) {
        self.check_memory();
        let closed = self.translator.counters().connections_closed;
        if closed != self.closed {
            self.closed = closed;
            let views = self.translator.connections(self.now);
            let left: Vec<_> = views.map(|view| view.client).collect();
            self.checker.retain(|client| left.contains(&client));
        }
    }

    /// What the budget says is what the connections have allocated, for each translator, and within it.
    #[track_caller]
    fn check_memory(&mut self) {
        for translator in self.translators() {
            let gauges = translator.gauges();
            let walked = flexcp_translator::internals::memory(translator);
            assert_eq!(gauges.memory_bytes, walked, "memory that nobody has noted");
            let counted = gauges.memory_bytes + gauges.memory_reserved_bytes;
            let budget = translator.memory_budget() as u64;
            assert!(counted <= budget, "{counted} bytes of {budget}");
        }
    }

    /// The sides that the checker has caught at breaking the protocol, and how.
    pub(crate) fn breaches(&self) -> Vec<(Side, &'static str)> {
        let breaches = self.checker.breaches();
        breaches.map(|(_, side, breach)| (side, breach)).collect()
    }
}

/// Whether a packet that passes untouched can be held to what FlexCP's own ones are held to.
fn is_well_formed(packet: &[u8]) -> bool {
    IpHeader::parse(packet).is_ok_and(|ip| {
        let has_sum = ip.is_v6() || Sum::of(&packet[..ip.header_len]).fold() == 0xffff;
        ip.protocol == 6 && ip.total_len == packet.len() && has_sum
    })
}

impl Drop for Scenario {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.asked, "nobody asked for the counters");
            let rest = self.unasked();
            assert!(rest.is_empty(), "counters that nobody asked for: {rest}");
            let left = flexcp_translator::internals::mappings_left_over(&self.translator);
            assert_eq!(left, 0, "mappings of subflows that are over");
            for twin in self.twins.iter_mut().filter(|_| self.compares) {
                twin.compare(self.now, &self.translator);
            }
        }
    }
}
