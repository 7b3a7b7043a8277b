//! The calls. Each is a changed golden or a changed case of [`fused`](super::fused): first with random changes, then the
//! first case of each operation with one axis of one input set to 0 or to a size that is larger than those of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{cases, fused, inputs};
use crate::case::{Case, Op, load, values};
use crate::{FILES, table};

/// The number of goldens of an operation that are changed in each round.
const EACH: usize = 8;

pub struct Calls {
    table: BTreeMap<&'static str, Op>,
    /// The goldens in the order of the calls.
    cases: Vec<Case>,
    rounds: usize,
    resized: Vec<Resized>,
}

/// One axis of one input of a case gets this size.
#[derive(Clone, Copy)]
struct Resized {
    case: usize,
    input: usize,
    axis: usize,
    size: i32,
}

/// The sizes that each axis gets. No case has an axis of the second one, so kernels become longer than their inputs.
const SIZES: [i32; 2] = [0, 70];

/// The resized inputs of the first case of each operation.
fn resized(cases: &[Case]) -> Vec<Resized> {
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        if !seen.insert(case.op.as_str()) {
            continue;
        }
        for (input, array) in case.inputs.iter().enumerate() {
            for axis in 0..array.ndim() {
                all.extend(SIZES.map(|size| Resized {
                    case: index,
                    input,
                    axis,
                    size,
                }));
            }
        }
    }
    all
}

impl Calls {
    pub fn new(rounds: usize) -> Self {
        let mut table = table();
        table.extend(fused::rows());
        let mut count: BTreeMap<String, usize> = BTreeMap::new();
        let mut cases: Vec<Case> = FILES
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
        let resized = resized(&cases);
        Self {
            table,
            cases,
            rounds,
            resized,
        }
    }

    /// Operations with few goldens are changed more often.
    pub fn len(&self) -> usize {
        self.cases.len() * self.rounds + self.resized.len()
    }

    fn changed(&self, index: usize) -> mlx_core::Result<Case> {
        let drawn = self.cases.len() * self.rounds;
        if index >= drawn {
            return self.resized(self.resized[index - drawn]);
        }
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

    fn resized(&self, to: Resized) -> mlx_core::Result<Case> {
        let case = &self.cases[to.case];
        let mut inputs = case.inputs.clone();
        inputs[to.input] = inputs::resized(&inputs[to.input], to.axis, to.size)?;
        Ok(case.with(inputs, case.args.clone()))
    }

    pub fn describe(&self, index: usize) -> String {
        self.changed(index)
            .map_or_else(|error| error.to_string(), |case| case.describe())
    }

    /// Runs a call and reads its results. Errors are correct answers, panics are not.
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
