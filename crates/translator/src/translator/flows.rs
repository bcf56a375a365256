//! Which flows are here, for whoever brings packets to several translators.

use flexcp_placement::{FlowEvent, Subject};

use super::Translator;

impl Translator {
    /// From now on notes which flows come and go, for [`poll_flow_event`](Self::poll_flow_event), where they have to be
    /// fetched; and a SYN on a flow that is here belongs here, as a program brings it.
    pub fn watch_flows(&mut self) {
        self.table.watch();
    }

    /// The next flow that has come or gone; `None`: there is no other, or nobody watches. To be called until there is
    /// none when the translator has handled something, before its answers are sent.
    #[must_use]
    pub fn poll_flow_event(&mut self) -> Option<FlowEvent> {
        self.table.pop_event()
    }

    /// Whether a packet with this subject belongs to a connection that is here. A SYN may begin another one, with
    /// another owner: it belongs here only if a program has brought it (see [`watch_flows`](Self::watch_flows)), and
    /// without `MP_JOIN`.
    #[must_use]
    pub fn has_flow_of(&self, subject: Subject) -> bool {
        match subject {
            Subject::Flow(ends) => self.table.find(ends).is_some(),
            Subject::Opening(ends) => self.table.is_watched() && self.table.find(ends).is_some(),
            Subject::Joining { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;
    use core::time::Duration;

    use alloc::vec;
    use alloc::vec::Vec;

    use flexcp_placement::Share;
    use flexcp_testkit::Packet;
    use flexcp_wire::{ChecksumState, Ends, Offload, TcpFlags};

    use super::*;
    use crate::config::{Config, Mode, Service};
    use crate::handle::ServiceId;
    use crate::service::Choice;
    use crate::{Frame, HEADROOM, Instant};

    const WORKERS: u16 = 5;

    fn at(host: u8, port: u16) -> SocketAddr {
        ([10, 0, 0, host], port).into()
    }

    fn config(worker: u16) -> Config {
        let mode = Mode::Reverse {
            listen: vec![at(1, 80)],
            backends: vec![at(9, 80)],
            source: vec![at(8, 0).ip()],
            source_ports: 1000..=1099,
        };
        Config {
            services: vec![Service {
                id: ServiceId(0),
                name: "shop".into(),
                mode,
                announce: vec![],
                intake: crate::Intake::default(),
            }],
            share: Share {
                worker,
                workers: WORKERS,
            },
            ..Config::default()
        }
    }

    fn translator(worker: u16) -> Translator {
        Translator::new(config(worker), [1; 32])
    }

    /// Ends of a client's packets.
    fn from_client(port: u16) -> Ends {
        Ends {
            from: at(2, port),
            to: at(1, 80),
        }
    }

    /// Gives a SYN to the translator.
    fn open(translator: &mut Translator, now: Instant, ends: Ends) {
        let syn = Packet::between(ends).flags(TcpFlags::SYN).bytes();
        let mut buffer = [vec![0; HEADROOM], syn].concat();
        let offload = Offload {
            checksum: ChecksumState::Verified,
            gso: None,
        };
        let range = HEADROOM..buffer.len();
        let _ = translator.handle_packet(now, &mut Frame::new(&mut buffer, range, offload));
    }

    fn events(translator: &mut Translator) -> Vec<FlowEvent> {
        core::iter::from_fn(|| translator.poll_flow_event()).collect()
    }

    #[test]
    fn keys_and_ports_name_the_worker() {
        for worker in 0..WORKERS {
            let mut translator = translator(worker);
            let share = config(worker).share;
            for _ in 0..20 {
                assert!(share.has_token(translator.fresh_key().token));
                let back_end = translator.next_backend(ServiceId(0), None, Choice::Any);
                let port = back_end.expect("a back end").source.port();
                assert_eq!(port % WORKERS, worker);
            }
        }
    }

    #[test]
    fn back_ends_of_the_configuration_are_in_the_rules() {
        let rules = config(1).placement((7, 9));
        for port in 1000..=1099 {
            let ends = Ends {
                from: at(9, 80),
                to: at(8, port),
            };
            assert_eq!(rules.of_ends(ends), port % WORKERS);
        }
        assert_eq!(rules.workers, WORKERS);
    }

    #[test]
    fn flow_of_a_connection_is_known_where_it_is() {
        let mut translator = translator(1);
        let ends = from_client(5000);
        assert!(!translator.has_flow_of(Subject::Flow(ends)));
        open(&mut translator, Instant(0), ends);
        assert!(translator.has_flow_of(Subject::Flow(ends)));
        assert!(!translator.has_flow_of(Subject::Flow(ends.reversed())));
        assert!(!translator.has_flow_of(Subject::Flow(from_client(5001))));
    }

    #[test]
    fn syn_on_a_known_flow_stays_where_it_was_brought_unless_it_joins() {
        let ends = from_client(5000);
        for watched in [false, true] {
            let mut translator = translator(1);
            if watched {
                translator.watch_flows();
            }
            open(&mut translator, Instant(0), ends);
            assert_eq!(translator.has_flow_of(Subject::Opening(ends)), watched);
            assert!(!translator.has_flow_of(Subject::Opening(from_client(5001))));
            let joining = Subject::Joining { ends, token: 9 };
            assert!(!translator.has_flow_of(joining));
        }
    }

    #[test]
    fn flows_of_a_connection_come_and_go_together_and_in_their_order() {
        let mut translator = translator(1);
        open(&mut translator, Instant(0), from_client(4999));
        assert_eq!(events(&mut translator), [], "nobody watches yet");
        translator.watch_flows();
        let ends = from_client(5000);
        open(&mut translator, Instant(0), ends);
        let added = events(&mut translator);
        let [FlowEvent::Added(client), FlowEvent::Added(server)] = added[..] else {
            panic!("{added:?}");
        };
        assert_eq!((client, server.from), (ends, at(9, 80)));
        // Nobody answers: the connection goes, and one with the same ends comes before anybody asks.
        let later = Instant(0) + Duration::from_secs(100_000);
        translator.handle_timeout(later);
        open(&mut translator, later, ends);
        let told = events(&mut translator);
        let of_client = |event: &&FlowEvent| matches!(event, FlowEvent::Added(e) | FlowEvent::Removed(e) if *e == ends);
        let of_client: Vec<_> = told.iter().filter(of_client).copied().collect();
        let expected = [FlowEvent::Removed(ends), FlowEvent::Added(ends)];
        assert_eq!(of_client, expected);
        assert!(told.contains(&FlowEvent::Removed(server)), "{told:?}");
    }
}
