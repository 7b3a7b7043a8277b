//! Layers compared with their formulas.

#[path = "layers/numbers.rs"]
mod numbers;

use mlx_core::{Array, DType, Result, ops, random};
use mlx_nn::{
    Activation, Embedding, ExpertsConfig, ExpertsMlp, LayerNorm, Linear, Module, Param, Path,
    RmsNorm, Routing, Visit, VisitMut, Weight, loss,
};
use numbers::{close, input};

/// Random values for every parameter, and the values by name.
struct Init {
    key: random::Key,
}

impl VisitMut for Init {
    fn param(&mut self, _path: &Path, param: &mut Param) -> Result<()> {
        let [now, later] = self.key.split()?;
        self.key = later;
        param.set(random::normal_with(
            &now,
            param.shape(),
            DType::F32,
            0.0,
            0.5,
        )?);
        Ok(())
    }
}

fn init(module: &mut dyn Module, seed: u64) {
    module
        .visit_mut(
            &mut Path::default(),
            &mut Init {
                key: random::Key::new(seed).unwrap(),
            },
        )
        .unwrap();
}

fn named(module: &dyn Module) -> std::collections::BTreeMap<String, Vec<f32>> {
    struct Collect(std::collections::BTreeMap<String, Vec<f32>>);
    impl Visit for Collect {
        fn param(&mut self, path: &Path, param: &Param) -> Result<()> {
            self.0
                .insert(path.as_str().to_owned(), param.value().to_vec()?);
            Ok(())
        }
    }
    let mut collect = Collect(Default::default());
    module.visit(&mut Path::default(), &mut collect).unwrap();
    collect.0
}

#[test]
fn linear_has_the_names_and_the_sum_of_its_parts() {
    let mut linear = Linear::empty(3, 2, true).unwrap();
    init(&mut linear, 1);
    let parts = named(&linear);
    assert_eq!(parts.keys().collect::<Vec<_>>(), ["bias", "weight"]);
    let x = [0.5f32, -1.0, 2.0];
    let y = linear
        .forward(&Array::from_slice(&x, &[1, 3]).unwrap())
        .unwrap()
        .to_vec::<f32>()
        .unwrap();
    let expected: Vec<f32> = (0..2)
        .map(|row| {
            parts["bias"][row]
                + (0..3)
                    .map(|i| parts["weight"][row * 3 + i] * x[i])
                    .sum::<f32>()
        })
        .collect();
    close(&y, &expected);
}

#[test]
fn an_embedding_is_its_own_head() {
    let mut embedding = Embedding::empty(5, 4).unwrap();
    init(&mut embedding, 2);
    let table = &named(&embedding)["weight"];
    let rows = embedding
        .forward(&Array::from_slice(&[3u32, 0], &[2]).unwrap())
        .unwrap();
    close(
        &rows.to_vec::<f32>().unwrap(),
        &[&table[12..16], &table[..4]].concat(),
    );
    let logits = embedding.as_linear(&rows).unwrap();
    assert_eq!(logits.shape(), [2, 5]);
    let own: f32 = table[12..16].iter().map(|x| x * x).sum();
    close(&logits.to_vec::<f32>().unwrap()[3..4], &[own]);
}

#[test]
fn norms_equal_their_formulas() {
    let x = [1.0f32, -2.0, 0.5, 3.0];
    let array = Array::from_slice(&x, &[1, 4]).unwrap();
    for offset in [0.0, 1.0] {
        let mut norm = RmsNorm::with_offset(4, 0.01, offset).unwrap();
        init(&mut norm, 3);
        let weight = named(&norm)["weight"].clone();
        let rms = (x.iter().map(|x| x * x).sum::<f32>() / 4.0 + 0.01).sqrt();
        let expected: Vec<f32> = (0..4).map(|i| x[i] / rms * (weight[i] + offset)).collect();
        close(
            &norm.forward(&array).unwrap().to_vec::<f32>().unwrap(),
            &expected,
        );
    }
    let mut norm = LayerNorm::empty(4, 0.01, true).unwrap();
    init(&mut norm, 4);
    let parts = named(&norm);
    let mean = x.iter().sum::<f32>() / 4.0;
    let deviation = (x.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 4.0 + 0.01).sqrt();
    let expected: Vec<f32> = (0..4)
        .map(|i| (x[i] - mean) / deviation * parts["weight"][i] + parts["bias"][i])
        .collect();
    close(
        &norm.forward(&array).unwrap().to_vec::<f32>().unwrap(),
        &expected,
    );
}

