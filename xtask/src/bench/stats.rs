//! Measurements: spreads, rows and tables.

use std::fmt::Write;

use serde_json::{Map, Value, json};

/// Median and extremes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// The spread of at least one value.
    pub fn of(values: &[f64]) -> Self {
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
        let (median, min, max) = (digits(self.median), digits(self.min), digits(self.max));
        format!("{median} ({min}–{max})")
    }
}

/// Three significant digits, or all digits before the point: times on a busy machine are no more
/// precise.
pub fn digits(x: f64) -> String {
    match x.abs() {
        a if a >= 100.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        a if a >= 1.0 => format!("{x:.2}"),
        _ => format!("{x:.3}"),
    }
}

/// The first lines of a table: names of columns, and whether these hold numbers.
pub fn head<'a>(columns: impl IntoIterator<Item = (&'a str, bool)>) -> String {
    let (mut names, mut line) = ("|".to_owned(), "|".to_owned());
    for (name, is_number) in columns {
        let _ = write!(names, " {name} |");
        line += if is_number { "---:|" } else { "---|" };
    }
    format!("{names}\n{line}\n")
}

/// One measure of one case, on every side.
#[derive(Clone, Debug)]
pub struct Row {
    /// The case: one word for each label of the table.
    pub labels: Vec<String>,
    /// Its name and unit.
    pub measure: &'static str,
    pub more_is_better: bool,
    /// A list for each side, this project's first, in the order of the runs; empty if a side was
    /// not measured.
    pub values: Vec<Vec<f64>>,
    /// The goals: how many times better than each other side this project should be.
    pub goals: Vec<Option<f64>>,
}

impl Row {
    /// The median of a side, if it was measured.
    pub fn median(&self, side: usize) -> Option<f64> {
        let values = self.values.get(side).filter(|values| !values.is_empty())?;
        Some(Spread::of(values).median)
    }

    /// How many times better than side `peer` this project is, by the medians; above 1 is better.
    pub fn ratio(&self, peer: usize) -> Option<f64> {
        let (ours, peer) = (self.median(0)?, self.median(peer)?);
        Some(match self.more_is_better {
            true => ours / peer,
            false => peer / ours,
        })
    }

    /// For each goal whether it was reached; `None` if a side was not measured.
    fn verdicts(&self) -> impl Iterator<Item = Option<(f64, bool)>> + '_ {
        self.goals.iter().enumerate().map(|(at, goal)| {
            let (goal, ratio) = ((*goal)?, self.ratio(at + 1)?);
            Some((goal, ratio >= goal))
        })
    }

    fn line(&self) -> String {
        let mut line = String::from("|");
        for label in &self.labels {
            let _ = write!(line, " {label} |");
        }
        let _ = write!(line, " {} |", self.measure);
        for values in &self.values {
            let text = match values[..] {
                [] => "–".to_owned(),
                [one] => digits(one),
                _ => Spread::of(values).text(),
            };
            let _ = write!(line, " {text} |");
        }
        for peer in 1..self.values.len() {
            let ratio = self.ratio(peer).map(|ratio| format!("{}×", digits(ratio)));
            let _ = write!(line, " {} |", ratio.as_deref().unwrap_or("–"));
        }
        let goals: Vec<String> = self
            .verdicts()
            .flatten()
            .map(|(goal, reached)| {
                format!("{goal}×: {}", if reached { "reached" } else { "missed" })
            })
            .collect();
        let _ = writeln!(line, " {} |", goals.join(", "));
        line
    }
}

/// Rows of the same kind.
#[derive(Clone, Debug)]
pub struct Table {
    /// The names of a row's labels.
    pub labels: &'static [&'static str],
    /// The sides, this project's first.
    pub sides: Vec<&'static str>,
    pub rows: Vec<Row>,
}

