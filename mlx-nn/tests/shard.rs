//! Ranks hold and read their parts of layers. What they compute together is tested with the families, in `mlx-models`.

use std::collections::BTreeMap;

use mlx_core::{
    Array, ErrorKind, QuantMode, Result, Safetensors, Scheme, ops::concat, safetensors,
};
use mlx_nn::shard::{Ranks, shard};
use mlx_nn::{
    Activation, Attention, AttentionConfig, Checkpoint, FillOptions, GatedMlp, Linear, Module,
    Rope, RopeConfig, RopeScaling, Rule, Rules, fill_lazily, init::initialise, quantize,
};

const HIDDEN: i32 = 128;
const INSIDE: i32 = 320;
/// Of 32 features each.
const HEADS: i32 = 6;
const KV_HEADS: i32 = 2;

#[derive(Module)]
struct Layer {
    self_attn: Attention,
    mlp: GatedMlp,
}

#[derive(Module)]
struct Stack {
    layers: Vec<Layer>,
    lm_head: Linear,
}

fn stack() -> Result<Stack> {
    let rope = RopeConfig {
        base: 10_000.0,
        dims: 32,
        interleaved: false,
        reversed: false,
        scaling: RopeScaling::Default,
    };
    let attention = AttentionConfig {
        qkv_bias: true,
        out_bias: true,
        ..AttentionConfig::plain(HIDDEN, HEADS, KV_HEADS, 32)
    };
    Ok(Stack {
        layers: vec![Layer {
            self_attn: Attention::empty(&attention, Rope::new(&rope, 32)?)?,
            mlp: GatedMlp::empty(HIDDEN, INSIDE, false, Activation::Silu)?,
        }],
        lm_head: Linear::empty(HIDDEN, 96, false)?,
    })
}

struct Files {
    _folder: tempfile::TempDir,
    path: std::path::PathBuf,
    bytes: u64,
}

fn written(scheme: Option<Scheme>) -> Result<Files> {
    let mut whole = stack()?;
    initialise(&mut whole, 3, 0.1)?;
    if let Some(scheme) = scheme {
        quantize::quantize(&mut whole, |_, _| Some(scheme))?;
    }
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.safetensors");
    let parameters = whole.parameters();
    let arrays = parameters
        .iter()
        .map(|(name, array)| (name.as_str(), array));
    safetensors::save(&path, arrays, &BTreeMap::new())?;
    let bytes = Safetensors::open(&path)?.nbytes() as u64;
    Ok(Files {
        _folder: folder,
        path,
        bytes,
    })
}

/// A rank's part, and the bytes that it has read.
fn part(files: &Files, ranks: Ranks, scheme: Option<Scheme>) -> Result<(Stack, u64)> {
    let mut module = stack()?;
    let unit = scheme.map_or(1, |scheme| scheme.group_size);
    let sharded = shard(&mut module, ranks, unit)?;
    assert_eq!(sharded.layers, if ranks.size() == 1 { 0 } else { 2 });
    let file = Safetensors::open(&files.path)?;
    let checkpoint = Checkpoint::new("here", vec![file], &Rules::none())?;
    let options = FillOptions {
        dtype: None,
        scheme: &|_| Ok(scheme),
        progress: &mut |_| (),
    };
    fill_lazily(&mut module, &checkpoint, options)?;
    let taken = checkpoint.files().map(Safetensors::taken).sum();
    Ok((module, taken))
}

/// The axis along which the parts of a parameter are joined; `None` if every rank has all of it.
fn axis(name: &str) -> Option<i32> {
    if name.ends_with("o_proj.bias") {
        return None;
    }
    Some(i32::from(
        name.contains("o_proj") || name.contains("down_proj"),
    ))
}

