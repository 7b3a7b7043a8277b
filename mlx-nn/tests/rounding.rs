//! Linear layers that round their inputs to 8 bits, compared with the formula.

use mlx_core::transforms::value_and_grad_with;
use mlx_core::{Array, DType, Result};
use mlx_nn::quantize::round_inputs;
use mlx_nn::{Linear, Module, Param, Path, VisitMut};

/// Sets the matrix.
struct Set(Array);

impl VisitMut for Set {
    fn param(&mut self, _path: &Path, param: &mut Param) -> Result<()> {
        param.set(self.0.clone());
        Ok(())
    }
}

/// A layer of 4 inputs that rounds them.
fn rounding(rows: &[f32]) -> Linear {
    let outputs = rows.len() as i32 / 4;
    let mut linear = Linear::empty(4, outputs, false).unwrap();
    let weight = Array::from_slice(rows, &[outputs, 4]).unwrap();
    linear
        .visit_mut(&mut Path::default(), &mut Set(weight))
        .unwrap();
    let found = round_inputs(&mut linear, |_| true).unwrap();
    assert_eq!(found, [""]);
    linear
}

fn eye() -> Linear {
    let one = |at: usize| if at.is_multiple_of(5) { 1.0 } else { 0.0 };
    rounding(&(0..16).map(one).collect::<Vec<f32>>())
}

/// The rounding step of a token follows from its largest number, and halves are rounded to even
/// numbers of steps.
#[test]
fn tokens_are_rounded_apart() {
    let x = [127.0f32, 2.5, -3.5, 0.4, 0.0101, -0.02, 0.0, 0.013];
    let tokens = Array::from_slice(&x, &[1, 2, 4]).unwrap();
    let found = eye().forward(&tokens).unwrap().to_vec::<f32>().unwrap();
    let step = 0.02 / 127.0;
    let second = [0.0101f32, -0.02, 0.0, 0.013].map(|x| (x / step).round_ties_even() * step);
    let expected = [
        127.0, 2.0, -4.0, 0.0, second[0], second[1], second[2], second[3],
    ];
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-6, "{found} for {expected}");
    }
    let zeros = Array::from_slice(&[0.0f32; 4], &[1, 4]).unwrap();
    assert_eq!(
        eye().forward(&zeros).unwrap().to_vec::<f32>().unwrap(),
        [0.0; 4]
    );
}

/// Layers that are computed together give the results of separate calls, also if only some of them
/// round.
#[test]
fn layers_together_equal_layers_apart() {
    let x = Array::from_slice(&[0.3f32, -1.7, 0.91, 0.07], &[1, 1, 4]).unwrap();
    let (a, b) = (rounding(&[1.0, 2.0, -1.0, 0.5]), eye());
    let mut plain = Linear::empty(4, 1, false).unwrap();
    let weight = Array::from_slice(&[1.0f32, 2.0, -1.0, 0.5], &[1, 4]).unwrap();
    plain
        .visit_mut(&mut Path::default(), &mut Set(weight))
        .unwrap();
    for layers in [[&a, &b], [&a, &plain], [&plain, &b]] {
        let together = Linear::forward_all(layers, &x).unwrap();
        for (layer, y) in layers.into_iter().zip(together) {
            let apart = layer.forward(&x).unwrap().to_vec::<f32>().unwrap();
            assert_eq!(y.to_vec::<f32>().unwrap(), apart);
        }
    }
}

/// Derivatives are those of the layer without rounding.
#[test]
fn rounding_does_not_stop_derivatives() {
    let linear = rounding(&[1.0, 2.0, -1.0, 0.5]);
    let x = Array::from_slice(&[0.3f32, -1.7, 0.91, 0.07], &[1, 4]).unwrap();
    let (_, derivatives) = value_and_grad_with(
        |x| Ok(vec![linear.forward(&x[0])?.sum(.., false)?]),
        &[x],
        &[0],
    )
    .unwrap();
    let found = derivatives[0]
        .astype(DType::F32)
        .unwrap()
        .to_vec::<f32>()
        .unwrap();
    assert_eq!(found, [1.0, 2.0, -1.0, 0.5]);
}
