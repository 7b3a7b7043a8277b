//! Observed inputs are those of every product, and end with the call.

use mlx_core::fast::Gate;
use mlx_core::{Array, DType, Error, ErrorKind, Result, random};
use mlx_nn::observe::second_moments;
use mlx_nn::{Embedding, ExpertsLinear, Linear, Module, Param, Path, VisitMut};

#[derive(Module)]
struct Layers {
    embed: Embedding,
    gate: Linear,
    up: Linear,
    experts: ExpertsLinear,
}

struct Fill(random::Key);

impl VisitMut for Fill {
    fn param(&mut self, _path: &Path, param: &mut Param) -> Result<()> {
        let [now, later] = self.0.split()?;
        self.0 = later;
        param.set(random::normal(&now, param.shape(), DType::F32)?);
        Ok(())
    }
}

fn layers() -> Layers {
    let mut layers = Layers {
        embed: Embedding::empty(6, 4).unwrap(),
        gate: Linear::empty(4, 8, false).unwrap(),
        up: Linear::empty(4, 8, false).unwrap(),
        experts: ExpertsLinear::empty(3, 8, 4).unwrap(),
    };
    let key = random::Key::new(5).unwrap();
    layers
        .visit_mut(&mut Path::default(), &mut Fill(key))
        .unwrap();
    layers
}

/// Rows of the table, a gated product, experts, the table as a head. Also the inputs of all products.
fn forward(layers: &Layers) -> Result<(Array, [Array; 3])> {
    let tokens = Array::from_slice(&[1u32, 5, 2], &[3])?;
    let x = layers.embed.forward(&tokens)?;
    let hidden = layers.gate.gated(&layers.up, Gate::Silu, &x)?;
    let experts = Array::from_slice(&[0u32, 2, 0], &[3])?;
    let y = layers.experts.forward(&hidden.expand_dims(-2)?, &experts)?;
    let y = y.squeeze(-2)?;
    Ok((layers.embed.as_linear(&y)?, [x, hidden, y]))
}

#[test]
fn every_product_is_seen() {
    let layers = layers();
    let (plain, [x, hidden, y]) = forward(&layers).unwrap();
    let ((seen, _), moments) = second_moments(&layers, || forward(&layers)).unwrap();
    assert!(seen.allclose(&plain).unwrap().item::<bool>().unwrap());
    let expected = [
        ("embed", &y),
        ("experts", &hidden),
        ("gate", &x),
        ("up", &x),
    ];
    assert!(
        moments.keys().eq(expected.map(|(path, _)| path)),
        "{:?}",
        moments.keys()
    );
    for (path, x) in expected {
        let own = x.t().unwrap().matmul(x).unwrap();
        let is_close = moments[path].allclose(&own).unwrap();
        assert!(is_close.item::<bool>().unwrap(), "{path}");
    }
}

#[test]
fn observation_ends_with_the_call() {
    let layers = layers();
    let fails = || -> Result<()> { Err(Error::new(ErrorKind::Invalid, "stop")) };
    assert!(second_moments(&layers, fails).is_err());
    // An inner call sees its own products, and the outer one those around it.
    let run = || -> Result<usize> {
        let (_, inner) = second_moments(&layers.gate, || forward(&layers))?;
        Ok(inner.len())
    };
    let (inner, outer) = second_moments(&layers, run).unwrap();
    assert_eq!((inner, outer.len()), (1, 0));
    let (_, after) = second_moments(&layers, || forward(&layers)).unwrap();
    assert_eq!(after.len(), 4);
}
