//! A model with a recurrent layer after its other layers: the prefixes that prompts share, the
//! content of files, and the memory of rows.

use std::collections::BTreeMap;
use std::path::Path;

use mlx_core::{Array, DType, Result, Safetensors, ops::concat, safetensors};
use mlx_models::{Geometry, LayerGeometry, Model};
use mlx_nn::{
    Head, ModelCache, Module, Path as Name, RecurrentShape, Residual, StateAfter, StatePart, Step,
    Visit, VisitMut,
};

use super::{Embedding, PromptCache, PromptState};
use crate::model::{LoadOptions, LoadedModel};
use crate::request::Request;
use crate::request::generation::{GenerateOptions, Prompt};
use crate::request::limits::Limits;
use crate::request::result::BatchResult;

/// Features of a token in the model that is wrapped.
const E: i32 = 32;
const SHAPE: RecurrentShape = RecurrentShape::new(&[
    StatePart::Window {
        name: "conv",
        len: 2,
        width: E,
    },
    StatePart::Carry {
        name: "state",
        shape: [1, 1, E],
        dtype: DType::F32,
    },
]);

/// A model with one more layer: a convolution over three tokens and a decaying sum.
struct Hybrid {
    model: Box<dyn Model>,
    geometry: Geometry,
}

impl Module for Hybrid {
    fn visit(&self, path: &mut Name, v: &mut dyn Visit) -> Result<()> {
        self.model.visit(path, v)
    }
    fn visit_mut(&mut self, path: &mut Name, v: &mut dyn VisitMut) -> Result<()> {
        self.model.visit_mut(path, v)
    }
}

impl Model for Hybrid {
    fn embed(&self, tokens: &Array) -> Result<Array> {
        self.model.embed(tokens)
    }
    fn layer(&self, index: usize, x: Residual, step: &mut Step<'_>) -> Result<Residual> {
        if index + 1 < self.geometry.layers().len() {
            return self.model.layer(index, x, step);
        }
        let x = x.sum()?;
        let seen = step.window(index, 0, &x)?;
        let tap = |tap: i32| seen.slice_axis(2, tap, tap + 1)?.squeeze(2);
        let y = tap(0)?.multiply(0.3)?.subtract(&tap(1)?.multiply(0.2)?)?;
        let y = y.add(&x.multiply(0.5)?)?;
        let before = step.state(index, 1)?;
        let (mut states, mut ends) = (Vec::new(), Vec::new());
        for (row, places) in step.places().enumerate() {
            let mut state = before.slice_axis(0, row as i32, row as i32 + 1)?;
            for place in places {
                let new = y.slice_axis(1, place as i32, place as i32 + 1)?;
                state = state.multiply(0.9)?.add(&new.expand_dims(1)?)?;
                states.push(state.squeeze(1)?);
            }
            ends.push(state);
        }
        step.set_state(index, 1, StateAfter::End(concat(&ends, 0)?))?;
        Ok(Residual::new(x, concat(&states, 1)?))
    }
    fn norm(&self, x: Residual) -> Result<[Array; 2]> {
        self.model.norm(x)
    }
    fn head(&self) -> Head<'_> {
        self.model.head()
    }
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }
}

fn hybrid(case: &str) -> LoadedModel {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models");
    let options = LoadOptions {
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    let model = LoadedModel::load(models.join(case), options).unwrap();
    model.map(|model| {
        let mut geometry = model.geometry().clone();
        geometry.push(LayerGeometry::recurrent(SHAPE));
        Box::new(Hybrid { model, geometry })
    })
}

fn text(length: u32, seed: u32) -> Vec<u32> {
    (0..length)
        .map(|at| (at * at * 7 + at * seed + 3) % 60)
        .collect()
}

fn options(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens,
        ignore_eos: true,
        ..GenerateOptions::default()
    }
}

/// The tokens of a generation, and the number of prompt tokens that came from the cache.
fn run(model: &LoadedModel, ids: &[u32], cache: Option<&PromptCache>) -> (Vec<u32>, usize) {
    let mut generation = model.generate(ids.to_vec(), &options(9)).unwrap();
    if let Some(cache) = cache {
        generation = generation.with_prompt_cache(cache).unwrap();
    }
    let generated = generation
        .run(|_| std::ops::ControlFlow::Continue(()))
        .unwrap();
    let ids = generated.tokens.iter().map(|choice| choice.id).collect();
    (ids, generated.metrics.cached_tokens)
}

