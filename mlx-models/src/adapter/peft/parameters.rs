//! Adapters of parameters that are no modules' weights (`target_parameters`): transformers holds the matrices of all
//! experts in two tensors, and PEFT wraps the module of the experts once for each of them.

use mlx_core::{Array, Result};

use super::settings::Settings;

/// What PEFT's name of a wrapped module has for each further wrapper around it.
const INNER: &str = ".base_layer";

/// Parameters of one module in transformers' order, which is that of the wrappers, the innermost first.
const ORDER: [&str; 2] = ["gate_up_proj", "down_proj"];

/// The parameter whose adapter stands at this path; `None` if it is the adapter of a module. `is_there` tells whether the
/// model has a parameter. The inner error is a fault of the adapter.
pub(super) fn of(
    settings: &Settings,
    path: &str,
    is_there: impl Fn(&str) -> bool,
) -> Result<Option<String>, String> {
    let mut module = path;
    let mut around = 0;
    while let Some(inner) = module.strip_suffix(INNER) {
        (module, around) = (inner, around + 1);
    }
    let mut wrapped: Vec<String> = settings
        .parameters()
        .iter()
        .map(|target| format!("{module}.{}", target.rsplit('.').next().unwrap_or(target)))
        .filter(|name| settings.wraps(name) && is_there(name))
        .collect();
    let place = |name: &String| ORDER.iter().position(|last| name.ends_with(last));
    wrapped.sort_by_key(place);
    wrapped.dedup();
    if wrapped.is_empty() && around == 0 {
        return Ok(None);
    }
    if wrapped.len() > 1 && wrapped.iter().any(|name| place(name).is_none()) {
        return Err(format!("the order of {} is not known", wrapped.join(", ")));
    }
    let found = wrapped.len().checked_sub(around + 1);
    match found.and_then(|index| wrapped.into_iter().nth(index)) {
        Some(name) => Ok(Some(name)),
        None => Err("target_parameters names no parameter of this module".to_owned()),
    }
}

/// A or B of all experts, as PEFT stores it (A `[n * rank, in]`, B `[out, rank * n]`), as one for each expert: A
/// `[n, rank, in]`, B `[n, out, rank]`. `None` if the array has another rank.
pub(super) fn of_experts(part: &str, array: &Array, rank: i64) -> Result<Option<Array>> {
    let (&[first, second], Ok(rank)) = (array.shape(), i32::try_from(rank)) else {
        return Ok(None);
    };
    let joined = if part == "lora_a" { first } else { second };
    if rank < 1 || joined % rank != 0 {
        return Ok(None);
    }
    let n = joined / rank;
    Ok(Some(match part {
        "lora_a" => array.reshape(&[n, rank, second])?,
        _ => array.reshape(&[first, rank, n])?.transpose(&[2, 0, 1])?,
    }))
}
