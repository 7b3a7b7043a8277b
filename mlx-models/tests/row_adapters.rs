//! Adapters by row in every family: in one step, a row with an adapter and one without have the logits that each has
//! alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use mlx_core::{Array, DType, random};
use mlx_models::{LoadOptions, Model, load};
use mlx_nn::lora::{self, RowAdapter, TokenAdapters, set_row_adapters, with_adapters};
use mlx_nn::{CacheOptions, Lora, LoraConfig, ModelCache, Param, Visit, VisitMut};

#[path = "shared/checkpoints.rs"]
mod checkpoints;

use checkpoints::checkpoint;

const PROMPT: [u32; 12] = [7, 1, 30, 12, 44, 2, 19, 55, 3, 21, 9, 40];
const ADAPTER: Option<RowAdapter> = Some(RowAdapter {
    number: 0,
    scale: 1.0,
});

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models")
}

fn model(name: &str) -> Box<dyn Model> {
    let options = LoadOptions {
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    load(checkpoint(name), options).unwrap().model
}

/// The logits after each row of tokens. Every layer with an adapter must be computed, except those whose paths begin with
/// `skipped`.
fn logits(
    model: &dyn Model,
    rows: &[&[u32]],
    adapters: &[Option<RowAdapter>],
    skipped: Option<&str>,
) -> mlx_core::Result<Vec<Vec<f32>>> {
    let mut cache = ModelCache::new(model.states(), rows.len(), CacheOptions::default());
    let widths: Vec<usize> = rows.iter().map(|row| row.len()).collect();
    let mut step = cache.begin(&widths)?;
    step.read_last();
    let tokens = rows.concat();
    let tokens = Array::from_slice(&tokens, &[1, tokens.len() as i32])?;
    let adapters = TokenAdapters::of_step(&step, adapters)?.map(TokenAdapters::recording);
    let logits = with_adapters(adapters.as_ref(), || {
        let hidden = model.hidden(&tokens, &mut step)?;
        model.logits(&hidden.squeeze(0)?)
    })?;
    if let Some(adapters) = adapters {
        let mut missed = adapters.missed(model)?;
        // Heads for multi-token prediction are not enabled here.
        let is_skipped = |path: &str| skipped.is_some_and(|skipped| path.starts_with(skipped));
        missed.retain(|path| !path.starts_with("mtp.") && !is_skipped(path));
        if !missed.is_empty() {
            let message = format!("without their adapters: {missed:?}");
            return Err(mlx_core::Error::new(mlx_core::ErrorKind::Invalid, message));
        }
    }
    let all = logits.astype(DType::F32)?.to_vec::<f32>()?;
    Ok(all
        .chunks(all.len() / rows.len())
        .map(<[f32]>::to_vec)
        .collect())
}

/// The layers that have adapters by row, and the others.
struct Paths([BTreeSet<String>; 2]);

impl Visit for Paths {
    fn adaptable(
        &mut self,
        path: &mlx_nn::Path,
        layer: mlx_nn::AdaptableLayer<'_>,
    ) -> mlx_core::Result<()> {
        let set = &mut self.0[usize::from(layer.by_row.is_none())];
        set.insert(path.as_str().to_owned());
        Ok(())
    }
}

struct Fill(random::Key);

impl VisitMut for Fill {
    fn param(&mut self, path: &mlx_nn::Path, param: &mut Param) -> mlx_core::Result<()> {
        if path.as_str().ends_with(".lora_b") {
            let [now, later] = self.0.split()?;
            self.0 = later;
            param.set(random::normal_with(
                &now,
                param.shape(),
                DType::F32,
                0.0,
                0.05,
            )?);
        }
        Ok(())
    }
}

fn off(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().zip(b);
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn rows_of_every_family_have_their_adapters() {
    let mut names: Vec<String> = std::fs::read_dir(testdata())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("config.json").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    let only = std::env::var("MLX_TEST_CASE").ok();
    names.retain(|name| only.as_ref().is_none_or(|only| only == name));
    assert!(only.is_some() || names.len() > 100, "{}", names.len());
    let mut refused = BTreeSet::new();
    let mut faults = Vec::new();
    for name in names {
        match check(&name) {
            Ok(true) => drop(refused.insert(name)),
            Ok(false) => {}
            Err(fault) => faults.push(format!("{name}: {fault}")),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    // The joint projection of compressed keys and values.
    assert!(
        only.is_some() || refused.contains("deepseek_v3"),
        "{refused:?}"
    );
}

/// Compares rows in one step with each row alone. Returns whether some layer has no adapters by row.
fn check(name: &str) -> Result<bool, String> {
    let (base, mut with) = (model(name), model(name));
    let mut paths = Paths(Default::default());
    base.visit(&mut mlx_nn::Path::default(), &mut paths)
        .unwrap();
    let Paths([by_row, others]) = paths;
    let key = random::Key::new(1).unwrap();
    let config = LoraConfig {
        rank: 2,
        ..Default::default()
    };
    let by_row = |path: &str| by_row.contains(path);
    lora::attach(with.as_mut(), &config, &key, by_row).unwrap();
    let mut fill = Fill(random::Key::new(2).unwrap());
    with.visit_mut(&mut mlx_nn::Path::default(), &mut fill)
        .unwrap();
    let (long, short) = (&PROMPT[..], &PROMPT[..5]);
    // The prompts have no more blocks of two tokens than this indexer chooses, so it is not computed.
    let skipped = (name == "deepseek_v41").then_some("model.layers.1.self_attn.indexer.");
    let of =
        |model: &dyn Model, row: &[u32]| logits(model, &[row], &[None], skipped).unwrap().remove(0);
    let alone = [long, short].map(|row| [of(base.as_ref(), row), of(with.as_ref(), row)]);
    let adapter: BTreeMap<String, Lora> =
        lora::detach(with.as_mut()).unwrap().into_iter().collect();
    set_row_adapters(base.as_ref(), &[Some(&adapter)]).unwrap();
    for chosen in [
        [ADAPTER, None],
        [None, ADAPTER],
        [ADAPTER, ADAPTER],
        [None, None],
    ] {
        let found = logits(base.as_ref(), &[long, short], &chosen, skipped);
        for (row, found) in found.map_err(|error| error.to_string())?.iter().enumerate() {
            let [plain, adapted] = &alone[row];
            let expected = if chosen[row].is_some() {
                adapted
            } else {
                plain
            };
            let error = off(found, expected);
            if error.is_nan() || error >= 1e-3 {
                return Err(format!("{chosen:?}, row {row}: {error}"));
            }
        }
    }
    let [plain, adapted] = &alone[0];
    if off(plain, adapted) < 1e-3 {
        return Err("the adapter does not show".to_owned());
    }
    let Some(path) = others.first() else {
        return Ok(false);
    };
    let mut whole = adapter.clone();
    whole.insert(path.clone(), adapter.values().next().unwrap().clone());
    let error = set_row_adapters(base.as_ref(), &[Some(&whole)]).unwrap_err();
    match error.to_string().contains("no adapters by request") {
        true => Ok(true),
        false => Err(error.to_string()),
    }
}
