//! Records: the measurements with their circumstances, as JSON, as a table and as plots.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::machine;
use super::profile::{self, Profile};
use super::roofline::{self, Roof};
use super::stats::{Table, digits};
use crate::native::pins;

/// A goal over several rows.
pub struct Goal {
    pub what: String,
    pub wanted: f64,
    pub found: f64,
}

impl Goal {
    pub fn is_reached(&self) -> bool {
        self.found >= self.wanted
    }

    fn verdict(&self) -> &'static str {
        match self.is_reached() {
            true => "reached",
            false => "missed",
        }
    }
}

/// A part of a record that only one benchmark has.
pub struct Section {
    /// Its name in the JSON.
    pub name: &'static str,
    pub json: Value,
    /// The section in Markdown.
    pub text: String,
}

/// The results of a benchmark.
pub struct Record {
    /// The benchmark's name, which is part of the file names.
    pub kind: String,
    /// A description of the runs, in sentences.
    pub method: String,
    /// The commit that was measured.
    pub commit: Option<String>,
    /// Runs of each side.
    pub runs: u32,
    /// Whether the runs were too short for reliable numbers.
    pub quick: bool,
    /// The load average before the benchmark, which includes this program.
    pub load_before: Option<f64>,
    /// The other sides' versions.
    pub peers: Vec<(&'static str, Value)>,
    /// Further circumstances, such as the machine's limits.
    pub facts: Vec<String>,
    pub table: Table,
    pub goals: Vec<Goal>,
    /// The limits of the machine.
    pub roofs: Vec<Roof>,
    /// The profile of our side.
    pub profiles: Vec<Profile>,
    /// Further parts.
    pub sections: Vec<Section>,
    /// Whether the sides agree, and what was left out.
    pub notes: Vec<String>,
    /// The plot, in SVG.
    pub plot: Option<String>,
}

impl Record {
    /// The table with its circumstances.
    pub fn markdown(&self) -> String {
        let mut text = format!("# Benchmark `{}` of {}\n\n", self.kind, today());
        let memory = machine::memory().map_or(String::new(), |bytes| {
            format!(", {:.1} GB of memory", bytes as f64 / 1e9)
        });
        let loads: Vec<String> = [self.load_before, machine::load_average()]
            .iter()
            .flatten()
            .map(|load| format!("{load:.1}"))
            .collect();
        let mut lines = vec![
            format!(
                "Machine: {}, {} threads{memory}, {}.",
                machine::cpu(),
                machine::threads(),
                machine::system()
            ),
            format!(
                "Ours: {} at commit {}, MLX {}.",
                env!("CARGO_PKG_VERSION"),
                self.commit.as_deref().unwrap_or("unknown"),
                pins::MLX,
            ),
        ];
        for (name, versions) in &self.peers {
            lines.push(format!("{name}: {}.", words(versions)));
        }
        let quick = match self.quick {
            true => " Too short to mean much (`--quick`).",
            false => "",
        };
        lines.push(format!(
            "Medians of {} runs in turns, with minimum and maximum. {}{quick}",
            self.runs, self.method
        ));
        lines.push(format!(
            "Load average before and after: {}.",
            loads.join(", ")
        ));
        lines.extend(self.facts.iter().map(|fact| format!("{fact}.")));
        for line in lines {
            let _ = writeln!(text, "- {line}");
        }
        if self.plot.is_some() {
            let _ = writeln!(text, "\n![plot]({}.svg)", self.name());
        }
        if !self.table.rows.is_empty() {
            let _ = write!(text, "\n{}", self.table.markdown());
        }
        if !self.goals.is_empty() {
            text += "\n| goal | wanted | found | |\n|---|---:|---:|---|\n";
        }
        for goal in &self.goals {
            let (wanted, found) = (digits(goal.wanted), digits(goal.found));
            let _ = writeln!(
                text,
                "| {} | {wanted} | {found} | {} |",
                goal.what,
                goal.verdict()
            );
        }
        let (reached, all) = self.reached();
        if all > 0 {
            let _ = writeln!(text, "\n{reached} of {all} goals are reached.");
        }
        if !self.roofs.is_empty() {
            let (labels, sides) = (self.table.labels, &self.table.sides);
            let _ = write!(text, "\n{}", roofline::markdown(labels, sides, &self.roofs));
        }
        if !self.profiles.is_empty() {
            let _ = write!(
                text,
                "\n{}",
                profile::markdown(self.table.labels, &self.profiles)
            );
        }
        for section in &self.sections {
            let _ = write!(text, "\n{}", section.text);
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        for note in &self.notes {
            let _ = writeln!(text, "- {note}.");
        }
        text
    }

    /// The number of goals that were reached, and of all.
    fn reached(&self) -> (usize, usize) {
        let (reached, all) = self.table.reached();
        let more = self.goals.iter().filter(|goal| goal.is_reached());
        (reached + more.count(), all + self.goals.len())
    }

    /// All numbers and circumstances.
    pub fn json(&self) -> Value {
        let peers: Value = self
            .peers
            .iter()
            .map(|(name, versions)| ((*name).to_owned(), versions.clone()))
            .collect();
        let goals: Value = self
            .goals
            .iter()
            .map(|goal| json!({"what": goal.what, "wanted": goal.wanted, "found": goal.found}))
            .collect();
        let sections: Value = self
            .sections
            .iter()
            .map(|section| (section.name.to_owned(), section.json.clone()))
            .collect();
        json!({
            "benchmark": self.kind,
            "date": today(),
            "machine": {
                "cpu": machine::cpu(),
                "threads": machine::threads(),
                "memory_bytes": machine::memory(),
                "system": machine::system(),
                "load_before": self.load_before,
                "load_after": machine::load_average(),
            },
            "versions": {
                "ours": env!("CARGO_PKG_VERSION"),
                "commit": self.commit,
                "mlx": pins::MLX,
                "peers": peers,
            },
            "method": self.method,
            "runs": self.runs,
            "quick": self.quick,
            "facts": self.facts,
            "rows": self.table.json(),
            "goals": goals,
            "roofs": self.roofs.iter().map(Roof::json).collect::<Vec<_>>(),
            "profiles": self.profiles.iter().map(Profile::json).collect::<Vec<_>>(),
            "sections": sections,
            "notes": self.notes,
        })
    }

    /// Writes all forms to `folder`, named after the day, the benchmark and the processor. Returns
    /// the path of the table.
    pub fn write(&self, folder: &Path) -> Result<PathBuf> {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let name = self.name();
        let file = |ending: &str| folder.join(format!("{name}.{ending}"));
        let json = serde_json::to_string_pretty(&self.json())? + "\n";
        let mut files = vec![(file("json"), json), (file("md"), self.markdown())];
        files.extend(self.plot.clone().map(|plot| (file("svg"), plot)));
        for (path, text) in files {
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(file("md"))
    }

    fn name(&self) -> String {
        let quick = if self.quick { "-quick" } else { "" };
        let (cpu, threads) = (slug(&machine::cpu()), machine::threads());
        format!("{}-{}-{cpu}-{threads}{quick}", today(), self.kind)
    }
}

/// Names and versions as text.
fn words(versions: &Value) -> String {
    let known = versions.as_object().into_iter().flatten();
    let words: Vec<String> = known
        .map(|(name, version)| format!("{name} {}", version.as_str().unwrap_or_default()))
        .collect();
    words.join(", ")
}

fn today() -> String {
    jiff::Zoned::now().date().to_string()
}

/// A processor's name as a part of a file name.
pub fn slug(name: &str) -> String {
    let words: Vec<String> = name
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty() && !matches!(*word, "R" | "TM" | "CPU" | "Processor"))
        .map(str::to_lowercase)
        .collect();
    words.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slug_is_words() {
        assert_eq!(slug("Intel(R) Xeon(R) CPU @ 2.20GHz"), "intel-xeon-2-20ghz");
        assert_eq!(slug("Apple M4 Pro"), "apple-m4-pro");
    }
}
