//! Adapters by row: each token of a computation has the result of its adapter alone.

use std::collections::BTreeMap;

use mlx_core::{Array, DType, Result, random};
use mlx_nn::experts::ExpertsLinear;
use mlx_nn::lora::{self, RowAdapter, TokenAdapters, set_row_adapters};
use mlx_nn::{
    Embedding, Head, HeadMatrix, Linear, Lora, LoraConfig, Module, Param, Path, VisitMut, module,
};

#[derive(Clone)]
struct Layers {
    table: Embedding,
    linear: Linear,
    experts: ExpertsLinear,
}
module!(Layers {
    table,
    linear,
    experts
});

/// Normal numbers for all parameters, or for those of adapters.
struct Draw {
    key: random::Key,
    only_adapters: bool,
}

impl VisitMut for Draw {
    fn param(&mut self, path: &Path, param: &mut Param) -> Result<()> {
        let is_adapter = lora::adapt::is_adapter(path.as_str());
        if is_adapter == self.only_adapters {
            let [now, later] = self.key.split()?;
            self.key = later;
            let dtype = param.value().dtype();
            let drawn = random::normal_with(&now, param.shape(), DType::F32, 0.0, 0.5)?;
            let drawn = match path.as_str().ends_with(".m") {
                // Magnitudes are positive.
                true => drawn.abs()?,
                false => drawn,
            };
            param.set(drawn.astype(dtype)?);
        }
        Ok(())
    }
}

fn draw(layers: &mut Layers, seed: u64, only_adapters: bool) {
    let key = random::Key::new(seed).unwrap();
    let mut visitor = Draw { key, only_adapters };
    layers
        .visit_mut(&mut Path::default(), &mut visitor)
        .unwrap();
}

fn layers() -> Layers {
    let mut layers = Layers {
        table: Embedding::empty(20, 8).unwrap(),
        linear: Linear::empty(8, 12, true).unwrap(),
        experts: ExpertsLinear::with_bias(3, 8, 6).unwrap(),
    };
    draw(&mut layers, 1, false);
    layers
}

/// The layers with an adapter attached, and the adapter by itself.
fn adapted(base: &Layers, config: &LoraConfig, seed: u64) -> (Layers, BTreeMap<String, Lora>) {
    let mut with = base.clone();
    let key = random::Key::new(seed).unwrap();
    lora::attach(&mut with, config, &key, |_| true).unwrap();
    draw(&mut with, seed + 1, true);
    let mut without = with.clone();
    let adapter = lora::detach(&mut without).unwrap();
    (with, adapter.into_iter().collect())
}

fn configs() -> [LoraConfig; 4] {
    let config = LoraConfig {
        scale: 0.7,
        ..Default::default()
    };
    [
        LoraConfig { rank: 2, ..config },
        LoraConfig {
            rank: 5,
            scale: 1.3,
            ..config
        },
        LoraConfig {
            rank: 3,
            dora: true,
            ..config
        },
        LoraConfig {
            rank: 2,
            dtype: DType::BF16,
            ..config
        },
    ]
}

const TOKENS: i32 = 7;

fn x() -> Array {
    random::normal(&random::Key::new(40).unwrap(), &[1, TOKENS, 8], DType::F32).unwrap()
}

/// What every layer computes: `[T, ..]` each.
fn outputs(layers: &Layers, x: &Array) -> Vec<Array> {
    let flat = |y: Array| y.reshape(&[TOKENS, -1]).unwrap();
    let ids = Array::from_slice(&[3u32, 0, 19, 7, 7, 1, 12], &[1, TOKENS]).unwrap();
    let head = Head {
        matrix: HeadMatrix::Tied(&layers.table),
        scale: None,
        softcap: None,
        excluded: None,
    };
    let experts: Vec<i32> = (0..TOKENS * 2).map(|at| at % 3).collect();
    let experts = Array::from_slice(&experts, &[TOKENS, 2]).unwrap();
    let each = x.reshape(&[TOKENS, 1, 1, 8]).unwrap();
    vec![
        flat(layers.linear.forward(x).unwrap()),
        flat(layers.table.forward(&ids).unwrap()),
        flat(layers.table.as_linear(x).unwrap()),
        flat(head.first(9, x).unwrap()),
        flat(layers.experts.forward(&each, &experts).unwrap()),
    ]
}

fn rows(array: &Array) -> Vec<Vec<f32>> {
    let columns = array.dim(1).unwrap() as usize;
    let all = array.to_vec::<f32>().unwrap();
    all.chunks(columns).map(<[f32]>::to_vec).collect()
}

fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    for (found, expected) in found.iter().zip(expected) {
        let error = (found - expected).abs() / (1.0 + expected.abs());
        assert!(error < 1e-5, "{what}: {found}, expected {expected}");
    }
}

