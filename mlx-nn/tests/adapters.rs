//! Adapters: no effect at first, the same result when fused, and dropout only with a key.

#[path = "adapters/numbers.rs"]
mod numbers;

use mlx_core::{Array, DType, QuantMode, Result, Scheme, random};
use mlx_nn::lora::{LoraConfig, attach, detach, fuse, set_dropout_key};
use mlx_nn::trainable::{set_trainable, trainable};
use mlx_nn::{
    Activation, GatedMlp, Linear, Module, Param, Path, VisitMut, Weight, module, quantize,
};
use numbers::{bits, off, values};

struct Block {
    head: Linear,
    mlp: GatedMlp,
}
module!(Block { head, mlp });

impl Block {
    fn forward(&self, x: &Array) -> Array {
        let y = self.mlp.forward(x).unwrap();
        self.head.forward(&y).unwrap()
    }
}

/// Normal numbers for the parameters that `choose` selects.
struct Draw<F>(random::Key, F);
impl<F: Fn(&str) -> bool> VisitMut for Draw<F> {
    fn param(&mut self, path: &Path, param: &mut Param) -> Result<()> {
        if (self.1)(path.as_str()) {
            let [now, later] = self.0.split()?;
            self.0 = later;
            param.set(random::normal_with(
                &now,
                param.shape(),
                DType::F32,
                0.0,
                0.3,
            )?);
        }
        Ok(())
    }
}

fn key(seed: u64) -> random::Key {
    random::Key::new(seed).unwrap()
}

fn draw(block: &mut Block, seed: u64, choose: impl Fn(&str) -> bool) {
    block
        .visit_mut(&mut Path::default(), &mut Draw(key(seed), choose))
        .unwrap();
}

fn block(scheme: Option<Scheme>, dtype: DType) -> Block {
    struct Cast(DType);
    impl VisitMut for Cast {
        fn param(&mut self, _path: &Path, param: &mut Param) -> Result<()> {
            param.set(param.value().astype(self.0)?);
            Ok(())
        }
    }
    let mut block = Block {
        head: Linear::empty(64, 32, true).unwrap(),
        mlp: GatedMlp::empty(64, 128, false, Activation::Silu).unwrap(),
    };
    draw(&mut block, 1, |_| true);
    block
        .visit_mut(&mut Path::default(), &mut Cast(dtype))
        .unwrap();
    if let Some(scheme) = scheme {
        quantize::quantize(&mut block, |_, _| Some(scheme)).unwrap();
    }
    block
}

fn input(dtype: DType) -> Array {
    let x = random::normal(&key(2), &[3, 64], DType::F32).unwrap();
    x.astype(dtype).unwrap()
}

fn config(dora: bool) -> LoraConfig {
    LoraConfig {
        rank: 4,
        scale: 2.0,
        dora,
        ..LoraConfig::default()
    }
}

fn scheme(bits: i32) -> Scheme {
    Scheme::new(32, bits, QuantMode::Affine).unwrap()
}

fn bases() -> Vec<(Option<Scheme>, DType)> {
    let affine = scheme(8);
    vec![
        (None, DType::F32),
        (None, DType::BF16),
        (Some(affine), DType::F32),
        (Some(affine), DType::BF16),
    ]
}

#[test]
fn a_new_adapter_changes_no_bit() {
    for (scheme, dtype) in bases() {
        for dora in [false, true] {
            let mut block = block(scheme, dtype);
            let x = input(dtype);
            let before = block.forward(&x);
            let taken = attach(&mut block, &config(dora), &key(3), |_| true).unwrap();
            assert_eq!(taken.len(), 4);
            let after = block.forward(&x);
            assert_eq!(after.dtype(), dtype);
            assert_eq!(
                bits(&before),
                bits(&after),
                "{scheme:?} {dtype} dora {dora}"
            );
            // The matrices of the layers are frozen, and A, B and m are not.
            let names: Vec<String> = trainable(&block)
                .unwrap()
                .into_iter()
                .map(|p| p.0)
                .collect();
            assert_eq!(names.len(), if dora { 12 } else { 8 });
            assert!(
                names.contains(&"mlp.up_proj.lora_a".to_owned()),
                "{names:?}"
            );
        }
    }
}

#[test]
fn fused_equals_unfused() {
    for (scheme, dtype) in bases() {
        for dora in [false, true] {
            let mut block = block(scheme, dtype);
            let x = input(dtype);
            let plain = block.forward(&x);
            attach(&mut block, &config(dora), &key(3), |path| path != "head").unwrap();
            draw(&mut block, 4, |path| path.ends_with("lora_b"));
            let adapted = block.forward(&x);
            assert!(off(&plain, &adapted) > 1.0, "the adapter does something");
            assert_eq!(fuse(&mut block, true).unwrap(), 3);
            let fused = block.forward(&x);
            let largest = values(&adapted)
                .into_iter()
                .map(f32::abs)
                .fold(0.0, f32::max);
            let tolerance = largest * if dtype == DType::F32 { 1e-5 } else { 2e-2 };
            let off = off(&adapted, &fused);
            assert!(
                off < tolerance,
                "{scheme:?} {dtype} dora {dora}: off by {off}"
            );
            assert!(detach(&mut block).unwrap().is_empty());
        }
    }
}

