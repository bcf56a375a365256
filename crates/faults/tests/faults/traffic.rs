//! What faults do to a stream of packets: how many are lost, when the others come out.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use flexcp_faults::{Counters, Fault, Ppm, Time};

use crate::support::{Tcp, drain, path, stream, through};

const MS: Duration = Duration::from_millis(1);

/// Whether `hits` of `trials` are within three standard deviations of `probability`.
fn within_three_sigma(hits: u64, trials: u32, probability: f64) -> bool {
    let mean = f64::from(trials) * probability;
    let sigma = (mean * (1.0 - probability)).sqrt();
    (f64::from(u32::try_from(hits).expect("few")) - mean).abs() <= 3.0 * sigma
}

fn numbers(count: u32) -> Vec<u32> {
    (0..count).collect()
}

fn order(out: &[(Time, u32)]) -> Vec<u32> {
    out.iter().map(|(_, number)| *number).collect()
}

#[test]
fn no_fault_lets_everything_through_at_once() {
    let out = stream(&mut path("", 1), 100, MS);
    let expected = numbers(100).into_iter().map(|n| (Time::ZERO + MS * n, n));
    assert!(out.into_iter().eq(expected));
}

#[test]
fn loss_is_within_three_sigma() {
    for (text, probability) in [("loss=0.1%", 0.001), ("loss=1%", 0.01), ("loss=5%", 0.05)] {
        let mut path = path(text, 11);
        let arrived = stream(&mut path, 100_000, MS).len() as u64;
        let counters = *path.counters();
        assert_eq!(counters.packets_in, 100_000);
        assert_eq!(counters.packets_out, arrived);
        assert_eq!(counters.lost(), counters.lost_loss);
        assert_eq!(arrived + counters.lost_loss, 100_000);
        assert!(
            within_three_sigma(counters.lost_loss, 100_000, probability),
            "{text}: {}",
            counters.lost_loss
        );
    }
}

#[test]
fn bursts_have_the_mean_length_of_the_model() {
    // Mean length 1 / 20 % = 5; share of the bad state 1 / (1 + 20) of all packets.
    let mut path = path("burst=1%:20%", 5);
    let arrived = order(&stream(&mut path, 400_000, MS));
    let gaps: Vec<u32> = arrived
        .windows(2)
        .map(|pair| pair[1] - pair[0] - 1)
        .filter(|gap| *gap > 0)
        .collect();
    let lost: u32 = gaps.iter().sum();
    let mean = f64::from(lost) / gaps.len() as f64;
    assert!((4.8..5.2).contains(&mean), "mean burst {mean}");
    let share = f64::from(lost) / 400_000.0;
    assert!((0.044..0.051).contains(&share), "share {share}");
}

#[test]
fn bursts_can_lose_less_than_everything() {
    let lost = |text| {
        let mut path = path(text, 5);
        stream(&mut path, 100_000, MS);
        path.counters().lost_burst
    };
    let (all, half) = (lost("burst=1%:20%"), lost("burst=1%:20%:50%"));
    assert!(
        (all * 4 / 10..all * 6 / 10).contains(&half),
        "{half} of {all}"
    );
}

#[test]
fn nth_of_a_class_is_dropped_and_others_are_not_counted() {
    let mut path = path("drop=2..3:data", 1);
    let packets = [
        Tcp::data(),
        Tcp::ack(),
        Tcp::data(),
        Tcp::ack(),
        Tcp::data(),
        Tcp::data(),
    ];
    let came: Vec<usize> = packets
        .iter()
        .map(|packet| through(&mut path, MS, packet.build()).len())
        .collect();
    assert_eq!(came, [1, 1, 0, 1, 0, 1]);
    assert_eq!(path.counters().lost_drop, 2);
}

#[test]
fn delay_is_exact() {
    let out = stream(&mut path("delay=20ms", 1), 1000, MS);
    let expected = (0..1000).map(|n| (Time::from_millis(20) + MS * n, n));
    assert!(out.into_iter().eq(expected));
}

#[test]
fn delays_add_up() {
    let out = stream(&mut path("delay=20ms,delay=1500us", 1), 3, MS);
    assert_eq!(out[2], (Time::from_micros(23_500), 2));
}

#[test]
fn jitter_keeps_the_order_unless_told_otherwise() {
    let mut path_in_order = path("jitter=5ms", 1);
    let out = stream(&mut path_in_order, 10_000, MS);
    assert_eq!(order(&out), numbers(10_000));
    let late = out.iter().map(|(at, n)| at.since(Time::ZERO + MS * *n));
    let (least, most) = (late.clone().min(), late.max());
    assert!(least < Some(MS) && most > Some(4 * MS) && most <= Some(5 * MS));

    let out = stream(&mut path("jitter=5ms:reorder", 1), 10_000, MS);
    assert_ne!(order(&out), numbers(10_000));
    let mut sorted = order(&out);
    sorted.sort_unstable();
    assert_eq!(sorted, numbers(10_000));
    let late: u64 = out
        .iter()
        .map(|(at, n)| at.0 - (Time::ZERO + MS * *n).0)
        .sum();
    let mean = late / 10_000;
    assert!((2_400_000..2_600_000).contains(&mean), "mean {mean} ns");
}

#[test]
fn reordered_packets_are_late_by_what_was_said() {
    let mut path_by_chance = path("reorder=10%:5ms", 2);
    let out = stream(&mut path_by_chance, 10_000, MS);
    let late = out
        .iter()
        .filter(|(at, n)| *at == Time::ZERO + MS * *n + 5 * MS)
        .count() as u64;
    assert_eq!(late, path_by_chance.counters().reordered);
    assert!(within_three_sigma(late, 10_000, 0.1));

    let out = stream(&mut path("reorder=every5:2500us", 1), 10, MS);
    assert_eq!(order(&out), [0, 1, 2, 3, 5, 6, 4, 7, 8, 9]);
}

