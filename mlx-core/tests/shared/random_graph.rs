//! Random graphs of which one node fails, beside the values that they have without the failure.

use mlx_core::kernel::{self, CpuKernel, Spec, View, ViewMut};
use mlx_core::transforms::Compiled;
use mlx_core::{
    Array, DType, ErrorKind, Result, Stream, async_eval, concat, eval, memory, ones, synchronize,
};

/// The elements of each array.
const N: usize = 4;
type Value = [f32; N];

/// How the failing node fails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Failure {
    Index,
    Memory,
    Kernel,
    Panic,
}

/// The sum and the difference of two arrays, or a failure.
struct Both(Option<Failure>);

impl CpuKernel for Both {
    fn name(&self) -> &'static str {
        "both"
    }
    fn output(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone(), inputs[0].clone()])
    }
    fn eval(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        match self.0 {
            Some(Failure::Panic) => std::panic::resume_unwind(Box::new("on purpose".to_owned())),
            Some(_) => return Err("on purpose".into()),
            None => {}
        }
        let (a, b) = (inputs[0].as_slice::<f32>()?, inputs[1].as_slice::<f32>()?);
        for (out, sign) in outputs.iter_mut().zip([1.0, -1.0]) {
            for ((out, a), b) in out.as_mut_slice::<f32>()?.iter_mut().zip(a).zip(b) {
                *out = a + sign * b;
            }
        }
        Ok(())
    }
}

pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
}

/// A node, with the value that it has if nothing fails.
struct Node {
    array: Array,
    value: Value,
    depends_on_failure: bool,
    /// Its name in the story of the graph.
    number: usize,
}

/// Where graphs are built: on several streams, with or without nodes that are kernels in Rust or
/// compiled functions.
pub struct Setup {
    pub streams: Vec<Stream>,
    /// The streams that can run kernels in Rust.
    pub kernels: Vec<Stream>,
    pub compiled: Option<Compiled>,
}

impl Setup {
    /// A function with one fused kernel, and indices that it may fail on.
    pub fn compiled() -> Compiled {
        let f = |x: &[Array]| {
            let y = x[0].multiply(0.5)?.maximum(&x[1])?.add(1.0)?;
            Ok(vec![y.take(&x[2], 0)?, y])
        };
        Compiled::new(f, false)
    }

    fn synchronize(&self) -> Result<()> {
        synchronize()?;
        (self.streams.iter().chain(&self.kernels)).try_for_each(|s| s.scope(synchronize))
    }
}

fn ids(all: [i32; N]) -> Result<Array> {
    Array::from_slice(&all, &[N as i32])
}

struct Graph<'a> {
    setup: &'a Setup,
    random: &'a mut Random,
    nodes: Vec<Node>,
    /// What was built and evaluated, for the message of a test that fails.
    story: Vec<String>,
}