#[test]
fn each_token_has_its_adapter() {
    let base = layers();
    let (with, adapters): (Vec<_>, Vec<_>) = (configs().iter().zip(1..))
        .map(|(config, seed)| adapted(&base, config, seed * 100))
        .unzip();
    let all: Vec<_> = adapters.iter().map(Some).collect();
    set_row_adapters(&base, &all).unwrap();
    let x = x();
    let plain = outputs(&base, &x);
    let alone: Vec<Vec<Array>> = with.iter().map(|with| outputs(with, &x)).collect();
    let of = |number| Some(RowAdapter { number, scale: 1.0 });
    let choice = [of(0), None, of(1), of(2), of(3), of(1), None];
    let tokens = TokenAdapters::of(&choice).unwrap().recording();
    let mixed = tokens.scope(|| outputs(&base, &x));
    for (layer, mixed) in mixed.iter().enumerate() {
        for (token, own) in choice.iter().enumerate() {
            let expected = match own {
                Some(adapter) => &alone[adapter.number][layer],
                None => &plain[layer],
            };
            let what = format!("layer {layer}, token {token}");
            assert_close(&rows(mixed)[token], &rows(expected)[token], &what);
        }
    }
    assert_eq!(tokens.missed(&base).unwrap(), Vec::<String>::new());
    // Outside of the scope no layer has an adapter, and a token has the same bits beside any others.
    for (layer, again) in outputs(&base, &x).iter().enumerate() {
        assert_eq!(rows(again), rows(&plain[layer]));
    }
    for number in 0..with.len() {
        let uniform = TokenAdapters::all(RowAdapter { number, scale: 1.0 });
        let uniform = uniform.scope(|| outputs(&base, &x));
        for (layer, uniform) in uniform.iter().enumerate() {
            for (token, own) in choice.iter().enumerate() {
                if *own == of(number) {
                    assert_eq!(
                        rows(uniform)[token],
                        rows(&mixed[layer])[token],
                        "{layer}, {token}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_scale_multiplies_the_correction() {
    let base = layers();
    let config = configs()[0];
    let (mut with, adapter) = adapted(&base, &config, 9);
    set_row_adapters(&base, &[None, Some(&adapter)]).unwrap();
    struct Halve;
    impl VisitMut for Halve {
        fn adaptable(&mut self, _path: &Path, layer: lora::Adaptable<'_>) -> Result<()> {
            if let Some(lora) = layer.lora {
                lora.scale *= 0.5;
            }
            Ok(())
        }
    }
    with.visit_mut(&mut Path::default(), &mut Halve).unwrap();
    let x = x();
    let tokens = TokenAdapters::all(RowAdapter {
        number: 1,
        scale: 0.5,
    });
    let found = tokens.scope(|| outputs(&base, &x));
    for (layer, (found, expected)) in found.iter().zip(outputs(&with, &x)).enumerate() {
        for (found, expected) in rows(found).iter().zip(rows(&expected)) {
            assert_close(found, &expected, &format!("layer {layer}"));
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let base = layers();
    let (with, adapter) = adapted(&base, &configs()[0], 5);
    set_row_adapters(&base, &[Some(&adapter)]).unwrap();
    let x = x();
    let first = TokenAdapters::all(RowAdapter {
        number: 0,
        scale: 1.0,
    });
    let before: Vec<_> = first
        .scope(|| outputs(&base, &x))
        .iter()
        .map(rows)
        .collect();
    let error = |adapters: &[Option<&BTreeMap<String, Lora>>], module: &Layers| {
        set_row_adapters(module, adapters).unwrap_err().to_string()
    };
    let mut stranger = adapter.clone();
    stranger.insert("other".to_owned(), adapter["linear"].clone());
    assert!(error(&[Some(&stranger)], &base).contains("other: no layer"));
    let mut wrong = adapter.clone();
    wrong.insert("linear".to_owned(), adapter["table"].clone());
    let message = error(&[Some(&wrong)], &base);
    assert!(
        message.contains("linear: lora_a") && message.contains("do not fit"),
        "{message}"
    );
    assert!(error(&[Some(&adapter)], &with).contains("has an adapter of its own"));
    let after: Vec<_> = first
        .scope(|| outputs(&base, &x))
        .iter()
        .map(rows)
        .collect();
    assert_eq!(before, after);

    // A layer that sees other tokens than the step has.
    let two = TokenAdapters::of(&[
        None,
        Some(RowAdapter {
            number: 0,
            scale: 1.0,
        }),
    ])
    .unwrap();
    let refused = two
        .scope(|| base.linear.forward(&x))
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("[1, 7, 8]") && refused.contains("[2]"),
        "{refused}"
    );
    assert_eq!(
        two.recording().missed(&base).unwrap(),
        ["table", "linear", "experts"]
    );
}
