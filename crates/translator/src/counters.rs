//! Counters, named after the kernel's MIB where it has a counterpart, and the reasons for which a
//! packet is dropped: each reason is a counter.

use crate::cause::{AddAddr, Causes, Decision, Fallback, Meaning, PlainSyn};
use crate::offload::FlowEntry;

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[doc = $meaning:literal])* $field:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct $name {
            $($(#[doc = $meaning])* pub $field: u64,)*
            /// Decisions among them, by their causes.
            pub causes: Causes,
        }

        impl $name {
            /// The name of each, and the lines that say what it means.
            pub const MEANINGS: &'static [Meaning] = &[$((stringify!($field), &[$($meaning),*])),*];

            /// Name and value of each counter, in declaration order; not those of causes.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field)),*].into_iter()
            }
        }
    };
}

counters! {
    /// What the translator has done since it was made.
    Counters {
        /// Packets handed in.
        packets_in,
        /// Packets forwarded, in place or in pieces.
        packets_forwarded,
        /// Packets that came to their end here: answered, or taken note of. With those forwarded and those dropped
        /// they are all that were handed in.
        packets_consumed,
        /// ACKs of servers that were held back until their connection was installed, and then sent as one, as packets of many
        /// connections waited at a time.
        acks_held,
        /// Packets that the translator made: ACKs, handshake answers, resets, filler, the pieces of a split packet.
        packets_made,
        /// SYNs with an `MP_CAPABLE` that FlexCP took.
        mp_capable_syn_rx,
        /// Connections whose client proved its keys: MPTCP works.
        mp_capable_ack_rx,
        /// Connections whose client has named its server.
        preambles,
        /// Connections whose client has said something and was not connected with a server: it asked for none, what it said was not
        /// understood or not allowed, or the server did not answer.
        preambles_refused,
        /// Connections that FlexCP has answered before their server was known, or as there was none.
        hosted,
        /// Times that the answer to a preamble, data of the SYN behind one, or a header of the PROXY protocol was sent again.
        front_repeated,
        /// Headers of the PROXY protocol that back ends have been sent, each counted once.
        proxy_headers,
        /// SYNs of a service that go on as plain TCP: no `MP_CAPABLE`, or one we can't honour.
        plain_syn,
        /// SYNs with `MP_CAPABLE` that went on as plain TCP because a limit was reached.
        overload_plain,
        /// Handshakes let go before their time because a new one needed the room.
        half_open_evicted,
        /// The server answered `MP_CAPABLE` itself and FlexCP stepped aside.
        end_to_end,
        /// Connections that fell back to TCP before the client proved its keys, or as the server of an aggregation box has none.
        fallback_handshake,
        /// Connections that fell back to TCP later (RFC 8684 section 3.7).
        fallback_established,
        /// Servers that have answered the `MP_CAPABLE` of an aggregation box.
        mp_capable_synack_rx,
        /// `MP_JOIN` SYNs of an aggregation box, each counted once.
        mp_join_syn_tx,
        /// Subflows of an aggregation box that its server has confirmed.
        mp_join_synack_rx,
        /// `MP_JOIN` SYN/ACKs of servers with a wrong HMAC.
        mp_join_synack_hmac_failure,
        /// `MP_JOIN` SYNs answered.
        mp_join_syn_rx,
        /// Subflows whose client proved itself.
        mp_join_ack_rx,
        /// `MP_JOIN` SYNs with a token that no connection has.
        mp_join_no_token,
        /// `MP_JOIN` ACKs with a wrong HMAC.
        mp_join_ack_hmac_failure,
        /// `MP_JOIN` SYNs refused: too many subflows, or the connection does not take any.
        mp_join_refused,
        /// `ADD_ADDR` sent, copies included.
        add_addr_tx,
        /// `ADD_ADDR` echoes with which a client confirmed one.
        echo_add_rx,
        /// `ADD_ADDR` of a client, echoed.
        add_addr_rx,
        /// ICMP errors passed on with the numbers of the end that they are for.
        icmp_translated,
        /// ICMP errors that told of a smaller MTU on a leg of a connection.
        path_mtu_lowered,
        /// `REMOVE_ADDR` obeyed.
        rm_addr_rx,
        /// `REMOVE_ADDR` sent, copies included: an aggregation box has lost an uplink, or its address there.
        rm_addr_tx,
        /// `MP_PRIO` obeyed.
        mp_prio_rx,
        /// `MP_PRIO` sent, copies included: which paths are for when others fail.
        mp_prio_tx,
        /// `MP_FAIL` received.
        mp_fail_rx,
        /// `MP_FASTCLOSE` received and passed to the server as RST.
        mp_fastclose_rx,
        /// `MP_FASTCLOSE` sent because the server reset the connection.
        mp_fastclose_tx,
        /// Subflows reset by FlexCP.
        mp_rst_tx,
        /// Subflows reset by their client.
        mp_rst_rx,
        /// Downstream data moved to another subflow.
        subflow_switch,
        /// Payload bytes of the server that it had sent before.
        retransmitted_down_bytes,
        /// Repeated packets of a server that run over so many mappings that only their start was sent again.
        retransmission_cut,
        /// Filler sent into holes that the data ACK had overtaken.
        filler_tx,
        /// Packets of servers sent again from a copy: they are the first on a path that the client has yet to be heard on.
        spare_tx,
        /// Payload bytes that went down another path as well, as the steering rule's mode is redundant.
        copied_down_bytes,
        /// Packets that ask clients whether a path that was silent works again, or how long the way over one is that carries
        /// nothing; connections under a steering rule alone.
        path_probe_tx,
        /// Packets of clients beyond the server's window that were ACKed on their subflow, for the client to send
        /// the data again when there is room.
        window_overrun,
        /// Repeated packets of clients that were ACKed on their subflow, for the client to send anew what the server
        /// waits for: that had been ACKed where it came, and the server has it no more.
        let_go_up,
        /// Connections of an earlier run whose ends are told that they are over.
        orphans,
        /// Packets that ask those ends for the number at which they believe a RST.
        orphan_probes_tx,
        /// ACKs that ask the ends of connections for their numbers, as packets may have gone past FlexCP while its rules or
        /// routes were missing.
        ends_asked,
        /// Subflows that could not be written down: if the process is killed, nobody tells their ends.
        records_refused,
        /// Connections of plain TCP on the path whose packets the kernel forwards by itself.
        passed_by,
        /// SYNs that were left to the kernel's sockets, each time that they came: their connections are split.
        split,
        /// `MP_JOIN` SYNs at the address of a service that may be split, left to the kernel's sockets: no connection of FlexCP's own
        /// has the token.
        split_joins,
        /// SYNs of connections that were to be split and are not: the offload's programs do not run, or not on the device that
        /// they came in on; or the SYN has data, which the relay's sockets do not take.
        split_refused,
        /// SYNs of split connections that waited until the server that they name had been called (0-RTT Convert).
        syn_held,
        /// The same, and those that no server was called for, that went on without their data: the server had not answered.
        syn_stripped,
        /// Connections taken into the table.
        connections_opened,
        /// Connections that left the table.
        connections_closed,
        /// Times that a connection's back end refused or did not answer, so that another was tried.
        backend_skipped,
        /// Times that a back end was marked, as it refused or did not answer: connections pass it by.
        backend_marked,
        /// Times that a marked back end answered, so that it takes connections again.
        backend_back,
        /// Connections of a box that an aggregation server has connected on.
        server_granted,
        /// Of these, clients that were answered with the SYN/ACK of a converter that says by it that it has connected on.
        server_early,
        /// Clients answered so whose converter then said something else, or nothing: both ends were reset.
        server_retracted,
        /// Connections of a box whose server is not there, as an aggregation server says: their clients are refused.
        server_refused,
        /// Times that an aggregation server would not, or could not, connect on.
        server_declined,
        /// Times that another aggregation server was asked, as one declined, refused or did not answer.
        server_skipped,
        /// Times that a box with aggregation servers asked the server itself, as none of them was left.
        server_bypassed,
        /// SYNs of FlexCP's own that ask marked back ends whether they answer again.
        backend_probes_tx,
        /// SYNs of FlexCP's own that check back ends at regular times (`check` of a service).
        backend_checks_tx,
        /// Checks that were refused, or not answered in time.
        backend_checks_failed,
        /// Times that a connection was refused memory beyond its part of the budget, so that a packet, a copy or a join
        /// was not taken.
        memory_refused,
        /// Connections of silent clients that gave back room for mappings because memory was short.
        memory_trimmed,
        /// Times that an established connection was installed in the fast path.
        offload_installed,
        /// Times that one was evicted.
        offload_evicted,
        /// Times that the fast path had no room for one.
        offload_refused,
        /// Connections that are not installed, as rules of the host have to be applied to their packets (NAT).
        offload_kept,
        /// Packets of servers that the fast path translated; counted when it gives the connection back, also as
        /// handed in and forwarded.
        offload_packets_down,
        /// The same for packets of clients.
        offload_packets_up,
        /// Packets that the fast path made; counted when it gives the connection back, also as made.
        offload_packets_made,
    }
}

