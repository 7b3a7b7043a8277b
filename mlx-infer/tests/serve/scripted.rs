//! A model that generates what a test has written: at each position the next token of a script. It
//! can also be slow, fail or panic. The engine, its masks and its streams are those of any other
//! model.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use mlx_core::ops::create::{arange, zeros};
use mlx_core::{Array, DType, Error, ErrorKind, Result};
use mlx_infer::serve::ServeOptions;
use mlx_infer::{Files, LoadedModel, Tokenizer};
use mlx_models::causal::{CausalLm, DecoderLayer, Surroundings};
use mlx_models::{Family, Geometry, LayerGeometry, Model, Registry, Source, kv_heads};
use mlx_nn::{Attend, LayerKind, NormConfig, Residual, Step};
use serde_json::{Value, json};

use crate::client::TestServer;

/// The vocabulary of the model: a few more ids than the tokenizer has.
const VOCAB: usize = 384;
const HEAD: i32 = 8;
pub const POSITIONS: usize = 2048;

/// The next token after each position; the last one also follows all later positions. Tests run one
/// at a time.
static SCRIPT: Mutex<Vec<u32>> = Mutex::new(Vec::new());
/// The fault of each forward pass.
static FAULT: Mutex<Fault> = Mutex::new(Fault::None);

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    None,
    /// It takes this long.
    Slow(Duration),
    /// It fails as if memory were exhausted.
    Memory,
    /// It fails with another error.
    Fails,
    Panics,
}

const FAMILY: Family = Family {
    tied: true,
    ..Family::new(&["scripted"], build)
};

fn build(_: &Source<'_>) -> Result<Box<dyn Model>> {
    let around = around(VOCAB, HEAD, POSITIONS);
    Ok(Box::new(CausalLm::around(vec![Layer], around)?))
}

/// What is around the one layer of a model whose features are its vocabulary.
pub fn around(vocab: usize, head: i32, positions: usize) -> Surroundings {
    let layer = LayerGeometry::attention(1, kv_heads(1, head), LayerKind::Full);
    let size = vocab as i32;
    let mut geometry = Geometry::new(size, size, vec![layer]);
    geometry.max_positions = Some(positions);
    Surroundings {
        geometry,
        norm: NormConfig::rms(1e-6),
        tied: true,
        head_bias: false,
        embed_scale: None,
        logit_scale: None,
        softcap: None,
    }
}

#[derive(Clone)]
struct Layer;

impl mlx_nn::Module for Layer {
    fn visit(&self, _: &mut mlx_nn::Path, _: &mut dyn mlx_nn::Visit) -> Result<()> {
        Ok(())
    }
    fn visit_mut(&mut self, _: &mut mlx_nn::Path, _: &mut dyn mlx_nn::VisitMut) -> Result<()> {
        Ok(())
    }
}

impl DecoderLayer for Layer {
    /// Returns 1 for the feature of the next token, which the head reads as its logit.
    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual> {
        let fault = *FAULT.lock().unwrap();
        match fault {
            Fault::None => {}
            Fault::Slow(time) => std::thread::sleep(time),
            Fault::Memory => return Err(Error::new(ErrorKind::Memory, "no memory for 7 bytes")),
            Fault::Fails => return Err(Error::new(ErrorKind::Shape, "secret of the model")),
            Fault::Panics => panic!("a forward pass of a test"),
        }
        let &[b, l, _] = x.shape() else {
            return Err(Error::new(ErrorKind::Shape, "features are [1, T, E]"));
        };
        let nothing = zeros(&[b, 1, l, HEAD], DType::F32)?;
        let options = Attend {
            scale: 1.0,
            softcap: None,
            sinks: None,
            alibi: None,
        };
        // A sum of zeros. Because the result depends on it, the step's keys and values are written.
        let attended = step.attend(state, &nothing, &nothing, &nothing, &options)?;
        let attended = attended.slice_axis(3, 0, 1)?.reshape(&[b, l, 1])?;
        let script = SCRIPT.lock().unwrap().clone();
        let last = script.len() as i32 - 1;
        let script = Array::from_slice(&script, &[last + 1])?;
        let at = step.positions().minimum(last)?;
        let next = script.take(&at, 0)?.reshape(&[b, l, 1])?;
        let ids = arange(0.0, VOCAB as f64, 1.0, DType::U32)?;
        Ok(next.equal(ids)?.astype(DType::F32)?.add(attended)?.into())
    }
}

