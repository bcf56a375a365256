//! Links without Ethernet headers: whatever the programs do between Ethernet devices they do between others, too, and what leaves is
//! the same but for that header.

use flexcp_io::LinkHeader::{self, Ethernet, Nothing};
use flexcp_translator::FlowEntry;
use flexcp_wire::{ChecksumState, Offload};

use crate::offload_gso::{
    PAYLOAD, Rig, SIZE, STATES, elsewhere, families, segments, train, train_down, train_up,
};
use crate::offload_packets::{Packet, ack_down, ack_up, data_down, data_up, entry};
use crate::offload_ups::brought_by;
use crate::tap::Passed;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("offload_bare_device_to_ethernet", || {
        alike([Nothing, Ethernet])
    }),
    ("offload_bare_device_from_ethernet", || {
        alike([Ethernet, Nothing]);
    }),
    ("offload_bare_device_to_another", || alike([Nothing; 2])),
    ("offload_bare_devices_cut_segments", cut),
];

/// A packet of a connection, and what is said of it.
type Case = (FlowEntry, Packet, Offload);

/// Packets of one segment and of several, in each state of their checksum, both ways, and one with an ACK beside it; then what is
/// not translated.
fn cases() -> Vec<Case> {
    let (here, there) = (entry(), elsewhere());
    let beside = brought_by(&[(1, 0, 4_000)]);
    let mut with_ack = train_down(&beside, PAYLOAD);
    with_ack.tcp.ack += 1_000;
    let mut one_with_ack = with_ack.clone();
    one_with_ack.payload = 1_000;
    let mut ack_alone = one_with_ack.clone();
    ack_alone.payload = 0;
    let single = [
        (here, data_down(&here)),
        (here, ack_down(&here)),
        (there, data_up(&there)),
        (there, ack_up(&there)),
        (beside, one_with_ack),
        (beside, ack_alone),
    ];
    let several = [
        (here, train_down(&here, PAYLOAD)),
        (there, train_up(&there, PAYLOAD)),
        (beside, with_ack),
    ];
    let single = single.map(|(entry, packet)| (entry, packet, false));
    let several = several.map(|(entry, packet)| (entry, packet, true));
    let mut cases = Vec::new();
    for (entry, packet, is_train) in single.into_iter().chain(several) {
        for (entry, packet) in families(&entry, &packet) {
            for checksum in STATES {
                let said = match is_train {
                    true => train(&packet, SIZE, checksum),
                    false => Offload {
                        checksum,
                        gso: None,
                    },
                };
                cases.push((entry, packet.clone(), said));
            }
        }
    }
    cases.extend(refused(&here));
    cases
}

/// One whose checksum is wrong, one behind whose IP packet something stands, and one that is too long for the way.
fn refused(entry: &FlowEntry) -> Vec<Case> {
    let mut cases = Vec::new();
    for (mut entry, packet) in families(entry, &data_down(entry)) {
        let mut wrong = packet.clone();
        wrong.damage = Some((wrong.bytes().len() - 1, 1));
        cases.push((entry, wrong, Offload::default()));
        let mut padded = packet.clone();
        padded.padding = 1;
        cases.push((entry, padded, Offload::default()));
        entry.subflows[0].mss = 2_000;
        let mut long = packet;
        long.payload = 1_430;
        cases.push((entry, long, Offload::default()));
    }
    cases
}

/// What became of a packet, with what has left, and the flow entry after it.
type Outcome = (
    Option<Vec<(Vec<u8>, Offload)>>,
    Vec<&'static str>,
    FlowEntry,
);

/// `whole`: what has left is asked with its Ethernet header.
fn outcomes(headers: [LinkHeader; 2], cases: &[Case], whole: bool) -> Vec<Outcome> {
    let mut rig = Rig::between(headers, false);
    let outcome = |(entry, packet, said): &Case| {
        let (passed, back) = rig.run(entry, packet, *said);
        let left = match passed {
            Passed::Translated(frames) => {
                let packets = frames.into_iter().map(|(frame, said)| {
                    let mut said = said;
                    // Who has verified it is not said on every device.
                    if said.checksum == ChecksumState::Verified {
                        said.checksum = ChecksumState::Complete;
                    }
                    // The device's own address is another each time.
                    let header = if whole {
                        [&frame[..6], &frame[12..14]]
                    } else {
                        [&[][..]; 2]
                    };
                    ([header[0], header[1], &frame[14..]].concat(), said)
                });
                Some(packets.collect())
            }
            Passed::Up => None,
            Passed::Dropped => panic!("dropped"),
        };
        (left, rig.line.counted.clone(), back)
    };
    cases.iter().map(outcome).collect()
}

/// Between devices with these headers as between Ethernet devices.
fn alike(headers: [LinkHeader; 2]) {
    let cases = cases();
    let whole = headers[1] == Ethernet;
    let before = outcomes([Ethernet; 2], &cases, whole);
    let now = outcomes(headers, &cases, whole);
    for (((_, packet, said), before), now) in cases.iter().zip(&before).zip(&now) {
        assert_eq!(now, before, "{:?} {:?} {said:?}", packet.ip, packet.tcp);
    }
    let translated = before.iter().filter(|(left, ..)| left.is_some()).count();
    let reasons = ["checksum", "route"].map(|reason| {
        let counted = before.iter().filter(|(_, counted, _)| *counted == [reason]);
        counted.count()
    });
    assert_eq!((translated, reasons), (cases.len() - 6, [2, 2]));
}

/// By a device that does not cut them itself, as PPP's, the kernel cuts them.
fn cut() {
    for headers in [[Ethernet, Nothing], [Nothing; 2], [Nothing, Ethernet]] {
        let mut rig = Rig::between(headers, true);
        let entry = entry();
        for (is_down, packet) in [
            (true, train_down(&entry, PAYLOAD)),
            (false, train_up(&entry, PAYLOAD)),
        ] {
            for (entry, packet) in families(&entry, &packet) {
                for state in STATES {
                    let said = train(&packet, SIZE, state);
                    let (frames, _) = rig.takes(&entry, &packet, said);
                    let first = if is_down {
                        entry.subflows[0].snd_next
                    } else {
                        entry.seq_up
                    };
                    let outs = segments(&frames, first, PAYLOAD);
                    assert_eq!(outs.len(), 4, "{headers:?}");
                }
            }
        }
    }
}
