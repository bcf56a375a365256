//! Clients that are refused the server that they name, in the log: a few a second, and of the others how many there were.
//!
//! Who is refused decides nothing about how often, so whoever sends refused preambles by the thousand fills no disk, and hides what
//! he does in no more than a number.

use flexcp_translator::{Denial, Instant, ServerName, Translator, Wish};
use tracing::info;

/// Lines a second at most, and one for the rest.
const LINES: u32 = 10;
/// In microseconds.
const SECOND: u64 = 1_000_000;

/// What one worker, or the relay, has told of this second.
#[derive(Default, Debug)]
pub(crate) struct Denied {
    /// When the second has begun.
    since: Instant,
    /// Lines of this second.
    told: u32,
    /// Clients that no line is about.
    untold: u64,
}

impl Denied {
    /// Tells of those that were refused since this was called last. Called after each batch of packets and each timer.
    pub(crate) fn tell(&mut self, now: Instant, translator: &mut Translator) {
        self.each(now, translator, |line| info!("{line}"));
    }

    /// Tells of one that has been refused just now.
    pub(crate) fn tell_one(&mut self, now: Instant, denial: &Denial) {
        self.turn(now, |line| info!("{line}"));
        self.one(denial, |line| info!("{line}"));
    }

    fn each(&mut self, now: Instant, translator: &mut Translator, mut tell: impl FnMut(String)) {
        self.turn(now, &mut tell);
        while let Some(denial) = translator.poll_denial() {
            self.one(&denial, &mut tell);
        }
        self.untold += translator.denials_lost();
    }

    /// Begins another second, if it is time.
    fn turn(&mut self, now: Instant, mut tell: impl FnMut(String)) {
        if now.0 >= self.since.0 + SECOND {
            let untold = std::mem::take(&mut self.untold);
            if untold > 0 {
                tell(format!("{untold} more clients were refused"));
            }
            (self.since, self.told) = (now, 0);
        }
    }

    fn one(&mut self, denial: &Denial, mut tell: impl FnMut(String)) {
        if self.told < LINES {
            self.told += 1;
            tell(line(denial));
        } else {
            self.untold += 1;
        }
    }
}

/// What is said of one.
fn line(denial: &Denial) -> String {
    let Denial {
        client, by, cause, ..
    } = denial;
    let why = cause.name();
    match &denial.wish {
        Some(wish) => format!("{client} by {by} is refused {}: {why}", server(wish)),
        None => format!("{client} by {by} is refused: {why}"),
    }
}

/// The server as the client has named it. A name may be any bytes.
fn server(wish: &Wish) -> String {
    match &wish.to {
        ServerName::Ip(addr) => std::net::SocketAddr::new(*addr, wish.port).to_string(),
        ServerName::Name(name) => format!("{}:{}", name.escape_ascii(), wish.port),
    }
}

#[cfg(test)]
mod tests {
    use flexcp_testkit::Packet;
    use flexcp_translator::{
        Config, Frame, HEADROOM, Mode, PreambleRefused, Protocol, Service, ServiceId,
    };
    use flexcp_wire::{Offload, TcpFlags};

    use super::*;

    /// A client that says what nobody understands.
    fn be_refused(translator: &mut Translator, now: Instant) {
        let ends = ["10.1.0.2:40000", "10.2.0.1:1080"].map(|end| end.parse().unwrap());
        let packet = Packet::new(ends[0], ends[1]).flags(TcpFlags::SYN);
        let mut buf = vec![0; HEADROOM];
        buf.extend(packet.with_payload(b"GET / HTTP/1.1").bytes());
        let range = HEADROOM..buf.len();
        let _ = translator.handle_packet(now, &mut Frame::new(&mut buf, range, Offload::default()));
    }

    #[test]
    fn ten_a_second_are_told_and_the_others_counted() {
        let service = Service {
            id: ServiceId(0),
            name: "converter".into(),
            mode: Mode::Explicit {
                protocol: Protocol::Convert,
                listen: vec!["10.2.0.1:1080".parse().unwrap()],
                users: vec![],
                allowed: vec![],
                source: vec!["10.2.0.1".parse().unwrap()],
                source_ports: 61000..=61999,
            },
            announce: vec![],
            intake: flexcp_translator::Intake::default(),
        };
        let config = Config {
            services: vec![service],
            ..Config::default()
        };
        let mut translator = Translator::new(config, [7; 32]);
        let mut denied = Denied::default();
        let mut at = |now: Instant, refused: u32| {
            let mut lines = vec![];
            for _ in 0..refused {
                be_refused(&mut translator, now);
                if refused < 100 {
                    denied.each(now, &mut translator, |line| lines.push(line));
                }
            }
            denied.each(now, &mut translator, |line| lines.push(line));
            lines
        };
        let first = Instant(5 * SECOND);
        assert_eq!(at(first, 3).len(), 3);
        assert_eq!(at(first, 300).len(), 7);
        let later = Instant(6 * SECOND);
        assert!(at(Instant(later.0 - 1), 0).is_empty());
        assert_eq!(at(later, 0), ["293 more clients were refused"]);
        assert_eq!(at(later, 30).len(), 10);
        assert_eq!(at(Instant(9 * SECOND), 1).len(), 2);
        assert!(at(Instant(20 * SECOND), 0).is_empty());
    }

    #[test]
    fn line_has_client_server_and_cause() {
        let mut denial = Denial {
            client: "[2001:db8::1]:40000".parse().unwrap(),
            by: "[2001:db8::2]:1080".parse().unwrap(),
            wish: None,
            cause: PreambleRefused::Late,
        };
        assert_eq!(
            line(&denial),
            "[2001:db8::1]:40000 by [2001:db8::2]:1080 is refused: late"
        );
        denial.wish = Some(Wish {
            to: ServerName::Name((*b"a\nb").into()),
            port: 80,
        });
        denial.cause = PreambleRefused::NoName;
        let told = line(&denial);
        assert!(told.ends_with("is refused a\\nb:80: no_name"), "{told}");
        denial.wish = Some(Wish {
            to: ServerName::Ip([10, 0, 0, 1].into()),
            port: 22,
        });
        denial.cause = PreambleRefused::NotAllowed;
        let told = line(&denial);
        assert!(told.ends_with("10.0.0.1:22: not_allowed"), "{told}");
    }
}
