//! Generation by hand: logits of the model, a token chosen from them, and the model again.
//!
//! The model is the one that `mlx-infer` has built in. Tokenizers are in `mlx-infer`; here its vocabulary is enough.

use std::path::Path;

use mlx_models::mlx_core::{Array, DType, Error, ErrorKind, Result, random, where_};
use mlx_models::{LoadOptions, Model, load};

/// A token of `logits [V]`: the likeliest at temperature 0, otherwise one of the `top_k` likeliest by their probabilities.
fn choose(logits: &Array, temperature: f32, top_k: i32) -> Result<u32> {
    if temperature == 0.0 {
        return logits.argmax(-1, false)?.item();
    }
    let logits = (logits.astype(DType::F32)? / temperature)?;
    let least = logits.topk(top_k, -1)?.min_all()?;
    let kept = where_(&logits.ge(&least)?, &logits, f32::NEG_INFINITY)?;
    random::categorical(None, &kept)?.item()
}

/// The tokens after `prompt`, up to one of `ends` and at most `most`.
fn generate(
    model: &dyn Model,
    prompt: &[u32],
    ends: &[u32],
    most: usize,
    choose: impl Fn(&Array) -> Result<u32>,
) -> Result<Vec<u32>> {
    let mut cache = model.new_cache(1);
    let (mut new, mut tokens) = (prompt.to_vec(), Vec::new());
    while tokens.len() < most {
        let logits = model.forward(&Array::from(new).expand_dims(0)?, &mut cache)?;
        let token = choose(&logits.i((0, -1))?)?;
        if ends.contains(&token) {
            break;
        }
        tokens.push(token);
        new = vec![token];
    }
    Ok(tokens)
}

/// The pieces of a vocabulary by their numbers. A space is `Ġ` there.
fn pieces(folder: &Path) -> Result<Vec<String>> {
    let text = std::fs::read(folder.join("tokenizer.json"))?;
    let missing = || Error::new(ErrorKind::Format, "tokenizer.json has no vocabulary");
    let file: serde_json::Value = serde_json::from_slice(&text).map_err(|_| missing())?;
    let vocabulary = file["model"]["vocab"].as_object().ok_or_else(missing)?;
    let mut pieces = vec![String::new(); vocabulary.len()];
    for (piece, id) in vocabulary {
        let id = id.as_u64().ok_or_else(missing)? as usize;
        *pieces.get_mut(id).ok_or_else(missing)? = piece.replace('Ġ', " ");
    }
    Ok(pieces)
}

fn main() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mlx-infer/assets/default-model");
    // BF16 as stored, computed in F32: the likeliest token is then the same on every machine.
    let dtype = Some(DType::F32);
    let options = LoadOptions {
        dtype,
        ..LoadOptions::default()
    };
    let loaded = load(&folder, options)?;
    let (model, pieces) = (loaded.model.as_ref(), pieces(&folder)?);
    let text = |ids: &[u32]| -> String { ids.iter().map(|&id| &*pieces[id as usize]).collect() };
    let id = |piece: &str| pieces.iter().position(|known| known == piece).unwrap() as u32;

    let ends = [id("<eos>"), id("<end_of_turn>")];
    let sum = ["<bos>", "4", "7", " +", " ", "3", "8", " ="].map(id);
    let answer = generate(model, &sum, &ends, 8, |logits| choose(logits, 0.0, 1))?;
    println!("47 + 38 ={}", text(&answer));

    let fox = ["<bos>", "The", " red", " fox"].map(id);
    let likeliest = generate(model, &fox, &ends, 12, |logits| choose(logits, 0.0, 1))?;
    println!("The red fox{}", text(&likeliest));
    random::seed(3);
    let drawn = generate(model, &fox, &ends, 12, |logits| choose(logits, 0.9, 20))?;
    random::seed(3);
    let again = generate(model, &fox, &ends, 12, |logits| choose(logits, 0.9, 20))?;
    println!("the same text from the same seed: {}", drawn == again);
    Ok(())
}
