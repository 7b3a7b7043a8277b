//! The loss curve of a run as SVG.

use std::fmt::Write as _;

use serde_json::Value;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
const MARGIN: f64 = 48.0;

/// The loss curve of a run's `metrics.jsonl`, as SVG: training in grey, evaluations in red. Lines that are not events
/// are skipped.
pub fn svg(metrics: &str) -> String {
    let points = |event: &str| -> Vec<(f64, f64)> {
        metrics
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|line| line["event"] == event)
            .filter_map(|line| Some((line["step"].as_f64()?, line["loss"].as_f64()?)))
            .collect()
    };
    let (train, valid) = (points("step"), points("evaluated"));
    let all = || train.iter().chain(&valid);
    let last = all().map(|point| point.0).fold(1.0, f64::max);
    let low = all().map(|point| point.1).fold(f64::INFINITY, f64::min);
    let high = all().map(|point| point.1).fold(f64::NEG_INFINITY, f64::max);
    // A flat curve gets an axis that starts at 0.
    let (low, high) = if low < high {
        (low, high)
    } else {
        (0.0, high.max(1.0))
    };
    let x = |step: f64| MARGIN + step / last * (WIDTH - 2.0 * MARGIN);
    let y = |loss: f64| HEIGHT - MARGIN - (loss - low) / (high - low) * (HEIGHT - 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    for part in 0..=4 {
        let loss = low + (high - low) * f64::from(part) / 4.0;
        let (at, end) = (y(loss), WIDTH - MARGIN);
        let _ = writeln!(
            svg,
            "<line x1=\"{MARGIN}\" x2=\"{end}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{loss:.3}</text>",
            MARGIN - 6.0,
            at + 4.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">step {last}</text>",
        WIDTH - MARGIN,
        HEIGHT - MARGIN + 18.0
    );
    for (points, colour) in [(&train, "#888"), (&valid, "#c22")] {
        let path: String = points
            .iter()
            .map(|&(step, loss)| format!("{:.1},{:.1} ", x(step), y(loss)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>",
            path.trim_end()
        );
    }
    svg + "</svg>\n"
}
