//! The order of the options in GSO packets down (`bpf/order.h`): whatever data ACK, DSN and SSN are, the byte that the kernel
//! takes for the data offset says five words at least.

use flexcp_translator::FlowEntry;
use flexcp_wire::ChecksumState;

use crate::offload_gso::{
    PAYLOAD, Rig, SIZE, data_and_its_ack, families, segments, train, train_down,
};
use crate::offload_packets::{dss, entry, read_part, timestamps};
use crate::offload_ups::brought_by;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("offload_order_has_each_byte_that_will_do", each_byte),
    ("offload_order_prefers_what_is_no_payload", preferences),
    ("offload_order_is_that_of_the_new_data_ack", new_data_ack),
    ("offload_order_that_there_is_none_of", no_order),
    ("offload_order_stays_in_segments", in_segments),
    ("offload_order_is_not_that_of_an_ack", with_an_ack),
];

/// Numbers of a packet down.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    data_ack: [u8; 8],
    dsn: [u8; 8],
    ssn: [u8; 4],
}

/// Of a number that does not do the job, and of one that would if it were looked at.
const BAD: u8 = 0x4f;
const ELSEWHERE: u8 = 0x8f;

/// Where the DSS stands if that byte decides.
type Place = (usize, fn(&mut Numbers) -> &mut u8);

/// All places, in the order in which they are tried.
const PLACES: [Place; 10] = [
    (12, |n| &mut n.data_ack[4]),
    (14, |n| &mut n.data_ack[2]),
    (13, |n| &mut n.data_ack[3]),
    (4, |n| &mut n.dsn[4]),
    (0, |n| &mut n.ssn[0]),
    (11, |n| &mut n.data_ack[5]),
    (10, |n| &mut n.data_ack[6]),
    (3, |n| &mut n.dsn[5]),
    (2, |n| &mut n.dsn[6]),
    (1, |n| &mut n.dsn[7]),
];

/// Nothing that is looked at will do.
fn bad() -> Numbers {
    let mut numbers = Numbers {
        data_ack: [ELSEWHERE; 8],
        dsn: [ELSEWHERE; 8],
        ssn: [ELSEWHERE; 4],
    };
    for (_, byte) in PLACES {
        *byte(&mut numbers) = BAD;
    }
    numbers
}

impl Numbers {
    fn data_ack(&self) -> u64 {
        u64::from_be_bytes(self.data_ack)
    }

    fn ssn(&self) -> u32 {
        u32::from_be_bytes(self.ssn)
    }

    /// The connection whose next data has these numbers.
    fn entry(&self) -> FlowEntry {
        self.put_into(entry(), 0)
    }

    /// The same of another connection, if the next data ACKs so many new bytes.
    fn put_into(&self, mut entry: FlowEntry, acks: u32) -> FlowEntry {
        let acked = entry.up_acked.wrapping_add(acks.into());
        let up = self.data_ack().wrapping_sub(acked);
        for number in [
            &mut entry.up_next,
            &mut entry.up_acked,
            &mut entry.server_edge,
        ] {
            *number = number.wrapping_add(up);
        }
        for brought in entry.ups.iter_mut().flatten() {
            brought.dsn = brought.dsn.wrapping_add(low(up));
        }
        let down = u64::from_be_bytes(self.dsn).wrapping_sub(entry.down_next);
        for number in [
            &mut entry.down_next,
            &mut entry.down_acked,
            &mut entry.down_edge,
        ] {
            *number = number.wrapping_add(down);
        }
        entry.subflows[0].isn_local = entry.subflows[0].snd_next.wrapping_sub(self.ssn());
        entry
    }

    /// What every order says.
    fn options(&self) -> Vec<String> {
        let dsn = u64::from_be_bytes(self.dsn);
        let map = (dsn, self.ssn(), u16::try_from(PAYLOAD).unwrap());
        let mut options = timestamps(9_001, 6_895);
        options.extend(dss(self.data_ack(), true, Some(map), true));
        said(&options)
    }
}

fn low(number: u64) -> u32 {
    u32::try_from(number & u64::from(u32::MAX)).unwrap()
}

/// What the options say, whatever their order.
fn said(options: &[u8]) -> Vec<String> {
    let mut said = flexcp_testkit::said(options);
    said.sort_unstable();
    said
}

/// The options of the next data, of which all is right but their order, which the caller looks at.
#[track_caller]
fn options_of(rig: &mut Rig, numbers: &Numbers) -> Vec<Vec<u8>> {
    let entry = numbers.entry();
    let mut found = vec![];
    for (entry, packet) in families(&entry, &train_down(&entry, PAYLOAD)) {
        let carried = train(&packet, SIZE, ChecksumState::Partial);
        let (frames, _) = rig.takes(&entry, &packet, carried);
        let [(frame, left)] = frames.as_slice() else {
            panic!("{} frames", frames.len());
        };
        let out = read_part(frame, left.checksum, 0);
        assert_eq!(out.options.len(), 40);
        assert_eq!(said(&out.options), numbers.options());
        found.push(out.options);
    }
    found
}

