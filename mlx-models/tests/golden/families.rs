//! Properties of every family: the float cases of `testdata/models` are the rows of one table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use mlx_core::{Array, DType, QuantMode, Result, Scheme, random};
use mlx_models::adapter::{self, AdapterConfig, AdapterKind};
use mlx_models::convert::{ConvertOptions, Packing, Recipe, convert};
use mlx_models::{LoadOptions, Loaded, Registry, known_types, load};
use mlx_nn::lora::{adapt, attach, fuse};
use mlx_nn::trainable::trainable;
use mlx_nn::{CacheOptions, LoraConfig, ModelCache, Visit, VisitMut, Weight, quantize};

use super::case::{Case, Kind};
use super::renamed::FAMILIES;
use super::run::{log_probs, prompt_logits};

/// The largest difference allowed between two ways of computing the same logits in float32. Logits
/// are a few units large.
const NOISE: f32 = 3e-4;

fn cases() -> impl Iterator<Item = Case> {
    let cases = Case::all().into_iter();
    cases.filter(|case| case.kind == Kind::Float)
}

fn cache(model: &Loaded, rows: usize) -> ModelCache {
    let options = CacheOptions {
        ..CacheOptions::default()
    };
    ModelCache::new(model.model.states(), rows, options)
}

fn tokens(n: usize, seed: u32) -> Vec<u32> {
    let token = |at: u32| 8 + (at * at * 5 + at * seed * 7 + seed) % 50;
    (0..n as u32).map(token).collect()
}

/// Logits of the last token of each row: `[B, V]`.
fn step(model: &Loaded, cache: &mut ModelCache, rows: &[&[u32]]) -> Result<Vec<Vec<f32>>> {
    let widths: Vec<usize> = rows.iter().map(|row| row.len()).collect();
    let ids = rows.concat();
    let input = Array::from_slice(&ids, &[1, ids.len() as i32])?;
    let mut step = cache.begin(&widths)?;
    let hidden = model.model.hidden(&input, &mut step)?;
    step.commit_all()?;
    let logits = model.model.logits(&hidden)?;
    let mut end = 0;
    let last = widths.iter().map(|&width| {
        end += width as i32;
        logits.slice_axis(1, end - 1, end)?.to_vec::<f32>()
    });
    last.collect()
}