impl Graph<'_> {
    fn push(&mut self, what: &str, array: Array, value: Value, depends_on_failure: bool) {
        let number = self.story.len();
        self.story.push(format!("{number}: {what}"));
        self.nodes.push(Node {
            array,
            value,
            depends_on_failure,
            number,
        });
    }

    /// Adds a node of a random operation, on a random stream.
    fn grow(&mut self) -> Result<()> {
        let [i, j] = [0; 2].map(|_| self.random.below(self.nodes.len()));
        let (a, b) = (&self.nodes[i], &self.nodes[j]);
        let (x, y) = (a.value, b.value);
        let one = a.depends_on_failure;
        let two = one || b.depends_on_failure;
        let operands = [a.number, b.number];
        let zip = |f: fn(f32, f32) -> f32| std::array::from_fn(|k| f(x[k], y[k]));
        let (a, b) = (a.array.clone(), b.array.clone());
        let at = self.random.below(self.setup.streams.len());
        let stream = &self.setup.streams[at];
        let kernels = self.setup.kernels.len();
        let kernels = (kernels > 0).then(|| self.random.below(kernels));
        let kind = self.random.below(10);
        let place = match kernels {
            Some(at) if kind == 8 => format!("stream {at} of kernels"),
            _ => format!("stream {at}"),
        };
        let what = format!("operation {kind} of {operands:?}, {place}");
        let (array, value, depends) = match kind {
            0 => (stream.scope(|| a.add(&b))?, zip(|a, b| a + b), two),
            1 => (stream.scope(|| a.subtract(&b))?, zip(|a, b| a - b), two),
            2 => (stream.scope(|| a.maximum(&b))?, zip(f32::max), two),
            3 => (stream.scope(|| a.negative())?, x.map(|x| -x), one),
            4 => {
                let most = stream.scope(|| a.max(.., true)?.broadcast_to(&[N as i32]))?;
                (most, [x.into_iter().fold(f32::MIN, f32::max); N], one)
            }
            5 => {
                let parts = |from, to| a.slice(&[from], &[to]);
                let turned = stream.scope(|| concat(&[&parts(2, 4)?, &parts(0, 2)?], 0))?;
                (turned, [x[2], x[3], x[0], x[1]], one)
            }
            6 => {
                let found = stream.scope(|| a.take(&ids([3, -4, 1, 1])?, 0))?;
                (found, [x[3], x[0], x[1], x[1]], one)
            }
            7 => {
                let view = stream.scope(|| a.reshape(&[2, 2])?.swapaxes(0, 1)?.reshape(&[4]))?;
                (view, [x[0], x[2], x[1], x[3]], one)
            }
            8 if kernels.is_some() => {
                let stream = &self.setup.kernels[kernels.expect("looked at")];
                let both = stream.scope(|| kernel::apply(Both(None), &[&a, &b]))?;
                self.push(&what, both[0].clone(), zip(|a, b| a + b), two);
                (both[1].clone(), zip(|a, b| a - b), two)
            }
            9 if self.setup.compiled.is_some() => {
                let f = self.setup.compiled.as_ref().expect("looked at");
                let out = f.call(&[a, b, ids([1, 0, 3, 2])?])?;
                let value: Value = zip(|a, b| (a * 0.5).max(b) + 1.0);
                self.push(&what, out[1].clone(), value, two);
                let turned = [value[1], value[0], value[3], value[2]];
                (out[0].clone(), turned, two)
            }
            _ => (Array::from_slice(&x, &[N as i32])?, x, false),
        };
        self.push(&what, array, value, depends);
        Ok(())
    }

    /// Adds the node that fails.
    fn fail(&mut self, failure: Failure) -> Result<()> {
        let i = self.random.below(self.nodes.len());
        let a = self.nodes[i].array.clone();
        let at = self.random.below(self.setup.streams.len());
        let stream = &self.setup.streams[at];
        let outside = ids([0, 1, 2, 4])?;
        let what = format!("failure of [{}], stream {at}", self.nodes[i].number);
        match failure {
            Failure::Index => {
                let array = match &self.setup.compiled {
                    Some(f) if self.random.below(2) == 0 => {
                        f.call(&[a.clone(), a, outside])?.remove(0)
                    }
                    _ => stream.scope(|| a.take(&outside, 0))?,
                };
                self.push(&what, array, [0.0; N], true);
            }
            Failure::Memory => {
                // More bytes than a process can address.
                let shape = [i32::MAX, 1 << 15];
                let huge = stream.scope(|| {
                    let first = a.slice(&[0], &[1])?;
                    let huge = ones(&shape, DType::F32)?.add(&first)?;
                    huge.max(.., true)?.reshape(&[1])?.broadcast_to(&[N as i32])
                })?;
                self.push(&what, huge, [0.0; N], true);
            }
            Failure::Kernel | Failure::Panic => {
                let at = self.random.below(self.setup.kernels.len());
                let what = format!(
                    "failure of [{}], stream {at} of kernels",
                    self.nodes[i].number
                );
                let stream = &self.setup.kernels[at];
                let both = stream.scope(|| kernel::apply(Both(Some(failure)), &[&a, &a]))?;
                for array in both {
                    self.push(&what, array, [0.0; N], true);
                }
            }
        }
        Ok(())
    }

    /// Evaluates random nodes, at once or in the background, until an evaluation fails or it was
    /// done a few times.
    fn evaluate(&mut self) {
        for _ in 0..1 + self.random.below(4) {
            let count = 1 + self.random.below(3);
            let (numbers, roots): (Vec<usize>, Vec<Array>) = (0..count)
                .map(|_| {
                    let node = &self.nodes[self.random.below(self.nodes.len())];
                    (node.number, node.array.clone())
                })
                .unzip();
            // Results that nobody holds are written over by the operations that read them.
            for _ in 0..self.random.below(3) {
                let i = self.random.below(self.nodes.len());
                let dropped = self.nodes.remove(i).number;
                self.story.push(format!("drop {dropped}"));
            }
            let (name, done) = match self.random.below(2) {
                0 => ("eval", eval(&roots)),
                _ => ("async_eval", async_eval(&roots)),
            };
            self.story.push(format!("{name} of {numbers:?}: {done:?}"));
            if done.is_err() || self.nodes.len() < 3 {
                return;
            }
        }
    }
}