#[test]
fn parts_of_ranks_are_the_whole_and_only_they_are_read() -> Result<()> {
    let four = Scheme::new(32, 4, QuantMode::Affine)?;
    for scheme in [None, Some(four)] {
        let files = written(scheme)?;
        let (whole, all) = part(&files, Ranks::ALONE, scheme)?;
        assert_eq!(all, files.bytes);
        for size in [2, 3] {
            if size == 3 && scheme.is_none() {
                let error = part(&files, Ranks::new(0, 3)?, None)
                    .err()
                    .map(|error| error.to_string());
                let error = error.unwrap_or_default();
                assert!(
                    error.contains("layers.0.self_attn") && error.ends_with("work: 2, 6"),
                    "{error}"
                );
            }
            if size == 3 {
                continue;
            }
            let parts = (0..size).map(|rank| part(&files, Ranks::new(rank, size)?, scheme));
            let parts = parts.collect::<Result<Vec<_>>>()?;
            let read: u64 = parts.iter().map(|(_, taken)| taken).sum();
            // What every rank reads: the bias of o_proj.
            let common = u64::try_from(HIDDEN * 4).unwrap() * (size as u64 - 1);
            assert_eq!(read, files.bytes + common, "{size} ranks, {scheme:?}");
            let parameters: Vec<_> = parts.iter().map(|(part, _)| part.parameters()).collect();
            for (name, expected) in whole.parameters() {
                let found = match axis(&name) {
                    Some(axis) => {
                        let parts: Vec<Array> =
                            parameters.iter().map(|of| of[&name].clone()).collect();
                        concat(&parts, axis)?
                    }
                    None => parameters[0][&name].clone(),
                };
                assert_eq!(found.shape(), expected.shape(), "{name}");
                assert!(found.array_equal(&expected)?.item::<bool>()?, "{name}");
            }
        }
    }
    Ok(())
}

/// 320 features in groups of 64 are five blocks: a rank has two, the other three. Heads of 32 in groups of 64 cannot be divided.
#[test]
fn groups_of_packed_weights_stay_whole() -> Result<()> {
    let scheme = Scheme::new(64, 4, QuantMode::Affine)?;
    let files = written(Some(scheme))?;
    let error = part(&files, Ranks::new(1, 2)?, Some(scheme)).err();
    let error = error.expect("o_proj has 96 columns of a rank");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let message = error.to_string();
    assert!(
        message.contains("o_proj") && message.contains("groups of packed weights"),
        "{message}"
    );
    let mut mlp = GatedMlp::empty(HIDDEN, INSIDE, false, Activation::Silu)?;
    shard(&mut mlp, Ranks::new(1, 2)?, 64)?;
    initialise(&mut mlp, 1, 0.1)?;
    assert_eq!(mlp.parameters()["up_proj.weight"].shape(), [192, HIDDEN]);
    assert_eq!(mlp.parameters()["down_proj.weight"].shape(), [HIDDEN, 192]);
    Ok(())
}

/// Tensors that a family's rules split are cut after they were split.
#[test]
fn fused_tensors_are_split_and_then_cut() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.safetensors");
    let rows = 2 * INSIDE;
    let fused =
        Array::arange(0.0, f64::from(rows * 4), 1.0, mlx_core::DType::F32)?.reshape(&[rows, 4])?;
    let down = Array::arange(0.0, f64::from(4 * INSIDE), 1.0, mlx_core::DType::F32)?
        .reshape(&[4, INSIDE])?;
    safetensors::save(
        &path,
        [("gate_up_proj.weight", &fused), ("down_proj.weight", &down)],
        &BTreeMap::new(),
    )?;
    let rules = Rules::from([Rule::split(
        "gate_up_proj.*",
        1,
        [("gate_proj.*", INSIDE), ("up_proj.*", INSIDE)],
    )]);
    let mut mlp = GatedMlp::empty(4, INSIDE, false, Activation::Silu)?;
    shard(&mut mlp, Ranks::new(1, 2)?, 1)?;
    let checkpoint = Checkpoint::new("here", vec![Safetensors::open(&path)?], &rules)?;
    let options = FillOptions {
        dtype: None,
        scheme: &|_| Ok(None),
        progress: &mut |_| (),
    };
    fill_lazily(&mut mlp, &checkpoint, options)?;
    let half = INSIDE / 2;
    let up = fused.slice_axis(0, INSIDE + half, rows)?;
    assert!(
        mlp.parameters()["up_proj.weight"]
            .array_equal(&up)?
            .item::<bool>()?
    );
    let columns = down.slice_axis(1, half, INSIDE)?;
    assert!(
        mlp.parameters()["down_proj.weight"]
            .array_equal(&columns)?
            .item::<bool>()?
    );
    Ok(())
}