/// A prompt cache of these ids whose recurrent layer has recorded the length `at`.
fn recorded(model: &LoadedModel, ids: &[u32], at: usize) -> PromptCache {
    let mut cache = ModelCache::new(model.model().states(), 1, model.cache_options());
    for part in [&ids[..at], &ids[at..]] {
        let mut step = cache.begin(&[part.len()]).unwrap();
        let tokens = Array::from_slice(part, &[1, part.len() as i32]).unwrap();
        model.model().hidden(&tokens, &mut step).unwrap();
        step.commit_all().unwrap();
        cache.record(0).unwrap();
    }
    PromptCache {
        ids: ids.to_vec(),
        state: PromptState::share(&cache, 0, ids.len(), Embedding::Short).unwrap(),
        serial: model.serial(),
    }
}

#[test]
fn a_recurrent_prompt_cache_goes_through_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let (path, bad) = (folder.path().join("good"), folder.path().join("bad"));
    let model = hybrid("qwen3");
    let (ids, other) = (text(40, 5), text(12, 9));
    let made = recorded(&model, &ids, 25);
    model.save_prompt_cache(&made, &path).unwrap();
    let read = model.load_prompt_cache(&path).unwrap();
    assert_eq!(read.tokens(), ids);
    for (text, cached) in [
        ([&ids[..], &other].concat(), 40),
        // A prompt that ends differently: it starts at the recorded length.
        ([&ids[..25], &other].concat(), 25),
        // The prompts share more; the recorded length is the longest that is stored.
        ([&ids[..33], &other].concat(), 25),
        (ids.clone(), 25),
        ([&ids[..24], &[58, 57]].concat(), 0),
    ] {
        let (expected, _) = run(&model, &text, None);
        for cache in [&made, &read] {
            assert_eq!(run(&model, &text, Some(cache)), (expected.clone(), cached));
        }
    }

    let file = Safetensors::open(&path).unwrap();
    assert_eq!(file.metadata()["format_version"], "2");
    assert_eq!(
        file.metadata()["layers"],
        "full, full, recurrent conv [2, 32] state [1, 1, 32]"
    );
    assert_eq!(file.metadata()["recorded"], "25");
    type Arrays = BTreeMap<String, Array>;
    type Metadata = BTreeMap<String, String>;
    let refuse = |change: &dyn Fn(&mut Arrays, &mut Metadata)| {
        let names = file.names();
        let mut arrays: Arrays = names
            .map(|name| (name.to_owned(), file.array(name).unwrap()))
            .collect();
        let mut metadata = file.metadata().clone();
        change(&mut arrays, &mut metadata);
        let arrays = arrays.iter().map(|(name, array)| (&**name, array));
        safetensors::save(&bad, arrays, &metadata).unwrap();
        model.load_prompt_cache(&bad).unwrap_err().to_string()
    };
    for (expected, change) in [
        (
            "expected F32 [1, 1, 1, 32]",
            (&|arrays: &mut Arrays, _: &mut Metadata| {
                let flat = arrays["layers.2.state"].reshape(&[-1]).unwrap();
                arrays.insert("layers.2.state".to_owned(), flat);
            }) as &dyn Fn(&mut Arrays, &mut Metadata),
        ),
        ("layers.2.conv@25", &|arrays, _| {
            drop(arrays.remove("layers.2.conv@25"))
        }),
        ("\"layers.2.conv@25\" is not known", &|_, metadata| {
            metadata.remove("recorded");
        }),
        ("recorded \"25 7\" is no list of lengths", &|_, metadata| {
            metadata.insert("recorded".to_owned(), "25 7".to_owned());
        }),
        ("has no recorded state at 40", &|arrays, metadata| {
            metadata.insert("recorded".to_owned(), "40".to_owned());
            for part in ["conv", "state"] {
                let array = arrays.remove(&format!("layers.2.{part}@25")).unwrap();
                arrays.insert(format!("layers.2.{part}@40"), array);
            }
        }),
    ] {
        let error = refuse(change);
        assert!(error.contains(expected), "{error}; expected {expected}");
    }
    // The same weights without the recurrent layer are another model.
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models/qwen3");
    let plain = LoadedModel::load(dir, LoadOptions::default()).unwrap();
    let error = plain.load_prompt_cache(&path).unwrap_err().to_string();
    assert!(
        error.contains("its layers is full, full, recurrent"),
        "{error}"
    );
    // A file without recurrent layers is one that older programs read.
    let cache = plain.prompt_cache(ids, &options(1)).unwrap();
    plain.save_prompt_cache(&cache, &path).unwrap();
    let file = Safetensors::open(&path).unwrap();
    let keys: Vec<&str> = file.metadata().keys().map(String::as_str).collect();
    assert_eq!(file.metadata()["format_version"], "1");
    assert_eq!(file.metadata()["layers"], "full, full");
    assert_eq!(
        keys.join(" "),
        "architecture beyond_switch context_len dtype format format_version head_dim kv_heads \
         kv_quantization layers weights written"
    );
}