/// Checks a graph for each seed below `seeds`, with these failures in turn. Goes on after a seed that
/// fails, to the third, because seeds that fail say more together.
pub fn check_all(setup: &Setup, failures: &[Failure], seeds: u64) -> Result<()> {
    let mut failed = Vec::new();
    for seed in 0..seeds {
        let failure = failures[seed as usize % failures.len()];
        let checked = std::panic::AssertUnwindSafe(|| check(setup, failure, seed));
        match std::panic::catch_unwind(checked) {
            Ok(checked) => checked?,
            Err(_) => {
                failed.push(seed);
                // Nothing of this seed is left for the next one.
                (0..8).find(|_| setup.synchronize().is_ok());
            }
        }
        if failed.len() == 3 {
            break;
        }
    }
    assert!(failed.is_empty(), "of {seeds} seeds: {failed:?}");
    Ok(())
}

/// Builds a graph in which one node fails, evaluates some of it, and checks every array: it has its
/// value, or it depends on the node that fails and cannot be read.
fn check(setup: &Setup, failure: Failure, seed: u64) -> Result<()> {
    // Other tests of the process run at the same time, so the limit is not set again at the end.
    memory::set_array_limit(usize::MAX);
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut graph = Graph {
        setup,
        random: &mut random,
        nodes: Vec::new(),
        story: Vec::new(),
    };
    for i in 0..3 {
        let value = std::array::from_fn(|k| (i * 5 + k) as f32 - 4.0);
        let data = Array::from_slice(&value, &[N as i32])?;
        // A lazy array that nothing has evaluated yet, like a weight after it was loaded.
        let lazy = data.multiply(2.0)?;
        graph.push("data", data, value, false);
        graph.push("lazy data", lazy, value.map(|x| 2.0 * x), false);
    }
    let size = 5 + graph.random.below(30);
    let fails_at = graph.random.below(size);
    for i in 0..size {
        if i == fails_at {
            graph.fail(failure)?;
        }
        graph.grow()?;
    }
    let reported = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| graph.evaluate()));
    assert!(
        reported.is_ok(),
        "seed {seed}: a panic in a kernel is an error"
    );
    // An error in the background is returned once, by a call that waits.
    let waits = (0..8).take_while(|_| {
        let waited = setup.synchronize();
        graph.story.push(format!("synchronize: {waited:?}"));
        waited.is_err()
    });
    assert!(waits.count() < 8, "seed {seed}: the streams stay broken");
    let (mut nodes, mut story) = (graph.nodes, graph.story);
    while !nodes.is_empty() {
        let node = nodes.swap_remove(random.below(nodes.len()));
        let found = node.array.to_vec::<f32>();
        story.push(format!("read {}: {found:?}", node.number));
        let what = format!("{failure:?}, seed {seed}, {}", story.join("\n"));
        match found {
            Ok(found) => {
                assert!(!node.depends_on_failure, "a value of a failure: {what}");
                assert_eq!(found, node.value, "{what}");
            }
            Err(error) => {
                assert!(node.depends_on_failure, "lost, {error}: {what}");
                // It stays an error: one of the failure again, or that of a poisoned array.
                let again = node
                    .array
                    .add(1.0)
                    .and_then(|y| y.to_vec::<f32>())
                    .unwrap_err();
                let kinds = match failure {
                    Failure::Memory => [ErrorKind::Memory, ErrorKind::Memory],
                    _ => [ErrorKind::Poisoned, ErrorKind::Eval],
                };
                assert!(kinds.contains(&again.kind()), "{what}: {again}");
            }
        }
    }
    Ok(())
}
