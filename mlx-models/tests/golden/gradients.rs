//! Gradients of adapters in families whose layers look tokens up, or whose queries see chosen blocks.

use mlx_core::{Array, Result, random};
use mlx_models::Loaded;
use mlx_nn::lora::attach;
use mlx_nn::{CacheOptions, LoraConfig, ModelCache, value_and_grad};

use super::case::Case;

const CASES: [&str; 5] = [
    "deepseek_v4",
    "deepseek_v41",
    "deepseek_v41_ngrams",
    "longcat_flash",
    "qwen4_exp",
];
const TOKENS: i32 = 40;

/// The sum of the absolute gradients of each adapter's B, by its name. With `store` the step's keys and states are kept.
fn gradients(model: &mut Loaded, store: bool) -> Result<Vec<(String, f32)>> {
    let text: Vec<u32> = (0..TOKENS as u32)
        .map(|at| 3 + (at * at * 7 + at * 13) % 56)
        .collect();
    let tokens = Array::from_slice(&text, &[1, TOKENS])?;
    let options = CacheOptions {
        store,
        ..CacheOptions::default()
    };
    let (_, grads) = value_and_grad(model.model.as_mut(), |model| {
        let mut cache = ModelCache::new(model.states(), 1, options);
        let mut step = cache.begin(&[TOKENS as usize])?;
        let hidden = model.hidden(&tokens, &mut step)?;
        model.logits(&hidden)?.square()?.mean(.., false)
    })?;
    let of_b = grads.iter().filter(|(name, _)| name.ends_with("lora_b"));
    let sums = of_b.map(|(name, grad)| Ok((name.clone(), grad.abs()?.sum(.., false)?.item()?)));
    sums.collect()
}

#[test]
fn gradients_reach_every_adapter_but_those_of_indexers() {
    let key = random::Key::new(5).unwrap();
    let config = LoraConfig {
        rank: 2,
        scale: 1.0,
        ..LoraConfig::default()
    };
    for case in Case::all()
        .into_iter()
        .filter(|case| CASES.contains(&case.name.as_str()))
    {
        let mut model = case.load("config.json", None).unwrap();
        let taken = attach(model.model.as_mut(), &config, &key, |_| true).unwrap();
        let [alone, kept] = [false, true].map(|store| gradients(&mut model, store).unwrap());
        assert_eq!(alone.len(), taken.len(), "{}", case.name);
        for ((name, sum), (other, of_kept)) in alone.iter().zip(&kept) {
            assert_eq!(name, other);
            let off = (sum - of_kept).abs();
            assert!(
                off <= 1e-3 * sum.max(0.1),
                "{}: {name}: {sum}, {of_kept}",
                case.name
            );
            // What an indexer chooses has no derivative.
            assert_eq!(
                *sum == 0.0,
                name.contains(".indexer."),
                "{}: {name}: {sum}",
                case.name
            );
        }
    }
}
