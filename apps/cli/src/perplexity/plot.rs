//! Plots divergence over bits per weight as an SVG file.

use super::peers::PeerSet;
use super::report::judged;
use nestling::engine::judge::{JudgeReport, JudgeRow};
use std::fmt::Write as _;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 600.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 80.0;
const BOTTOM: f64 = 60.0;

const LEVELS: &str = "#1f6fb4";
const ALLOCATIONS: &str = "#2a9d4a";
const PEERS: &str = "#c0392b";

/// Coordinate system of the plot: bits on a linear axis, divergence on a logarithmic axis.
struct Axes {
    bits: (f64, f64),
    /// Exponents of the powers of ten that bound the vertical axis.
    kl: (i32, i32),
}

impl Axes {
    fn new(points: &[(f64, f64)]) -> Self {
        let mut bits = (f64::INFINITY, f64::NEG_INFINITY);
        let mut kl = (f64::INFINITY, f64::NEG_INFINITY);
        for (x, y) in points {
            bits = (bits.0.min(*x), bits.1.max(*x));
            kl = (kl.0.min(*y), kl.1.max(*y));
        }
        if points.is_empty() {
            (bits, kl) = ((0.0, 1.0), (0.1, 1.0));
        }
        let kl = (kl.0.log10().floor() as i32, kl.1.log10().ceil() as i32);
        Self { bits: (bits.0.floor(), (bits.1 + 0.2).ceil()), kl: (kl.0, kl.1.max(kl.0 + 1)) }
    }

    fn x(&self, bits: f64) -> f64 {
        let share = (bits - self.bits.0) / (self.bits.1 - self.bits.0);
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, kl: f64) -> f64 {
        let (low, high) = (f64::from(self.kl.0), f64::from(self.kl.1));
        let share = (kl.log10() - low) / (high - low);
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }
}

/// A point of the page, relative to its upper left corner.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PagePoint {
    x: f64,
    y: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct PageArea {
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

impl PageArea {
    /// Returns the square around a point with half the given side length.
    fn around(point: PagePoint, half: f64) -> Self {
        let PagePoint { x, y } = point;
        Self { left: x - half, top: y - half, right: x + half, bottom: y + half }
    }

    /// Returns the area that two rectangles have in common, in square units.
    fn overlap(&self, other: &Self) -> f64 {
        let width = self.right.min(other.right) - self.left.max(other.left);
        let height = self.bottom.min(other.bottom) - self.top.max(other.top);
        width.max(0.0) * height.max(0.0)
    }

    fn is_inside(&self) -> bool {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        self.left >= LEFT && self.right <= right && self.top >= TOP && self.bottom <= bottom
    }
}

#[derive(Default)]
struct Labels {
    taken: Vec<PageArea>,
}

impl Labels {
    /// Height of a line, its part below the baseline, and the approximate width of a character.
    const LINE: f64 = 13.0;
    const BELOW: f64 = 3.0;
    const CHARACTER: f64 = 7.2;
    const GAP: f64 = 8.0;
    /// Spacing of the squares that approximate a line.
    const STEP: f64 = 4.0;

    fn avoid_point(&mut self, point: PagePoint) {
        self.taken.push(PageArea::around(point, 5.0));
    }

    fn avoid_line(&mut self, points: &[PagePoint]) {
        for pair in points.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            let (dx, dy) = (to.x - from.x, to.y - from.y);
            let steps = (dx.hypot(dy) / Self::STEP).ceil().max(1.0);
            for step in 0..=steps as u32 {
                let share = f64::from(step) / steps;
                let at = PagePoint { x: from.x + share * dx, y: from.y + share * dy };
                self.taken.push(PageArea::around(at, 2.0));
            }
        }
    }

    /// Returns the left end and the baseline of a point's label. The preferred position is to the right of
    /// the point. If all positions are occupied, the one with the least overlap is used.
    fn place(&mut self, point: PagePoint, characters: usize) -> PagePoint {
        let PagePoint { x, y } = point;
        let width = Self::CHARACTER * characters as f64;
        let lines = [0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 4.0, -4.0];
        let sides = [x + Self::GAP, x - Self::GAP - width];
        let places = lines.iter().flat_map(|line| {
            let baseline = y - 4.0 + Self::LINE * line;
            sides.map(|left| PagePoint { x: left, y: baseline })
        });
        let area = |start: PagePoint| PageArea {
            left: start.x,
            top: start.y + Self::BELOW - Self::LINE,
            right: start.x + width,
            bottom: start.y + Self::BELOW,
        };
        let covered = |start: PagePoint| {
            let own = area(start);
            let outside = if own.is_inside() { 0.0 } else { own.overlap(&own) };
            outside + self.taken.iter().map(|other| own.overlap(other)).sum::<f64>()
        };
        let first = PagePoint { x: sides[0], y: y - 4.0 };
        let mut best = (first, covered(first));
        for place in places {
            let found = covered(place);
            if found < best.1 {
                best = (place, found);
            }
        }
        self.taken.push(area(best.0));
        best.0
    }
}

