//! Plots as SVG, small enough to commit.

use std::fmt::Write;

use super::stats::{Row, Table, digits};

/// One of several plots beside each other.
pub struct Panel {
    pub title: String,
    pub lines: Vec<Line>,
}

/// The points of a side: place on the x axis, value.
pub struct Line {
    pub name: &'static str,
    pub points: Vec<(f64, f64)>,
}

impl Line {
    /// The medians of a side, over the sizes `at`.
    pub fn of(name: &'static str, at: &[u16], rows: &[&Row], side: usize) -> Self {
        let points = at.iter().zip(rows);
        Self {
            name,
            points: points
                .filter_map(|(&x, row)| Some((f64::from(x), row.median(side)?)))
                .collect(),
        }
    }
}

const COLOURS: [&str; 4] = ["#c0392b", "#2471a3", "#7f8c8d", "#1e8449"];
const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 52.0;
const TOP: f64 = 56.0;

/// Lines over sizes. Both axes are logarithmic, so equal ratios are equal distances.
pub fn lines(title: &str, panels: &[Panel]) -> String {
    let all = || panels.iter().flat_map(|p| &p.lines).flat_map(|l| &l.points);
    let (x0, x1) = range(all().map(|p| p.0.log2()));
    let (y0, y1) = range(all().map(|p| p.1.log10()));
    let (y0, y1) = (y0.floor(), y1.ceil());
    let width = panels.len() as f64 * (WIDTH + LEFT) + 20.0;
    let mut svg = head(title, width, TOP + HEIGHT + 40.0);
    for (number, panel) in panels.iter().enumerate() {
        let left = LEFT + number as f64 * (WIDTH + LEFT);
        let x = |v: f64| left + WIDTH * (v.log2() - x0) / (x1 - x0).max(1e-9);
        let y = |v: f64| TOP + HEIGHT * (y1 - v.log10()) / (y1 - y0).max(1e-9);
        let (middle, bottom) = (left + WIDTH / 2.0, TOP + HEIGHT);
        text(&mut svg, middle, TOP - 8.0, "middle", &panel.title);
        for power in y0 as i32..=y1 as i32 {
            let value = 10f64.powi(power);
            rule(&mut svg, (left, y(value)), (left + WIDTH, y(value)), "#ddd");
            text(
                &mut svg,
                left - 6.0,
                y(value) + 4.0,
                "end",
                &value.to_string(),
            );
        }
        let mut sizes: Vec<f64> = panel
            .lines
            .iter()
            .flat_map(|l| &l.points)
            .map(|p| p.0)
            .collect();
        sizes.sort_by(f64::total_cmp);
        sizes.dedup();
        for size in sizes {
            text(
                &mut svg,
                x(size),
                bottom + 18.0,
                "middle",
                &size.to_string(),
            );
        }
        for (line, colour) in panel.lines.iter().zip(COLOURS) {
            let at: Vec<String> = line
                .points
                .iter()
                .map(|&(px, py)| format!("{:.1},{:.1}", x(px), y(py)))
                .collect();
            let _ = writeln!(
                svg,
                r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"/>"#,
                at.join(" ")
            );
            if let Some(&(px, py)) = line.points.last() {
                coloured(&mut svg, x(px) - 4.0, y(py) - 7.0, "end", colour, line.name);
            }
        }
    }
    svg + "</svg>\n"
}

