//! The figure: throughput of each way, round by round.

use std::fmt::Write as _;

use flexcp_lab::plot::{BOTTOM, LEFT, MIN_WIDTH, TOP, frame};

use super::Row;

const COLORS: [&str; 3] = ["#000000", "#0072b2", "#d55e00"];

/// A line for each way.
pub(super) fn plot(rows: &[Row]) -> String {
    let runs = rows.iter().flat_map(|row| &row.runs);
    let top = runs.map(|run| run.mbit).fold(1000.0, f64::max);
    let top = (top / 1000.0).ceil() * 1000.0;
    let count = rows.iter().map(|row| row.runs.len()).max().unwrap_or(0);
    let step = (MIN_WIDTH - 20.0 - LEFT) / count.max(1) as f64;
    let y = |mbit: f64| BOTTOM - mbit / top * (BOTTOM - TOP);
    let mut body = String::new();
    let steps = (0_u32..).map(|number| f64::from(number) * 1000.0);
    for mbit in steps.take_while(|mbit| *mbit <= top) {
        let _ = writeln!(
            body,
            "<path d=\"M{LEFT} {0:.1}H{1:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{2:.1}\" y=\"{0:.1}\" class=\"y\">{mbit}</text>",
            y(mbit),
            MIN_WIDTH - 20.0,
            LEFT - 4.0
        );
    }
    for ((number, row), color) in (0..).zip(rows).zip(COLORS) {
        let points = row.runs.iter().enumerate().map(|(round, run)| {
            let x = LEFT + (round as f64 + 0.5) * step;
            format!("{x:.1},{:.1}", y(run.mbit))
        });
        let x = LEFT + f64::from(number) * 150.0;
        let _ = writeln!(
            body,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\"/>\
             <rect x=\"{x}\" y=\"28\" width=\"10\" height=\"10\" fill=\"{color}\"/>\
             <text x=\"{}\" y=\"37\">{}</text>",
            points.collect::<Vec<_>>().join(" "),
            x + 14.0,
            row.way.name()
        );
    }
    frame(
        "Downloads over two paths, Mbit/s by round",
        MIN_WIDTH,
        &body,
    )
}

#[cfg(test)]
mod tests {
    use super::super::{Run, Way};
    use super::*;

    #[test]
    fn lines_are_as_high_as_the_rates() {
        let run = |mbit| Run {
            mbit,
            cpu: 1.0,
            foreign: 0.0,
            data: 1,
            in_kernel: 1,
        };
        let rows = [Row {
            way: Way::Convert,
            runs: vec![run(1000.0), run(2000.0)],
        }];
        let svg = plot(&rows);
        // The axis goes to 2 Gbit/s.
        let middle = f64::midpoint(TOP, BOTTOM);
        assert!(svg.contains(&format!(",{middle:.1} ")), "{svg}");
        assert!(svg.contains(&format!(",{TOP:.1}\" fill")), "{svg}");
        assert!(svg.contains(">Convert in the SYN<"), "{svg}");
    }
}