fn off(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().zip(b);
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn logits(model: &Loaded, prompt: &[u32]) -> Vec<f32> {
    let logits = prompt_logits(model, prompt).unwrap();
    log_probs(&logits).unwrap()
}

#[test]
fn every_family_has_a_case() {
    let found: BTreeSet<String> = cases().map(|case| case.model_type).collect();
    let registry = Registry::default();
    let has_case = |known: &&str| {
        let family = registry.family(known).unwrap();
        let has = |name: &&str| found.contains(*name) || FAMILIES.contains(name);
        family.types.iter().any(has)
    };
    let missing: Vec<_> = known_types()
        .into_iter()
        .filter(|known| !has_case(known))
        .collect();
    assert!(missing.is_empty(), "families without a case: {missing:?}");
}

#[test]
fn every_key_of_every_config_is_known() {
    for case in Case::all() {
        for config in &case.configs {
            let model = case.load(config, None).unwrap();
            let unread = model.info.unread_keys;
            assert!(unread.is_empty(), "{}: {config}: {unread:?}", case.name);
        }
    }
}

/// Rows of other lengths in the same batch do not change a row's results, in prefill and in decode.
/// Nor do a preemption and a new computation in another batch.
#[test]
fn a_row_of_a_batch_equals_the_row_alone() {
    for case in cases() {
        let model = case.load("config.json", None).unwrap();
        let of = model.model.as_ref();
        let border = of.switches_after().or(of.grows_after());
        let border = border.unwrap_or(usize::MAX);
        let rows = [3, 25, 11].map(|n| tokens(n.min(border - 6), n as u32));
        let ends = rows.each_ref().map(|row| row.len() - 2);
        let mut alone = Vec::new();
        for (row, end) in rows.iter().zip(ends) {
            let mut cache = cache(&model, 1);
            let parts = [&row[..end], &row[end..=end], &row[end + 1..]];
            let steps = parts.map(|part| step(&model, &mut cache, &[part]).unwrap().remove(0));
            alone.push(steps);
        }
        let check = |what: &str, at: usize, row: usize, found: &[f32]| {
            let off = off(&alone[row][at], found);
            assert!(
                off < NOISE,
                "{}: {what}, row {row}: off by {off}",
                case.name
            );
        };
        let mut batch = cache(&model, 3);
        let first: Vec<&[u32]> = rows
            .iter()
            .zip(ends)
            .map(|(row, end)| &row[..end])
            .collect();
        for (row, found) in step(&model, &mut batch, &first).unwrap().iter().enumerate() {
            check("prefill", 0, row, found);
        }
        // Row 0 is preempted while the other rows continue.
        batch.select(&[1, 2]).unwrap();
        let next = [1, 2].map(|row| &rows[row][ends[row]..=ends[row]]);
        for (at, found) in step(&model, &mut batch, &next).unwrap().iter().enumerate() {
            check("decode", 1, at + 1, found);
        }
        let mut resumed = cache(&model, 1);
        let found = step(&model, &mut resumed, &[&rows[0][..=ends[0]]]).unwrap();
        check("computed again", 1, 0, &found[0]);
        batch.join(&resumed).unwrap();
        let last = [1, 2, 0].map(|row| &rows[row][ends[row] + 1..]);
        let found = step(&model, &mut batch, &last).unwrap();
        for (at, row) in [1, 2, 0].into_iter().enumerate() {
            check("resumed", 2, row, &found[at]);
        }
    }
}

/// A quantised folder gives the same results as a model that is quantised in memory, and as its unpacked weights.
#[test]
fn quantised_files_equal_their_weights() {
    let schemes = [
        Scheme::new(32, 4, QuantMode::Affine).unwrap(),
        Scheme::default_of(QuantMode::Mxfp4),
    ];
    let is_dense = |case: &Case| !case.config("config.json")["quantization_config"].is_object();
    for case in cases().filter(is_dense) {
        let prompt = &case.prompts[0];
        for scheme in schemes {
            let dir = tempfile::tempdir().unwrap();
            let options = ConvertOptions {
                packing: Packing::Quantize(Recipe::uniform(scheme)),
                dtype: Some(DType::F32),
                ..ConvertOptions::default()
            };
            let (config, files) = (case.config("config.json"), case.files());
            let place = format!("{}: {scheme}", case.name);
            convert("here", config, files, dir.path(), &options, &mut |_, _| {
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{place}: {error}"));
            let mut packed = reloaded(dir.path(), &place);
            let found = logits(&packed, prompt);
            let schemes: BTreeMap<String, Scheme> = weights(&packed)
                .into_iter()
                .filter_map(|(path, scheme)| Some((path, scheme?)))
                .collect();
            assert!(!schemes.is_empty(), "{place}");
            let mut dense = case.load("config.json", None).unwrap();
            quantize::quantize(dense.model.as_mut(), |path, _| schemes.get(path).copied()).unwrap();
            let off_memory = off(&found, &logits(&dense, prompt));
            assert!(off_memory < 1e-6, "{place}: in memory, off by {off_memory}");
            quantize::dequantize(packed.model.as_mut(), Some(DType::F32)).unwrap();
            let off = off(&found, &logits(&packed, prompt));
            assert!(off < NOISE, "{place}: unpacked, off by {off}");
        }
    }
}

/// A checkpoint that is written without quantisation has the tensors of its source.
#[test]
fn written_files_equal_their_source() {
    for case in cases() {
        let dir = tempfile::tempdir().unwrap();
        let options = ConvertOptions {
            dtype: Some(DType::F32),
            ..ConvertOptions::default()
        };
        let (config, files) = (case.config("config.json"), case.files());
        convert("here", config, files, dir.path(), &options, &mut |_, _| {
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let prompt = &case.prompts[0];
        let expected = logits(&case.load("config.json", None).unwrap(), prompt);
        let off = off(
            &expected,
            &logits(&reloaded(dir.path(), &case.name), prompt),
        );
        // Rows that are brought to length 1 when they are read are so again when the written file is.
        let most = if case.name == "baichuan_m1" {
            4e-6
        } else {
            1e-6
        };
        assert!(off < most, "{}: off by {off}", case.name);
    }
}

fn reloaded(dir: &Path, place: &str) -> Loaded {
    let options = LoadOptions {
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    load(dir, options).unwrap_or_else(|error| panic!("{place}: {error}"))
}

/// Every linear layer takes an adapter, computes with it, writes it to a file, and fuses it into its matrix.
#[test]
fn every_linear_takes_an_adapter() {
    let config = LoraConfig {
        rank: 2,
        scale: 1.0,
        ..LoraConfig::default()
    };
    let key = random::Key::new(5).unwrap();
    for case in cases() {
        let load = || case.load("config.json", None).unwrap();
        let mut model = load();
        let prompt = &case.prompts[0];
        let plain = logits(&model, prompt);
        let taken = attach(model.model.as_mut(), &config, &key, |_| true).unwrap();
        let all: Vec<String> = weights(&model).into_iter().map(|weight| weight.0).collect();
        assert_eq!(taken, all, "{}", case.name);
        assert_eq!(plain, logits(&model, prompt), "{}: B is zero", case.name);
        model
            .model
            .visit_mut(&mut mlx_nn::Path::default(), &mut Draw(key.clone()))
            .unwrap();
        let adapted = logits(&model, prompt);
        assert!(off(&plain, &adapted) > 0.01, "{}: no effect", case.name);

        let dir = tempfile::tempdir().unwrap();
        let settings = AdapterConfig {
            kind: AdapterKind::Lora,
            rank: config.rank,
            scale: config.scale,
            dropout: 0.0,
            num_layers: -1,
            keys: taken.clone(),
            facts: serde_json::Map::new(),
        };
        let arrays = trainable(model.model.as_ref()).unwrap();
        let arrays = arrays.iter().map(|(name, array)| (name.as_str(), array));
        adapter::write(dir.path(), &settings, arrays).unwrap();
        let mut other = load();
        adapter::load(dir.path(), other.model.as_mut())
            .unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let off_file = off(&adapted, &logits(&other, prompt));
        assert!(
            off_file < 1e-5,
            "{}: read again, off by {off_file}",
            case.name
        );

        // The matrix that would be unpacked for it would be BF16.
        if model.info.quantization.is_some() {
            continue;
        }
        fuse(model.model.as_mut(), true).unwrap();
        let off_fused = off(&adapted, &logits(&model, prompt));
        assert!(off_fused < 2e-3, "{}: fused, off by {off_fused}", case.name);
    }
}

/// Fills the adapters' B with random numbers.
struct Draw(random::Key);

impl VisitMut for Draw {
    fn param(&mut self, path: &mlx_nn::Path, param: &mut mlx_nn::Param) -> Result<()> {
        if adapt::is_adapter(path.as_str()) && path.as_str().ends_with("lora_b") {
            param.set(random::normal_with(
                &self.0,
                param.shape(),
                DType::F32,
                0.0,
                0.05,
            )?);
        }
        Ok(())
    }
}

/// The paths of all matrices, and their schemes.
pub(super) fn weights(model: &Loaded) -> Vec<(String, Option<Scheme>)> {
    struct Weights(Vec<(String, Option<Scheme>)>);
    impl Visit for Weights {
        fn weight(&mut self, path: &mlx_nn::Path, weight: &Weight) -> Result<()> {
            let scheme = match weight {
                Weight::Dense(_) => None,
                Weight::Quantized { scheme, .. } => Some(*scheme),
            };
            self.0.push((path.as_str().to_owned(), scheme));
            Ok(())
        }
    }
    let mut weights = Weights(Vec::new());
    let mut path = mlx_nn::Path::default();
    model.model.visit(&mut path, &mut weights).unwrap();
    weights.0
}
