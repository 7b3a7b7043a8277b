//! Records: the measurements with all that is needed to judge them, as JSON and as a table.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::machine;
use super::stats::Row;
use crate::native::pins;

/// Everything that a benchmark found.
pub struct Record {
    /// Runs of each side.
    pub runs: u32,
    /// Too short for its numbers to mean much.
    pub quick: bool,
    /// Load of the machine before and after, our own included.
    pub loads: [Option<f64>; 2],
    /// Versions on mlx-lm's side.
    pub peer_versions: Option<Value>,
    /// The measurements.
    pub rows: Vec<Row>,
    /// Whether the two sides agree.
    pub notes: Vec<String>,
}

impl Record {
    /// The table with its circumstances.
    pub fn markdown(&self) -> String {
        let mut text = format!("# Benchmark of {}\n\n", today());
        let memory = machine::memory().map_or(String::new(), |bytes| {
            format!(", {:.1} GB of memory", bytes as f64 / 1e9)
        });
        let loads: Vec<String> = self
            .loads
            .iter()
            .flatten()
            .map(|load| format!("{load:.1}"))
            .collect();
        let lines = [
            format!(
                "Machine: {}, {} threads{memory}, {}.",
                machine::cpu(),
                machine::threads(),
                machine::system()
            ),
            format!(
                "Ours: {} at commit {}, MLX {}. Other side: {}.",
                env!("CARGO_PKG_VERSION"),
                machine::commit().unwrap_or_else(|| "unknown".to_owned()),
                pins::MLX,
                self.peer_versions().join(", ")
            ),
            format!(
                "Medians of {} runs in turns, each a process of its own, with minimum and maximum{}.",
                self.runs,
                if self.quick {
                    "; too short to mean much (--quick)"
                } else {
                    ""
                }
            ),
            format!("Load average before and after: {}.", loads.join(", ")),
        ];
        for line in lines {
            let _ = writeln!(text, "- {line}");
        }
        let _ = write!(text, "\n{}", Row::HEADER);
        for row in &self.rows {
            text += &row.line();
        }
        text.push('\n');
        for note in &self.notes {
            let _ = writeln!(text, "- {note}.");
        }
        text
    }

    fn peer_versions(&self) -> Vec<String> {
        let versions = self.peer_versions.as_ref().and_then(Value::as_object);
        let known = versions.into_iter().flatten();
        known
            .map(|(name, version)| format!("{name} {}", version.as_str().unwrap_or_default()))
            .collect()
    }

    fn json(&self) -> Value {
        json!({
            "date": today(),
            "machine": {
                "cpu": machine::cpu(),
                "threads": machine::threads(),
                "memory_bytes": machine::memory(),
                "system": machine::system(),
                "load_before": self.loads[0],
                "load_after": self.loads[1],
            },
            "versions": {
                "ours": env!("CARGO_PKG_VERSION"),
                "commit": machine::commit(),
                "mlx": pins::MLX,
                "peer": self.peer_versions,
            },
            "runs": self.runs,
            "quick": self.quick,
            "rows": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }

    /// Writes both forms to `folder`, named after the day and the processor; the path of the table.
    pub fn write(&self, folder: &Path) -> Result<PathBuf> {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let quick = if self.quick { "-quick" } else { "" };
        let name = format!(
            "{}-{}-{}{quick}",
            today(),
            slug(&machine::cpu()),
            machine::threads()
        );
        let table = folder.join(format!("{name}.md"));
        let json = folder.join(format!("{name}.json"));
        for (path, text) in [
            (&json, serde_json::to_string_pretty(&self.json())? + "\n"),
            (&table, self.markdown()),
        ] {
            fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(table)
    }
}

fn today() -> String {
    jiff::Zoned::now().date().to_string()
}

/// A processor's name as part of a file's.
fn slug(name: &str) -> String {
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