/// Rows that join and leave, prompts with common prefixes, and rows that are preempted for memory.
#[test]
fn recurrent_rows_of_a_batch_equal_single_runs() {
    for case in ["qwen3", "gemma3_text"] {
        let model = hybrid(case);
        let head = text(50, 3);
        let prompts: Vec<Vec<u32>> = (0..8)
            .map(|n| {
                [
                    &head[..[50, 20, 50, 33][n % 4]],
                    &text(1 + 3 * n as u32, n as u32),
                ]
                .concat()
            })
            .collect();
        let expected: Vec<Vec<u32>> = prompts.iter().map(|ids| run(&model, ids, None).0).collect();
        let row: usize = model.state_costs().iter().map(|cost| cost.bytes(256)).sum();
        for (rows, cache_bytes, prefill_chunk) in
            [(8, None, 512), (3, None, 16), (4, Some(2 * row), 512)]
        {
            let limits = Limits {
                rows,
                cache_bytes,
                ..Limits::default()
            };
            let requests = prompts.iter().map(|ids| {
                let options = GenerateOptions {
                    prefill_chunk,
                    ..options(9)
                };
                Request::new(Prompt::Tokens(ids.clone()), options)
            });
            let results = model.batch_generate(requests.collect(), &limits).unwrap();
            let found = |result: &BatchResult| -> Vec<u32> {
                assert!(result.error.is_none(), "{case}: {:?}", result.error);
                result.tokens.iter().map(|choice| choice.id).collect()
            };
            let found: Vec<Vec<u32>> = results.iter().map(found).collect();
            assert_eq!(found, expected, "{case}, {rows} rows");
            let cached: usize = results
                .iter()
                .map(|result| result.metrics.cached_tokens)
                .sum();
            assert!(cached > 0 || rows == 8, "{case}, {rows} rows");
        }
    }
}

/// The engine records a long prompt a little before its end, because neither a full ring nor a
/// recurrent layer can be rolled back.
#[test]
fn long_prompts_are_recorded() {
    let model = hybrid("qwen3");
    let (ids, other) = (text(90, 5), text(12, 9));
    let chunked = || GenerateOptions {
        prefill_chunk: 32,
        ..options(9)
    };
    let made = model.prompt_cache(ids.clone(), &chunked()).unwrap();
    let mut generation = model.generate(ids.clone(), &chunked()).unwrap();
    generation
        .run(|_| std::ops::ControlFlow::Continue(()))
        .unwrap();
    let next = generation.into_prompt_cache().unwrap().unwrap();
    // The next turns: the same prompt, one whose last tokens are written differently, and one that
    // shares less.
    let turns = [
        (ids.clone(), 74),
        ([&ids[..80], &other].concat(), 74),
        ([&ids[..70], &other].concat(), 0),
    ];
    for (turn, cached) in &turns {
        let expected = (run(&model, turn, None).0, *cached);
        assert_eq!(run(&model, turn, Some(&made)), expected);
        assert_eq!(run(&model, turn, Some(&next)), expected);
        // Each turn gets a worker of its own: after a prompt that shares more than was recorded, a
        // worker records the shared length too.
        let mut batch = model.batch(&Limits::default()).unwrap();
        for (key, prompt) in [&ids, turn].into_iter().enumerate() {
            batch.submit(key, Request::new(Prompt::Tokens(prompt.clone()), chunked()));
            let mut results = Vec::new();
            while !batch.is_idle() {
                results.extend(batch.advance());
            }
            let (_, result) = results.pop().unwrap();
            if key == 1 {
                let tokens: Vec<u32> = result.tokens.iter().map(|choice| choice.id).collect();
                assert_eq!((tokens, result.metrics.cached_tokens), expected);
            }
        }
    }
}
