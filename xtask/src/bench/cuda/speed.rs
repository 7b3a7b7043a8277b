//! The speed of models, compared with mlx-lm and llama.cpp in turns.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;

use super::sides::{self, Side};
use super::{Bench, Case, recorded, work};
use crate::bench::session::turns_while;
use crate::bench::stats::{Row, Table};

impl Bench<'_> {
    /// The rows of all checkpoints, and the versions of the other sides.
    pub fn speed(&mut self, wanted: bool) -> Result<(Table, Vec<(&'static str, Value)>)> {
        let (python, llama) = (&self.shared.python, &self.arguments.llama);
        let mut table = Table {
            labels: &["shape", "weights"],
            sides: vec![
                sides::OURS,
                if python.is_some() {
                    "mlx-lm"
                } else {
                    "mlx-lm (recorded)"
                },
                if llama.is_some() {
                    "llama.cpp"
                } else {
                    "llama.cpp (recorded)"
                },
            ],
            rows: Vec::new(),
        };
        let mut versions = Vec::new();
        for (number, &case) in self.cases.iter().enumerate().filter(|_| wanted) {
            if self.clock.left().is_zero() {
                self.notes
                    .push(format!("{}: not measured, for lack of time", case.name()));
                continue;
            }
            let folder = case.folder(&self.work)?;
            let mut sides = vec![Side::session(
                sides::OURS,
                sides::ours(&self.programs.session, &folder),
            )?];
            if let Some(python) = python {
                let side = Side::session("mlx-lm", sides::mlx_lm(python, &folder))?;
                if let (Side::Session { session, .. }, true) = (&side, versions.is_empty()) {
                    versions.push(("mlx-lm", session.hello["versions"].clone()));
                }
                sides.push(side);
            }
            if let Some(program) = llama {
                let file = folder.with_extension("gguf");
                case.model.write_gguf(case.format, &file)?;
                sides.push(Side::LlamaCpp {
                    program: program.clone(),
                    file,
                });
            }
            let slot = self.clock.left() / (self.cases.len() - number) as u32;
            let (rows, runs) = self.measure(case, &mut sides, slot)?;
            table.rows.extend(rows);
            if runs < self.shared.runs() {
                self.notes.push(format!(
                    "{}: {runs} runs of {}, for lack of time",
                    case.name(),
                    self.shared.runs()
                ));
            }
        }
        Ok((table, versions))
    }

    /// The rows of a checkpoint, and the number of runs for which there was time.
    fn measure(&self, case: Case, sides: &mut [Side], slot: Duration) -> Result<(Vec<Row>, u32)> {
        let works = work::works(case.model);
        let end = Instant::now() + slot;
        // One run that is not counted.
        for side in sides.iter_mut() {
            eprintln!("{}: a run that does not count", case.name());
            side.sweep(&works, self.shared.quick)?;
        }
        let (mut runs, mut started) = (0, Instant::now());
        // A turn begins if one as long as the last would end in time; the first turn always begins.
        let goes_on = |number| {
            let now = Instant::now();
            let begins = number == 1 || now + (now - started) <= end;
            started = now;
            runs += u32::from(begins);
            begins
        };
        let found = turns_while(self.shared.runs(), sides.len(), goes_on, |side, number| {
            let name = sides[side].name();
            eprintln!(
                "{}: run {number} of {}, {name}",
                case.name(),
                self.shared.runs()
            );
            sides[side].sweep(&works, self.shared.quick).map(Some)
        })?;
        let has = [
            true,
            self.shared.python.is_some(),
            self.arguments.llama.is_some(),
        ];
        let rows = works.iter().enumerate().map(|(at, &work)| {
            let [mlx_lm, llama_cpp] = recorded::figures(case.model, case.format, work);
            let mut measured = found
                .iter()
                .map(|runs| runs.iter().filter_map(|run| run[at]).collect());
            let values = [Vec::new(), mlx_lm, llama_cpp].into_iter().zip(has);
            let values = values.map(|(recorded, has): (Vec<f64>, bool)| match has {
                true => measured.next().unwrap_or_default(),
                false => recorded,
            });
            work.row(case.model, case.format, values.collect())
        });
        Ok((rows.collect(), runs))
    }
}
