//! Plots first-token times and gaps over the load as an SVG file. There is one panel for each and one line
//! per percentile.

use super::report::{Report, Times};
use std::fmt::Write as _;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 420.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 60.0;
const MARGIN: f64 = 70.0;
const PANEL: f64 = (WIDTH - 3.0 * MARGIN) / 2.0;

const COLORS: [&str; 5] = ["#2a9d4a", "#1f6fb4", "#8e44ad", "#c0392b", "#b8860b"];

/// Maximum length of a title in characters.
const TITLE_MAX: usize = 90;

/// Coordinate system of one panel. Loads are spaced evenly; the axis of milliseconds is logarithmic.
struct Panel {
    left: f64,
    count: usize,
    /// Exponents of the powers of ten that bound the vertical axis.
    powers: (i32, i32),
}

impl Panel {
    fn new(left: f64, count: usize, values: &[f64]) -> Self {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        let powers = match most > 0.0 {
            true => (least.log10().floor() as i32, most.log10().ceil() as i32),
            false => (0, 1),
        };
        Self { left, count, powers: (powers.0, powers.1.max(powers.0 + 1)) }
    }

    fn x(&self, index: usize) -> f64 {
        self.left + PANEL * (index as f64 + 0.5) / self.count.max(1) as f64
    }

    fn y(&self, milliseconds: f64) -> f64 {
        let (low, high) = (f64::from(self.powers.0), f64::from(self.powers.1));
        let share = (milliseconds.log10() - low) / (high - low);
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }

    fn grid(&self, out: &mut String, title: &str, names: &[String]) {
        let (right, bottom) = (self.left + PANEL, HEIGHT - BOTTOM);
        text(out, self.left + PANEL / 2.0, TOP - 12.0, "middle", title);
        for power in self.powers.0..=self.powers.1 {
            let value = 10f64.powi(power);
            let y = self.y(value);
            let _ = writeln!(out, "<path d=\"M{} {y:.1}H{right}\" stroke=\"#ccc\"/>", self.left);
            text(out, self.left - 8.0, y + 4.0, "end", &value.to_string());
        }
        for (index, name) in names.iter().enumerate() {
            text(out, self.x(index), bottom + 20.0, "middle", name);
        }
    }

    fn line(&self, out: &mut String, values: &[Option<f64>], color: &str) {
        let places: Vec<(f64, f64)> = values
            .iter()
            .enumerate()
            .filter_map(|(index, value)| Some((self.x(index), self.y((*value)?))))
            .collect();
        let points: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let points = points.join(" ");
        let _ = writeln!(
            out,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>"
        );
        for (x, y) in places {
            let _ =
                writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{color}\"/>");
        }
    }
}

/// Accessor of the times that a panel plots.
type TimesOf = fn(&Report) -> &Times;

/// Draws all measured loads and returns the SVG text.
pub fn svg(title: &str, reports: &[Report], percentiles: &[u8]) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    let title: String = title.chars().take(TITLE_MAX).collect();
    text(&mut out, WIDTH / 2.0, 24.0, "middle", &title);
    let is_open = reports.iter().any(|report| report.point.rate.is_some());
    let name = |report: &Report| match report.point.rate {
        Some(rate) => rate.to_string(),
        None => report.point.clients.to_string(),
    };
    let names: Vec<String> = reports.iter().map(name).collect();
    let panels: [(&str, TimesOf); 2] = [
        ("time to the first token, ms", |report| &report.first),
        ("time from one token to the next, ms", |report| &report.gaps),
    ];
    for (number, (title, times)) in panels.into_iter().enumerate() {
        let at = |percent: u8| {
            let value = move |report: &Report| times(report).percentile(percent);
            let shown = |seconds: f64| Some(1e3 * seconds).filter(|value| *value > 0.0);
            reports.iter().map(|report| value(report).and_then(shown)).collect::<Vec<_>>()
        };
        let lines: Vec<Vec<Option<f64>>> = percentiles.iter().map(|percent| at(*percent)).collect();
        let values: Vec<f64> = lines.iter().flatten().flatten().copied().collect();
        let left = MARGIN + number as f64 * (PANEL + MARGIN);
        let panel = Panel::new(left, reports.len(), &values);
        panel.grid(&mut out, title, &names);
        for (line, color) in lines.iter().zip(COLORS.iter().cycle()) {
            panel.line(&mut out, line, color);
        }
    }
    let load = if is_open { "requests a second" } else { "clients" };
    text(&mut out, WIDTH / 2.0, HEIGHT - 18.0, "middle", load);
    for (index, (percent, color)) in percentiles.iter().zip(COLORS.iter().cycle()).enumerate() {
        let x = MARGIN + 60.0 * index as f64;
        let y = HEIGHT - 18.0;
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{color}\"/>",
            y - 10.0
        );
        text(&mut out, x + 16.0, y, "start", &format!("p{percent}"));
    }
    out + "</svg>\n"
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
}

#[cfg(test)]
mod tests {
    use super::{HEIGHT, Panel, TOP, svg};
    use crate::bench::serve::client::Outcome;
    use crate::bench::serve::load::Run;
    use crate::bench::serve::report::{Point, Report};

    #[test]
    fn every_load_is_drawn_and_none_leaves_its_panel() {
        let report = |clients: usize| {
            let gaps = vec![0.01 * clients as f64; 3];
            let first = Some(0.1 * clients as f64);
            let outcome = Outcome { first, gaps, tokens: 4, ..Outcome::default() };
            let run = Run { outcomes: vec![outcome], seconds: 1.0 };
            Report::new(Point { rate: None, clients }, &run, &[])
        };
        let drawn = svg("a <model> & more", &[report(1), report(16)], &[50, 99]);
        assert_eq!(drawn.matches("<circle").count(), 8);
        assert!(drawn.contains("a &lt;model&gt; &amp; more") && drawn.contains(">16<"));
        let panel = Panel::new(0.0, 2, &[3.0, 250.0]);
        assert_eq!((panel.y(1.0), panel.y(1000.0)), (HEIGHT - 60.0, TOP));
    }

    #[test]
    fn loads_without_an_answer_are_still_a_drawing() {
        let run = Run { outcomes: Vec::new(), seconds: 0.0 };
        let report = Report::new(Point { rate: Some(2.0), clients: 1 }, &run, &[]);
        let drawn = svg("x", &[report], &[50]);
        assert!(drawn.ends_with("</svg>\n") && !drawn.contains("NaN") && !drawn.contains("inf"));
    }
}
