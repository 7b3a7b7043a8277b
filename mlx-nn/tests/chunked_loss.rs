//! Cross entropy by slices of the vocabulary equals the plain one and takes less memory.

use std::collections::BTreeMap;

use mlx_core::transforms::value_and_grad_with;
use mlx_core::{Array, DType, QuantMode, Result, Scheme, memory, random};
use mlx_nn::lora::adapt::is_adapter;
use mlx_nn::lora::{LoraConfig, attach};
use mlx_nn::loss::{chunked_cross_entropy, cross_entropy};
use mlx_nn::trainable::{set_trainable, trainable};
use mlx_nn::{Embedding, Head, HeadMatrix, Linear, Module, Param, Path, VisitMut};

const ROWS: i32 = 5;
const HIDDEN: i32 = 32;
const VOCAB: i32 = 101;

/// Random values for every parameter. Their spread is large enough for probabilities to differ.
struct Fill(random::Key);

impl VisitMut for Fill {
    fn param(&mut self, _path: &Path, param: &mut Param) -> Result<()> {
        let [now, later] = self.0.split()?;
        self.0 = later;
        let trainable = param.trainable;
        let dtype = param.value().dtype();
        param.set(random::normal_with(&now, param.shape(), DType::F32, 0.0, 0.5)?.astype(dtype)?);
        param.trainable = trainable;
        Ok(())
    }
}

fn filled<M: Module>(mut module: M) -> M {
    let key = random::Key::new(11).unwrap();
    module
        .visit_mut(&mut Path::default(), &mut Fill(key))
        .unwrap();
    module
}

fn set(module: &mut dyn Module, values: &[Array]) {
    struct Set<'a>(std::slice::Iter<'a, Array>);
    impl VisitMut for Set<'_> {
        fn param(&mut self, _path: &Path, param: &mut Param) -> Result<()> {
            if param.trainable {
                param.set(self.0.next().unwrap().clone());
            }
            Ok(())
        }
    }
    let mut visitor = Set(values.iter());
    module
        .visit_mut(&mut Path::default(), &mut visitor)
        .unwrap();
}

fn inputs(dtype: DType) -> (Array, Array, Array) {
    let key = random::Key::new(5).unwrap();
    let hidden = random::normal(&key, &[1, ROWS, HIDDEN], DType::F32).unwrap();
    // The first and the last token, and the tokens on both sides of a slice's end.
    let targets = Array::from_slice(&[0u32, 39, 40, 79, 100], &[1, ROWS]).unwrap();
    let weights = Array::from_slice(&[1.0f32, 0.0, 2.0, -1.0, 0.5], &[1, ROWS]).unwrap();
    (hidden.astype(dtype).unwrap(), targets, weights)
}

/// The weighted sum of losses, and its gradients for the hidden states and all trainable parameters.
fn graded<M: Module>(
    module: &mut M,
    head: impl Fn(&M) -> Head<'_>,
    dtype: DType,
    chunk: Option<i32>,
) -> (f32, BTreeMap<String, Vec<f32>>) {
    let (hidden, targets, weights) = inputs(dtype);
    let (names, values): (Vec<String>, Vec<Array>) = trainable(module).unwrap().into_iter().unzip();
    let args = [vec![hidden], values.clone()].concat();
    let all: Vec<usize> = (0..args.len()).collect();
    let (loss, grads) = value_and_grad_with(
        |args| {
            set(module, &args[1..]);
            let head = head(module);
            let losses = match chunk {
                None => cross_entropy(&head.forward(&args[0])?, &targets)?,
                Some(chunk) => chunked_cross_entropy(&args[0], &targets, &head, chunk)?,
            };
            Ok(vec![losses.multiply(&weights)?.sum(.., false)?])
        },
        &args,
        &all,
    )
    .unwrap();
    set(module, &values);
    let wide = |array: &Array| array.astype(DType::F32).unwrap().to_vec().unwrap();
    let names = std::iter::once("hidden".to_owned()).chain(names);
    let grads = names.zip(grads.iter().map(wide)).collect();
    (loss[0].item().unwrap(), grads)
}

