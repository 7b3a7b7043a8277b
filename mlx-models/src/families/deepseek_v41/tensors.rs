//! The names of DeepSeek V4.1's tensors.

use mlx_core::Result;
use mlx_nn::{Rule, Rules};

use crate::config::Source;
use crate::config::keys;
use crate::families::deepseek_v4;

/// The names of published files, and those of mlx-vlm.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    const IMAGES: [&str; 7] = [
        "vision.*",
        "aligner.*",
        "image_start",
        "image_end",
        "image_newline",
        "*.ffn.gate.bias_vl",
        "model.vision.*",
    ];
    let mut rules: Vec<Rule> = IMAGES
        .map(|name| Rule::drop(name, "not of the text model"))
        .into();
    rules.push(Rule::rename(
        "embed_tokens.weight",
        "model.embed_tokens.weight",
    ));
    rules.push(Rule::rename("*.indexer.wk.*", "*.indexer.k_proj.*"));
    rules.extend(deepseek_v4::common_names(source)?);
    Ok(Rules::from(rules).and(&keys::deepseek_expert_names()))
}
