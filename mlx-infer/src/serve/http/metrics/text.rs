//! Prometheus' text format.

use std::fmt::Write;

use super::Histogram;

/// A label's value: backslash, quotation mark and line break escaped.
pub(super) fn quoted(value: &str) -> String {
    let escaped = value.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", escaped.replace('\n', "\\n"))
}

/// Prometheus' text format.
#[derive(Default)]
pub(super) struct Text {
    pub(super) text: String,
    /// Labels of the lines that are written now.
    pub(super) labels: String,
}

impl Text {
    pub(super) fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A line, with another label if it is not empty.
    pub(super) fn line(&mut self, name: &str, label: &str, value: f64) {
        let is_alone = label.is_empty() || self.labels.is_empty();
        let comma = if is_alone { "" } else { "," };
        let _ = writeln!(self.text, "{name}{{{}{comma}{label}}} {value}", self.labels);
    }

    /// The lines of a counter with a line for each value of a label.
    pub(super) fn counters(&mut self, name: &str, label: &str, values: Vec<(String, f64)>) {
        for (of_label, value) in values {
            self.line(name, &format!("{label}={}", quoted(&of_label)), value);
        }
    }

    /// The lines of a histogram.
    pub(super) fn histogram(&mut self, name: &str, bounds: &[f64], histogram: &Histogram) {
        let mut sum = 0;
        let counts = histogram.counts.iter().copied().chain(std::iter::repeat(0));
        let bounds = bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(counts) {
            sum += count;
            self.line(
                &format!("{name}_bucket"),
                &format!("le=\"{bound}\""),
                sum as f64,
            );
        }
        self.line(&format!("{name}_count"), "", sum as f64);
        self.line(&format!("{name}_sum"), "", histogram.sum);
    }
}
