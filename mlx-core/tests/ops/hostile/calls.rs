//! The calls. Each is a changed golden or a changed case of [`fused`](super::fused).

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{cases, fused, inputs};
use crate::case::{Case, Op, load, values};
use crate::table;

/// The number of goldens of an operation that are changed in each round.
const EACH: usize = 8;

pub struct Calls {
    table: BTreeMap<&'static str, Op>,
    /// The goldens in the order of the calls.
    cases: Vec<Case>,
    rounds: usize,
}

impl Calls {
    pub fn new(rounds: usize) -> Self {
        let mut table = table();
        table.extend(fused::rows());
        let mut count: BTreeMap<String, usize> = BTreeMap::new();
        let mut cases: Vec<Case> = ["elementwise", "array", "matrix", "numeric"]
            .into_iter()
            .flat_map(load)
            .filter(|case| {
                let count = count.entry(case.op.clone()).or_default();
                *count += 1;
                *count <= EACH
            })
            .collect();
        cases.extend(cases::cases());
        let missing: Vec<_> = table
            .keys()
            .filter(|name| !cases.iter().any(|case| case.op == **name))
            .collect();
        assert!(missing.is_empty(), "no case for {missing:?}");
        Self {
            table,
            cases,
            rounds,
        }
    }

    /// Operations with few goldens are changed more often.
    pub fn len(&self) -> usize {
        self.cases.len() * self.rounds
    }

    fn changed(&self, index: usize) -> mlx_core::Result<Case> {
        let case = &self.cases[index % self.cases.len()];
        let mut random = inputs::Random::new(index as u64);
        let inputs = case.inputs.iter();
        let inputs = inputs
            .map(|input| match random.below(3) {
                0 => Ok(input.clone()),
                _ => inputs::array(&mut random, input),
            })
            .collect::<mlx_core::Result<_>>()?;
        let args = case.args.iter();
        let args = args
            .map(|arg| match random.below(2) {
                0 => arg.clone(),
                _ => inputs::argument(&mut random, arg, &case.op),
            })
            .collect();
        Ok(case.with(inputs, args))
    }

    pub fn describe(&self, index: usize) -> String {
        self.changed(index)
            .map_or_else(|error| error.to_string(), |case| case.describe())
    }

    /// Runs a call and reads its results. Errors are right answers, panics are not.
    pub fn run(&self, index: usize) {
        let Ok(case) = self.changed(index) else {
            return;
        };
        let op = self.table[case.op.as_str()];
        let run = AssertUnwindSafe(|| {
            for array in op(&case).unwrap_or_default() {
                let read = values(&array);
                drop(read);
            }
        });
        if catch_unwind(run).is_err() {
            std::process::exit(101);
        }
    }
}
