//! The profile of this project's side: fractions of the time of a step or a prompt, by kinds of
//! nodes.

use std::fmt::Write;

use serde::Deserialize;
use serde_json::{Value, json};

use super::stats::{digits, head};

/// All nodes of one name, as `mlx_core::profile` reports them. The empty name is the time between
/// nodes.
#[derive(Deserialize)]
pub struct Node {
    pub name: String,
    pub times: f64,
    pub seconds: f64,
}

/// The profile of a kind of work.
pub struct Profile {
    /// The case: the first columns of its row.
    pub labels: Vec<String>,
    pub measure: &'static str,
    /// The number of steps of the nodes.
    pub steps: f64,
    pub nodes: Vec<Node>,
}

/// Kinds of nodes, by the names in `mlx-c-sys/shim/ops`. A node with another name counts as the
/// last kind but one.
const KINDS: [(&str, &[&str]); 6] = [
    (
        "products",
        &[
            "Linear",
            "PackedLinear",
            "Products",
            "GatedProducts",
            "NormProducts",
            "ExpertsLinear",
        ],
    ),
    ("attention", &["Attention"]),
    ("heads, cache", &["Heads", "Rope", "Store", "Blank"]),
    ("norms", &["RmsNorm", "AddRmsNorm"]),
    ("other nodes", &[]),
    ("between", &[""]),
];

impl Profile {
    /// Milliseconds of a step.
    pub fn step_ms(&self) -> f64 {
        1e3 * self.nodes.iter().map(|node| node.seconds).sum::<f64>() / self.steps
    }

    /// Nodes of a step.
    fn step_nodes(&self) -> f64 {
        let nodes = self.nodes.iter().filter(|node| !node.name.is_empty());
        nodes.map(|node| node.times).sum::<f64>() / self.steps
    }

    /// The fraction of the time of each kind.
    fn shares(&self) -> [f64; KINDS.len()] {
        let mut shares = [0.0; KINDS.len()];
        let all: f64 = self.nodes.iter().map(|node| node.seconds).sum();
        for node in &self.nodes {
            let kind = KINDS
                .iter()
                .position(|(_, names)| names.contains(&&*node.name));
            shares[kind.unwrap_or(KINDS.len() - 2)] += node.seconds / all;
        }
        shares
    }

    pub fn json(&self) -> Value {
        let nodes: Vec<Value> = self
            .nodes
            .iter()
            .map(|node| json!({"name": node.name, "times": node.times, "seconds": node.seconds}))
            .collect();
        json!({"labels": self.labels, "measure": self.measure, "steps": self.steps, "nodes": nodes})
    }
}

/// A table of profiles.
pub fn markdown(labels: &[&str], profiles: &[Profile]) -> String {
    let mut text =
        "Where this program's time goes, of a prompt or a step, the middle one of three runs:\n\n"
            .to_owned();
    let texts = labels.iter().chain(&["measure"]).map(|&name| (name, false));
    let numbers = ["ms", "nodes"]
        .into_iter()
        .chain(KINDS.iter().map(|(kind, _)| *kind));
    text += &head(texts.chain(numbers.map(|name| (name, true))));
    for profile in profiles {
        let shares = profile
            .shares()
            .map(|share| format!("{:.0} %", 100.0 * share));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.0} | {} |",
            profile.labels.join(" | "),
            profile.measure,
            digits(profile.step_ms()),
            profile.step_nodes(),
            shares.join(" | ")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_the_share_of_each_kind() {
        let node = |name: &str, times, seconds| Node {
            name: name.to_owned(),
            times,
            seconds,
        };
        let profile = Profile {
            labels: vec!["tiny".to_owned()],
            measure: "decode",
            steps: 2.0,
            nodes: vec![
                node("", 9.0, 0.01),
                node("Attention", 2.0, 0.02),
                node("Linear", 4.0, 0.06),
                node("Novel", 4.0, 0.01),
            ],
        };
        let table = markdown(&["shape"], &[profile]);
        let last = table.lines().last().unwrap();
        assert_eq!(
            last,
            "| tiny | decode | 50.0 | 5 | 60 % | 20 % | 0 % | 0 % | 10 % | 10 % |"
        );
        let columns = |line: &str| line.matches('|').count();
        assert!(
            table
                .lines()
                .skip(2)
                .all(|line| columns(line) == columns(last))
        );
    }
}
