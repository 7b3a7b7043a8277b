//! Adapters on embeddings, also as tied heads, and on stacks of experts.

#[path = "adapters/numbers.rs"]
mod numbers;

use mlx_core::{Array, DType, QuantMode, Result, Scheme, random};
use mlx_nn::lora::{LoraConfig, attach, detach, fuse, set_dropout_key};
use mlx_nn::{
    Activation, Embedding, ExpertsConfig, ExpertsMlp, Head, Layout, Module, Param, Path, Routing,
    Visit, VisitMut, Weight, module, quantize,
};
use numbers::{bits, off, values};

struct Block {
    embed: Embedding,
    mlp: ExpertsMlp,
}
module!(Block { embed, mlp });

const VOCAB: i32 = 48;

impl Block {
    /// Tokens to logits, by a tied head.
    fn forward(&self, tokens: &Array) -> Array {
        let x = self.embed.forward(tokens).unwrap();
        let y = self.mlp.forward(&x).unwrap();
        Head::of(None, &self.embed, None).forward(&y).unwrap()
    }
}

/// Normal numbers for the parameters that `choose` selects.
struct Draw<F>(random::Key, F);
impl<F: Fn(&str) -> bool> VisitMut for Draw<F> {
    fn param(&mut self, path: &Path, param: &mut Param) -> Result<()> {
        if (self.1)(path.as_str()) {
            let [now, later] = self.0.split()?;
            self.0 = later;
            let dtype = param.value().dtype();
            let value = random::normal_with(&now, param.shape(), DType::F32, 0.0, 0.2)?;
            param.set(value.astype(dtype)?);
        }
        Ok(())
    }
}

fn key(seed: u64) -> random::Key {
    random::Key::new(seed).unwrap()
}

fn draw(block: &mut Block, seed: u64, choose: impl Fn(&str) -> bool) {
    let mut draw = Draw(key(seed), choose);
    block.visit_mut(&mut Path::default(), &mut draw).unwrap();
}

fn block(scheme: Option<Scheme>, dtype: DType) -> Block {
    struct Cast(DType);
    impl VisitMut for Cast {
        fn param(&mut self, path: &Path, param: &mut Param) -> Result<()> {
            let mut value = param.value().clone();
            if path.as_str() == "embed.weight" {
                // The row of a padding token.
                let rows = value.slice_axis(0, 1, VOCAB)?;
                let zeros = mlx_core::ops::create::zeros(&[1, 64], DType::F32)?;
                value = mlx_core::ops::concat(&[zeros, rows], 0)?;
            }
            param.set(value.astype(self.0)?);
            Ok(())
        }
    }
    let config = ExpertsConfig {
        hidden: 64,
        intermediate: 32,
        n_experts: 4,
        n_identities: 0,
        top_k: 2,
        routing: Routing::softmax(true),
        activation: Activation::Silu,
        clamp: None,
        bias: false,
        scales_inputs: false,
        ungated: None,
        shared: None,
        output_scale: None,
    };
    let mut block = Block {
        embed: Embedding::empty(VOCAB, 64).unwrap(),
        mlp: ExpertsMlp::empty(config).unwrap(),
    };
    draw(&mut block, 1, |_| true);
    let mut cast = Cast(dtype);
    block.visit_mut(&mut Path::default(), &mut cast).unwrap();
    if let Some(scheme) = scheme {
        quantize::quantize(&mut block, |_, _| Some(scheme)).unwrap();
    }
    block
}

fn tokens() -> Array {
    Array::from_slice(&[0u32, 3, 47, 3, 11, 29], &[2, 3]).unwrap()
}

fn config(dora: bool) -> LoraConfig {
    LoraConfig {
        rank: 3,
        scale: 2.0,
        dora,
        ..LoraConfig::default()
    }
}

fn scheme(bits: i32) -> Scheme {
    Scheme::new(32, bits, QuantMode::Affine).unwrap()
}

/// Every base, and adapters without and with magnitudes.
fn cases() -> Vec<(Option<Scheme>, DType, bool)> {
    let bases = [
        (None, DType::F32),
        (None, DType::BF16),
        (Some(scheme(8)), DType::F32),
        (Some(scheme(4)), DType::BF16),
    ];
    let cases = bases.iter();
    let cases = cases.flat_map(|&(scheme, dtype)| [(scheme, dtype, false), (scheme, dtype, true)]);
    cases.collect()
}

#[test]
fn shapes_are_those_of_mlx_lm() {
    struct Shapes(Vec<(String, Vec<i32>)>);
    impl Visit for Shapes {
        fn param(&mut self, path: &Path, param: &Param) -> Result<()> {
            if param.trainable {
                self.0
                    .push((path.as_str().to_owned(), param.shape().to_vec()));
            }
            Ok(())
        }
    }
    let mut block = block(Some(scheme(4)), DType::F32);
    let taken = attach(&mut block, &config(true), &key(3), |path| {
        path == "embed" || path.ends_with("down_proj")
    });
    assert_eq!(taken.unwrap(), ["embed", "mlp.switch_mlp.down_proj"]);
    let mut shapes = Shapes(Vec::new());
    block.visit(&mut Path::default(), &mut shapes).unwrap();
    let expected = [
        ("embed.lora_a", vec![VOCAB, 3]),
        ("embed.lora_b", vec![3, 64]),
        ("embed.m", vec![VOCAB]),
        ("mlp.switch_mlp.down_proj.lora_a", vec![4, 3, 32]),
        ("mlp.switch_mlp.down_proj.lora_b", vec![4, 64, 3]),
        ("mlp.switch_mlp.down_proj.m", vec![4, 64]),
    ];
    let expected = expected.map(|(name, shape)| (name.to_owned(), shape));
    assert_eq!(shapes.0, expected);
}

