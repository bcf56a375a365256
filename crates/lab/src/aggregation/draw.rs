//! The two figures.

use std::fmt::Write as _;

use super::phases::{Figure5a, rate};
use super::sizes::Cell;
use super::way::{MOBILE, TELECOM, WAYS};
use crate::plot::{BOTTOM, LEFT, MIN_WIDTH, TOP, frame};

/// Told apart by the colour-blind too (Okabe and Ito), in the order of [`WAYS`].
const COLORS: [&str; 7] = [
    "#d55e00", "#e69f00", "#cc79a7", "#0072b2", "#009e73", "#56b4e9", "#999999",
];
const RIGHT: f64 = MIN_WIDTH - 20.0;
/// Of the vertical axes, in MB/s: what both uplinks carry is just below.
const MOST: f64 = 6.0;

fn y(rate: f64) -> f64 {
    BOTTOM - rate.clamp(0.0, MOST) / MOST * (BOTTOM - TOP)
}

/// A line across and a number for each MB/s.
fn rates() -> String {
    let mut text = String::new();
    for rate in 0..=6_u8 {
        let y = y(f64::from(rate));
        let _ = writeln!(
            text,
            "<path d=\"M{LEFT} {y:.1}H{RIGHT:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{y:.1}\" class=\"y\">{rate}</text>",
            LEFT - 4.0
        );
    }
    text
}

/// A line through these points, and its name above the figure.
fn line(number: u8, name: &str, color: &str, points: &[(f64, f64)]) -> String {
    let path: Vec<_> = points
        .iter()
        .map(|(x, rate)| format!("{x:.1},{:.1}", y(*rate)))
        .collect();
    let x = LEFT + f64::from(number % 4) * 190.0;
    let name_at = 37.0 + 14.0 * f64::from(number / 4);
    format!(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\"/>\
         <rect x=\"{x}\" y=\"{}\" width=\"10\" height=\"10\" fill=\"{color}\"/>\
         <text x=\"{}\" y=\"{name_at}\">{name}</text>\n",
        path.join(" "),
        name_at - 9.0,
        x + 14.0
    )
}

/// Figure 5b: a line for each way over the size, whose axis is logarithmic.
pub(super) fn by_size(cells: &[Cell]) -> String {
    let sizes = cells.iter().map(|cell| cell.megabytes.log10());
    let least = sizes.clone().fold(f64::INFINITY, f64::min);
    let span = sizes.fold(f64::NEG_INFINITY, f64::max) - least;
    let x = |megabytes: f64| LEFT + (megabytes.log10() - least) / span.max(1e-9) * (RIGHT - LEFT);
    let mut body = rates();
    for cell in cells.iter().step_by(WAYS.len()) {
        let _ = writeln!(
            body,
            "<text x=\"{:.1}\" y=\"{:.1}\" class=\"c\">{} MB</text>",
            x(cell.megabytes),
            BOTTOM + 16.0,
            cell.megabytes
        );
    }
    for ((number, way), color) in (0..).zip(WAYS).zip(COLORS) {
        let points = cells.iter().filter(|cell| cell.way == way);
        let points: Vec<_> = points
            .map(|cell| (x(cell.megabytes), cell.rate()))
            .collect();
        body += &line(number, way.name(), color, &points);
    }
    frame("Downloads by size, MB/s", MIN_WIDTH, &body)
}

/// Figure 5a: what each uplink brought, and both, each second; and the means of ten seconds.
pub(super) fn by_time(figure: &Figure5a) -> String {
    let end = figure.phases.last().map_or(1.0, |phase| phase.span[1]);
    let x = |seconds: f64| LEFT + seconds / end * (RIGHT - LEFT);
    let mut body = rates();
    for phase in &figure.phases {
        let [from, to] = phase.span;
        let _ = writeln!(
            body,
            "<path d=\"M{0:.1} {TOP}V{BOTTOM}\" stroke=\"#888\" stroke-dasharray=\"4 3\"/>\
             <text x=\"{1:.1}\" y=\"{2:.1}\">{3}</text>\
             <text x=\"{0:.1}\" y=\"{4:.1}\" class=\"c\">{from:.0} s</text>",
            x(from),
            x(from) + 4.0,
            TOP - 6.0,
            phase.name,
            BOTTOM + 16.0
        );
        let means = (0_u32..).map(|number| from + 10.0 * f64::from(number));
        for (mean, at) in phase.means.iter().zip(means) {
            let _ = writeln!(
                body,
                "<path d=\"M{:.1} {:.1}H{:.1}\" stroke=\"#000\" stroke-width=\"3\"/>",
                x(at),
                y(*mean),
                x((at + 10.0).min(to))
            );
        }
    }
    let seconds = (1_u32..).map(f64::from).take_while(|at| *at <= end);
    let over = |of: &dyn Fn([f64; 2]) -> f64| {
        let points = seconds.clone().map(|at| (x(at - 0.5), of([at - 1.0, at])));
        points.collect::<Vec<_>>()
    };
    let link = |link, span| rate(&figure.series, link, span);
    let both = over(&|span| link(MOBILE, span) + link(TELECOM, span));
    body += &line(0, "both", COLORS[0], &both);
    body += &line(1, "mobile", COLORS[5], &over(&|span| link(MOBILE, span)));
    body += &line(2, "telecom", COLORS[6], &over(&|span| link(TELECOM, span)));
    let title = "One download while uplinks come and go, MB/s of IP packets; black: means of 10 s";
    frame(title, MIN_WIDTH, &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_as_high_as_the_rates() {
        let cells = [1.0, 100.0].into_iter().flat_map(|megabytes| {
            WAYS.map(|way| Cell {
                way,
                megabytes,
                seconds: vec![megabytes / 3.0],
            })
        });
        let svg = by_size(&cells.collect::<Vec<_>>());
        // 3 of 6 MB/s, from edge to edge.
        assert!(svg.contains("points=\"50.0,195.0 800.0,195.0\""), "{svg}");
        assert_eq!(svg.matches("<polyline").count(), WAYS.len());
        assert!(svg.contains(">redsocks and danted<"), "{svg}");
    }
}