impl Table {
    /// The table in Markdown.
    pub fn markdown(&self) -> String {
        let peers = &self.sides[1..];
        let better = |peer: &&str| match peers.len() {
            1 => "ours better by".to_owned(),
            _ => format!("better than {peer} by"),
        };
        let better: Vec<String> = peers.iter().map(better).collect();
        let texts = self
            .labels
            .iter()
            .chain(&["measure"])
            .map(|&name| (name, false));
        let numbers = self
            .sides
            .iter()
            .copied()
            .chain(better.iter().map(String::as_str));
        let numbers = numbers.map(|name| (name, true));
        let mut text = head(texts.chain(numbers).chain([("goal", false)]));
        for row in &self.rows {
            text += &row.line();
        }
        text
    }

    /// The number of goals that were reached, and of those that could be judged.
    pub fn reached(&self) -> (usize, usize) {
        let verdicts = self.rows.iter().flat_map(Row::verdicts).flatten();
        verdicts.fold((0, 0), |(reached, all), (_, good)| {
            (reached + usize::from(good), all + 1)
        })
    }

    /// The table in JSON.
    pub fn json(&self) -> Value {
        self.rows.iter().map(|row| self.row_json(row)).collect()
    }

    fn row_json(&self, row: &Row) -> Value {
        let mut json = Map::new();
        for (name, label) in self.labels.iter().zip(&row.labels) {
            json.insert((*name).to_owned(), json!(label));
        }
        json.insert("measure".to_owned(), json!(row.measure));
        json.insert("more_is_better".to_owned(), json!(row.more_is_better));
        for (side, values) in self.sides.iter().zip(&row.values) {
            if values.is_empty() {
                continue;
            }
            let spread = Spread::of(values);
            let value = json!({
                "median": spread.median, "min": spread.min, "max": spread.max, "runs": values,
            });
            json.insert((*side).to_owned(), value);
        }
        let by = |value: &dyn Fn(usize) -> Option<f64>| -> Value {
            let peers = self.sides.iter().enumerate().skip(1);
            peers
                .filter_map(|(at, side)| Some(((*side).to_owned(), json!(value(at)?))))
                .collect()
        };
        json.insert("better_by".to_owned(), by(&|at| row.ratio(at)));
        let goal = |at: usize| row.goals.get(at - 1).copied().flatten();
        json.insert("goals".to_owned(), by(&goal));
        Value::Object(json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(more_is_better: bool, values: [&[f64]; 2], goal: f64) -> Table {
        let row = Row {
            labels: vec!["f32".to_owned()],
            measure: "it",
            more_is_better,
            values: values.map(<[f64]>::to_vec).to_vec(),
            goals: vec![Some(goal)],
        };
        Table {
            labels: &["checkpoint"],
            sides: vec!["ours", "peer"],
            rows: vec![row],
        }
    }

    #[test]
    fn the_median_is_in_the_middle() {
        let odd = Spread::of(&[9.0, 1.0, 2.0]);
        assert_eq!((odd.median, odd.min, odd.max), (2.0, 1.0, 9.0));
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 9.0]).median, 3.0);
    }

    #[test]
    fn better_is_more_of_a_rate_and_less_of_a_time() {
        let rate = table(true, [&[30.0], &[10.0]], 1.5);
        assert_eq!(rate.rows[0].ratio(1), Some(3.0));
        assert_eq!(rate.reached(), (1, 1));
        assert!(rate.markdown().ends_with("| 3.00× | 1.5×: reached |\n"));
        let time = table(false, [&[1.0], &[4.0]], 5.0);
        assert_eq!(time.rows[0].ratio(1), Some(4.0));
        assert_eq!(time.reached(), (0, 1));
        assert!(time.markdown().ends_with("| 4.00× | 5×: missed |\n"));
    }

    #[test]
    fn a_side_that_was_not_measured_has_no_ratio_and_no_verdict() {
        let table = table(true, [&[30.0], &[]], 1.5);
        assert_eq!(table.rows[0].ratio(1), None);
        assert_eq!(table.reached(), (0, 0));
        assert!(table.markdown().ends_with("| – | – |  |\n"));
        assert_eq!(table.json()[0].get("peer"), None);
    }
}
