//! A profile counts the nodes between its start and its end, and no others. The test is alone in its process, because a
//! process has one profile.

use mlx_core::kernel::{self, CpuKernel, Spec, View, ViewMut};
use mlx_core::profile::{self, BETWEEN, Node};
use mlx_core::{Array, DType, Result, eval, fast, ops};

/// x + x
struct Twice;

impl CpuKernel for Twice {
    fn name(&self) -> &'static str {
        "twice"
    }
    fn output(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }
    fn eval(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<(), String> {
        let (x, y) = (
            inputs[0].as_slice::<f32>()?,
            outputs[0].as_mut_slice::<f32>()?,
        );
        y.iter_mut().zip(x).for_each(|(y, x)| *y = x + x);
        Ok(())
    }
}

/// Computes this many norms one after the other.
fn norms(count: usize) -> Result<()> {
    let mut y = ops::ones(&[4, 64], DType::F32)?;
    for _ in 0..count {
        y = fast::rms_norm(&y, None, 1e-6)?;
    }
    eval([&y])
}

fn find<'a>(nodes: &'a [Node], name: &str) -> Option<&'a Node> {
    nodes.iter().find(|node| node.name == name)
}

#[test]
fn nodes_are_counted_from_the_start_to_the_end() -> Result<()> {
    // With MLX's own operations there are no nodes of this crate to count.
    let ours =
        cfg!(not(target_os = "macos")) && std::env::var("MLX_CPU_KERNELS").as_deref() != Ok("off");
    norms(3)?;
    assert_eq!(profile::end(), [], "no profile was started");

    profile::start();
    let before = std::time::Instant::now();
    norms(5)?;
    let weight = ops::ones(&[8, 64], DType::BF16)?;
    eval([&fast::linear(&ops::ones(&[2, 64], DType::BF16)?, &weight)?])?;
    let all = before.elapsed().as_secs_f64();
    let nodes = profile::end();
    if ours {
        assert_eq!(
            find(&nodes, "RmsNorm").map(|node| node.times),
            Some(5),
            "{nodes:?}"
        );
        assert_eq!(
            find(&nodes, "Linear").map(|node| node.times),
            Some(1),
            "{nodes:?}"
        );
        // Six nodes have five gaps between them.
        assert_eq!(
            find(&nodes, BETWEEN).map(|node| node.times),
            Some(5),
            "{nodes:?}"
        );
        let taken: f64 = nodes.iter().map(|node| node.seconds).sum();
        assert!(
            nodes.iter().all(|node| node.seconds >= 0.0) && taken > 0.0 && taken <= all,
            "{nodes:?} of {all} s"
        );
    } else {
        assert_eq!(nodes, []);
    }

    norms(2)?;
    assert_eq!(profile::end(), [], "it has ended");
    profile::start();
    norms(2)?;
    profile::start();
    norms(1)?;
    let nodes = profile::end();
    assert_eq!(
        find(&nodes, "RmsNorm").map(|node| node.times),
        ours.then_some(1),
        "{nodes:?}"
    );

    // A user-defined kernel is a node in any case.
    let x = Array::from_slice(&[1.0f32, 2.0], &[2])?;
    profile::start();
    assert_eq!(kernel::apply(Twice, &[&x])?[0].to_vec::<f32>()?, [2.0, 4.0]);
    assert_eq!(
        find(&profile::end(), "twice").map(|node| node.times),
        Some(1)
    );
    Ok(())
}