/// Bars: how many times better than side `peer` this project is in each row, on a logarithmic axis,
/// with goals as strokes.
pub fn ratios(title: &str, table: &Table, peer: usize) -> String {
    const BAR: f64 = 18.0;
    const NAMES: f64 = 330.0;
    const LENGTH: f64 = 420.0;
    let rows: Vec<(&Row, f64, Option<f64>)> = table
        .rows
        .iter()
        .filter_map(|row| {
            Some((
                row,
                row.ratio(peer)?,
                row.goals.get(peer - 1).copied().flatten(),
            ))
        })
        .collect();
    let all = rows
        .iter()
        .flat_map(|(_, ratio, goal)| [Some(*ratio), *goal]);
    let (low, high) = range(all.flatten().chain([0.8, 1.25]).map(f64::log2));
    let x = |ratio: f64| NAMES + LENGTH * (ratio.log2() - low) / (high - low);
    let bottom = TOP + rows.len() as f64 * BAR;
    let mut svg = head(title, NAMES + LENGTH + 80.0, bottom + 20.0);
    for (number, (row, ratio, goal)) in rows.iter().enumerate() {
        let y = TOP + number as f64 * BAR;
        let name = format!("{}: {}", row.labels.join(", "), row.measure);
        text(&mut svg, NAMES - 8.0, y + 12.0, "end", &name);
        let (from, to) = (x(ratio.min(1.0)), x(ratio.max(1.0)));
        let colour = match ratio >= goal.as_ref().unwrap_or(&1.0) {
            true => COLOURS[1],
            false => COLOURS[0],
        };
        let _ = writeln!(
            svg,
            r#"<rect x="{from:.1}" y="{:.1}" width="{:.1}" height="{:.1}" fill="{colour}"/>"#,
            y + 2.0,
            to - from,
            BAR - 4.0
        );
        if let Some(goal) = goal {
            rule(&mut svg, (x(*goal), y), (x(*goal), y + BAR), "#000");
        }
        text(
            &mut svg,
            x(high.exp2()) + 8.0,
            y + 12.0,
            "start",
            &format!("{}×", digits(*ratio)),
        );
    }
    rule(
        &mut svg,
        (x(1.0), TOP - 4.0),
        (x(1.0), bottom + 4.0),
        "#333",
    );
    svg + "</svg>\n"
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::MAX, f64::MIN), |(low, high), v| {
        (low.min(v), high.max(v))
    })
}

fn head(title: &str, width: f64, height: f64) -> String {
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="white"/>
"#
    );
    let _ = writeln!(
        svg,
        r#"<text x="12" y="22" font-size="15">{}</text>"#,
        escaped(title)
    );
    svg
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    coloured(svg, x, y, anchor, "#333", text);
}

fn coloured(svg: &mut String, x: f64, y: f64, anchor: &str, colour: &str, text: &str) {
    let text = escaped(text);
    let _ = writeln!(
        svg,
        r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="{colour}">{text}</text>"#
    );
}

fn rule(svg: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str) {
    let _ = writeln!(
        svg,
        r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}"/>"#
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_ratios_are_equal_distances() {
        let line = Line {
            name: "a<b",
            points: vec![(1.0, 10.0), (2.0, 100.0), (4.0, 1000.0)],
        };
        let panel = Panel {
            title: "p".to_owned(),
            lines: vec![line],
        };
        let svg = lines("t", &[panel]);
        assert!(
            svg.contains(r#"points="52.0,316.0 202.0,186.0 352.0,56.0""#),
            "{svg}"
        );
        assert!(svg.contains("a&lt;b"), "{svg}");
    }

    #[test]
    fn a_bar_goes_from_one_to_its_ratio() {
        let row = Row {
            labels: vec!["f32".to_owned()],
            measure: "it",
            more_is_better: true,
            values: vec![vec![40.0], vec![10.0]],
            goals: vec![Some(5.0)],
        };
        let table = Table {
            labels: &["checkpoint"],
            sides: vec!["ours", "peer"],
            rows: vec![row],
        };
        let svg = ratios("t", &table, 1);
        // The axis covers log2(5 / 0.8) octaves; the bar begins at log2(1 / 0.8) and is log2(4)
        // long.
        assert!(svg.contains(r#"x="381.1" y="58.0" width="317.7""#), "{svg}");
        assert!(svg.contains("#c0392b"), "a missed goal is red: {svg}");
    }
}
