//! The parts of the offload's program that can be left out, where a kernel refuses them: the packets that they are for go
//! to the translator.

use aya::programs::SchedClassifier;
use aya::{Ebpf, EbpfLoader, VerifierLogLevel};

use super::refusal::Refusal;
use super::{FLOWS, OBJECT, OffloadError, PROGRAM};

/// A part, and what it takes.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Part {
    /// Its bit in `parts` of `bpf/maps.h`.
    bit: u32,
    /// What the workers translate without it.
    packets: &'static str,
}

/// In the order in which they are left out when one is not enough: the kernel's functions that each needs have been there
/// since Linux 5.7, so what may be refused is the way in which it uses them.
const PARTS: [Part; 5] = [
    // bpf_csum_diff over a length that is not known before, of 512 bytes at most.
    Part {
        bit: 4,
        packets: "packets whose checksum nobody has verified",
    },
    // bpf_clone_redirect.
    Part {
        bit: 2,
        packets: "packets that call for an ACK on another subflow",
    },
    // bpf_skb_adjust_room, which shrinks and grows the headers of a GSO packet.
    Part {
        bit: 1,
        packets: "GSO packets from the server",
    },
    // bpf_skc_lookup_tcp and bpf_sk_release.
    Part {
        bit: SOCKETS,
        packets: "connections that are to be split",
    },
    // As much of the verifier's work again as IPv4.
    Part {
        bit: V6,
        packets: "IPv6",
    },
];
/// Flows of plain TCP that pass by at a time, both directions of 65,536 connections: 8 MB of the kernel's memory.
const PLAIN_FLOWS: u32 = 2 << 16;
/// SYNs that may be on their way to the workers; those of connections that are to be split and are not among them are translated.
const SYNS: u32 = 1 << 14;
/// IPv6.
const V6: u32 = 8;
/// What asks for sockets.
const SOCKETS: u32 = 32;
/// All of them, and what is never left out (16).
const ALL: u32 = 63;

/// The parts that are left out.
#[derive(Debug)]
pub struct LeftOut {
    parts: &'static [Part],
    refusal: Refusal,
}

impl LeftOut {
    /// Where the verifier's words are to be had.
    pub const FULL_TEXT: &str = "the whole text: flexcp check --live --verifier-log";

    /// Whether packets of connections that the host's sockets have are not told apart, of one family at least.
    pub(crate) fn keeps_from_sockets(&self) -> bool {
        let mut parts = self.parts.iter();
        parts.any(|part| [SOCKETS, V6].contains(&part.bit))
    }

    /// Why: what the kernel says about the program with all parts.
    #[must_use]
    pub fn refusal(&self) -> &Refusal {
        &self.refusal
    }
}

/// In one line: which packets the workers translate, and why.
impl std::fmt::Display for LeftOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let packets: Vec<_> = self.parts.iter().map(|part| part.packets).collect();
        write!(f, "without {}: {}", packets.join(", "), self.refusal)
    }
}

/// Loads the program with room for `slots` connections, with as many parts as the kernel takes. `refused`: parts that it is
/// made to refuse.
pub(crate) fn load(slots: u32, refused: u32) -> Result<(Ebpf, Option<LeftOut>), OffloadError> {
    let words = VerifierLogLevel::default();
    let refusal = match load_with(ALL, slots, refused, words) {
        Ok(ebpf) => return Ok((ebpf, None)),
        Err(OffloadError::Refused(refusal)) if refusal.is_by_verifier() => refusal,
        Err(error) => return Err(error),
    };
    // First each alone, then one after the other.
    let alone = PARTS.iter().map(std::slice::from_ref);
    let more = (2..=PARTS.len()).map(|count| &PARTS[..count]);
    for parts in alone.chain(more) {
        let bits = parts.iter().fold(ALL, |bits, part| bits & !part.bit);
        // Words take a look at the program for each size of the buffer that proves too small.
        if let Ok(ebpf) = load_with(bits, slots, refused, VerifierLogLevel::DISABLE) {
            return Ok((ebpf, Some(LeftOut { parts, refusal })));
        }
    }
    Err(OffloadError::Refused(refusal))
}

fn load_with(
    parts: u32,
    slots: u32,
    refused: u32,
    words: VerifierLogLevel,
) -> Result<Ebpf, OffloadError> {
    let flows = slots.saturating_mul(u32::try_from(FLOWS).unwrap_or(u32::MAX));
    let mut ebpf = EbpfLoader::new()
        .map_max_entries("entries", slots)
        .map_max_entries("gates", slots)
        .map_max_entries("carried", slots)
        .map_max_entries("flows", flows)
        .map_max_entries("plains", PLAIN_FLOWS)
        .map_max_entries("syns", SYNS)
        .override_global("parts", &parts, true)
        .override_global("refused_parts", &refused, true)
        .verifier_log_level(words)
        .load(OBJECT)?;
    let program: &mut SchedClassifier = ebpf
        .program_mut(PROGRAM)
        .ok_or(OffloadError::Missing("program"))?
        .try_into()?;
    match program.load().map_err(Refusal::of) {
        Ok(()) => Ok(ebpf),
        Err(Ok(refusal)) => Err(OffloadError::Refused(refusal)),
        Err(Err(other)) => Err(other.into()),
    }
}
