//! Faults as text: what is written reads back, and mistakes are explained.

use std::time::Duration;

use flexcp_faults::{
    Class, Coalesce, Corrupt, DropNth, Fault, Faults, GilbertElliott, Jitter, Nat, OptionKind,
    Place, Ppm, Rate, Reorder, Strip, Which,
};
use proptest::prelude::*;

#[test]
fn each_fault_has_its_text() {
    let ms = Duration::from_millis;
    for (text, fault) in [
        ("loss=0.1%", Fault::Loss(Ppm(1000))),
        ("delay=20ms", Fault::Delay(ms(20))),
        (
            "reorder=10%:5ms",
            Fault::Reorder(Reorder {
                which: Which::Chance(Ppm::percent(10)),
                extra: ms(5),
            }),
        ),
        (
            "rate=50mbit:100kb",
            Fault::Rate(Rate {
                bits_per_second: 50_000_000,
                queue_bytes: 100_000,
            }),
        ),
        (
            "blackhole=2s..5s",
            Fault::Blackhole {
                from: ms(2000),
                until: Some(ms(5000)),
            },
        ),
        (
            "strip=mptcp@syn-ack",
            Fault::Strip(Strip {
                option: OptionKind::MPTCP,
                class: Class::SynAck,
                from: 1,
            }),
        ),
        (
            "drop=2..4:mp-join",
            Fault::Drop(DropNth {
                first: 2,
                last: 4,
                class: Class::With(OptionKind::Mptcp(1)),
            }),
        ),
        ("isn", Fault::IsnRandomiser),
        ("nat", Fault::Nat(Nat::default())),
    ] {
        assert_eq!(text.parse::<Fault>().as_ref(), Ok(&fault), "{text}");
        assert_eq!(fault.to_string(), text);
    }
}

#[test]
fn list_is_separated_by_commas_with_or_without_blanks() {
    let list: Faults = "loss=1%, delay=1.5s ,isn".parse().expect("a list");
    assert_eq!(list.to_string(), "loss=1%,delay=1500ms,isn");
    assert_eq!("".parse(), Ok(Faults::default()));
    assert_eq!(" ".parse(), Ok(Faults::default()));
}

#[test]
fn mistakes_say_where_and_what_would_be_right() {
    for (text, words) in [
        ("loss=1%,dely=3ms", &["fault 2", "`dely=3ms`", "delay"][..]),
        ("loss=101%", &["fault 1", "`loss=101%`", "loss=PERCENT"]),
        ("loss=0.00001%", &["loss=PERCENT"]),
        ("loss", &["loss=PERCENT"]),
        ("isn=3", &["isn, without a value"]),
        ("delay=20", &["delay=TIME", "20ms"]),
        ("blackhole=5s..2s", &["UNTIL after FROM"]),
        ("blackhole=2s..2s", &["UNTIL after FROM"]),
        ("flap=1s:2s", &["DOWN not above PERIOD"]),
        ("drop=0:syn", &["drop=N"]),
        ("strip=mptpc", &["strip=OPTION", "mp-join"]),
        ("resegment=0", &["BYTES above 0"]),
        ("rate=0mbit:1kb", &["rate=RATE:QUEUE"]),
        ("loss=1%,,delay=1ms", &["fault 2"]),
    ] {
        let error = text.parse::<Faults>().expect_err(text).to_string();
        for word in words {
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}

fn ppm() -> impl Strategy<Value = Ppm> {
    (0..=1_000_000_u32).prop_map(Ppm)
}

fn span() -> impl Strategy<Value = Duration> {
    (1..10_u64, 0..10_u32)
        .prop_map(|(digit, power)| Duration::from_nanos(digit * 10_u64.pow(power)))
}

fn option() -> impl Strategy<Value = OptionKind> {
    let kind = (2..=255_u8).prop_map(OptionKind::Kind);
    prop_oneof![kind, (0..16_u8).prop_map(OptionKind::Mptcp)]
}

fn class() -> impl Strategy<Value = Class> {
    prop_oneof![
        Just(Class::Any),
        Just(Class::Syn),
        Just(Class::SynAck),
        Just(Class::Data),
        Just(Class::Ack),
        Just(Class::Fin),
        Just(Class::Rst),
        option().prop_map(Class::With),
    ]
}

fn nat() -> impl Strategy<Value = Nat> {
    (
        proptest::option::of(any::<[u8; 4]>()),
        proptest::option::of(any::<[u16; 8]>()),
        proptest::option::of(span()),
        proptest::collection::vec(span(), 0..3),
    )
        .prop_map(|(v4, v6, every, mut at)| {
            at.sort();
            Nat {
                v4: v4.map(Into::into),
                v6: v6.map(Into::into),
                every,
                at,
            }
        })
}

fn fault() -> impl Strategy<Value = Fault> {
    let which = prop_oneof![
        ppm().prop_map(Which::Chance),
        (1..100_u32).prop_map(Which::Every)
    ];
    let place = prop_oneof![Just(Place::Payload), Just(Place::Header)];
    let losses = prop_oneof![
        ppm().prop_map(Fault::Loss),
        (ppm(), ppm(), ppm(), ppm()).prop_map(|(enter, leave, bad, good)| {
            Fault::Burst(GilbertElliott {
                enter,
                leave,
                bad,
                good,
            })
        }),
        (1..50_u32, 0..50_u32, class()).prop_map(|(first, more, class)| {
            let last = first + more;
            Fault::Drop(DropNth { first, last, class })
        }),
        (span(), proptest::option::of(span())).prop_map(|(from, more)| Fault::Blackhole {
            from,
            until: more.map(|more| from + more),
        }),
        (span(), span()).prop_map(|(more, down)| Fault::Flap {
            period: down + more,
            down
        }),
    ];
    let timing = prop_oneof![
        span().prop_map(Fault::Delay),
        (span(), any::<bool>()).prop_map(|(max, reorder)| Fault::Jitter(Jitter { max, reorder })),
        (which, span()).prop_map(|(which, extra)| Fault::Reorder(Reorder { which, extra })),
        ppm().prop_map(Fault::Duplicate),
        (1..u64::MAX / 8, any::<u64>()).prop_map(|(bits_per_second, queue_bytes)| {
            Fault::Rate(Rate {
                bits_per_second,
                queue_bytes,
            })
        }),
        (span(), any::<u16>())
            .prop_map(|(wait, max_len)| Fault::Coalesce(Coalesce { wait, max_len })),
    ];
    let changes = prop_oneof![
        (ppm(), place, any::<bool>()).prop_map(|(chance, place, fixed)| {
            Fault::Corrupt(Corrupt {
                chance,
                place,
                fixed,
            })
        }),
        (option(), class(), 1..100_u32).prop_map(|(option, class, from)| Fault::Strip(Strip {
            option,
            class,
            from
        })),
        any::<u8>().prop_map(Fault::WindowScale),
        any::<u16>().prop_map(Fault::MssClamp),
        any::<u32>().prop_map(Fault::TimestampShift),
        (option(), class()).prop_map(|(option, class)| Fault::DoubleOption { option, class }),
        (1..=u16::MAX, ppm()).prop_map(|(offset, chance)| Fault::Resegment { offset, chance }),
        nat().prop_map(Fault::Nat),
        Just(Fault::IsnRandomiser),
        ppm().prop_map(Fault::CeMark),
    ];
    prop_oneof![losses, timing, changes]
}

proptest! {
    #[test]
    fn any_list_reads_back_as_it_was(list in proptest::collection::vec(fault(), 0..6)) {
        let list = Faults(list);
        prop_assert_eq!(list.to_string().parse(), Ok(list));
    }
}