#[test]
fn a_new_adapter_changes_no_bit() {
    for (scheme, dtype, dora) in cases() {
        let mut block = block(scheme, dtype);
        let before = block.forward(&tokens());
        let taken = attach(&mut block, &config(dora), &key(3), |_| true).unwrap();
        assert_eq!(taken.len(), 5);
        let after = block.forward(&tokens());
        assert_eq!(after.dtype(), dtype);
        assert_eq!(
            bits(&before),
            bits(&after),
            "{scheme:?} {dtype} dora {dora}"
        );
        assert_eq!(detach(&mut block).unwrap().len(), 5);
        assert_eq!(bits(&before), bits(&block.forward(&tokens())));
    }
}

#[test]
fn fused_equals_unfused() {
    for (scheme, dtype, dora) in cases() {
        for only in ["embed", "mlp.switch_mlp"] {
            let mut block = block(scheme, dtype);
            let plain = block.forward(&tokens());
            let taken = attach(&mut block, &config(dora), &key(3), |path| {
                path.starts_with(only)
            });
            let layers = taken.unwrap().len();
            draw(&mut block, 4, |path| path.ends_with("lora_b"));
            let adapted = block.forward(&tokens());
            let what = format!("{scheme:?} {dtype} dora {dora} {only}");
            assert!(off(&plain, &adapted) > 0.05, "{what}: it does something");
            assert_eq!(fuse(&mut block, true).unwrap(), layers);
            let fused = block.forward(&tokens());
            let largest = values(&adapted).into_iter().map(f32::abs);
            let largest = largest.fold(0.0, f32::max);
            let tolerance = largest * if dtype == DType::F32 { 1e-5 } else { 3e-2 };
            let off = off(&adapted, &fused);
            assert!(off < tolerance, "{what}: off by {off} of {largest}");
        }
    }
}

/// A fused stack or table that is packed again equals the packed form of its dense form.
#[test]
fn what_is_fused_is_packed_by_its_scheme() {
    let fused = |dequantize: bool| {
        let mut block = block(Some(scheme(4)), DType::F32);
        attach(&mut block, &config(false), &key(3), |path| {
            path != "mlp.gate"
        })
        .unwrap();
        draw(&mut block, 4, |path| path.ends_with("lora_b"));
        assert_eq!(fuse(&mut block, dequantize).unwrap(), 4);
        block
    };
    let (packed, mut dense) = (fused(false), fused(true));
    assert!(
        matches!(packed.embed.weight(), Weight::Quantized { scheme: found, .. } if *found == scheme(4))
    );
    assert!(matches!(dense.embed.weight(), Weight::Dense(_)));
    quantize::quantize(&mut dense, |_, _| Some(scheme(4))).unwrap();
    assert_eq!(
        bits(&packed.forward(&tokens())),
        bits(&dense.forward(&tokens()))
    );
}

/// Lookups, a tied head and experts drop independently, only with a key, and keep the mean.
#[test]
fn what_is_dropped_keeps_the_mean() {
    let with = LoraConfig {
        dropout: 0.25,
        ..config(false)
    };
    let mut block = block(None, DType::F32);
    attach(&mut block, &with, &key(3), |path| path != "mlp.gate").unwrap();
    draw(&mut block, 4, |path| path.ends_with("lora_b"));
    let outputs = |block: &Block| {
        let ids = mlx_core::ops::create::full(&[4000], 7, DType::I32).unwrap();
        let rows = block.embed.forward(&ids).unwrap();
        let x = mlx_core::ops::create::ones(&[4000, 64], DType::F32).unwrap();
        let head = block.embed.as_linear(&x).unwrap();
        // The result is linear only in the adapter of the last product.
        [rows, head]
    };
    let whole = outputs(&block);
    set_dropout_key(&mut block, Some(&key(9))).unwrap();
    let dropped = outputs(&block);
    for (whole, dropped) in whole.iter().zip(&dropped) {
        assert!(off(whole, dropped) > 0.1);
        let mean = |array: &Array| array.mean(0, false).unwrap();
        let off = off(&mean(whole), &mean(dropped));
        assert!(off < 0.06, "off by {off}");
    }
    let same = outputs(&block);
    assert_eq!(bits(&same[0]), bits(&dropped[0]));
    let experts = |block: &Block| {
        let x = random::normal(&key(2), &[5, 64], DType::F32).unwrap();
        bits(&block.mlp.forward(&x).unwrap())
    };
    let first = experts(&block);
    set_dropout_key(&mut block, Some(&key(10))).unwrap();
    assert_ne!(first, experts(&block));
    set_dropout_key(&mut block, None).unwrap();
    assert_ne!(first, experts(&block));
    assert_eq!(bits(&whole[1]), bits(&outputs(&block)[1]));
}

#[test]
fn what_does_not_fit_is_refused() {
    assert_eq!(Layout::Experts.shapes(&[3, 4], 2), None);
    assert_eq!(Layout::Embedding.rank(&[3, 4, 5]), None);
    let mut block = block(None, DType::F32);
    attach(&mut block, &config(false), &key(3), |path| path == "embed").unwrap();
    let (_, mut lora) = detach(&mut block).unwrap().remove(0);
    lora.layout = Layout::Linear;
    let error = lora.fused(block.embed.weight()).unwrap_err().to_string();
    assert!(error.contains("do not fit a matrix [48, 64]"), "{error}");
}