/// Plots the curve of a report, together with the points of the peers.
pub fn svg(report: &JudgeReport, model: &str, peers: Option<&PeerSet>) -> String {
    let series = |of_levels: bool| {
        // The mean level of dual routing is not a size in bits per weight of a file.
        let rows = report.rows.iter().filter(|row| row.mean_level.is_none());
        let rows = rows.filter(move |row| row.level.is_some() == of_levels);
        let mut points: Vec<(f64, f64)> = rows.filter_map(place).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    };
    let (levels, allocations) = (series(true), series(false));
    // Default: empty if no peers were given.
    let others = peers.map(|peers| peers.points.as_slice()).unwrap_or_default();
    let mut all = [levels.as_slice(), allocations.as_slice()].concat();
    all.extend(others.iter().map(|peer| (peer.bits_per_weight, peer.kl_mean)));
    let axes = Axes::new(&all);

    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"14\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    title(&mut out, report, model, peers.is_some());
    grid(&mut out, &axes);
    line(&mut out, &axes, &levels, LEVELS, "6 4");
    line(&mut out, &axes, &allocations, ALLOCATIONS, "none");
    let peer_title = peers.map_or("", |peers| peers.title.as_str());
    let mut labels = Labels::default();
    labels.taken.push(legend(&mut out, !allocations.is_empty(), peer_title));
    let on_page = |(bits, kl): &(f64, f64)| PagePoint { x: axes.x(*bits), y: axes.y(*kl) };
    all.iter().for_each(|point| labels.avoid_point(on_page(point)));
    for (points, color) in [(&levels, LEVELS), (&allocations, ALLOCATIONS)] {
        labels.avoid_line(&points.iter().map(on_page).collect::<Vec<_>>());
        for PagePoint { x, y } in points.iter().map(on_page) {
            let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{color}\"/>");
        }
    }
    for peer in others {
        let point = on_page(&(peer.bits_per_weight, peer.kl_mean));
        let PagePoint { x, y } = point;
        let PagePoint { x: left, y: baseline } = labels.place(point, peer.scheme.chars().count());
        let _ = writeln!(
            out,
            "<path d=\"M{x:.1} {:.1}l5 5l-5 5l-5 -5z\" fill=\"{PEERS}\"/>\
             <text x=\"{left:.1}\" y=\"{baseline:.1}\" fill=\"{PEERS}\" font-size=\"12\">{}</text>",
            y - 5.0,
            escape(&peer.scheme)
        );
    }
    out + "</svg>\n"
}

/// Writes the title: the model, the amount of text and the compared quantity.
fn title(out: &mut String, report: &JudgeReport, model: &str, has_peers: bool) {
    let judged = judged(report.tokens, report.sequences);
    let others = if has_peers { "; the other points are as their file says" } else { "" };
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"32\" font-size=\"18\">{}: divergence to the unquantized model</text>\n\
         <text x=\"{LEFT}\" y=\"56\" fill=\"#555\">weights only, {judged}{others}</text>",
        escape(model),
    );
}

/// Returns the coordinates of a row in the plot, or `None` if its divergence is not positive.
fn place(row: &JudgeRow) -> Option<(f64, f64)> {
    let kl = row.weights_only.kl.mean;
    (kl.is_finite() && kl > 0.0).then_some((row.bits_per_weight, kl))
}

fn grid(out: &mut String, axes: &Axes) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let mut bits = axes.bits.0;
    while bits <= axes.bits.1 {
        let x = axes.x(bits);
        let _ = writeln!(
            out,
            "<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"#ddd\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{bits}</text>",
            bottom + 20.0
        );
        bits += 1.0;
    }
    for power in axes.kl.0..=axes.kl.1 {
        for step in 1..10 {
            let kl = f64::from(step) * 10f64.powi(power);
            if step > 1 && power == axes.kl.1 {
                break;
            }
            let y = axes.y(kl);
            let color = if step == 1 { "#bbb" } else { "#eee" };
            let _ = writeln!(out, "<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"{color}\"/>");
            if step == 1 {
                let (x, y) = (LEFT - 8.0, y + 5.0);
                let _ =
                    writeln!(out, "<text x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{kl}</text>");
            }
        }
    }
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">bits per weight, everything counted\
         </text>\n<text transform=\"translate(20 {:.1}) rotate(-90)\" text-anchor=\"middle\">mean \
         KL divergence, nats</text>",
        (LEFT + right) / 2.0,
        HEIGHT - 15.0,
        (TOP + bottom) / 2.0
    );
}

fn line(out: &mut String, axes: &Axes, points: &[(f64, f64)], color: &str, dashes: &str) {
    let places = points.iter().map(|(x, y)| format!("{:.1},{:.1}", axes.x(*x), axes.y(*y)));
    let places: Vec<String> = places.collect();
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\" \
         stroke-dasharray=\"{dashes}\"/>",
        places.join(" ")
    );
}

/// Draws the legend and returns the area that it covers.
fn legend(out: &mut String, allocations: bool, peers: &str) -> PageArea {
    let mut entries = vec![(LEVELS, "levels")];
    if allocations {
        entries.push((ALLOCATIONS, "static allocations, same file"));
    }
    if !peers.is_empty() {
        entries.push((PEERS, peers));
    }
    // Default: a legend without entries has no width.
    let longest = entries.iter().map(|(_, text)| text.chars().count()).max().unwrap_or(0);
    let right = WIDTH - RIGHT;
    let area = PageArea {
        left: (right - 46.0 - Labels::CHARACTER * longest as f64).max(LEFT),
        top: TOP + 6.0,
        right: right - 6.0,
        bottom: TOP + 16.0 + 22.0 * entries.len() as f64,
    };
    let _ = writeln!(
        out,
        "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"white\" \
         stroke=\"#bbb\"/>",
        area.left,
        area.top,
        area.right - area.left,
        area.bottom - area.top
    );
    for (number, (color, text)) in (0u32..).zip(entries) {
        let y = area.top + 20.0 + 22.0 * f64::from(number);
        let x = area.left + 8.0;
        let _ = writeln!(
            out,
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"14\" height=\"14\" fill=\"{color}\"/>\
             <text x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
            y - 12.0,
            x + 22.0,
            escape(text)
        );
    }
    area
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests;
