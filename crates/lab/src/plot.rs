//! What plots have in common: SVG of one size, with a title and a line below what is drawn.

/// A figure of that many pixels across, around what is drawn in `body`. Texts of class `c` stand in the middle below their place, `v`
/// the same but small, and `y` before it.
pub fn frame(title: &str, width: f64, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{HEIGHT:.0}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <style>.c{{text-anchor:middle}}.v{{text-anchor:middle;font-size:8px}}\
         .y{{text-anchor:end}}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"18\" font-size=\"14\">{title}</text>\n{body}\
         <path d=\"M{LEFT} {BOTTOM}H{:.1}\" stroke=\"#000\"/>\n</svg>\n",
        width - 20.0
    )
}

/// Where what is drawn begins and ends, in pixels.
pub const LEFT: f64 = 50.0;
/// Its upper edge.
pub const TOP: f64 = 60.0;
/// Its lower edge, where the line is.
pub const BOTTOM: f64 = 330.0;
const HEIGHT: f64 = 360.0;
/// A figure is no narrower.
pub const MIN_WIDTH: f64 = 820.0;