#[test]
fn duplicates_come_at_once() {
    let mut path = path("duplicate=1%", 3);
    let out = stream(&mut path, 100_000, MS);
    let twice = out.windows(2).filter(|pair| pair[0] == pair[1]).count() as u64;
    assert_eq!(twice, path.counters().duplicated);
    assert!(within_three_sigma(twice, 100_000, 0.01), "{twice}");
}

#[test]
fn rate_spaces_packets_exactly() {
    // 104 bytes at 3 Mbit/s take 277.333 us; the thirds must not get lost.
    let out = stream(&mut path("rate=3mbit:1mb", 1), 3000, Duration::ZERO);
    let times: Vec<u64> = out.iter().map(|(at, _)| at.0).collect();
    assert_eq!(times[0], 277_333);
    assert_eq!(times[2], 832_000);
    assert_eq!(times[2999], 832_000_000);
}

#[test]
fn queue_drops_what_does_not_fit() {
    let mut path = path("rate=1mbit:1040b", 1);
    let out = stream(&mut path, 100, Duration::ZERO);
    assert_eq!(order(&out), numbers(10));
    assert_eq!(path.counters().lost_queue, 90);
}

#[test]
fn queue_smaller_than_a_packet_still_passes_one() {
    let out = stream(&mut path("rate=1mbit:10b", 1), 5, MS);
    assert_eq!(order(&out), numbers(5));
}

#[test]
fn blackhole_begins_and_ends_on_time() {
    let out = stream(&mut path("blackhole=2ms..5ms", 1), 8, MS);
    assert_eq!(order(&out), [0, 1, 5, 6, 7]);
    let out = stream(&mut path("blackhole=2ms..", 1), 8, MS);
    assert_eq!(order(&out), [0, 1]);
}

#[test]
fn flap_is_down_at_the_end_of_each_period() {
    let mut path = path("flap=5ms:2ms", 1);
    let out = stream(&mut path, 10, MS);
    assert_eq!(order(&out), [0, 1, 2, 5, 6, 7]);
    assert_eq!(path.counters().lost_flap, 4);
}

#[test]
fn late_caller_gets_the_same_packets_in_the_same_order() {
    let faults = "jitter=3ms:reorder,loss=5%,rate=1mbit:5kb,delay=1ms";
    let prompt = stream(&mut path(faults, 9), 500, MS);
    let mut late = path(faults, 9);
    for number in 0..500_u32 {
        let mut packet = vec![0x50; 100];
        packet.extend_from_slice(&number.to_be_bytes());
        late.send(Time::ZERO + MS * number, packet);
    }
    let out: Vec<_> = std::iter::from_fn(|| late.receive_timed(Time::from_millis(100_000)))
        .map(|(at, packet)| (at, packet[103]))
        .collect();
    let low_byte = |(at, number): &(Time, u32)| (*at, number.to_be_bytes()[3]);
    assert_eq!(out, prompt.iter().map(low_byte).collect::<Vec<_>>());
}

#[test]
fn schedules_of_new_faults_start_when_they_are_set() {
    let mut path = path("delay=10ms", 1);
    path.send(Time::ZERO, vec![1]);
    let cut = vec![Fault::Blackhole {
        from: 5 * MS,
        until: None,
    }];
    path.set_faults(Time::from_millis(2), cut);
    path.send(Time::from_millis(6), vec![2]);
    path.send(Time::from_millis(8), vec![3]);
    let out: Vec<_> = drain(&mut path);
    // What was under way keeps its time; 6 ms is 4 ms into the new list, 8 ms is 6 ms into it.
    assert_eq!(
        out,
        [
            (Time::from_millis(6), vec![2]),
            (Time::from_millis(10), vec![1])
        ]
    );
}

#[test]
fn packets_under_way_do_not_meet_the_new_faults() {
    let mut path = path("delay=10ms,delay=1ms", 1);
    path.send(Time::ZERO, vec![1]);
    path.set_faults(
        Time::from_millis(2),
        vec![Fault::Delay(MS), Fault::Loss(Ppm::ALWAYS)],
    );
    path.send(Time::from_millis(3), vec![2]);
    assert_eq!(drain(&mut path), [(Time::from_millis(10), vec![1])]);
}

#[test]
fn same_seed_gives_the_same_log_and_another_seed_another_one() {
    let log = |seed| {
        let faults = "loss=2%,burst=1%:30%,jitter=4ms:reorder,duplicate=2%,reorder=3%:9ms,\
                      corrupt=1%,resegment=300:20%,coalesce=1ms:1500,isn,nat";
        let mut path = path(faults, seed);
        let mut hasher = DefaultHasher::new();
        for number in 0..20_000 {
            let packet = Tcp {
                seq: number * 1000,
                ..Tcp::data()
            };
            path.send(Time::ZERO + MS / 4 * number, packet.build());
        }
        drain(&mut path).hash(&mut hasher);
        (hasher.finish(), *path.counters())
    };
    let first: (u64, Counters) = log(1);
    assert_eq!(first, log(1));
    assert_ne!(first.0, log(2).0);
    assert!(first.1.joined > 0 && first.1.split > 0, "{:?}", first.1);
}

#[test]
fn one_fault_more_leaves_the_luck_of_those_before_it() {
    let survivors = |faults| order(&stream(&mut path(faults, 4), 1000, MS));
    assert_eq!(survivors("loss=10%"), survivors("loss=10%,delay=3ms"));
}
