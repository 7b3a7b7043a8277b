//! [`QqLinear`] compared with its formula: both sides quantised and dequantised, then multiplied.

use mlx_core::ops::quantize::{dequantize_with, quantize_with};
use mlx_core::{Array, DType, QuantMode, Scheme, random};
use mlx_nn::{Module, QqLinear};

fn rounded(array: &Array, scheme: Scheme) -> Array {
    let packed = quantize_with(array, scheme).unwrap();
    dequantize_with(
        &packed.packed,
        &packed.scales,
        None,
        scheme,
        Some(DType::F32),
    )
    .unwrap()
}

fn distance(a: &Array, b: &Array) -> f32 {
    let off = a.subtract(b).unwrap().abs().unwrap();
    off.max(.., false).unwrap().item::<f32>().unwrap()
}

#[test]
fn both_sides_are_quantised() {
    for (mode, bits, group) in [(QuantMode::Nvfp4, 4, 16), (QuantMode::Mxfp8, 8, 32)] {
        let scheme = Scheme::new(group, bits, mode).unwrap();
        random::seed(3);
        let mut layer = QqLinear::new(64, 8, scheme).unwrap();
        let key = random::next_key().unwrap();
        let x = random::normal(&key, &[1, 64], DType::F32).unwrap();
        let weight = layer.parameters()["weight"].clone();
        let expected = rounded(&x, scheme)
            .matmul(&rounded(&weight, scheme).t().unwrap())
            .unwrap();
        layer.train(false).unwrap();
        let y = layer.forward(&x).unwrap();
        assert!(distance(&y, &expected) < 1e-4, "{scheme}");
        // A packed weight gives the same result, is saved with its scales, and is not trained.
        layer.quantize().unwrap();
        assert_eq!(distance(&layer.forward(&x).unwrap(), &y), 0.0);
        let names: Vec<String> = layer.parameters().into_keys().collect();
        assert_eq!(names, ["scales", "weight"]);
        assert!(layer.trainable_parameters().is_empty());
        layer.dequantize().unwrap();
        let dense = layer.parameters()["weight"].astype(DType::F32).unwrap();
        assert_eq!(distance(&dense, &rounded(&weight, scheme)), 0.0);
        assert_eq!(layer.trainable_parameters().len(), 1);
    }
}
