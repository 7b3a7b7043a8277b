//! The residual stream and its norms have the same bits as separate operations, in fewer nodes.

use mlx_core::{Array, DType, Result, eval, fast, graph_size, random};
use mlx_nn::{
    Activation, GatedMlp, Linear, Module, Norm, NormConfig, NormKind, Normed, Param, Path,
    Residual, VisitMut,
};

const E: i32 = 64;
const EPS: f32 = 1e-5;

/// Fills parameters with random numbers.
struct Draw {
    key: random::Key,
    dtype: DType,
}

impl VisitMut for Draw {
    fn param(&mut self, _: &Path, param: &mut Param) -> Result<()> {
        let [now, later] = self.key.split()?;
        self.key = later;
        let value =
            random::normal_with(&now, param.shape(), DType::F32, 0.0, 0.5)?.astype(self.dtype)?;
        eval([&value])?;
        param.set(value);
        Ok(())
    }
}

fn filled<M: Module>(mut module: M, seed: u64, dtype: DType) -> Result<M> {
    let key = random::Key::new(seed)?;
    module.visit_mut(&mut Path::default(), &mut Draw { key, dtype })?;
    Ok(module)
}

fn normal(seed: u64, dtype: DType) -> Result<Array> {
    let key = random::Key::new(seed)?;
    let x = random::normal(&key, &[2, 3, E], DType::F32)?.astype(dtype)?;
    eval([&x])?;
    Ok(x)
}

fn bits(a: &Array) -> Result<Vec<u32>> {
    let a = a.astype(DType::F32)?.to_vec::<f32>()?;
    Ok(a.into_iter().map(f32::to_bits).collect())
}

fn norms(dtype: DType) -> Result<Vec<Norm>> {
    let kinds = [
        (NormKind::Rms(0.0), EPS),
        (NormKind::Rms(1.0), EPS),
        // The epsilon differs from that of the norm of the added term.
        (NormKind::Rms(0.0), 1e-2),
        (NormKind::Bare, EPS),
        (NormKind::layer(true), EPS),
    ];
    let norm = |(kind, eps)| filled(Norm::empty(E, &NormConfig { kind, eps })?, 3, dtype);
    kinds.into_iter().map(norm).collect()
}

/// The three forms of a stream with their sums as operations of their own.
fn streams(dtype: DType) -> Result<Vec<(Residual, Array)>> {
    let (x, y) = (normal(1, dtype)?, normal(2, dtype)?);
    let inner = filled(Norm::empty(E, &NormConfig::rms(EPS))?, 4, dtype)?;
    Ok(vec![
        (x.clone().into(), x.clone()),
        (Residual::new(x.clone(), y.clone()), fast::add(&y, &x)?),
        (
            Residual::with_norm(x.clone(), &inner, y.clone())?,
            inner.add_to(&x, &y)?,
        ),
    ])
}

#[test]
fn sums_and_norms_are_those_of_separate_operations() -> Result<()> {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (which, norm) in norms(dtype)?.iter().enumerate() {
            for (form, (stream, sum)) in streams(dtype)?.into_iter().enumerate() {
                let what = format!("norm {which}, stream {form}, {dtype}");
                let wanted = norm.forward(&sum)?;
                assert_eq!(stream.shape(), [2, 3, E]);
                let (found_sum, found) = stream.clone().normed(norm)?;
                assert!(
                    graph_size([&found_sum, &found])? <= graph_size([&sum, &wanted])?,
                    "{what}"
                );
                assert!(bits(&stream.sum()?)? == bits(&sum)?, "{what}");
                assert!(bits(&found_sum)? == bits(&sum)?, "{what}");
                assert!(bits(&found)? == bits(&wanted)?, "{what}");
            }
        }
    }
    Ok(())
}

#[test]
fn layers_that_read_a_norm_are_those_of_its_array() -> Result<()> {
    for dtype in [DType::F32, DType::BF16] {
        let q = filled(Linear::empty(E, 40, false)?, 5, dtype)?;
        let k = filled(Linear::empty(E, 24, true)?, 6, dtype)?;
        let mlp = filled(GatedMlp::empty(E, 48, false, Activation::Silu)?, 7, dtype)?;
        for (which, norm) in norms(dtype)?.iter().enumerate() {
            for first in 0..4 {
                for (form, (stream, sum)) in streams(dtype)?.into_iter().enumerate() {
                    let what = format!("norm {which}, stream {form}, reader {first}, {dtype}");
                    let array = norm.forward(&sum)?;
                    let normed = Normed::new(stream, norm);
                    let (mut found, mut wanted) = match first {
                        0 => (
                            Linear::forward_all([&q, &k], &normed)?.to_vec(),
                            Linear::forward_all([&q, &k], &array)?.to_vec(),
                        ),
                        1 => (
                            vec![q.forward(&normed)?, k.forward(&normed)?],
                            vec![q.forward(&array)?, k.forward(&array)?],
                        ),
                        2 => (
                            vec![mlp.forward(&normed)?, q.forward(&normed)?],
                            vec![mlp.forward(&array)?, q.forward(&array)?],
                        ),
                        _ => (
                            vec![normed.array()?.clone(), k.forward(&normed)?],
                            vec![array.clone(), k.forward(&array)?],
                        ),
                    };
                    found.extend([normed.sum()?.clone(), normed.array()?.clone()]);
                    wanted.extend([sum, array]);
                    assert!(graph_size(&found)? <= graph_size(&wanted)?, "{what}");
                    for (found, wanted) in found.iter().zip(&wanted) {
                        assert!(bits(found)? == bits(wanted)?, "{what}");
                    }
                }
            }
        }
    }
    Ok(())
}