/// Slices that divide the vocabulary and slices that do not, one slice, and more slices than entries.
fn check<M: Module>(
    what: &str,
    module: &mut M,
    head: impl Fn(&M) -> Head<'_> + Copy,
    expected: &[&str],
    dtype: DType,
    tolerance: f32,
) {
    let (plain, plain_grads) = graded(module, head, dtype, None);
    let names: Vec<&str> = plain_grads.keys().map(String::as_str).collect();
    assert_eq!(names, expected, "{what}");
    for chunk in [1, 40, VOCAB, 1000] {
        let (loss, grads) = graded(module, head, dtype, Some(chunk));
        assert!(
            (loss - plain).abs() <= tolerance * plain.abs().max(1.0),
            "{what}, {chunk}: {loss}, plain {plain}"
        );
        for (name, plain) in &plain_grads {
            let largest = plain.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            assert!(largest > 1e-4, "{what}: {name} has no gradient to compare");
            for (found, plain) in grads[name].iter().zip(plain) {
                assert!(
                    (found - plain).abs() <= tolerance * largest.max(1.0),
                    "{what}, {chunk}: {name}: {found}, plain {plain}"
                );
            }
        }
    }
}

fn own(softcap: Option<f32>) -> impl Fn(&Linear) -> Head<'_> + Copy {
    move |layer| Head {
        matrix: HeadMatrix::Own(layer),
        scale: None,
        softcap,
        excluded: None,
    }
}

/// The same head without some tokens: none of the targets, and all of a slice of one token.
fn partly(excluded: &'static Array) -> impl Fn(&Linear) -> Head<'_> + Copy {
    move |layer| own(None)(layer).without(Some(excluded))
}

fn layer(bias: bool) -> Linear {
    filled(Linear::empty(HIDDEN, VOCAB, bias).unwrap())
}

#[test]
fn slices_equal_the_whole() {
    let mut dense = layer(true);
    set_trainable(&mut dense, |_| true).unwrap();
    check(
        "bias",
        &mut dense,
        own(None),
        &["bias", "hidden", "weight"],
        DType::F32,
        1e-6,
    );
    check(
        "soft cap",
        &mut dense,
        own(Some(2.0)),
        &["bias", "hidden", "weight"],
        DType::F32,
        1e-6,
    );

    let excluded: Vec<bool> = (0..VOCAB).map(|token| (41..79).contains(&token)).collect();
    let excluded = Array::from_slice(&excluded, &[VOCAB]).unwrap();
    let head = partly(Box::leak(Box::new(excluded.clone())));
    let logits = head(&dense).forward(&inputs(DType::F32).0).unwrap();
    let gone = logits.equal(f32::NEG_INFINITY).unwrap();
    let same = gone.equal(&excluded).unwrap().all(.., false).unwrap();
    assert!(same.item::<bool>().unwrap());
    check(
        "excluded",
        &mut dense,
        head,
        &["bias", "hidden", "weight"],
        DType::F32,
        1e-6,
    );

    let mut tied = filled(Embedding::empty(VOCAB, HIDDEN).unwrap());
    set_trainable(&mut tied, |_| true).unwrap();
    check(
        "tied",
        &mut tied,
        tied_head,
        &["hidden", "weight"],
        DType::F32,
        1e-6,
    );

    let mut frozen = layer(false);
    check(
        "frozen",
        &mut frozen,
        own(None),
        &["hidden"],
        DType::F32,
        1e-6,
    );
}

fn tied_head(embedding: &Embedding) -> Head<'_> {
    Head {
        matrix: HeadMatrix::Tied(embedding),
        scale: None,
        softcap: None,
        excluded: None,
    }
}

