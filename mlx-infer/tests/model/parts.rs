//! Models without files: from parts, and from files in memory.

use std::collections::BTreeSet;

use mlx_core::{Array, DType, Safetensors};
use mlx_infer::{
    ErrorKind, Files, GenerateOptions, LoadOptions, LoadedModel, Message, PartOptions, Tokenizer,
};
use mlx_models::Model;
use mlx_nn::{AdamW, Linear, Module, loss, value_and_grad};
use serde_json::{Value, json};

/// The matrices of a layer of the built-in model.
const LINEARS: usize = 7;

/// The files of the built-in model, copied into memory.
fn given() -> Files {
    let files = mlx_infer::default_model_files();
    let names = files.list().unwrap();
    let contents = names.into_iter().map(|name| {
        let content = files.read(&name).unwrap().unwrap().into_owned();
        (name, content)
    });
    Files::given("in memory", contents)
}

fn default_model() -> Box<dyn Model> {
    let files = given();
    let config: Value = files.json("config.json").unwrap().unwrap();
    let bytes = files.read("model.safetensors").unwrap().unwrap();
    let weights = Safetensors::from_cow(bytes).unwrap();
    let options = mlx_models::LoadOptions {
        dtype: Some(DType::F32),
        ..Default::default()
    };
    mlx_models::load_from("default", config, vec![weights], options)
        .unwrap()
        .model
}

fn wide() -> LoadOptions {
    LoadOptions {
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    }
}

#[test]
fn a_walk_meets_the_modules_that_are_listed() {
    let mut model = default_model();
    let listed = model.named_modules().into_iter();
    let listed: BTreeSet<String> = listed.map(|(name, _)| name).collect();
    let (mut met, mut linears) = (BTreeSet::new(), 0);
    model
        .apply_to_modules(|name, module| {
            met.insert(name.to_owned());
            linears += usize::from(module.is::<Linear>());
            Ok(())
        })
        .unwrap();
    assert_eq!(met, listed);
    let layers = listed.iter().filter(|name| name.ends_with("o_proj"));
    assert_eq!(linears, LINEARS * layers.count());
}

#[test]
fn parts_and_files_in_memory_generate_as_the_checkpoint_does() {
    let options = GenerateOptions {
        max_tokens: 16,
        ..Default::default()
    };
    let loaded = LoadedModel::load_files(mlx_infer::default_model_files(), wide(), &mut |_, _| ());
    let loaded = loaded.unwrap();
    let expected = loaded
        .generate("The red fox", &options)
        .unwrap()
        .text()
        .unwrap();
    let question = [Message::new("user", "What is 20 + 22?")];
    let render = Default::default();
    let answer = loaded
        .chat(&question, &render, &options)
        .unwrap()
        .text()
        .unwrap();
    assert_eq!(answer, "42");

    let memory = LoadedModel::load_files(given(), wide(), &mut |_, _| ()).unwrap();
    let text = memory
        .generate("The red fox", &options)
        .unwrap()
        .text()
        .unwrap();
    assert_eq!(text, expected);

    let files = given();
    let tokenizer = Tokenizer::load(&files).unwrap();
    let config = files.json("tokenizer_config.json").unwrap().unwrap();
    let parts = PartOptions {
        chat_template: config["chat_template"].as_str().map(str::to_owned),
        eos_ids: Some(loaded.eos_ids().to_vec()),
        load: wide(),
    };
    assert!(parts.chat_template.is_some());
    let model = LoadedModel::from_parts(default_model(), tokenizer, parts).unwrap();
    let text = model
        .generate("The red fox", &options)
        .unwrap()
        .text()
        .unwrap();
    assert_eq!(text, expected);
    let text = model
        .chat(&question, &render, &options)
        .unwrap()
        .text()
        .unwrap();
    assert_eq!(text, answer);
    assert_eq!(model.info().n_parameters, loaded.info().n_parameters);
    assert_eq!(model.info().weight_bytes, loaded.info().weight_bytes);
    assert_eq!(model.info().dtype, DType::F32);
}

#[test]
fn wrong_parts_are_refused() {
    let files = given();
    let tokenizer = || Tokenizer::load(&files).unwrap();
    let refused = |tokenizer: Option<Tokenizer>, parts: PartOptions| {
        let error = LoadedModel::from_parts(default_model(), tokenizer, parts).err();
        error.expect("refused").to_string()
    };
    let parts = PartOptions {
        eos_ids: Some(vec![1, 1_000_000]),
        ..Default::default()
    };
    assert!(refused(None, parts).contains("token id 1000000"));
    let parts = PartOptions {
        chat_template: Some("{{ messages[0].content }}".into()),
        ..Default::default()
    };
    assert_eq!(refused(None, parts), "a chat template needs a tokenizer");
    let parts = PartOptions {
        chat_template: Some("{% if".into()),
        ..Default::default()
    };
    refused(Some(tokenizer()), parts);
    let parts = PartOptions {
        load: LoadOptions {
            max_draft: 100,
            ..Default::default()
        },
        ..Default::default()
    };
    assert!(refused(None, parts).contains("max_draft"));

    // Without a tokenizer there are ids, and no text.
    let model = LoadedModel::from_parts(default_model(), None, PartOptions::default()).unwrap();
    let options = GenerateOptions {
        max_tokens: 2,
        ..Default::default()
    };
    let error = model
        .generate(vec![1u32], &options)
        .unwrap()
        .text()
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Missing);
    assert!(model.generate("text", &options).is_err());

    let error = Tokenizer::from_file("no/such/tokenizer.json")
        .unwrap_err()
        .to_string();
    assert!(error.contains("no/such/tokenizer.json"), "{error}");
}

