//! Packets as lines of text, for whoever wants to see a run.

use flexcp_invariants::Point;
use flexcp_wire::{Offload, PacketLine};

/// Where lines go.
#[derive(Debug, Default)]
pub(crate) enum Trace {
    /// Nowhere.
    #[default]
    Off,
    /// To standard output.
    On,
}

impl Trace {
    /// A packet that goes into the proxy.
    pub(crate) fn packet(&self, now: u64, point: Point, packet: &[u8], offload: &Offload) {
        if matches!(self, Self::On) {
            line(now, point, &PacketLine(packet).to_string(), offload);
        }
    }

    /// A packet that comes out of it.
    pub(crate) fn header(
        &self,
        now: u64,
        point: Point,
        header: &[u8],
        len: usize,
        offload: &Offload,
    ) {
        if matches!(self, Self::On) {
            let mut packet = header.to_vec();
            packet.resize(header.len() + len, 0);
            line(now, point, &PacketLine(&packet).to_string(), offload);
        }
    }

    /// Anything else.
    pub(crate) fn note(&self, now: u64, text: impl FnOnce() -> String) {
        if matches!(self, Self::On) {
            println!(
                "{:>4}.{:06}        {}",
                now / 1_000_000,
                now % 1_000_000,
                text()
            );
        }
    }
}

fn line(now: u64, point: Point, text: &str, offload: &Offload) {
    let arrow = match point {
        Point::FromClient => "c>",
        Point::ToClient => " >c",
        Point::FromServer => "s>",
        Point::ToServer => " >s",
    };
    let gso = offload
        .gso
        .map_or_else(String::new, |gso| format!(" gso {}", gso.size));
    println!(
        "{:>4}.{:06} {arrow:4} {text}{gso}",
        now / 1_000_000,
        now % 1_000_000
    );
}