fn adapted(mut layer: Linear, dora: bool) -> Linear {
    let config = LoraConfig {
        rank: 3,
        scale: 2.0,
        dora,
        ..LoraConfig::default()
    };
    let key = random::Key::new(2).unwrap();
    attach(&mut layer, &config, &key, |_| true).unwrap();
    set_trainable(&mut layer, is_adapter).unwrap();
    // B begins at zero, which makes the gradient of A zero.
    let lora = layer.lora_mut().unwrap();
    let shape = lora.lora_b.shape().to_vec();
    lora.lora_b
        .set(random::normal_with(&key, &shape, DType::F32, 0.0, 0.3).unwrap());
    layer
}

#[test]
fn adapters_on_the_head_learn() {
    let lora = ["hidden", "lora_a", "lora_b"];
    let dora = ["hidden", "lora_a", "lora_b", "m"];
    check(
        "lora",
        &mut adapted(layer(true), false),
        own(None),
        &lora,
        DType::F32,
        2e-6,
    );
    check(
        "dora",
        &mut adapted(layer(false), true),
        own(Some(3.0)),
        &dora,
        DType::F32,
        2e-6,
    );
    for (mode, bits, group) in [(QuantMode::Affine, 4, 32), (QuantMode::Mxfp4, 4, 32)] {
        let scheme = Scheme::new(group, bits, mode).unwrap();
        let mut packed = layer(false);
        mlx_nn::quantize::quantize(&mut packed, |_, _| Some(scheme)).unwrap();
        check(
            "packed",
            &mut packed,
            own(None),
            &["hidden"],
            DType::F32,
            1e-6,
        );
        check(
            "packed, lora",
            &mut adapted(packed.clone(), false),
            own(None),
            &lora,
            DType::F32,
            2e-6,
        );
        check(
            "packed, dora",
            &mut adapted(packed, true),
            own(None),
            &dora,
            DType::F32,
            2e-6,
        );
    }
}

/// In 16 bits the gradients of slices are added in F32, so the error is at most their rounding.
#[test]
fn narrow_types_are_added_wide() {
    let mut dense = layer(true);
    set_trainable(&mut dense, |_| true).unwrap();
    let values: Vec<Array> = trainable(&dense)
        .unwrap()
        .iter()
        .map(|(_, value)| value.astype(DType::BF16).unwrap())
        .collect();
    set(&mut dense, &values);
    check(
        "bf16",
        &mut dense,
        own(None),
        &["bias", "hidden", "weight"],
        DType::BF16,
        1e-2,
    );
}

#[test]
fn gradients_equal_finite_differences() {
    let mut layer = adapted(layer(true), false);
    let head = own(Some(4.0));
    let (_, grads) = graded(&mut layer, head, DType::F32, Some(40));
    let (hidden, targets, weights) = inputs(DType::F32);
    let lora = layer.lora().unwrap();
    let values = [
        ("hidden", hidden),
        ("lora_a", lora.lora_a.value().clone()),
        ("lora_b", lora.lora_b.value().clone()),
    ];
    let loss = |values: &[Array]| -> f64 {
        let mut layer = layer.clone();
        set(&mut layer, &values[1..]);
        let losses = chunked_cross_entropy(&values[0], &targets, &head(&layer), 40).unwrap();
        let losses = losses.multiply(&weights).unwrap().to_vec::<f32>().unwrap();
        losses.into_iter().map(f64::from).sum()
    };
    for (index, (name, value)) in values.iter().enumerate() {
        for at in [0, value.size() / 2, value.size() - 1] {
            const STEP: f32 = 2e-2;
            let moved = |by: f32| {
                let mut numbers = value.to_vec::<f32>().unwrap();
                numbers[at] += by;
                let mut all: Vec<Array> = values.iter().map(|(_, value)| value.clone()).collect();
                all[index] = Array::from_slice(&numbers, value.shape()).unwrap();
                loss(&all)
            };
            let slope = (moved(STEP) - moved(-STEP)) / f64::from(2.0 * STEP);
            let found = f64::from(grads[*name][at]);
            assert!(
                (found - slope).abs() < 2e-3,
                "{name}[{at}]: {found}, slope {slope}"
            );
        }
    }
}

