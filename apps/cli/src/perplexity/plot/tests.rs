use super::super::peers::PeerPoint;
use super::super::report;
use super::*;
use nestling::engine::judge::{Findings, Mean};
use nestling::formats::Level;

fn row(name: &str, level: Option<u8>, bits_per_weight: f64, kl: f64) -> JudgeRow {
    let mean = Mean { mean: kl, standard_error: Some(kl / 10.0) };
    JudgeRow {
        name: name.into(),
        level: level.and_then(Level::from_bits),
        mean_level: None,
        threshold: None,
        allocation: "00ff".into(),
        bytes: 1000,
        bits_per_weight,
        weights_only: Findings {
            perplexity: 12.0,
            ln_perplexity_ratio: Mean { mean: 0.01, standard_error: None },
            kl: mean,
            kl_median: kl / 2.0,
            kl_p99: kl * 4.0,
            top1: Mean { mean: 0.9, standard_error: None },
            expert_bytes_per_token: Some(1024.0),
            expert_mean_level: Some(4.0),
        },
        shipped: None,
    }
}

fn sample() -> (JudgeReport, PeerSet) {
    let rows = vec![
        row("level 4", Some(4), 4.3, 0.005),
        row("level 2", Some(2), 2.3, 0.1),
        row("3 bits", None, 3.0, 0.02),
    ];
    let report = JudgeReport { reference_perplexity: 11.5, sequences: 4, tokens: 2048, rows };
    let point = PeerPoint { scheme: "Q3 <i>".into(), bits_per_weight: 3.4, kl_mean: 0.011 };
    let (name, title) = ("a".into(), "Q & others".into());
    (report, PeerSet { name, title, points: vec![point] })
}

#[test]
fn everything_lies_on_the_page_in_order() {
    let (report, peers) = sample();
    let svg = svg(&report, "a & b", Some(&peers));
    for words in ["a &amp; b: divergence", "weights only, 2048 tokens in 4 pieces"] {
        assert!(svg.contains(words), "{words}: {svg}");
    }
    assert!(svg.contains("Q3 &lt;i&gt;") && svg.contains("Q &amp; others"));
    let circles: Vec<(f64, f64)> = svg
        .lines()
        .filter(|line| line.starts_with("<circle"))
        .map(|line| {
            let number = |name: &str| {
                let rest = line.split(&format!("{name}=\"")).nth(1).unwrap();
                rest.split('"').next().unwrap().parse::<f64>().unwrap()
            };
            (number("cx"), number("cy"))
        })
        .collect();
    // Levels by bits, then allocations.
    let [two, four, three] = circles[..] else { panic!("{circles:?}") };
    assert!(two.0 < three.0 && three.0 < four.0, "more bits to the right");
    assert!(two.1 < three.1 && three.1 < four.1, "less divergence below");
    for (x, y) in circles {
        assert!((LEFT..=WIDTH - RIGHT).contains(&x) && (TOP..=HEIGHT - BOTTOM).contains(&y));
    }
}

#[test]
fn nothing_to_draw_is_still_a_page() {
    let (mut report, _) = sample();
    report.rows.clear();
    assert!(svg(&report, "a", None).ends_with("</svg>\n"));
    report.rows.push(row("level 8", Some(8), 8.3, 0.0));
    assert!(!svg(&report, "a", None).contains("<circle"));
}

#[test]
fn tables_have_a_row_for_each_point() {
    let (report, peers) = sample();
    let text = report::text(&report);
    assert!(text.contains("0.10000 +- 0.01000") && text.contains("3 bits: allocation 00ff"));
    let markdown = report::markdown(&report, Some(&peers));
    let rows: Vec<&str> = markdown.lines().skip(4).collect();
    assert_eq!(rows.len(), 4, "{markdown}");
    let columns = |row: &&str| row.matches('|').count();
    assert!(markdown.lines().skip(2).collect::<Vec<_>>().iter().all(|row| columns(row) == 12));
    assert!(rows[0].starts_with("| **level 2** | 2.300 |") && rows[2].starts_with("| Q3 <i> |"));
    let json: serde_json::Value = serde_json::from_str(&report::json(&report).unwrap()).unwrap();
    assert_eq!(json["rows"][0]["kl"]["mean"], 0.005);
    assert_eq!(json["rows"][2]["level"], serde_json::Value::Null);
}

fn at(x: f64, y: f64) -> PagePoint {
    PagePoint { x, y }
}

#[test]
fn labels_of_near_points_do_not_overlap() {
    let mut labels = Labels::default();
    let points =
        [at(200.0, 200.0), at(201.0, 202.0), at(200.0, 199.0), at(220.0, 204.0), at(200.0, 200.0)];
    let mut found: Vec<PagePoint> = Vec::new();
    for point in points {
        let label = labels.place(point, 5);
        let is_apart = |other: &PagePoint| {
            (label.x - other.x).abs() >= 36.0 || (label.y - other.y).abs() >= 13.0
        };
        assert!(found.iter().all(is_apart));
        found.push(label);
    }
    assert_eq!(found[0], at(208.0, 196.0));
}

#[test]
fn labels_keep_off_lines_and_markers() {
    let mut labels = Labels::default();
    let (line, point) = ([at(300.0, 200.0), at(500.0, 300.0)], at(400.0, 252.0));
    let next = at(421.0, 246.0);
    labels.avoid_line(&line);
    labels.avoid_point(point);
    labels.avoid_point(next);
    let PagePoint { x: left, y: baseline } = labels.place(point, 6);
    let (right, top) = (left + 6.0 * Labels::CHARACTER, baseline - 10.0);
    for step in 0..=200 {
        let (x, y) = (300.0 + f64::from(step), 200.0 + f64::from(step) / 2.0);
        let is_on = (left..right).contains(&x) && (top..baseline + 3.0).contains(&y);
        assert!(!is_on, "{left} {baseline} at {x} {y}");
    }
    assert!(next.x - 5.0 > right || next.x + 5.0 < left || next.y > baseline + 8.0 || next.y < top);
    // Labels stay within the page.
    let label = labels.place(at(WIDTH - RIGHT - 4.0, TOP + 4.0), 8);
    let PagePoint { x: left, y: baseline } = label;
    assert!(left + 8.0 * Labels::CHARACTER <= WIDTH - RIGHT && baseline - 10.0 >= TOP);
}

#[test]
fn one_is_singular() {
    assert_eq!(judged(1, 1), "1 token in 1 piece");
    assert_eq!(judged(363, 1), "363 tokens in 1 piece");
    assert_eq!(judged(2048, 4), "2048 tokens in 4 pieces");
}
