//! Why FlexCP has decided as it has: each decision that an operator may ask about carries a cause.
//!
//! A decision is made in one place, [`Counters::decide`], which counts it and its cause. What leaves as a RST is made
//! in one place too (`rst.rs`), which takes no segment without a cause.

use flexcp_preamble::{Fault, Refusal};

/// A counter's name, and the lines that say what it means.
pub type Meaning = (&'static str, &'static [&'static str]);

macro_rules! decisions {
    ($($(#[doc = $meaning:literal])* $decision:ident => $group:ident {
        $($(#[doc = $cause_meaning:literal])* $cause:ident => $name:ident),* $(,)?
    })*) => {
        $(
            $(#[doc = $meaning])*
            #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
            pub enum $decision { $($(#[doc = $cause_meaning])* $cause),* }

            impl $decision {
                /// The causes' names, in declaration order.
                const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

                /// For output: one lower-case word.
                #[must_use]
                pub const fn name(self) -> &'static str {
                    Self::NAMES[self as usize]
                }
            }

            impl From<$decision> for Decision {
                fn from(cause: $decision) -> Self {
                    Self::$decision(cause)
                }
            }
        )*

        /// Something that FlexCP has decided, and why.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Decision { $($(#[doc = $meaning])* $decision($decision)),* }

        /// How often each decision was made, by its cause.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct Causes { $($group: [u64; $decision::NAMES.len()]),* }

        impl Default for Causes {
            fn default() -> Self {
                Self { $($group: [0; $decision::NAMES.len()]),* }
            }
        }

        impl Causes {
            /// The name of each decision with the lines that say what it means, and the same of its causes.
            pub const MEANINGS: &'static [(Meaning, &'static [Meaning])] = &[$((
                (stringify!($group), &[$($meaning),*]),
                &[$((stringify!($name), &[$($cause_meaning),*])),*],
            )),*];

            pub(crate) const fn count(&mut self, decision: Decision) {
                match decision {
                    $(Decision::$decision(cause) => self.$group[cause as usize] += 1),*
                }
            }

            /// How often this was decided for this cause.
            #[must_use]
            pub fn get(&self, decision: impl Into<Decision>) -> u64 {
                match decision.into() {
                    $(Decision::$decision(cause) => self.$group[cause as usize]),*
                }
            }

            /// The decisions' names, and for each the name and the count of each cause.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                let groups = [$((stringify!($group), $decision::NAMES, &self.$group[..])),*];
                groups.into_iter().flat_map(|(group, names, counts)| {
                    names.iter().zip(counts).map(move |(&name, &count)| (group, name, count))
                })
            }
        }
    };
}

decisions! {
    /// A client that has named its server, or has something else to say first, is not connected.
    PreambleRefused => preamble_refused {
        /// It has asked for no server, only what there is.
        Asked => asked,
        /// It speaks another protocol, or a version that there is not.
        Protocol => protocol,
        /// What it says has a wrong form.
        Malformed => malformed,
        /// It wants something that is not done.
        Unsupported => unsupported,
        /// It has no method to say who it is that is taken.
        Method => method,
        /// A name, a password or a cookie is wrong or missing.
        Credentials => credentials,
        /// It has not said in time whom it wants.
        Late => late,
        /// It may not be connected with that server.
        NotAllowed => not_allowed,
        /// It has as many connections as it may have, or opens more in a second than it may.
        ClientLimit => client_limit,
        /// The name of the server is unknown.
        NoName => no_name,
        /// The server has answered with a RST.
        ServerReset => server_reset,
        /// An ICMP error has come instead of the server's answer.
        Unreachable => unreachable,
        /// The server has not answered.
        Expired => expired,
        /// There is no room for the connection.
        NoRoom => no_room,
        /// There is no way to the network of the server.
        NoNetwork => no_network,
    }

    /// A SYN of a service goes on as plain TCP (RFC 8684 section 3.1).
    PlainSyn => plain_syn {
        /// It does not ask for MPTCP.
        NoOption => no_option,
        /// It asks for MPTCP by itself, at an aggregation box.
        Mptcp => mptcp,
        /// It is for a server that the box leaves alone.
        Excepted => excepted,
        /// It asks for another version than 1.
        Version => version,
        /// It does not offer HMAC-SHA-256, or sets the extensibility flag.
        Algorithm => algorithm,
        /// It wants DSS checksums.
        Checksum => checksum,
        /// Its `MP_CAPABLE` carries keys, which a SYN's does not.
        Keys => keys,
        /// It carries data (TCP Fast Open).
        Data => data,
        /// Its MSS leaves no room beside the options.
        SmallMss => small_mss,
        /// A table is full.
        Overload => overload,
        /// The budget of memory is used up, but for what is kept for the connections that there are.
        Memory => memory,
        /// FlexCP is about to end, or its service is drained or gone.
        Draining => draining,
        /// The client has asked for MPTCP before and repeats its SYN without.
        GivenUp => given_up,
    }

    /// A RST of FlexCP's own leaves. Those that an end sends and FlexCP passes on are not counted.
    Rst => rst {
        /// To a joined subflow: its third packet carries no `MP_JOIN`.
        NoProof => no_proof,
        /// To a joined subflow: the HMAC of its third packet is wrong.
        WrongHmac => wrong_hmac,
        /// To a subflow: the client has declared more mappings than FlexCP keeps.
        Mappings => mappings,
        /// To a subflow: its mappings take memory beyond the connection's part of the budget, and its client has been
        /// silent for long, or nothing could move any more.
        Memory => memory,
        /// To a subflow: its DSS has a checksum, which nobody has agreed on.
        DssChecksum => dss_checksum,
        /// To a subflow: its ACKs come without a data ACK, so something on the path takes options away.
        Stripped => stripped,
        /// To a subflow: its data comes without a mapping.
        NoMapping => no_mapping,
        /// To a subflow: the client leaves MPTCP, by `MP_FAIL` or an infinite mapping, when that is too late.
        LateFallback => late_fallback,
        /// To a subflow: no subflow can deliver what the server repeats.
        Stuck => stuck,
        /// To a subflow: its client does not ACK the filler that closes a hole.
        Hole => hole,
        /// To a subflow: its client has removed its address.
        AddressRemoved => address_removed,
        /// To a subflow that was reset before, or to both ends when FlexCP ends: they may not have heard of it.
        Repeated => repeated,
        /// To a subflow, with `MP_FASTCLOSE`: the server has reset the connection.
        ServerReset => server_reset,
        /// To the server and every subflow: the client has sent `MP_FASTCLOSE`.
        FastClose => fast_close,
        /// To both ends: nothing has come for the idle time.
        Idle => idle,
        /// To both ends: no subflow is left, and the peer has not come back, or cannot (a server that takes no joins).
        Abandoned => abandoned,
        /// To the server: the client's end has gone and opens another connection from its place.
        Replaced => replaced,
        /// To the server: a handshake that is not complete makes room.
        Evicted => evicted,
        /// To an end that sends on after a reset.
        AfterReset => after_reset,
        /// To a client: its server can't be reached.
        Unreachable => unreachable,
        /// To a client of a box: an aggregation server says that the server refuses.
        Refused => refused,
        /// To a server that still knows an earlier connection from the port of a box's SYN, and ACKs that (RFC 9293 section
        /// 3.10.7.3): it forgets it.
        Earlier => earlier,
        /// To an aggregation server: nothing comes of the connection that it was asked for.
        Declined => declined,
        /// To both ends: a converter has not connected on, though its SYN/ACK said so.
        Retracted => retracted,
        /// To both ends: FlexCP ends, or the time of a service that is drained or gone is over.
        Ending => ending,
        /// To both ends: an operator, or the program that FlexCP is part of, has asked for the end of the connection.
        Asked => asked,
        /// To both ends: packets went past FlexCP while its rules or routes were missing, and one end ACKs what never came
        /// here.
        Astray => astray,
        /// To both ends of a connection that an earlier run has left behind.
        Orphaned => orphaned,
        /// To a back end that has answered a probe or a check.
        Probed => probed,
        /// To a client: FlexCP is about to end, or its service is drained or gone, and takes no connection any more.
        Draining => draining,
        /// To a client: there is no room for its connection.
        NoRoom => no_room,
        /// To a client: no back end of its service takes connections, as each is in maintenance or has weight 0.
        NoBackend => no_backend,
        /// To a client: what it says before its stream is of another protocol, or does not come in time.
        Preamble => preamble,
        /// To a client: it may not be connected with the server that it names.
        NotAllowed => not_allowed,
        /// To both ends: the back end does not ACK the header of the PROXY protocol, however often it is sent.
        ProxyHeader => proxy_header,
        /// To a client: its join is refused.
        JoinRefused => join_refused,
        /// To a client: no connection has the token of its join.
        UnknownToken => unknown_token,
        /// To a client: the subflow that its packet belongs to is over.
        SubflowClosed => subflow_closed,
        /// To whoever sends what belongs to no connection.
        NoConnection => no_connection,
    }

    /// A join with the token of a connection is refused (RFC 8684 section 3.2).
    JoinRefused => join_refused {
        /// The connection is not established, or has been reset.
        State => state,
        /// The connection has fallen back. There is no RST: whoever joins has not heard of that, and Linux answers a
        /// RST by sending all that has no data ACK again on the initial subflow, where it would now be new data.
        FellBack => fell_back,
        /// The SYN's MSS leaves no room beside the options.
        SmallMss => small_mss,
        /// The server does without SACK, and another subflow carries data.
        NoSack => no_sack,
        /// The connection has as many subflows as it may have.
        Subflows => subflows,
        /// As many joins of the connection as may be are not complete.
        HalfOpenJoins => half_open_joins,
        /// The budget has no memory for a further subflow of the connection.
        Memory => memory,
        /// The segment is not an `MP_JOIN` SYN, or there is no slot.
        Malformed => malformed,
    }

    /// What goes down moves to another subflow.
    SubflowSwitch => subflow_switch {
        /// The subflow's path counts as failed.
        Failed => failed,
        /// The subflow is over.
        Closed => closed,
        /// The client has closed its side of the subflow.
        Leaving => leaving,
        /// The client wants the subflow as backup.
        Backup => backup,
        /// The client has not heard of room for the data on the subflow.
        Room => room,
        /// All paths count as failed, and it is another one's turn.
        Turn => turn,
        /// The operator prefers another path's access.
        Preferred => preferred,
        /// Another path's round-trip time is shorter.
        Delay => delay,
        /// Its access carries more than its part, or connections fare better on another.
        Balance => balance,
        /// The path is beyond the rule's thresholds.
        Congested => congested,
        /// The connection's turn, or its luck, is another path's.
        Dealt => dealt,
        /// Its data goes over several paths, and another one brings it sooner.
        Lagging => lagging,
        /// An operator, or the program that FlexCP is part of, has asked for it.
        Asked => asked,
    }

    /// A handshake that is not complete is let go before its time.
    HalfOpenEvicted => half_open_evicted {
        /// As many as may be are not complete, or memory is short, and it is stale.
        Stale => stale,
        /// As many as may be are not complete, and a plain connection needs a place.
        Plain => plain,
        /// The table of connections is full.
        Connections => connections,
        /// The budget of memory is used up.
        Memory => memory,
        /// The ports towards the back ends are used up.
        Ports => ports,
    }

    /// A join that is not complete is let go before its time.
    JoinEvicted => join_evicted {
        /// Another one needs the room, and an honest client would have completed it by now.
        Stale => stale,
        /// One from an address that the client has used needs the room, and this one comes from elsewhere.
        Stranger => stranger,
    }

    /// What becomes of an address that is announced with `ADD_ADDR` (RFC 8684 section 3.4.1).
    AddAddr => add_addr {
        /// It is announced.
        First => first,
        /// It is announced again: no echo has come.
        Repeated => repeated,
        /// It is not announced again: the client does not want it.
        GivenUp => given_up,
    }

    /// A connection falls back to TCP (RFC 8684 section 3.7).
    Fallback => fallback {
        /// The client answers the SYN/ACK without MPTCP.
        Handshake => handshake,
        /// The client's packets carry no MPTCP option any more.
        NoOption => no_option,
        /// The client declares an infinite mapping.
        Infinite => infinite,
        /// The client sends `MP_FAIL`.
        Fail => fail,
        /// The client's data comes without a mapping.
        NoMapping => no_mapping,
        /// The server that an aggregation box has asked for MPTCP answers without it.
        Unanswered => unanswered,
        /// The server ends the connection, and the client's last words were plain TCP.
        ServerFin => server_fin,
    }
}

impl From<Fault> for PreambleRefused {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Protocol => Self::Protocol,
            Fault::Malformed => Self::Malformed,
            Fault::Unsupported => Self::Unsupported,
            Fault::Method => Self::Method,
            Fault::Credentials => Self::Credentials,
        }
    }
}

impl From<Refusal> for PreambleRefused {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotAllowed => Self::NotAllowed,
            Refusal::ClientLimit => Self::ClientLimit,
            Refusal::NoName => Self::NoName,
            Refusal::Reset => Self::ServerReset,
            Refusal::Unreachable { .. } => Self::Unreachable,
            Refusal::Expired => Self::Expired,
            Refusal::NoRoom(_) => Self::NoRoom,
            Refusal::NoNetwork => Self::NoNetwork,
        }
    }
}

impl Rst {
    /// Whether FlexCP gives up a subflow with it, and not for the first time only.
    pub(crate) const fn gives_up(self) -> bool {
        (self as usize) < Self::Repeated as usize
    }
}