#[test]
fn activations_equal_their_formulas() {
    let x = [-3.0f32, -0.5, 0.0, 0.7, 4.0];
    let array = Array::from_slice(&x, &[5]).unwrap();
    // erf(x / sqrt 2) of the five inputs, from tables.
    let erf = [-0.997_300_2f32, -0.382_924_9, 0.0, 0.516_072_7, 0.999_936_7];
    let formulas: [(&str, Vec<f32>); 5] = [
        ("silu", x.iter().map(|x| x / (1.0 + (-x).exp())).collect()),
        (
            "gelu",
            x.iter()
                .zip(erf)
                .map(|(x, erf)| x * 0.5 * (1.0 + erf))
                .collect(),
        ),
        (
            "gelu_pytorch_tanh",
            x.iter()
                .map(|x| 0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh()))
                .collect(),
        ),
        ("relu", x.iter().map(|x| x.max(0.0)).collect()),
        ("relu2", x.iter().map(|x| x.max(0.0).powi(2)).collect()),
    ];
    for (name, expected) in formulas {
        let activation = Activation::parse(name).unwrap();
        close(
            &activation.forward(&array).unwrap().to_vec::<f32>().unwrap(),
            &expected,
        );
    }
    let error = Activation::parse("mish").unwrap_err().to_string();
    assert!(
        error.contains("\"mish\"") && error.contains("silu, swish, gelu"),
        "{error}"
    );
}

#[test]
fn losses_equal_their_formulas() {
    let logits = [1.0f32, 2.0, 0.5, 0.0, -1.0, 1000.0];
    let array = Array::from_slice(&logits, &[2, 3]).unwrap();
    let targets = Array::from_slice(&[0i32, 2], &[2]).unwrap();
    let sum: f32 = logits[..3].iter().map(|x| x.exp()).sum();
    let losses = loss::cross_entropy(&array, &targets).unwrap();
    close(&losses.to_vec::<f32>().unwrap(), &[sum.ln() - 1.0, 0.0]);
    let mean = |mask: [bool; 2]| {
        loss::masked_mean(&losses, &Array::from_slice(&mask, &[2]).unwrap())
            .unwrap()
            .item::<f32>()
            .unwrap()
    };
    close(
        &[
            mean([true, false]),
            mean([true, true]),
            mean([false, false]),
        ],
        &[sum.ln() - 1.0, (sum.ln() - 1.0) / 2.0, 0.0],
    );
    let other = Array::from_slice(&[1.0f32, 0.0, 0.5, 0.0, -1.0, 1000.0], &[2, 3]).unwrap();
    close(
        &[loss::mse(&array, &other).unwrap().item::<f32>().unwrap()],
        &[4.0 / 6.0],
    );
    assert!(loss::masked_mean(&losses, &array).is_err());
}

/// Experts compared with a loop over tokens, each with its own experts.
#[test]
fn experts_equal_one_token_at_a_time() {
    for norm_topk_prob in [false, true] {
        let config = ExpertsConfig {
            hidden: 4,
            intermediate: 3,
            n_experts: 5,
            n_identities: 0,
            top_k: 2,
            routing: Routing::softmax(norm_topk_prob),
            activation: Activation::Relu,
            clamp: None,
            bias: false,
            scales_inputs: false,
            ungated: None,
            shared: None,
            output_scale: None,
        };
        let mut experts = ExpertsMlp::empty(config).unwrap();
        init(&mut experts, 5);
        let p = named(&experts);
        let x = input(&[2, 3, 4], 6);
        let found = experts.forward(&x).unwrap();
        assert_eq!(found.shape(), [2, 3, 4]);
        let times = |matrix: &[f32], x: &[f32]| -> Vec<f32> {
            matrix
                .chunks(x.len())
                .map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum())
                .collect()
        };
        let mut expected = Vec::new();
        for token in x.to_vec::<f32>().unwrap().chunks(4) {
            let scores = times(&p["gate.weight"], token);
            let total: f32 = scores.iter().map(|x| x.exp()).sum();
            let mut order: Vec<usize> = (0..5).collect();
            order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
            let kept: f32 = if norm_topk_prob {
                order[..2].iter().map(|&e| scores[e].exp() / total).sum()
            } else {
                1.0
            };
            let mut y = vec![0.0; 4];
            for &expert in &order[..2] {
                let part = |name: &str| {
                    &p[&format!("switch_mlp.{name}.weight")][expert * 12..(expert + 1) * 12]
                };
                let gate = times(part("gate_proj"), token);
                let up = times(part("up_proj"), token);
                let inner: Vec<f32> = gate
                    .iter()
                    .zip(up)
                    .map(|(gate, up)| gate.max(0.0) * up)
                    .collect();
                for (y, down) in y.iter_mut().zip(times(part("down_proj"), &inner)) {
                    *y += scores[expert].exp() / total / kept * down;
                }
            }
            expected.extend(y);
        }
        close(&found.to_vec::<f32>().unwrap(), &expected);
    }
}

#[test]
fn a_weight_tells_its_dense_shape_however_it_is_packed() {
    let scheme = mlx_core::Scheme::new(32, 3, mlx_core::QuantMode::Affine).unwrap();
    let weight = Weight::quantized_like(&[6, 64], scheme).unwrap();
    assert_eq!(weight.shape(), [6, 64]);
    let error = Weight::quantized_like(&[6, 48], scheme)
        .unwrap_err()
        .to_string();
    assert!(error.contains("48 inputs"), "{error}");
    let dense = Weight::Dense(Param::new(ops::zeros(&[6, 64], DType::F32).unwrap()));
    assert_eq!(dense.shape(), [6, 64]);
}
