//! Prometheus' text format.

use std::fmt::Write;

use super::Histogram;

/// A label's value: backslash, quotation mark and line break escaped.
pub(super) fn quoted(value: &str) -> String {
    let escaped = value.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", escaped.replace('\n', "\\n"))
}

/// Prometheus' text format.
pub(super) struct Text {
    pub(super) text: String,
    /// Labels of every line.
    pub(super) labels: String,
}

impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, label: &str, value: f64) {
        let comma = if label.is_empty() { "" } else { "," };
        let _ = writeln!(self.text, "{name}{{{}{comma}{label}}} {value}", self.labels);
    }

    pub(super) fn one(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.head(name, kind, help);
        self.line(name, "", value);
    }

    /// A counter with a line for each value of a label.
    pub(super) fn counters(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: Vec<(String, f64)>,
    ) {
        self.head(name, "counter", help);
        for (of_label, value) in values {
            self.line(name, &format!("{label}={}", quoted(&of_label)), value);
        }
    }

    pub(super) fn histogram(
        &mut self,
        name: &str,
        help: &str,
        bounds: &[f64],
        histogram: &Histogram,
    ) {
        self.head(name, "histogram", help);
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