counters! {
    /// What the translator holds now. Without connections all of it is 0.
    Gauges {
        /// Connections in the table.
        connections,
        /// Flows that lead to them: one for the server, one for each subflow.
        flows,
        /// Tokens by which clients may join them.
        tokens,
        /// Connections whose handshake is not complete.
        half_open,
        /// Entries of the timer queue that a connection waits for.
        timers,
        /// Bytes that the connections have allocated.
        memory_bytes,
        /// Bytes beyond those that are kept for connections that have not taken all that is their own. Both together
        /// stay within the budget.
        memory_reserved_bytes,
        /// Slots of the fast path that connections hold, installed or not.
        offload_slots,
    }
}

macro_rules! drop_reasons {
    ($($(#[doc = $meaning:literal])* $variant:ident => $name:ident),* $(,)?) => {
        /// Why a packet was dropped. Each reason has a counter of the same name.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum DropReason { $($(#[doc = $meaning])* $variant),* }

        impl DropReason {
            /// The name of each, and the lines that say what it means.
            pub const MEANINGS: &'static [Meaning] = &[$((stringify!($name), &[$($meaning),*])),*];

            /// Every reason.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The counter's name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($name)),* }
            }
        }
    };
}

drop_reasons! {
    /// Not a packet: cut short, or lengths that contradict each other.
    Malformed => malformed,
    /// An IP fragment: the rest of it can't be told apart.
    Fragment => fragment,
    /// Checksum wrong where FlexCP had to check it.
    Checksum => checksum,
    /// From its own destination: nobody's packet.
    Spoofed => spoofed,
    /// TCP options that can't be walked to their end.
    MalformedOptions => malformed_options,
    /// Neither TCP nor ICMP.
    NotTcp => not_tcp,
    /// Belongs to no connection, and the service leaves nobody else to send it to.
    NoConnection => no_connection,
    /// Sequence number outside what the receiver could take.
    OutOfWindow => out_of_window,
    /// An ACK of something that was never sent.
    AckOfUnsent => ack_of_unsent,
    /// For a client that names its server, has not shown where it is, and would have been sent more than has come from there.
    Unproved => unproved,
    /// What a client says before its stream is not understood, or not all in its SYN.
    BadPreamble => bad_preamble,
    /// A client names a server that it may not be connected with.
    NotAllowed => not_allowed,
    /// An ACK that tells the server nothing new and would look like a duplicate.
    StaleAck => stale_ack,
    /// A mapping that contradicts an earlier one, or lies out of reach.
    BadMapping => bad_mapping,
    /// Data on a subflow that has not authenticated itself.
    NotAuthenticated => not_authenticated,
    /// Data without a mapping on a connection that can't fall back.
    NoMapping => no_mapping,
    /// Marked "congestion experienced" for a subflow that does without ECN.
    Congestion => congestion,
    /// No subflow is left to carry it.
    NoSubflow => no_subflow,
    /// A table is full.
    LimitReached => limit_reached,
    /// Its mapping takes memory beyond the connection's part of the budget.
    Memory => memory,
    /// FlexCP is about to end, or the service is drained or gone: no connection is taken any more.
    Draining => draining,
    /// No back end of the service takes connections: each is in maintenance or has weight 0.
    NoBackend => no_backend,
    /// The headers would not fit before the payload.
    NoHeadroom => no_headroom,
    /// A RST whose sequence number does not prove that its sender is on the path (RFC 5961).
    BlindReset => blind_reset,
    /// The state of the connection has no use for it.
    Unexpected => unexpected,
}

/// Packets dropped, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Drops([u64; DropReason::ALL.len()]);

impl Drops {
    pub(crate) const fn count(&mut self, reason: DropReason) {
        self.0[reason as usize] += 1;
    }

    /// Packets dropped for this reason.
    #[must_use]
    pub const fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Name and value of each counter.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        DropReason::ALL
            .iter()
            .map(|&reason| (reason.name(), self.get(reason)))
    }
}