/// A safetensors file with the embedding, which is also the head: the identity.
fn weights(vocab: usize) -> Vec<u8> {
    let bytes = 4 * vocab * vocab;
    let header = json!({
        "model.embed_tokens.weight": {"dtype": "F32", "shape": [vocab, vocab], "data_offsets": [0, bytes]},
        "model.norm.weight": {"dtype": "F32", "shape": [vocab], "data_offsets": [bytes, bytes + 4 * vocab]},
    });
    let header = header.to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    for row in 0..vocab {
        let value = |column: usize| if row == column { 1f32 } else { 0.0 };
        file.extend((0..vocab).flat_map(|column| value(column).to_le_bytes()));
    }
    file.extend((0..vocab).flat_map(|_| 1f32.to_le_bytes()));
    file
}

/// The folder of a model whose embedding, which is also its head, is the identity.
pub struct ModelFolder {
    folder: tempfile::TempDir,
    pub tokenizer: Tokenizer,
    /// The tokens that end a reply.
    pub ends: Vec<u32>,
}

impl ModelFolder {
    /// `template` is a chat template of testdata. `marks` are special tokens beside the tokenizer's.
    /// `ends` are the tokens that end a reply.
    pub fn new(kind: &str, vocab: usize, template: &str, marks: &[&str], ends: &[&str]) -> Self {
        let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/text");
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let of_tokenizer = |name: &str| text.join("tokenizers/qwen").join(name);
        std::fs::copy(of_tokenizer("tokenizer.json"), path("tokenizer.json")).unwrap();
        let config = std::fs::read(of_tokenizer("tokenizer_config.json")).unwrap();
        let mut config: Value = serde_json::from_slice(&config).unwrap();
        let special = config["additional_special_tokens"].as_array_mut().unwrap();
        special.extend(marks.iter().map(|&mark| mark.into()));
        std::fs::write(path("tokenizer_config.json"), config.to_string()).unwrap();
        let template = text.join(format!("templates/{template}.jinja"));
        std::fs::copy(template, path("chat_template.jinja")).unwrap();
        let config = json!({"model_type": kind, "vocab_size": vocab});
        std::fs::write(path("config.json"), config.to_string()).unwrap();
        std::fs::write(path("model.safetensors"), weights(vocab)).unwrap();
        let tokenizer = Tokenizer::load(&Files::directory(folder.path()).unwrap()).unwrap();
        assert!(tokenizer.vocab_size() <= vocab);
        let ends = ends.iter().map(|end| tokenizer.token_to_id(end).unwrap());
        let ends: Vec<u32> = ends.collect();
        let generation = json!({"eos_token_id": ends});
        std::fs::write(path("generation_config.json"), generation.to_string()).unwrap();
        Self {
            folder,
            tokenizer,
            ends,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A server of the model.
    pub fn serve(&self, family: Family, change: impl FnOnce(&mut ServeOptions)) -> TestServer {
        let files = Files::directory(self.folder.path()).unwrap();
        let load = move || {
            let registry = Registry::default().with(family);
            LoadedModel::load_with(&registry, files, Default::default(), &mut |_, _| ())
        };
        TestServer::of(load, change)
    }
}

/// A server of the model with a chat template of testdata.
pub struct Scripted {
    pub server: TestServer,
    folder: ModelFolder,
}

impl Scripted {
    /// `marks` are the family's special tokens. `ends` are the tokens that end a reply; the first
    /// of them ends a script.
    pub fn start(
        template: &str,
        marks: &[&str],
        ends: &[&str],
        change: impl FnOnce(&mut ServeOptions),
    ) -> Self {
        *FAULT.lock().unwrap() = Fault::None;
        let folder = ModelFolder::new("scripted", VOCAB, template, marks, ends);
        *SCRIPT.lock().unwrap() = vec![folder.ends[0]];
        Self {
            server: folder.serve(FAMILY, change),
            folder,
        }
    }

    /// Sets the reply to a prompt of this many tokens. No token spans two pieces.
    pub fn says(&self, prompt: usize, pieces: &[&str]) {
        let end = self.folder.ends[0];
        let mut script = vec![end; prompt - 1];
        for piece in pieces {
            script.extend(self.folder.tokenizer.encode(piece, false).unwrap());
        }
        script.push(end);
        *SCRIPT.lock().unwrap() = script;
    }

    /// The number of tokens of a text.
    pub fn count(&self, text: &str) -> usize {
        self.folder.tokenizer.encode(text, false).unwrap().len()
    }

    /// Sets the fault of all forward passes from now on.
    pub fn fault(&self, fault: Fault) {
        *FAULT.lock().unwrap() = fault;
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        *FAULT.lock().unwrap() = Fault::None;
    }
}