/// Where the DSS stands in all of them.
#[track_caller]
fn place(options: &[Vec<u8>]) -> usize {
    let start = |options: &Vec<u8>| {
        options
            .windows(4)
            .position(|bytes| bytes == [30, 26, 0x20, 0x0f])
    };
    let first = start(&options[0]).expect("a DSS");
    assert!(options.iter().all(|options| start(options) == Some(first)));
    first
}

fn each_byte() {
    let mut rig = Rig::new(false);
    for (expected, byte) in PLACES {
        for value in [0x50, 0x8f, 0x90, 0xff] {
            let mut numbers = bad();
            *byte(&mut numbers) = value;
            let options = options_of(&mut rig, &numbers);
            assert_eq!(place(&options), expected, "{numbers:x?}");
            // The headers end with the options.
            assert!(options.iter().all(|options| options[40 - 20] == value));
        }
    }
}

/// What says no more than there is of the headers comes first; then the order of places counts.
fn preferences() {
    let mut rig = Rig::new(false);
    for (at, (earlier, byte)) in PLACES.into_iter().enumerate() {
        for (later, other) in PLACES.into_iter().skip(at + 1) {
            for (value, of_other, expected) in [
                (0x80, 0x50, earlier),
                (0x90, 0xf0, earlier),
                (0x90, 0x80, later),
            ] {
                let mut numbers = bad();
                *byte(&mut numbers) = value;
                *other(&mut numbers) = of_other;
                let options = options_of(&mut rig, &numbers);
                assert_eq!(place(&options), expected, "{numbers:x?}");
            }
        }
    }
}

/// The packet's own ACK is what its data ACK says.
fn new_data_ack() {
    let mut rig = Rig::new(false);
    let mut numbers = bad();
    numbers.data_ack[7] = 0xff;
    for (entry, mut packet) in families(&numbers.entry(), &train_down(&numbers.entry(), PAYLOAD)) {
        packet.tcp.ack = packet.tcp.ack.wrapping_add(1);
        let carried = train(&packet, SIZE, ChecksumState::Partial);
        let (frames, back) = rig.takes(&entry, &packet, carried);
        let (frame, left) = &frames[0];
        let out = read_part(frame, left.checksum, 0);
        assert_eq!(out.options[20], BAD + 1);
        assert_eq!(back.up_acked, numbers.data_ack() + 1);
    }
}

/// The translator sends it, as the kernel might drop it.
fn no_order() {
    let mut rig = Rig::new(false);
    let numbers = bad();
    let entry = numbers.entry();
    for (entry, packet) in families(&entry, &train_down(&entry, PAYLOAD)) {
        let carried = train(&packet, SIZE, ChecksumState::Partial);
        rig.passes("options", &entry, &packet, carried);
        // One segment needs none.
        let mut one = packet.clone();
        one.payload = 1_000;
        rig.takes(&entry, &one, flexcp_wire::Offload::default());
    }
}

/// The kernel copies the header that it finds, not the one it takes the size of.
fn in_segments() {
    let mut rig = Rig::new(true);
    for (expected, byte) in PLACES {
        let mut numbers = bad();
        *byte(&mut numbers) = 0x70;
        let entry = numbers.entry();
        for (entry, packet) in families(&entry, &train_down(&entry, PAYLOAD)) {
            let carried = train(&packet, SIZE, ChecksumState::Partial);
            let (frames, _) = rig.takes(&entry, &packet, carried);
            let outs = segments(&frames, entry.subflows[0].snd_next, PAYLOAD);
            assert_eq!(outs.len(), 4);
            for out in outs {
                assert_eq!(said(&out.options), numbers.options());
                assert_eq!(place(&[out.options]), expected);
            }
        }
    }
}

/// The ACK that leaves for another subflow behind such a packet has the order that all others have.
fn with_an_ack() {
    const ACKS: u32 = 1_000;
    let mut rig = Rig::new(false);
    for (_, byte) in PLACES {
        let mut numbers = bad();
        *byte(&mut numbers) = 0x70;
        let entry = numbers.put_into(brought_by(&[(1, 0, 4_000)]), ACKS);
        let mut packet = train_down(&entry, PAYLOAD);
        packet.tcp.ack = packet.tcp.ack.wrapping_add(ACKS);
        for (entry, packet) in families(&entry, &packet) {
            let carried = train(&packet, SIZE, ChecksumState::Partial);
            data_and_its_ack(&mut rig, &entry, &packet, (carried, carried));
        }
    }
}