#[test]
fn a_parameter_without_value_is_named() {
    struct Holed(Box<dyn Model>, Linear);
    impl Module for Holed {
        fn visit(
            &self,
            path: &mut mlx_nn::Path,
            v: &mut dyn mlx_nn::Visit,
        ) -> mlx_core::Result<()> {
            self.0.visit(path, v)?;
            path.scoped("extra", |path| self.1.visit(path, v))
        }

        fn visit_mut(
            &mut self,
            path: &mut mlx_nn::Path,
            v: &mut dyn mlx_nn::VisitMut,
        ) -> mlx_core::Result<()> {
            self.0.visit_mut(path, v)?;
            path.scoped("extra", |path| self.1.visit_mut(path, v))
        }
    }
    impl Model for Holed {
        fn embed(&self, tokens: &Array) -> mlx_core::Result<Array> {
            self.0.embed(tokens)
        }

        fn layer(
            &self,
            index: usize,
            x: mlx_nn::Residual,
            step: &mut mlx_nn::Step<'_>,
        ) -> mlx_core::Result<mlx_nn::Residual> {
            self.0.layer(index, x, step)
        }

        fn norm(&self, x: mlx_nn::Residual) -> mlx_core::Result<[Array; 2]> {
            self.0.norm(x)
        }

        fn head(&self) -> mlx_nn::Head<'_> {
            self.0.head()
        }

        fn geometry(&self) -> &mlx_models::Geometry {
            self.0.geometry()
        }
    }
    let holed = Holed(default_model(), Linear::empty(2, 3, false).unwrap());
    let error = LoadedModel::from_parts(Box::new(holed), None, PartOptions::default()).err();
    let error = error.expect("refused").to_string();
    let expected = "extra.weight [3, 2] has no value: load it or initialise it";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_forward_pass_continues_from_its_cache() {
    let model = default_model();
    let ids: Vec<u32> = vec![5, 9, 12, 7, 3, 1];
    let tokens = |ids: &[u32]| Array::from_slice(ids, &[1, ids.len() as i32]).unwrap();
    let mut cache = model.new_cache(1);
    let whole = model.forward(&tokens(&ids), &mut cache).unwrap();
    let vocab = whole.dim(-1).unwrap();
    assert_eq!(whole.shape(), [1, 6, vocab]);

    let mut cache = model.new_cache(1);
    model.forward(&tokens(&ids[..5]), &mut cache).unwrap();
    let last = model.forward(&tokens(&ids[5..]), &mut cache).unwrap();
    assert_eq!(cache.lens(), [6]);
    let expected = whole.slice_axis(1, 5, 6).unwrap();
    let far = last.subtract(&expected).unwrap().abs().unwrap();
    assert!(far.max(.., false).unwrap().item::<f32>().unwrap() < 1e-3);

    for (wrong, message) in [
        (
            Array::from_slice(&ids, &[6]).unwrap(),
            "tokens must be [B, L], given [6]",
        ),
        (
            Array::from_slice(&ids, &[2, 3]).unwrap(),
            "tokens of 2 rows, and a cache of 1",
        ),
    ] {
        let error = model.forward(&wrong, &mut cache).unwrap_err();
        assert_eq!(error.to_string(), message);
        assert_eq!(cache.lens(), [6]);
    }
    let config = json!({
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "vocab_size": 40, "rms_norm_eps": 1e-5
    });
    let other = mlx_models::initialised("other", config, 7).unwrap().model;
    let error = model
        .forward(&tokens(&ids), &mut other.new_cache(1))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the cache was made for a model with other layers"
    );
}

/// A program trains a model of its own and generates with it; nothing is on disk.
#[test]
fn a_trained_model_generates_what_it_has_learned() {
    let config = json!({
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "vocab_size": 16, "rms_norm_eps": 1e-5
    });
    let mut model = mlx_models::initialised("counter", config, 7).unwrap().model;
    model.unfreeze().unwrap();
    // Each token is followed by the next one, and the last by the first.
    let ids: Vec<u32> = (0..17).map(|i| i % 16).collect();
    let tokens = Array::from_slice(&ids[..16], &[1, 16]).unwrap();
    let next = Array::from_slice(&ids[1..], &[1, 16]).unwrap();
    let mut optimizer = AdamW::new(0.01);
    for _ in 0..60 {
        let (_, grads) = value_and_grad(&mut model, |model| {
            let logits = model.forward(&tokens, &mut model.new_cache(1))?;
            loss::cross_entropy(&logits, &next)?.mean(.., false)
        })
        .unwrap();
        optimizer.update(&mut model, &grads).unwrap();
    }
    let model = LoadedModel::from_parts(model, None, PartOptions::default()).unwrap();
    let options = GenerateOptions {
        max_tokens: 5,
        ..Default::default()
    };
    let mut generation = model.generate(vec![0u32, 1, 2], &options).unwrap();
    let generated = generation
        .run(|_| std::ops::ControlFlow::Continue(()))
        .unwrap();
    let found: Vec<u32> = generated.tokens.iter().map(|choice| choice.id).collect();
    assert_eq!(found, [3, 4, 5, 6, 7]);
}
