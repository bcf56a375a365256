//! FlexCP's lines, read back.

/// A packet of FlexCP's.
#[derive(Clone, Default, Debug)]
pub(crate) struct Packet {
    /// The client's flow; `None`: to the server.
    pub(crate) flow: Option<usize>,
    pub(crate) fin: bool,
    pub(crate) rst: bool,
    pub(crate) seq: u32,
    pub(crate) end: u32,
    pub(crate) ack: u32,
    pub(crate) window: u32,
    pub(crate) data_ack: Option<u32>,
    /// First DSN, DSN behind the last, SSN.
    pub(crate) map: Option<(u32, u32, u32)>,
    /// DATA_FIN's number.
    pub(crate) data_fin: Option<u32>,
    pub(crate) sack: Vec<(u32, u32)>,
    pub(crate) zeros: bool,
}

impl Packet {
    pub(crate) fn parse(line: &str) -> Self {
        let (head, options) = line.split_once('<').unwrap_or((line, ""));
        let (options, tail) = options.split_once('>').unwrap_or((options, ""));
        let mut words = head.split_whitespace();
        let to = words.next().expect("whom it goes to");
        let flags = words.next().expect("flags");
        let range = words.next().expect("range");
        let (start, end) = range.split_once(':').expect("a:b");
        let mut packet = Self {
            flow: to
                .strip_prefix("client")
                .map(|id| id.parse().expect("a flow")),
            fin: flags.contains('F'),
            rst: flags.contains('R'),
            seq: number(start),
            end: number(end.split('(').next().expect("end")),
            zeros: tail.contains("zeros"),
            ..Self::default()
        };
        while let (Some(word), Some(value)) = (words.next(), words.next()) {
            match word {
                "ack" => packet.ack = number(value),
                "win" => packet.window = number(value),
                _ => {}
            }
        }
        for option in options.split(',') {
            let mut words = option.split_whitespace();
            match words.next() {
                Some("sack") => packet.sack = words.map(|block| pair(block, ':')).collect(),
                Some("dss") => packet.take_dss(words),
                _ => {}
            }
        }
        packet
    }

    fn take_dss<'a>(&mut self, mut words: impl Iterator<Item = &'a str>) {
        while let Some(word) = words.next() {
            match word {
                "ack" => self.data_ack = words.next().map(number),
                "map" => {
                    let (range, ssn) = words.next().and_then(|w| w.split_once('@')).expect("a map");
                    let (start, end) = pair(range, ':');
                    self.map = Some((start, end, number(ssn)));
                }
                // Behind a mapping it has no number of its own.
                "fin" => {
                    self.data_fin = self
                        .map
                        .map(|(_, end, _)| end)
                        .or_else(|| words.next().map(number))
                }
                _ => {}
            }
        }
    }
}

fn pair(text: &str, separator: char) -> (u32, u32) {
    let (a, b) = text.split_once(separator).expect("two numbers");
    (number(a), number(b))
}

/// Relative numbers stay small here, so that no wrap has to be thought of.
fn number(text: &str) -> u32 {
    text.parse::<i64>()
        .ok()
        .and_then(|n| u32::try_from(n.max(0)).ok())
        .unwrap_or_else(|| panic!("{text:?}"))
}
