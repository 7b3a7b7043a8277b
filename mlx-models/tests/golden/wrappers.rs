//! Multimodal checkpoints whose reference needs programs for other towers. The text model's tensors
//! and config, wrapped as in published files, give the same results as the text model alone.

use std::collections::BTreeMap;

use mlx_core::{Array, DType, Safetensors, ops, safetensors};
use mlx_models::{LoadOptions, load_from};
use serde_json::json;

use super::case::Case;
use super::run::prompt_logits;

/// The case, the wrapper's type, and tensors of other towers.
const WRAPPERS: [(&str, &str, &[&str]); 4] = [
    (
        "gemma3n_text",
        "gemma3n",
        &[
            "vision_tower.timm_model.conv_stem.conv.weight",
            "audio_tower.conformer.0.norm.weight",
            "embed_vision.embedding.weight",
            "embed_audio.embedding.weight",
        ],
    ),
    (
        "mistral4",
        "mistral3",
        &[
            "vision_tower.patch_conv.weight",
            "multi_modal_projector.norm.weight",
        ],
    ),
    (
        "lfm2",
        "lfm2_vl",
        &[
            "vision_tower.vision_model.embeddings.patch_embedding.weight",
            "multi_modal_projector.linear_1.weight",
        ],
    ),
    ("qwen2", "qwen2_vl", &["visual.patch_embed.proj.weight"]),
];

#[test]
fn a_wrapped_text_model_computes_the_same() {
    for (name, wrapper, others) in WRAPPERS {
        let case = Case::all()
            .into_iter()
            .find(|case| case.name == name)
            .unwrap();
        let golden = case.golden(0);
        let expected = &golden.log_probs;
        let config = json!({
            "architectures": ["ForConditionalGeneration"],
            "audio_config": {"hidden_size": 8},
            "model_type": wrapper,
            "text_config": case.config("config.json"),
            "vision_config": {"hidden_size": 8},
        });
        // The prefixes of the text model, of its output head and of other towers: those of newer and of older publications.
        for (own, head, other) in [
            ("model.language_model.", "", "model."),
            ("language_model.model.", "language_model.", ""),
        ] {
            let mut arrays: Vec<(String, Array)> = Vec::new();
            for file in case.files() {
                for name in file.names() {
                    let wrapped = match name.strip_prefix("model.") {
                        Some(inner) => format!("{own}{inner}"),
                        None => format!("{head}{name}"),
                    };
                    arrays.push((wrapped, file.array(name).unwrap()));
                }
            }
            for name in others {
                arrays.push((
                    format!("{other}{name}"),
                    ops::ones(&[2], DType::F32).unwrap(),
                ));
            }
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("model.safetensors");
            let arrays = arrays.iter().map(|(name, array)| (name.as_str(), array));
            safetensors::save(&path, arrays, &BTreeMap::new()).unwrap();
            let options = LoadOptions {
                dtype: Some(DType::F32),
                ..LoadOptions::default()
            };
            let files = vec![Safetensors::open(&path).unwrap()];
            let model = load_from(name, config.clone(), files, options)
                .unwrap_or_else(|error| panic!("{own}: {error}"));
            assert_eq!(model.info.unread_keys, [""; 0], "{own}");
            assert_eq!(model.info.model_type, wrapper);
            let logits = prompt_logits(&model, &case.prompts[0]).unwrap();
            let off = super::super::difference(&golden.shown(&logits).unwrap(), expected);
            assert!(off < case.tolerance, "{own}: off by {off}");
        }
    }
}
