//! What is measured, and how runs become a row of the table.

use serde_json::{Value, json};

use super::Part;
use super::side::Run;

/// A quantity of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    /// Tokens a second after the first.
    Decode,
    /// Tokens of the prompt a second, the choice of the first token included.
    Prefill,
    /// Loading, in seconds, imports apart.
    Load,
    /// The whole process with one token, in seconds.
    Start,
    /// The most memory of the process, in bytes.
    PeakRss,
    /// The most memory of MLX's arrays, in bytes.
    PeakArrays,
}

impl Measure {
    /// What a part measures.
    pub fn of(part: Part) -> &'static [Self] {
        match part {
            Part::Decode => &[Self::Decode, Self::Load, Self::PeakRss, Self::PeakArrays],
            Part::Prefill => &[Self::Prefill, Self::PeakRss, Self::PeakArrays],
            Part::Start => &[Self::Start, Self::PeakRss],
        }
    }

    /// What it is called in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode, tokens/s",
            Self::Prefill => "prefill, tokens/s",
            Self::Load => "load, s",
            Self::Start => "process start to first token, s",
            Self::PeakRss => "peak memory of the process, MB",
            Self::PeakArrays => "peak memory of MLX's arrays, MB",
        }
    }

    /// Whether more is better.
    fn more_is_better(self) -> bool {
        matches!(self, Self::Decode | Self::Prefill)
    }

    /// What the project asks of the ratio, for a checkpoint.
    fn goal(self, checkpoint: &str) -> Option<f64> {
        match (self, checkpoint) {
            (Self::Decode, "f32") => Some(1.5),
            (Self::Start, "f32") => Some(5.0),
            _ => None,
        }
    }

    /// The quantity of one run whose prompt has `prompt` tokens.
    fn value(self, run: &Run, prompt: usize) -> f64 {
        let timing = |name: &str| run.timings[name].as_f64().unwrap_or(f64::NAN);
        match self {
            Self::Decode => run.tokens.len().saturating_sub(1) as f64 / timing("decode_s"),
            Self::Prefill => prompt as f64 / timing("prefill_s"),
            Self::Load => timing("load_s"),
            Self::Start => run.process_s,
            Self::PeakRss => run.peak_rss as f64 / 1e6,
            Self::PeakArrays => timing("peak_memory_bytes") / 1e6,
        }
    }
}

/// Median and extremes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        Self {
            median: (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0,
            min: sorted[0],
            max: sorted[n - 1],
        }
    }

    fn text(&self) -> String {
        format!(
            "{} ({}–{})",
            digits(self.median),
            digits(self.min),
            digits(self.max)
        )
    }
}

/// Three digits or all before the point: times on a busy machine have no more.
fn digits(x: f64) -> String {
    match x.abs() {
        a if a >= 100.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        a if a >= 1.0 => format!("{x:.2}"),
        _ => format!("{x:.3}"),
    }
}

/// One measure of one checkpoint, on both sides.
pub struct Row {
    checkpoint: &'static str,
    measure: Measure,
    part: &'static str,
    ours: Vec<f64>,
    peer: Vec<f64>,
}

impl Row {
    /// The row of these runs, in the order in which they ran.
    pub fn new(
        checkpoint: &'static str,
        measure: Measure,
        (part, prompt): (&'static str, usize),
        ours: &[Run],
        peer: &[Run],
    ) -> Self {
        let values = |runs: &[Run]| runs.iter().map(|run| measure.value(run, prompt)).collect();
        Self {
            checkpoint,
            measure,
            part,
            ours: values(ours),
            peer: values(peer),
        }
    }

    /// How many times better ours is, by the medians: above 1 is better.
    fn ratio(&self) -> f64 {
        let (ours, peer) = (Spread::of(&self.ours).median, Spread::of(&self.peer).median);
        if self.measure.more_is_better() {
            ours / peer
        } else {
            peer / ours
        }
    }

    /// The header that [`line`](Self::line) fits.
    pub const HEADER: &'static str = "| checkpoint | in | measure | ours | mlx-lm | ours better by | goal |\n\
         |---|---|---|---:|---:|---:|---|\n";

    /// A line of the table.
    pub fn line(&self) -> String {
        let ratio = self.ratio();
        let goal = match self.measure.goal(self.checkpoint) {
            Some(goal) if ratio >= goal => format!("{goal}×: reached"),
            Some(goal) => format!("{goal}×: missed"),
            None => String::new(),
        };
        format!(
            "| {} | {} | {} | {} | {} | {}× | {goal} |\n",
            self.checkpoint,
            self.part,
            self.measure.name(),
            Spread::of(&self.ours).text(),
            Spread::of(&self.peer).text(),
            digits(ratio)
        )
    }

    /// All of it.
    pub fn json(&self) -> Value {
        let side = |values: &[f64]| {
            let spread = Spread::of(values);
            json!({ "median": spread.median, "min": spread.min, "max": spread.max, "runs": values })
        };
        json!({
            "checkpoint": self.checkpoint,
            "part": self.part,
            "measure": self.measure.name(),
            "more_is_better": self.measure.more_is_better(),
            "ours": side(&self.ours),
            "mlx_lm": side(&self.peer),
            "ratio": self.ratio(),
            "goal": self.measure.goal(self.checkpoint),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(measure: Measure, ours: &[f64], peer: &[f64]) -> Row {
        Row {
            checkpoint: "f32",
            measure,
            part: "decode",
            ours: ours.to_vec(),
            peer: peer.to_vec(),
        }
    }

    #[test]
    fn the_median_is_in_the_middle() {
        let odd = Spread::of(&[9.0, 1.0, 2.0]);
        assert_eq!((odd.median, odd.min, odd.max), (2.0, 1.0, 9.0));
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 9.0]).median, 3.0);
    }

    #[test]
    fn better_is_more_tokens_and_less_time() {
        let decode = row(Measure::Decode, &[30.0], &[10.0]);
        assert_eq!(decode.ratio(), 3.0);
        assert!(decode.line().ends_with("| 3.00× | 1.5×: reached |\n"));
        let start = row(Measure::Start, &[1.0], &[4.0]);
        assert_eq!(start.ratio(), 4.0);
        assert!(start.line().ends_with("| 4.00× | 5×: missed |\n"));
    }
}