impl Counters {
    /// Adds what the fast path has done with a connection since it was installed.
    pub(crate) fn add_installed(&mut self, entry: &FlowEntry) {
        let (packets, made) = (
            entry.packets_down + entry.packets_up,
            u64::from(entry.packets_made),
        );
        self.offload_packets_down += entry.packets_down;
        self.offload_packets_up += entry.packets_up;
        self.packets_in += packets;
        self.packets_forwarded += packets;
        self.packets_made += made;
        self.offload_packets_made += made;
    }
}

impl Counters {
    /// FlexCP decides something: the only place that counts decisions, with and without their causes.
    pub(crate) fn decide(&mut self, decision: impl Into<Decision>) {
        let decision = decision.into();
        self.causes.count(decision);
        let total = match decision {
            Decision::PreambleRefused(_) => &mut self.preambles_refused,
            Decision::PlainSyn(cause) => {
                self.overload_plain += u64::from(cause == PlainSyn::Overload);
                &mut self.plain_syn
            }
            Decision::Rst(cause) if cause.gives_up() => &mut self.mp_rst_tx,
            Decision::JoinRefused(_) => &mut self.mp_join_refused,
            Decision::SubflowSwitch(_) => &mut self.subflow_switch,
            Decision::HalfOpenEvicted(_) => &mut self.half_open_evicted,
            Decision::AddAddr(AddAddr::First | AddAddr::Repeated) => &mut self.add_addr_tx,
            Decision::Fallback(Fallback::Handshake | Fallback::Unanswered) => {
                &mut self.fallback_handshake
            }
            Decision::Fallback(_) => &mut self.fallback_established,
            Decision::Rst(_) | Decision::JoinEvicted(_) | Decision::AddAddr(AddAddr::GivenUp) => {
                return;
            }
        };
        *total += 1;
    }
}