/// A fused matrix that is packed again equals the packed form of its dense form.
#[test]
fn a_fused_matrix_is_packed_by_its_scheme() {
    let scheme = scheme(4);
    let fused = |dequantize: bool| {
        let mut block = block(Some(scheme), DType::F32);
        attach(&mut block, &config(false), &key(3), |path| path == "head").unwrap();
        draw(&mut block, 4, |path| path.ends_with("lora_b"));
        fuse(&mut block, dequantize).unwrap();
        block
    };
    let (packed, mut dense) = (fused(false), fused(true));
    assert!(
        matches!(packed.head.weight(), Weight::Quantized { scheme: found, .. } if *found == scheme)
    );
    assert!(matches!(dense.head.weight(), Weight::Dense(_)));
    quantize::quantize(&mut dense, |path, _| (path == "head").then_some(scheme)).unwrap();
    let x = input(DType::F32);
    assert_eq!(bits(&packed.forward(&x)), bits(&dense.forward(&x)));
}

#[test]
fn a_detached_adapter_leaves_the_base() {
    let mut block = block(None, DType::F32);
    let x = input(DType::F32);
    let before = bits(&block.forward(&x));
    attach(&mut block, &config(true), &key(3), |_| true).unwrap();
    draw(&mut block, 4, |path| path.ends_with("lora_b"));
    assert_ne!(before, bits(&block.forward(&x)));
    let taken = detach(&mut block).unwrap();
    assert_eq!(taken.len(), 4);
    assert_eq!(before, bits(&block.forward(&x)));
}

#[test]
fn inputs_are_dropped_only_with_a_key() {
    let mut block = block(None, DType::F32);
    let with = LoraConfig {
        dropout: 0.5,
        ..config(false)
    };
    attach(&mut block, &with, &key(3), |_| true).unwrap();
    draw(&mut block, 4, |path| path.ends_with("lora_b"));
    let x = input(DType::F32);
    let whole = bits(&block.forward(&x));
    let mut dropped = |seed: u64| {
        set_dropout_key(&mut block, Some(&key(seed))).unwrap();
        bits(&block.forward(&x))
    };
    let first = dropped(5);
    assert_ne!(whole, first);
    assert_ne!(first, dropped(6));
    assert_eq!(first, dropped(5));
    set_dropout_key(&mut block, None).unwrap();
    assert_eq!(whole, bits(&block.forward(&x)));
}

/// The mean over many dropout keys is the result without dropout.
#[test]
fn dropping_keeps_the_mean() {
    let linear = Linear::empty(16, 4, false).unwrap();
    let config = LoraConfig {
        dropout: 0.25,
        ..config(false)
    };
    struct Head {
        head: Linear,
    }
    module!(Head { head });
    let mut head = Head { head: linear };
    head.visit_mut(&mut Path::default(), &mut Draw(key(1), |_: &str| true))
        .unwrap();
    attach(&mut head, &config, &key(3), |_| true).unwrap();
    head.visit_mut(
        &mut Path::default(),
        &mut Draw(key(4), |path: &str| path.ends_with("lora_b")),
    )
    .unwrap();
    let lora = head.head.lora().unwrap().clone();
    let x = mlx_core::ops::create::ones(&[20_000, 16], DType::F32).unwrap();
    let expected = lora.delta(&x).unwrap().mean(0, false).unwrap();
    set_dropout_key(&mut head, Some(&key(9))).unwrap();
    let lora = head.head.lora().unwrap();
    let found = lora.delta(&x).unwrap().mean(0, false).unwrap();
    assert!(off(&expected, &found) < 0.02, "{}", off(&expected, &found));
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let mut block = block(Some(scheme(4)), DType::F32);
    let error = |result: Result<Vec<String>>| result.unwrap_err().to_string();
    let none = attach(&mut block, &config(false), &key(0), |_| false);
    assert!(error(none).contains("the module has 4: head, mlp.gate_proj"));
    for (wrong, message) in [
        (
            LoraConfig {
                rank: 0,
                ..config(false)
            },
            "rank must be at least 1, given 0",
        ),
        (
            LoraConfig {
                dropout: 1.0,
                ..config(false)
            },
            "dropout must be in [0, 1), given 1",
        ),
        (
            LoraConfig {
                dtype: DType::I32,
                ..config(false)
            },
            "F32, BF16 or F16",
        ),
    ] {
        let error = error(attach(&mut block, &wrong, &key(0), |_| true));
        assert!(error.contains(message), "{error}");
    }
    let error = set_trainable(&mut block, |path| path.ends_with(".scales")).unwrap_err();
    assert!(
        error.to_string().starts_with("head.scales is quantised"),
        "{error}"
    );
    let error = set_trainable(&mut block, |_| false).unwrap_err();
    assert_eq!(error.to_string(), "nothing is chosen to be trained");
    // A bias beside a packed weight can be trained.
    assert_eq!(
        set_trainable(&mut block, |path| path == "head.bias").unwrap(),
        32
    );
}
