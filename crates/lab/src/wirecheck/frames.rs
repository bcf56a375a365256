//! Capture files: the IP packets in them, whatever link layer they were taken on.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use pcap_file::pcap::PcapReader;
use pcap_file::{DataLink, TsResolution};

/// One file, read packet by packet.
pub(super) struct Frames {
    path: PathBuf,
    reader: PcapReader<File>,
    link: Link,
    /// Nanoseconds in the unit of the file's fractions.
    unit: u64,
    number: u64,
}

/// A packet from a file.
pub(super) struct Frame {
    /// Its place in the file, from 1, as other programs count.
    pub(super) number: u64,
    /// Nanoseconds since 1970.
    pub(super) time: u64,
    /// From its IP header on, perhaps cut short.
    pub(super) packet: Vec<u8>,
}

/// What stands before the IP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Link {
    Ethernet,
    /// The header of captures on `any`.
    Cooked,
    /// Its second version.
    Cooked2,
    /// Nothing.
    Raw,
}

impl Frames {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
        let reader =
            PcapReader::new(file).map_err(|error| anyhow!("{}: {error}", path.display()))?;
        let header = reader.header();
        let link = match header.datalink {
            DataLink::ETHERNET => Link::Ethernet,
            DataLink::LINUX_SLL => Link::Cooked,
            DataLink::LINUX_SLL2 => Link::Cooked2,
            DataLink::RAW | DataLink::IPV4 | DataLink::IPV6 => Link::Raw,
            other => bail!("{}: packets of link type {other:?}", path.display()),
        };
        let unit = match header.ts_resolution {
            TsResolution::MicroSecond => 1000,
            TsResolution::NanoSecond => 1,
        };
        Ok(Self {
            path: path.to_owned(),
            reader,
            link,
            unit,
            number: 0,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The next IP packet.
    pub(super) fn next(&mut self) -> Result<Option<Frame>> {
        // Raw, for the library takes packets longer than the snapshot length for mistakes.
        while let Some(frame) = self.reader.next_raw_packet() {
            self.number += 1;
            let number = self.number;
            let frame =
                frame.map_err(|error| anyhow!("{} #{number}: {error}", self.path.display()))?;
            let Some(packet) = self.link.ip_packet(&frame.data) else {
                continue;
            };
            return Ok(Some(Frame {
                number,
                time: u64::from(frame.ts_sec) * 1_000_000_000
                    + u64::from(frame.ts_frac) * self.unit,
                packet: packet.to_vec(),
            }));
        }
        Ok(None)
    }
}

impl Link {
    /// What lies behind the link header; `None` when that is not IP.
    pub(super) fn ip_packet(self, frame: &[u8]) -> Option<&[u8]> {
        let (type_at, len) = match self {
            Self::Ethernet => (12, 14),
            Self::Cooked => (14, 16),
            Self::Cooked2 => (0, 20),
            Self::Raw => return Some(frame),
        };
        let ether_type = |at: usize| Some([*frame.get(at)?, *frame.get(at + 1)?]);
        let mut found = ether_type(type_at)?;
        let mut len = len;
        if found == VLAN {
            found = ether_type(len + 2)?;
            len += 4;
        }
        matches!(found, IPV4 | IPV6)
            .then(|| frame.get(len..))
            .flatten()
    }
}

const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
/// IEEE 802.1Q.
const VLAN: [u8; 2] = [0x81, 0x00];

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with the type at one place, of that length, before one byte of packet.
    fn frame(len: usize, types: &[(usize, [u8; 2])]) -> Vec<u8> {
        let mut frame = vec![0; len];
        for (at, value) in types {
            frame[*at..at + 2].copy_from_slice(value);
        }
        frame.push(0x45);
        frame
    }

    #[test]
    fn packet_is_found_behind_every_link_header() {
        let cases = [
            (Link::Ethernet, frame(14, &[(12, IPV4)])),
            (Link::Ethernet, frame(18, &[(12, VLAN), (16, IPV6)])),
            (Link::Cooked, frame(16, &[(14, IPV6)])),
            (Link::Cooked2, frame(20, &[(0, IPV4)])),
            (Link::Raw, frame(0, &[])),
        ];
        for (link, frame) in cases {
            assert_eq!(link.ip_packet(&frame), Some(&[0x45][..]), "{link:?}");
        }
    }

    #[test]
    fn other_protocols_and_short_frames_are_passed_over() {
        let arp = frame(14, &[(12, [0x08, 0x06])]);
        assert_eq!(Link::Ethernet.ip_packet(&arp), None);
        assert_eq!(Link::Ethernet.ip_packet(&[0; 10]), None);
    }
}
