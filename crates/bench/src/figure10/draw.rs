//! The figure: what each path brought, and both together, over time.

use std::fmt::Write as _;

use flexcp_lab::Direction;
use flexcp_lab::plot::{BOTTOM, LEFT, MIN_WIDTH, TOP, frame};

use super::phases::Phases;
use super::run::Run;

/// Lines of the run, and where its phases begin.
pub(super) fn plot(run: &Run, phases: &Phases) -> String {
    let times: Vec<_> = run.series.samples.iter().map(|sample| sample.at).collect();
    let spans: Vec<_> = times.windows(2).map(|two| [two[0], two[1]]).collect();
    let over = |mbit: &dyn Fn([f64; 2]) -> f64| {
        let points = spans.iter().map(|span| (span[1], mbit(*span)));
        points.collect::<Vec<_>>()
    };
    let link = |link| {
        let series = &run.series;
        move |span: [f64; 2]| series.bytes(link, Direction::Down, span) * 8e-6 / (span[1] - span[0])
    };
    let lines = [
        (
            "both paths",
            "#000000",
            over(&|span| run.series.mbit(Direction::Down, span)),
        ),
        ("path a", "#0072b2", over(&link(1))),
        ("path b", "#d55e00", over(&link(2))),
    ];
    let top = lines.iter().flat_map(|(.., points)| points.iter());
    let top = top.map(|(_, mbit)| *mbit).fold(100.0, f64::max);
    let scale = Scale {
        seconds: times.last().copied().unwrap_or(0.0).max(phases.total()),
        mbit: (top / 100.0).ceil() * 100.0,
    };
    let mut body = scale.axes();
    for (at, what) in [
        (run.marks.one, "one path"),
        (run.marks.two, "a second one"),
        (run.marks.slow, "b takes 100 ms longer"),
        (run.marks.back, "no more"),
    ] {
        let x = scale.x(at);
        let _ = writeln!(
            body,
            "<path d=\"M{x:.1} {TOP}V{BOTTOM}\" stroke=\"#888\" stroke-dasharray=\"4 3\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{what}</text>",
            x + 4.0,
            TOP - 6.0
        );
    }
    for (number, (name, color, points)) in (0..).zip(&lines) {
        let line = points.iter();
        let line = line.map(|(at, mbit)| format!("{:.1},{:.1}", scale.x(*at), scale.y(*mbit)));
        let x = LEFT + f64::from(number) * 120.0;
        let _ = writeln!(
            body,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\"/>\
             <rect x=\"{x}\" y=\"28\" width=\"10\" height=\"10\" fill=\"{color}\"/>\
             <text x=\"{}\" y=\"37\">{name}</text>",
            line.collect::<Vec<_>>().join(" "),
            x + 14.0
        );
    }
    let title = format!(
        "Downloads over two paths, Mbit/s, offload {}",
        run.offload.name()
    );
    frame(&title, MIN_WIDTH, &body)
}

/// Where times and rates stand.
struct Scale {
    seconds: f64,
    mbit: f64,
}

impl Scale {
    fn x(&self, seconds: f64) -> f64 {
        LEFT + seconds / self.seconds * (MIN_WIDTH - 20.0 - LEFT)
    }

    fn y(&self, mbit: f64) -> f64 {
        BOTTOM - mbit / self.mbit * (BOTTOM - TOP)
    }

    /// A line for every 100 Mbit/s, a number for every fifth second.
    fn axes(&self) -> String {
        let mut text = String::new();
        let steps = |top: f64, step: f64| {
            (0_u32..)
                .map(move |number| f64::from(number) * step)
                .take_while(move |at| *at <= top)
        };
        for mbit in steps(self.mbit, 100.0) {
            let y = self.y(mbit);
            let _ = writeln!(
                text,
                "<path d=\"M{LEFT} {y:.1}H{:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{:.1}\" y=\"{y:.1}\" class=\"y\">{mbit}</text>",
                MIN_WIDTH - 20.0,
                LEFT - 4.0
            );
        }
        for seconds in steps(self.seconds, 5.0) {
            let _ = writeln!(
                text,
                "<text x=\"{:.1}\" y=\"{:.1}\" class=\"c\">{seconds} s</text>",
                self.x(seconds),
                BOTTOM + 16.0
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use flexcp_lab::InterfaceBytes;
    use flexcp_lab::series::{Sample, Series};

    use super::super::Offload;
    use super::super::phases::Marks;
    use super::*;

    #[test]
    fn lines_are_as_high_as_the_rates() {
        let sample = |at: f64, bytes: [u64; 2]| Sample {
            at,
            links: bytes.map(|rx| InterfaceBytes { rx, tx: 0 }).to_vec(),
        };
        // 100 and 50 Mbit/s for a second.
        let samples = vec![sample(0.0, [0, 0]), sample(1.0, [12_500_000, 6_250_000])];
        let run = Run {
            offload: Offload::On,
            lines: vec![],
            marks: Marks {
                one: 0.0,
                two: 8.0,
                slow: 16.0,
                back: 22.0,
                end: 32.0,
            },
            series: Series { samples },
        };
        let svg = plot(&run, &Phases::new(&[8.0, 8.0, 6.0, 10.0]).unwrap());
        // The axis goes to 200 Mbit/s and 32 s.
        for y in ["127.5", "195.0", "262.5"] {
            assert!(svg.contains(&format!("points=\"73.4,{y}\"")), "{y}: {svg}");
        }
        assert!(svg.contains(">b takes 100 ms longer<"), "{svg}");
    }
}
