//! The table as a figure.

use std::fmt::Write as _;

use super::Row;
use crate::plot::{BOTTOM, LEFT, MIN_WIDTH, TOP, frame};
use crate::statistics::median;

/// Told apart by the colour-blind too (Okabe and Ito), each with what has its colour.
const BARS: [(&str, &str); 4] = [
    ("#999999", "min(ΣB, Bs)"),
    ("#0072b2", "measured by the box"),
    ("#d55e00", "downloads"),
    ("#56b4e9", "downloads in the paper"),
];
/// Of the vertical axis, in Mbit/s.
const MOST: f64 = 50.0;
const BAR: f64 = 30.0;
/// From one server to the next.
const SERVER: f64 = 150.0;

/// Four bars for each server.
pub(super) fn bars(rows: &[Row]) -> String {
    let y = |rate: f64| BOTTOM - rate.clamp(0.0, MOST) / MOST * (BOTTOM - TOP);
    let mut body = String::new();
    for rate in [10.0, 20.0, 30.0, 40.0, 50.0] {
        let _ = writeln!(
            body,
            "<path d=\"M{LEFT} {0:.1}H{1:.1}\" stroke=\"#ddd\"/><text x=\"{2:.1}\" y=\"{0:.1}\" class=\"y\">{rate}</text>",
            y(rate),
            MIN_WIDTH - 20.0,
            LEFT - 4.0
        );
    }
    for ((color, name), number) in BARS.iter().zip(0_u8..) {
        let x = LEFT + f64::from(number) * 170.0;
        let _ = writeln!(
            body,
            "<rect x=\"{x}\" y=\"28\" width=\"10\" height=\"10\" fill=\"{color}\"/><text x=\"{}\" y=\"37\">{name}</text>",
            x + 14.0
        );
    }
    for (row, number) in rows.iter().zip(0_u8..) {
        let left = LEFT + 15.0 + f64::from(number) * SERVER;
        let rates = [
            row.predicted,
            row.measured,
            median(&row.downloads),
            row.papers,
        ];
        for ((rate, (color, _)), at) in rates.iter().zip(BARS).zip(0_u8..) {
            let (x, y) = (left + f64::from(at) * BAR, y(*rate));
            let _ = writeln!(
                body,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{color}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" class=\"v\">{rate:.1}</text>",
                BAR - 3.0,
                BOTTOM - y,
                x + BAR / 2.0,
                y - 3.0
            );
        }
        let _ = writeln!(
            body,
            "<text x=\"{:.1}\" y=\"{:.1}\" class=\"c\">server {}</text>",
            left + 2.0 * BAR,
            BOTTOM + 16.0,
            row.server
        );
    }
    frame("T-MPTCP's Table 1, Mbit/s", MIN_WIDTH, &body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::location::tests::papers;

    #[test]
    fn bars_are_as_high_as_the_rates() {
        let svg = bars(&papers([25.0, 38.0, 47.0, 15.0, 18.0]));
        // Half of the axis.
        assert!(
            svg.contains("y=\"195.0\" width=\"27.0\" height=\"135.0\" fill=\"#0072b2\""),
            "{svg}"
        );
        assert_eq!(svg.matches("class=\"v\"").count(), 20);
        assert!(svg.contains(">server 5<"), "{svg}");
    }
}