#[test]
fn the_logits_never_exist() {
    const WIDE: i32 = 20_000;
    let mut embedding = filled(Embedding::empty(WIDE, 16).unwrap());
    set_trainable(&mut embedding, |_| true).unwrap();
    let key = random::Key::new(5).unwrap();
    let hidden = random::normal(&key, &[256, 16], DType::F32).unwrap();
    let targets = random::randint(&key, 0, WIDE, &[256], DType::I32).unwrap();
    let (_, values): (Vec<String>, Vec<Array>) = trainable(&embedding).unwrap().into_iter().unzip();
    let args = [vec![hidden], values].concat();
    mlx_core::eval(args.iter().chain([&targets])).unwrap();
    let mut peak = |chunk: Option<i32>| {
        memory::reset_peak().unwrap();
        let before = memory::active().unwrap();
        let (loss, grads) = value_and_grad_with(
            |args| {
                set(&mut embedding, &args[1..]);
                let head = tied_head(&embedding);
                let losses = match chunk {
                    None => cross_entropy(&head.forward(&args[0])?, &targets)?,
                    Some(chunk) => chunked_cross_entropy(&args[0], &targets, &head, chunk)?,
                };
                Ok(vec![losses.sum(.., false)?])
            },
            &args,
            &[0, 1],
        )
        .unwrap();
        mlx_core::eval(loss.iter().chain(&grads)).unwrap();
        memory::peak().unwrap() - before
    };
    let (plain, sliced) = (peak(None), peak(Some(1000)));
    let logits = 256 * WIDE as usize * 4;
    assert!(plain > 2 * logits, "{plain}");
    // The gradient of the matrix twice (its parts and the whole), and a few slices of the logits and of the matrix.
    let gradient = 16 * WIDE as usize * 4;
    let slice = (logits + gradient) / 20;
    assert!(sliced < 2 * gradient + 6 * slice, "{sliced}, plain {plain}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let layer = layer(false);
    let head = own(None);
    let (hidden, targets, _) = inputs(DType::F32);
    let refused = |hidden: &Array, chunk| {
        let result = chunked_cross_entropy(hidden, &targets, &head(&layer), chunk);
        result.unwrap_err().to_string()
    };
    assert!(refused(&hidden, 0).contains("at least 1, given 0"));
    let short = hidden.slice_axis(1, 0, 2).unwrap();
    assert!(refused(&short, 8).contains("must have the same rows"));
}

/// The logits of the first tokens equal those of the whole head, for dense, packed and tied matrices, scaled and
/// capped.
#[test]
fn the_first_tokens_have_the_logits_of_the_whole() {
    let (hidden, _, _) = inputs(DType::F32);
    let scheme = Scheme::new(32, 4, QuantMode::Affine).unwrap();
    for packed in [false, true] {
        let mut layer = filled(Linear::empty(HIDDEN, VOCAB, true).unwrap());
        let mut embedding = filled(Embedding::empty(VOCAB, HIDDEN).unwrap());
        if packed {
            mlx_nn::quantize::quantize(&mut layer, |_, _| Some(scheme)).unwrap();
            mlx_nn::quantize::quantize(&mut embedding, |_, _| Some(scheme)).unwrap();
        }
        for own in [Some(&layer), None] {
            let head = Head::of(own, &embedding, Some(5.0)).scaled(Some(0.5));
            let whole = head.forward(&hidden).unwrap();
            for tokens in [1, 40, VOCAB] {
                let first = head.first(tokens, &hidden).unwrap();
                let expected = whole.slice_axis(-1, 0, tokens).unwrap();
                assert_eq!(first.shape(), expected.shape());
                let off = first.subtract(&expected).unwrap().abs().unwrap();
                let off: f32 = off.max(.., false).unwrap().item().unwrap();
                assert!(off < 1e-5, "packed {packed}, {tokens} tokens: {off}");
            }
        }
    }
}
