//! Emulated links: they do to packets what they were told, and nothing else.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use flexcp_lab::link::SelfTest;
use flexcp_lab::matrix::{Cell, Matrix, Side};
use flexcp_lab::transfer::Job;
use flexcp_lab::{Cut, Direction, End, Expect, Families, Family, Lab, RENEGED, seed, text};

use crate::rig::transparent;

crate::cases!("link":
    loss_is_what_was_said_and_every_packet_is_accounted_for,
    delay_is_what_was_said,
    packets_are_reordered_and_doubled,
    rate_is_what_was_said,
    faults_change_while_it_runs,
    directions_have_their_own_faults,
    ordinary_rules_are_refused_on_an_emulated_link,
    mistake_in_a_list_is_told,
    transfer_over_a_clean_emulated_link_is_clean,
    transfer_over_a_lossy_link_is_exact_ipv4,
    transfer_over_a_lossy_link_is_exact_ipv6,
    upload_over_a_lossy_link_is_exact,
    cut_and_restored_link_is_survived,
    link_on_a_detour_is_slow_until_its_end_and_loses_nothing,
    slice_of_the_fault_matrix_passes,
    cells_of_a_fresh_seed_pass,
    slice_of_the_mirrored_matrix_passes,
    mirrored_cells_of_a_fresh_seed_pass,
);

const MS: Duration = Duration::from_millis(1);

fn loss_is_what_was_said_and_every_packet_is_accounted_for() -> Result<()> {
    let test = SelfTest::new(Family::V4)?;
    test.send("", 10, MS, 200)?; // the neighbour is known now
    let before = test.lab().link_counters(1)?.up;
    // Slowly: a receiver that does not get the processor for a while has to have room for what comes.
    let arrived = test.send("loss=2%", 10_000, MS / 5, 200)?.numbers.len() as u64;
    let after = test.lab().link_counters(1)?;
    let lost = after.up.lost_loss - before.lost_loss;
    let counted = after.up.packets_in - before.packets_in;
    ensure!(
        counted - lost == after.up.packets_out - before.packets_out,
        "{:?}",
        after.up
    );
    // The kernel says a thing or two of its own meanwhile, such as IPv6 router solicitations.
    ensure!(
        (10_000..10_020).contains(&counted)
            && arrived + lost <= counted
            && arrived + lost >= 10_000,
        "{arrived} arrived, {lost} lost: {:?}",
        after.up
    );
    // 200 +- 3 * sqrt(10000 * 0.02 * 0.98)
    ensure!((158..=242).contains(&lost), "{lost} of 10000 lost");
    ensure!(after.unsent == [0, 0]);
    Ok(())
}

fn delay_is_what_was_said() -> Result<()> {
    for family in [Family::V4, Family::V6] {
        let test = SelfTest::new(family)?;
        let carrying = test.send("", 300, MS, 200)?.delay(50);
        let delayed = test.send("delay=20ms", 300, MS, 200)?;
        ensure!(delayed.numbers.len() == 300);
        // Nothing can be early; late is what a busy machine makes of it, so the median is judged.
        let (least, median) = (delayed.delay(0), delayed.delay(50));
        ensure!(least >= 20 * MS, "{least:?}");
        ensure!(
            median.abs_diff(20 * MS + carrying) <= MS,
            "{median:?} with {carrying:?} of our own"
        );
    }
    Ok(())
}

fn packets_are_reordered_and_doubled() -> Result<()> {
    let test = SelfTest::new(Family::V4)?;
    let arrivals = test.send("reorder=every10:5ms,duplicate=20%", 1000, MS / 2, 200)?;
    let counters = test.lab().link_counters(1)?.up;
    let late = arrivals.numbers.windows(2).filter(|pair| pair[1] < pair[0]);
    let (late, doubled) = (late.count(), arrivals.numbers.len() - 1000);
    ensure!(late >= 50, "{late} came late of 100");
    // The hosts' own packets, as those that look for neighbours, may be doubled, too.
    let own = counters.packets_in - 1000;
    let told = counters.duplicated.saturating_sub(doubled as u64);
    ensure!(
        doubled as u64 <= counters.duplicated && told <= own && (150..250).contains(&doubled),
        "{doubled} came twice: {counters:?}"
    );
    Ok(())
}

fn rate_is_what_was_said() -> Result<()> {
    let test = SelfTest::new(Family::V4)?;
    let arrivals = test.send("rate=8mbit:10mb", 1000, MS / 10, 1000)?;
    ensure!(arrivals.numbers.len() == 1000);
    let rate = arrivals.kbit(1000);
    ensure!((7600..=8400).contains(&rate), "{rate} kbit/s");
    Ok(())
}

fn faults_change_while_it_runs() -> Result<()> {
    let test = SelfTest::new(Family::V4)?;
    for (faults, expected) in [("", 50), ("loss=100%", 0), ("blackhole=10s..", 50)] {
        let arrived = test.send(faults, 50, MS, 200)?.numbers.len();
        ensure!(arrived == expected, "`{faults}`: {arrived} arrived");
    }
    Ok(())
}

