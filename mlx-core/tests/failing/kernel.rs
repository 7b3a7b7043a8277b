//! A kernel that fails at once, or when the test tells it to.

use std::sync::{Mutex, mpsc};

use mlx_core::kernel::{self, CpuKernel, Spec, View, ViewMut};
use mlx_core::{Array, Result};

/// Waits until the sender sends or is dropped, and fails with its text.
struct Failing {
    gate: Mutex<mpsc::Receiver<()>>,
    text: &'static str,
}

impl CpuKernel for Failing {
    fn name(&self) -> &'static str {
        "failing"
    }

    fn output(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn eval(&self, _inputs: &[View<'_>], _outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let gate = self.gate.lock().map_err(|error| error.to_string())?;
        gate.recv().ok();
        Err(self.text.into())
    }
}

/// An array whose kernel fails once the returned sender is dropped. Until then, more work can be queued behind it.
pub fn failing_later(input: &Array, text: &'static str) -> Result<(Array, mpsc::Sender<()>)> {
    let (open, gate) = mpsc::channel();
    let gate = Mutex::new(gate);
    let array = kernel::apply(Failing { gate, text }, &[input])?.remove(0);
    Ok((array, open))
}

/// An array whose kernel fails as soon as it is run.
#[allow(dead_code, reason = "not every test file needs both")]
pub fn failing(input: &Array, text: &'static str) -> Result<Array> {
    Ok(failing_later(input, text)?.0)
}
