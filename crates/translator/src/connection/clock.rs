//! Timestamps (RFC 7323). Each subflow of a client has a clock of its own; the server sees one clock,
//! the initial subflow's, which never goes back: PAWS would drop what comes with an older value.

use flexcp_wire::Timestamps;

use crate::time::Instant;

/// The clock that the server sees.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct ServerClock {
    /// The latest TSval sent to the server, and when.
    pub(super) sent: u32,
    pub(super) sent_at: Instant,
    /// The latest TSval from the server.
    pub(super) heard: u32,
    /// The latest echo of the server's TSval that any subflow brought.
    pub(super) echo: u32,
    /// The server's TSval as it last repeated what the client ACKs next; an earlier one: it has not.
    pub(super) again: u32,
}

/// A subflow's clock against the server's view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SubflowClock {
    /// Added to the client's TSval to get the initial subflow's.
    pub(super) offset: u32,
    /// The latest TSval that the client sent.
    pub(super) heard: u32,
    /// The latest that came with data from where the subflow's ACK stood: TS.Recent (RFC 7323 section 4.3). An
    /// earlier one, once the server has shown that it got that.
    pub(super) recent: u32,
}

/// Whether `a` is later than `b` (RFC 7323 section 5.2).
pub(super) const fn later(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

impl ServerClock {
    /// Starts with the client's SYN.
    pub(crate) const fn start(now: Instant, syn: Timestamps) -> Self {
        Self {
            sent: syn.val,
            sent_at: now,
            heard: 0,
            echo: 0,
            again: 0,
        }
    }

    /// Takes the timestamp of a SYN that the client repeats.
    pub(crate) const fn restart(&mut self, now: Instant, syn: Timestamps) {
        if later(syn.val, self.sent) {
            self.sent = syn.val;
            self.sent_at = now;
        }
    }

    /// Takes the first timestamp of the server, whatever it is.
    pub(crate) const fn start_server(&mut self, timestamps: Timestamps) {
        self.heard = timestamps.val;
        self.echo = timestamps.val;
        self.again = timestamps.val;
    }

    /// Takes a later timestamp of the server.
    pub(crate) const fn heard(&mut self, val: u32) {
        if later(val, self.heard) {
            self.heard = val;
        }
    }

    /// The server repeats what the client ACKs next.
    pub(super) const fn note_repetition(&mut self) {
        self.again = self.heard;
    }

    /// Whether the server has repeated something, and has not heard of it yet.
    pub(super) const fn is_repetition_open(&self) -> bool {
        later(self.again, self.echo)
    }

    /// The client ACKs more data. `brought`: on the subflow that took the repetition of the first of it, and that data is
    /// ACKed there, too. What any other subflow echoes is of earlier packets: a server that has repeated what is ACKed
    /// here would take that for repeated in vain (RFC 3522), repair nothing more, and measure a round trip that began
    /// long before.
    pub(super) const fn take_progress(&mut self, brought: bool) {
        if !brought && self.is_repetition_open() {
            self.echo = self.again;
        }
        self.again = self.echo;
    }

    /// Timestamps of a packet to the server that came from `clock` with `timestamps`.
    pub(crate) fn translate(
        &mut self,
        now: Instant,
        clock: Option<&SubflowClock>,
        timestamps: Option<Timestamps>,
    ) -> Timestamps {
        match (clock, timestamps) {
            (Some(clock), Some(timestamps)) => {
                let val = timestamps.val.wrapping_add(clock.offset);
                if later(val, self.sent) {
                    self.sent = val;
                    self.sent_at = now;
                }
                // An older echo comes from a path that has not heard the server lately.
                if later(timestamps.ecr, self.echo) && !later(timestamps.ecr, self.heard) {
                    self.echo = timestamps.ecr;
                }
            }
            // The subflow does without timestamps, or a middlebox took them: the clock goes on.
            _ => self.advance(now),
        }
        Timestamps {
            val: self.sent,
            ecr: self.echo,
        }
    }

    /// The packet of the last translation stays here: the server has not seen its TSval. `before`: the clock before it.
    pub(crate) const fn take_back(&mut self, before: &Self) {
        self.sent = before.sent;
        self.sent_at = before.sent_at;
    }

    /// Timestamps of a packet that FlexCP makes for the server.
    pub(crate) const fn own_to_server(&self) -> Timestamps {
        Timestamps {
            val: self.sent,
            ecr: self.echo,
        }
    }

    /// What the initial subflow's clock shows now, counted in milliseconds from its last value.
    pub(crate) fn initial_now(&self, now: Instant) -> u32 {
        let millis = now.since(self.sent_at).as_millis();
        self.sent.wrapping_add(u32::try_from(millis).unwrap_or(0))
    }

    fn advance(&mut self, now: Instant) {
        let val = self.initial_now(now);
        if later(val, self.sent) {
            self.sent = val;
            self.sent_at = now;
        }
    }
}

impl SubflowClock {
    /// The initial subflow's own.
    pub(crate) const fn initial(val: u32) -> Self {
        Self {
            offset: 0,
            heard: val,
            recent: val,
        }
    }

    /// A joined subflow's, whose SYN with `val` came when the initial clock showed `initial_now`.
    pub(crate) const fn joined(val: u32, initial_now: u32) -> Self {
        Self {
            offset: initial_now.wrapping_sub(val),
            heard: val,
            recent: val,
        }
    }

    /// Takes a timestamp of the client; `next`: of data from where the subflow's ACK stands, or from before that.
    pub(crate) const fn heard(&mut self, timestamps: Timestamps, next: bool) {
        if later(timestamps.val, self.heard) {
            self.heard = timestamps.val;
        }
        if next && later(timestamps.val, self.recent) {
            self.recent = timestamps.val;
        }
    }

    /// Takes what the server has echoed, and nothing later, for what came with the data that it ACKs now.
    pub(crate) const fn believe(&mut self, server_echo: u32) {
        let echo = server_echo.wrapping_sub(self.offset);
        if later(self.recent, echo) {
            self.recent = echo;
        }
    }

    /// Timestamps of a packet that FlexCP makes for the client: the server's latest. The client may have
    /// seen all before it, though it has not echoed them yet, and would drop an older one.
    pub(crate) const fn own(&self, server: &ServerClock) -> Timestamps {
        Timestamps {
            val: server.heard,
            ecr: self.heard,
        }
    }

    /// Timestamps of a packet of the server's, with its echo. A late packet gets the latest TSval too: one
    /// of FlexCP's own may have told the client that already, and it would drop an older one.
    pub(crate) const fn answer(&self, server: &ServerClock, echo: u32) -> Timestamps {
        Timestamps {
            val: server.heard,
            ecr: self.echo(echo),
        }
    }

    /// The echo for this subflow of what the server echoed: never something that the client has
    /// not sent on it. While the server waits for data of another subflow its echo stands still (RFC 7323
    /// section 4.3), but what is ACKed here is not as old as that: the client would measure an RTT of seconds, and
    /// take what it has just repeated for repeated in vain (RFC 3522).
    pub(crate) const fn echo(&self, server_echo: u32) -> u32 {
        let echo = server_echo.wrapping_sub(self.offset);
        if later(echo, self.heard) {
            self.heard
        } else if later(self.recent, echo) {
            self.recent
        } else {
            echo
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ts(val: u32, ecr: u32) -> Timestamps {
        Timestamps { val, ecr }
    }

    fn started() -> (ServerClock, SubflowClock) {
        let mut clock = ServerClock::start(Instant::from_millis(0), ts(1000, 0));
        clock.start_server(ts(500_000, 1000));
        (clock, SubflowClock::initial(1000))
    }

    #[test]
    fn joined_clock_is_moved_onto_the_initial_one() {
        let (mut clock, _) = started();
        let now = Instant::from_millis(40);
        let joined = SubflowClock::joined(u32::MAX - 5, clock.initial_now(now));
        let out = clock.translate(now, Some(&joined), Some(ts(u32::MAX - 5, 500_000)));
        assert_eq!(out.val, 1040);
        let out = clock.translate(now, Some(&joined), Some(ts(4, 500_000)));
        assert_eq!(out.val, 1050, "across the wrap of the subflow's own clock");
    }

    #[test]
    fn late_packet_does_not_turn_the_server_clock_back() {
        let (mut clock, initial) = started();
        clock.heard(500_050);
        let now = Instant::from_millis(100);
        assert_eq!(
            clock
                .translate(now, Some(&initial), Some(ts(1100, 500_050)))
                .val,
            1100
        );
        let late = clock.translate(now, Some(&initial), Some(ts(1090, 500_040)));
        assert_eq!(late, ts(1100, 500_050));
    }

    #[test]
    fn packet_without_timestamps_gets_some() {
        let (mut clock, _) = started();
        let out = clock.translate(Instant::from_millis(70), None, None);
        assert_eq!(out, ts(1070, 500_000));
    }

    #[test]
    fn echo_is_only_what_the_client_sent_on_that_subflow() {
        let joined = SubflowClock::joined(7_000_000, 2000);
        assert_eq!(
            joined.echo(1990),
            7_000_000,
            "the server echoed what came before the subflow"
        );
        assert_eq!(
            joined.echo(2500),
            7_000_000,
            "the server echoed a later packet of another path"
        );
    }

    #[test]
    fn echo_is_not_older_than_what_was_next_on_the_subflow() {
        let mut joined = SubflowClock::joined(7_000_000, 2000);
        joined.heard(ts(7_000_300, 500_000), true);
        joined.heard(ts(7_000_400, 500_000), false);
        assert_eq!(joined.echo(2100), 7_000_300);
        assert_eq!(joined.echo(2350), 7_000_350, "the server's is later");
        joined.heard(ts(7_000_200, 500_000), true);
        assert_eq!(joined.echo(2100), 7_000_300, "it never goes back");
    }

    #[test]
    fn echo_from_the_future_is_not_passed_on() {
        let (mut clock, initial) = started();
        let out = clock.translate(
            Instant::from_millis(1),
            Some(&initial),
            Some(ts(1001, 900_000)),
        );
        assert_eq!(out.ecr, 500_000);
    }
}