fn directions_have_their_own_faults() -> Result<()> {
    let test = SelfTest::new(Family::V4)?;
    test.send("", 10, MS, 200)?;
    test.lab().set_faults(1, Direction::Down, "loss=100%")?;
    ensure!(test.send("", 50, MS, 200)?.numbers.len() == 50);
    let proxy = test.lab().proxy_addr(1, Family::V4).to_string();
    let mut ping = test.lab().client().command("ping");
    let ping = ping.args(["-c", "2", "-W", "1", &proxy]).output()?;
    ensure!(!ping.status.success(), "answers came through");
    let lost = test.lab().link_counters(1)?.down.lost_loss;
    ensure!(lost >= 2, "{lost} answers lost");
    Ok(())
}

fn ordinary_rules_are_refused_on_an_emulated_link() -> Result<()> {
    let lab = Lab::builder().faults(1, Direction::Up, "").build()?;
    ensure!(lab.cut(1, Cut::Silent).is_err());
    lab.cut(2, Cut::Silent)?;
    ensure!(lab.set_faults(2, Direction::Up, "loss=1%").is_err());
    lab.cut(1, Cut::NoCarrier)?;
    lab.restore(1)
}

fn mistake_in_a_list_is_told() -> Result<()> {
    let built = Lab::builder().faults(2, Direction::Up, "delay=20").build();
    let error = format!("{:#}", built.expect_err("a delay without unit"));
    ensure!(
        error.contains("`delay=20`") && error.contains("20ms"),
        "{error}"
    );
    let built = Lab::builder().faults(3, Direction::Up, "").build();
    let error = format!("{:#}", built.expect_err("a third link of two"));
    ensure!(error.contains("link 3"), "{error}");
    Ok(())
}

/// Two links with these faults each way.
fn lab(families: Families, up: &str, down: &str) -> Result<Lab> {
    let builder = Lab::builder().families(families);
    let links = (1..=2).fold(builder, |builder, link| {
        builder
            .faults(link, Direction::Up, up)
            .faults(link, Direction::Down, down)
    });
    links.build()
}

fn transfer_over_a_clean_emulated_link_is_clean() -> Result<()> {
    transparent(lab(Families::V4, "", "")?, |rig| {
        rig.run(Family::V4, &Job::down(20_000_000))?;
        rig.run(Family::V4, &Job::up(20_000_000))?;
        Ok(Expect::clean().at_least(End::Client, "MPJoinSynAckRx", 1))
    })
}

/// A few packets of each kind lost and late, at a rate that lets joins take part.
const LOSSY: &str = "loss=1%,delay=5ms,rate=100mbit:200kb";

fn transfer_over_a_lossy_link_is_exact_ipv4() -> Result<()> {
    lossy(Families::V4, Family::V4, &Job::down(5_000_000))
}

fn transfer_over_a_lossy_link_is_exact_ipv6() -> Result<()> {
    lossy(Families::V6, Family::V6, &Job::down(5_000_000))
}

fn upload_over_a_lossy_link_is_exact() -> Result<()> {
    lossy(Families::V4, Family::V4, &Job::up(5_000_000))
}

fn lossy(families: Families, family: Family, job: &Job) -> Result<()> {
    transparent(lab(families, LOSSY, LOSSY)?, |rig| {
        rig.run(family, job)?;
        let counters = rig.lab.link_counters(1)?;
        ensure!(counters.up.packets_in + counters.down.packets_in > 500);
        ensure!(
            counters.up.lost() + counters.down.lost() > 0,
            "{counters:?}"
        );
        Ok(Expect::clean()
            .disturbed("the links lose packets")
            .allow_all(RENEGED))
    })
}

fn cut_and_restored_link_is_survived() -> Result<()> {
    let faults = "rate=50mbit:200kb";
    transparent(lab(Families::V4, faults, faults)?, |rig| {
        rig.run_while(Family::V4, &Job::down(8_000_000), || {
            thread::sleep(200 * MS);
            rig.lab
                .set_faults(1, Direction::Down, "blackhole=0s..1s,rate=50mbit:200kb")
        })?;
        let lost = rig.lab.link_counters(1)?.down.lost_blackhole;
        ensure!(lost > 0, "the cut hit nothing");
        Ok(Expect::clean().disturbed("a link is cut"))
    })
}

/// A few cells of different kinds; `make faults` runs them all.
fn link_on_a_detour_is_slow_until_its_end_and_loses_nothing() -> Result<()> {
    let lab = Lab::builder().access_links(1).rate_mbit(1, 100).build()?;
    let to = lab.proxy_addr(1, Family::V4);
    // A ping every 20 ms; the longest and the shortest round trip in milliseconds.
    let pings = |count: u32| -> Result<[f64; 2]> {
        let mut ping = lab.client().command("ping");
        ping.args([
            "-q",
            "-i",
            "0.02",
            "-c",
            &count.to_string(),
            &to.to_string(),
        ]);
        let said = text(&mut ping)?;
        ensure!(said.contains(" 0% packet loss"), "{said}");
        let times = said.rsplit("= ").next().context("no round trips")?;
        let times: Vec<f64> = times.split(['/', ' ']).flat_map(str::parse).collect();
        ensure!(times.len() == 4, "{said}");
        Ok([times[0], times[2]])
    };
    let [_, longest] = pings(10)?;
    ensure!(longest < 50.0, "{longest} ms before");
    let mut detour = lab.detour(1, "", "delay=100ms")?;
    let [_, longest] = pings(10)?;
    ensure!(longest < 50.0, "{longest} ms before it begins");
    detour.begin()?;
    let [shortest, _] = pings(10)?;
    ensure!(shortest >= 100.0, "{shortest} ms on the detour");
    thread::scope(|scope| {
        // Some of these are under way at the end of the detour.
        let pings = scope.spawn(|| pings(40));
        thread::sleep(400 * MS);
        detour.end(200 * MS)?;
        let [shortest, longest] = pings.join().map_err(|_| anyhow!("pings panicked"))??;
        ensure!(
            shortest < 50.0 && longest >= 100.0,
            "{shortest} to {longest} ms around its end"
        );
        anyhow::Ok(())
    })?;
    let [_, longest] = pings(10)?;
    ensure!(longest < 50.0, "{longest} ms after");
    Ok(())
}

fn slice_of_the_fault_matrix_passes() -> Result<()> {
    let cells = [
        "loss-1/v4/down/2/offloads",
        "reorder-5/v6/up/2/plain",
        "corrupt-payload/v4/up/1/plain",
        "drop-third-ack/v4/up/2/offloads",
        "resegment-500/v6/down/2/plain",
        "coalesce/v4/up/2/plain",
        "nat-rebind/v4/up/2/offloads",
        "firewall/v6/up/4/plain",
        "strip-dss-data/v4/up/2/offloads",
    ];
    passes(&[Side::Proxy], cells.map(str::to_owned).to_vec(), 1)
}

/// FlexCP as an aggregation box; `make faults FAULTS_ARGS="--side box,converter"` runs them all.
fn slice_of_the_mirrored_matrix_passes() -> Result<()> {
    let cells = [
        "loss-1/v4/down/2/offloads/box",
        "reorder-5/v6/up/2/plain/box",
        "drop-third-ack/v4/up/2/offloads/box",
        "drop-join-ack/v6/up/2/plain/box",
        "coalesce/v4/down/2/plain/box",
        "nat-rebind/v4/up/2/offloads/box",
        "nat-rebind/v6/up/1/plain/box",
        "strip-capable-syn-ack/v6/down/4/plain/box",
        "strip-join-ack/v4/up/2/offloads/box",
        "burst/v4/up/2/offloads/converter",
        "drop-join-ack/v4/up/2/offloads/converter",
    ];
    passes(&MIRROR, cells.map(str::to_owned).to_vec(), 1)
}

/// Cells that no run before has had, with luck that none has had. What fails is had again with `FLEXCP_SEED`.
fn cells_of_a_fresh_seed_pass() -> Result<()> {
    fresh(&[Side::Proxy])
}

fn mirrored_cells_of_a_fresh_seed_pass() -> Result<()> {
    fresh(&MIRROR)
}

/// A box before servers that speak MPTCP, and one that goes by a converter.
const MIRROR: [Side; 2] = [Side::Box, Side::Converter];

fn fresh(sides: &[Side]) -> Result<()> {
    let seed = seed::fresh();
    println!("fault cells of seed {seed}");
    let all: Vec<_> = sides.iter().copied().flat_map(Cell::all).collect();
    let chosen = seed::choose(seed, all.len(), FRESH).into_iter();
    let names = chosen.map(|index| all[index].name()).collect();
    passes(sides, names, seed).with_context(|| format!("FLEXCP_SEED={seed} has the same again"))
}

/// Cells with a fresh seed.
const FRESH: usize = 4;

fn passes(sides: &[Side], cells: Vec<String>, seed: u64) -> Result<()> {
    let matrix = Matrix {
        sides: sides.to_vec(),
        only: cells.clone(),
        sample: None,
        limit: None,
        jobs: 1,
        seed,
        captures: None,
    };
    let outcomes = matrix.run(|_| ())?;
    ensure!(
        outcomes.len() == cells.len(),
        "{} cells run",
        outcomes.len()
    );
    let failed = outcomes.iter().filter(|outcome| !outcome.passed);
    // The reason first, everything that was counted behind it.
    let told = failed.map(|outcome| format!("{}: {}\n{outcome:#?}", outcome.cell, outcome.detail));
    let told: Vec<_> = told.collect();
    ensure!(told.is_empty(), "{}", told.join("\n"));
    Ok(())
}
