//! Cases of `mlx_core::fast`, of updates in place and of transforms, for which there are no goldens of single calls.

use std::collections::BTreeSet;
use std::path::Path;

use mlx_core::ops::quantize::Scheme;
use mlx_core::random::{self, Key};
use mlx_core::transforms::{Compiled, compile, grad_with, vmap_with};
use mlx_core::{Array, Result, fast, inplace};

use super::cases::affine;
use crate::case::{Case, Op, Results, rows};

fn option(c: &Case, index: usize) -> Option<f32> {
    Some(c.float(index) as f32).filter(|number| *number != 0.0)
}

fn placed(c: &Case, offsets: &Array) -> fast::Attention<'static> {
    let slots = [
        fast::KeySlots::Straight,
        fast::KeySlots::Ring,
        fast::KeySlots::Latest,
    ];
    let slots = slots[c.int(2).rem_euclid(3) as usize];
    let window = (c.int(1) != 0).then(|| c.int(1));
    fast::Attention {
        scale: c.float(0) as f32,
        soft_cap: None,
        mask: fast::Mask::Positions(fast::Positions::new(offsets, window, slots)),
        sinks: None,
    }
}

fn mask(c: &Case) -> fast::Mask {
    match c.int(2).rem_euclid(3) {
        0 => fast::Mask::Array(c.x(3).clone()),
        1 => fast::Mask::Causal,
        _ => fast::Mask::None,
    }
}

fn projection(c: &Case) -> fast::Projection<'_> {
    fast::Projection {
        x: c.x(0),
        head_dim: c.int(0),
        norm: Some((c.x(1), c.float(1) as f32)),
        dims: c.int(2),
        freqs: c.x(2),
        offsets: c.x(3),
    }
}

fn quantized(c: &Case, first: usize) -> fast::Matrix<'_> {
    fast::Matrix::Quantized {
        packed: c.x(first),
        scales: c.x(first + 1),
        biases: Some(c.x(first + 2)),
        scheme: affine(),
    }
}

fn store(c: &Case, buffers: [&Array; 2], new: usize, scheme: Option<Scheme>) -> Result<Vec<Array>> {
    let (new, offsets) = (c.x(new), c.x(new + 1));
    let slots = fast::Slots {
        ring: c.bool(0),
        scheme,
    };
    let shared = fast::Buffers::Shared(buffers[0], buffers[1]);
    let own = fast::Buffers::Own(buffers[0].copy()?, buffers[1].copy()?);
    let results = [shared, own, fast::Buffers::New(c.int(1))]
        .map(|buffers| fast::store(buffers, new, new, offsets, slots));
    Ok(results
        .into_iter()
        .flatten()
        .flat_map(Results::list)
        .collect())
}

/// The rows of a flat step: three inputs from `first` on.
fn pages(c: &Case, first: usize) -> fast::Pages<'_> {
    fast::Pages {
        starts: c.x(first),
        lens: c.x(first + 1),
        tables: c.x(first + 2),
        most: None,
    }
}

fn unpaged(starts: &Array) -> fast::RaggedRows<'_> {
    fast::RaggedRows {
        starts,
        longest: i32::MAX,
    }
}

fn flat<'a>(c: &'a Case, mask: Option<&'a Array>) -> fast::FlatAttention<'a> {
    fast::FlatAttention {
        scale: c.float(0) as f32,
        soft_cap: None,
        seen: fast::Seen {
            window: (c.int(1) != 0).then(|| c.int(1)),
            chunk: (c.int(2) != 0).then(|| c.int(2)),
            ahead: 0,
            mask,
            slopes: None,
        },
        sinks: None,
    }
}

/// A projection of a flat step, whose values and rows follow its inputs.
fn paged(
    c: &Case,
) -> (
    fast::Projection<'_>,
    fast::Pools<'_>,
    &Array,
    fast::Pages<'_>,
) {
    let pools = fast::Pools::Shared(c.x(4), c.x(4));
    (projection(c), pools, c.x(5), pages(c, 6))
}

const UNPACKED: fast::PagedStore = fast::PagedStore { scheme: None };

fn norm(c: &Case) -> fast::NormOf<'_> {
    fast::NormOf {
        x: c.x(0),
        residual: Some(c.x(1)),
        inner: Some(c.x(2)),
        weight: Some(c.x(3)),
        eps: c.float(0) as f32,
    }
}

fn parts(of: fast::NormProducts) -> Vec<Array> {
    [vec![of.sum, of.normed], of.products].concat()
}

fn ragged(c: &Case, starts: usize, longest: i32) -> fast::RaggedRows<'_> {
    let starts = c.x(starts);
    fast::RaggedRows { starts, longest }
}

fn slots<'a>(c: &'a Case, pool: usize, to: fast::SlotsAfter<'a>) -> Option<fast::StateSlots<'a>> {
    let (pool, from) = (fast::StatePool::Shared(c.x(pool)), c.x(pool + 1));
    Some(fast::StateSlots { pool, from, to })
}

fn pooled((y, pool): (Array, Option<Array>)) -> Vec<Array> {
    std::iter::once(y).chain(pool).collect()
}

pub fn rows() -> Vec<(&'static str, Op)> {
    rows! {
        "fast::rms_norm" => |c| fast::rms_norm(c.x(0), Some(c.x(1)), c.float(0) as f32);
        "fast::layer_norm" => |c| fast::layer_norm(c.x(0), Some(c.x(1)), Some(c.x(2)), c.float(0) as f32);
        "fast::layer_norm_rounded_once" => |c| {
            fast::layer_norm_rounded_once(c.x(0), Some(c.x(1)), Some(c.x(2)), c.float(0) as f32)
        };
        "fast::gated_norm" => |c| fast::gated_norm(c.x(0), c.x(1), Some(c.x(2)), c.int(0), c.float(1) as f32);
        "fast::linear" => |c| fast::linear(c.x(0), c.x(1));
        "fast::quantized_linear" => |c| fast::quantized_linear(c.x(0), c.x(1), c.x(2), Some(c.x(3)), affine());
        "fast::experts_linear" => |c| fast::experts_linear(c.x(0), c.x(1), c.x(2));
        "fast::quantized_experts_linear" => |c| {
            fast::quantized_experts_linear(c.x(0), c.x(1), c.x(2), Some(c.x(3)), c.x(4), affine())
        };
        "fast::rows" => |c| fast::rows(c.x(0), c.x(1));
        "fast::quantized_rows" => |c| fast::quantized_rows(c.x(0), c.x(1), Some(c.x(2)), c.x(3), affine(), c.dtype(0));
        "fast::blank" => |c| fast::blank(&c.ints(0), c.dtype(1));
        "fast::swiglu" => |c| fast::swiglu(c.x(0), c.x(1));
        "fast::geglu" => |c| fast::geglu(c.x(0), c.x(1));
        "fast::add" => |c| fast::add(c.x(0), c.x(1));
        "fast::soft_cap" => |c| fast::soft_cap(c.x(0), c.float(0) as f32);
        "fast::norm_add" => |c| fast::norm_add(c.x(0), c.x(1), c.x(2), c.float(0) as f32);
        "fast::norm_linear" => |c| {
            let w = fast::Matrix::Dense(c.x(4));
            fast::norm_linear(&norm(c), &[w, w]).map(parts)
        };
        "fast::norm_gated_linear" => |c| {
            let w = fast::Matrix::Dense(c.x(4));
            fast::norm_gated_linear(fast::Gate::Silu, &norm(c), [&w, &w]).map(parts)
        };
        "fast::add_norm" => |c| {
            fast::add_norm(c.x(0), c.x(1), Some(c.x(2)), c.x(3), c.float(0) as f32)
        };
        "fast::rope" => |c| {
            fast::rope(c.x(0), c.int(0), c.bool(1), c.float(2) as f32, c.float(3) as f32, c.x(1))
        };
        "fast::rope_with" => |c| {
            let (base, scale) = (option(c, 2), c.float(3) as f32);
            let rope = fast::Rope { dims: c.int(0), traditional: c.bool(1), base, scale, freqs: None };
            fast::rope_with(c.x(0), &rope, c.x(1))
        };
        "fast::causal_conv" => |c| fast::causal_conv(c.x(0), c.x(1), Some(c.x(2)), c.bool(0));
        "fast::gated_delta" => |c| fast::gated_delta(&fast::GatedDelta {
            qkv: c.x(0),
            a: c.x(1),
            b: c.x(2),
            rate: c.x(3),
            bias: c.x(4),
            state: c.x(5),
            widths: c.x(6),
            key_heads: c.int(0),
            most: 1.0,
            bound: None,
        });
        "fast::scan" => |c| fast::scan(&fast::Scan {
            x: c.x(0),
            dt: c.x(1),
            rate: c.x(2),
            bias: c.x(3),
            skip: c.x(4),
            state: c.x(5),
            widths: c.x(6),
            groups: c.int(0),
            limits: (c.float(1) as f32, c.float(2) as f32),
        });
        "fast::ragged_conv" => |c| {
            let to = fast::SlotsAfter::Rows(c.x(6));
            let rows = ragged(c, 3, c.int(1));
            fast::ragged_conv(c.x(0), c.x(1), Some(c.x(2)), c.bool(0), &rows, slots(c, 4, to)).map(pooled)
        };
        "fast::ragged_delta" => |c| {
            let of = fast::RaggedDelta {
                qkv: c.x(0),
                a: c.x(1),
                b: c.x(2),
                rate: c.x(3),
                bias: c.x(4),
                key_heads: c.int(0),
                key_dim: c.int(1),
                most: 1.0,
                bound: None,
            };
            let to = fast::SlotsAfter::Tokens(c.x(8));
            fast::ragged_delta(&of, &ragged(c, 5, c.int(2)), slots(c, 6, to)).map(pooled)
        };
        "fast::ragged_scan" => |c| {
            let of = fast::RaggedScan {
                x: c.x(0),
                dt: c.x(1),
                rate: c.x(2),
                bias: c.x(3),
                skip: c.x(4),
                groups: c.int(0),
                key_dim: c.int(1),
                limits: (c.float(2) as f32, c.float(3) as f32),
            };
            let to = fast::SlotsAfter::Rows(c.x(8));
            fast::ragged_scan(&of, &ragged(c, 5, c.int(4)), slots(c, 6, to)).map(pooled)
        };
        "fast::heads" => |c| fast::heads(&projection(c));
        "fast::heads_and_store" => |c| {
            let slots = fast::Slots { ring: c.bool(3), scheme: None };
            let of = projection(c);
            fast::heads_and_store(&of, fast::Buffers::New(c.int(4)), &of, c.x(4), slots)
        };
        "fast::store_heads" => |c| {
            let slots = fast::Slots { ring: c.bool(3), scheme: None };
            fast::store_heads(fast::Buffers::New(c.int(4)), &projection(c), c.x(4), slots)
        };
        "fast::paged_attention" => |c| {
            fast::paged_attention(c.x(0), c.x(1), c.x(2), None, &pages(c, 3), &flat(c, Some(c.x(6))))
        };
        "paged_packed" => |c| {
            fast::paged_attention(c.x(0), c.x(1), c.x(2), Some(affine()), &pages(c, 3), &flat(c, None))
        };
        "fast::paged_latents" => |c| fast::paged_latents(c.x(0), c.x(1), c.int(3), &pages(c, 2), &flat(c, None));
        "fast::ragged_attention" => |c| {
            fast::ragged_attention(c.x(0), c.x(1), c.x(2), &unpaged(c.x(3)), &flat(c, Some(c.x(4))))
        };
        "both_directions" => |c| {
            let rows = fast::RaggedRows { longest: c.int(3), ..unpaged(c.x(3)) };
            let mut options = flat(c, Some(c.x(4)));
            (options.seen.chunk, options.seen.ahead) = (None, c.int(2));
            fast::ragged_attention(c.x(0), c.x(1), c.x(2), &rows, &options)
        };
        "fast::ragged_latents" => |c| fast::ragged_latents(c.x(0), c.x(1), c.int(3), &unpaged(c.x(2)), &flat(c, None));
        "fast::paged_store" => |c| {
            let (k, v) = (c.x(0), c.x(1));
            let own = fast::Pools::Own(k.copy()?, v.copy()?);
            let results = [own, fast::Pools::Shared(k, v)]
                .map(|pools| fast::paged_store(pools, c.x(2), c.x(2), &pages(c, 3), UNPACKED));
            Ok::<_, mlx_core::Error>(results.into_iter().flatten().flat_map(Results::list).collect::<Vec<_>>())
        };
        "fast::paged_keep" => |c| fast::paged_keep(&c.x(0).copy()?, c.x(1), &pages(c, 2), c.bool(0));
        "fast::paged_store_heads" => |c| {
            let (keys, pools, values, pages) = paged(c);
            fast::paged_store_heads(pools, &keys, values, &pages, UNPACKED)
        };
        "fast::paged_heads_and_store" => |c| {
            let (keys, pools, values, pages) = paged(c);
            fast::paged_heads_and_store(&keys, pools, &keys, values, &pages, UNPACKED)
        };
        "fast::linear_many" => |c| fast::linear_many(c.x(0), &[fast::Matrix::Dense(c.x(1)), quantized(c, 2)]);
        "fast::gated_linear" => |c| {
            let gate = if c.bool(0) { fast::Gate::Silu } else { fast::Gate::GeluTanh };
            fast::gated_linear(gate, c.x(0), &quantized(c, 1), &quantized(c, 4))
        };
        "fast::gated_experts" => |c| {
            let gate = if c.bool(0) { fast::Gate::Silu } else { fast::Gate::GeluTanh };
            fast::gated_experts(gate, c.x(0), &quantized(c, 1), &quantized(c, 4), c.x(7))
        };
        "fast::route" => |c| {
            let groups = fast::RouteGroups { n: c.int(1), top: c.int(2), two_best: c.bool(3) };
            let route = fast::Route {
                top_k: c.int(0),
                sigmoid: c.bool(3),
                norm: c.bool(3),
                added_to_sum: 0.0,
                least_sum: 0.0,
                scale: 1.0,
                groups: (c.int(1) != 0).then_some(groups),
            };
            fast::route(c.x(0), Some(c.x(1)), &route)
        };
        "fast::weighted_sum" => |c| fast::weighted_sum(c.x(0), c.x(1));
        "fast::gated" => |c| fast::gated(fast::Gate::Silu, c.x(0), c.x(1));
        "fast::gelu" => |c| fast::gelu(c.x(0));
        "fast::unpack" => |c| fast::unpack(c.x(0), affine(), c.dtype(0));
        "fast::draw" => |c| {
            let draw = || fast::Draw {
                temperature: c.float(0) as f32,
                top_p: c.float(1) as f32,
                min_p: c.float(2) as f32,
                top_k: c.int(3) as usize,
                key: [1, 2],
            };
            fast::draw(c.x(0), &[draw(), draw()]).map(|drawn| (drawn.ids, drawn.checked))
        };
        "fast::allow" => |c| {
            let words = vec![c.int(0) as u32; c.int(1).clamp(0, 1 << 20) as usize];
            fast::allow(c.x(0), &[Some(words.into()), None])
        };
        "plain" => |c| fast::plainly(|| {
            let experts = fast::experts_linear(c.x(0), c.x(1), c.x(2));
            let rows = fast::rows(c.x(3), c.x(2));
            Ok([experts, rows].into_iter().flatten().collect::<Vec<_>>())
        });
        "fast::cross_entropy" => |c| fast::cross_entropy(c.x(0), c.x(1));
        "fast::attention" => |c| {
            let (scale, soft_cap) = (c.float(0) as f32, option(c, 1));
            let options = fast::Attention { scale, soft_cap, mask: mask(c), sinks: Some(c.x(4)) };
            fast::attention(c.x(0), c.x(1), c.x(2), &options)
        };
        "fast::scaled_dot_product_attention" => |c| {
            fast::scaled_dot_product_attention(c.x(0), c.x(1), c.x(2), c.float(0) as f32, mask(c), Some(c.x(4)))
        };
        "attention_placed" => |c| fast::attention(c.x(0), c.x(1), c.x(2), &placed(c, c.x(3)));
        "fast::packed_attention" => |c| {
            fast::packed_attention(c.x(0), c.x(1), c.x(2), affine(), &placed(c, c.x(3)))
        };
        "fast::pack" => |c| fast::pack(c.x(0), affine());
        "fast::packed_words" => |c| fast::packed_words(c.int(0), c.dtype(1), affine()).map(|_| Vec::new());
        "fast::argmax" => |c| fast::argmax(c.x(0));
        "fast::logsumexp" => |c| fast::logsumexp(c.x(0));
        "fast::top" => |c| fast::top(c.x(0), c.int(0) as usize);
        "fast::nucleus" => |c| fast::nucleus(c.x(0), c.x(1));
        "fast::store" => |c| store(c, [c.x(0), c.x(0)], 1, None);
        "store_packed" => |c| store(c, [c.x(0), c.x(1)], 2, Some(affine()));
        "update_in_place" => |c| inplace::slice_update_in_place(c.x(0).copy()?, c.x(1), &c.ints(0), &c.ints(1));
        "update_dynamic_in_place" => |c| {
            inplace::slice_update_dynamic_in_place(c.x(0).copy()?, c.x(1), c.x(2), &c.ints(0))
        };
        "put_in_place" => |c| inplace::put_along_axis_in_place(c.x(0).copy()?, c.x(1), c.x(2), c.int(0));
        "scatter_in_place" => |c| inplace::scatter_in_place(c.x(0).copy()?, &[c.x(1)], c.x(2), &c.ints(0));
        "shapeless" => |c| {
            compile::set_enabled(true);
            let axis = c.int(0);
            let f = Compiled::new(
                move |x| Ok(vec![x[0].sum(axis, false)?, x[0].max(axis, true)?, x[0].softmax(axis)?]),
                true,
            );
            let first = f.call(&[c.x(0).clone()]);
            let second = f.call(&[c.x(1).clone()]);
            compile::set_enabled(false);
            Ok::<_, mlx_core::Error>([first.unwrap_or_default(), second.unwrap_or_default()].concat())
        };
        "shapeless_fused" => |c| {
            compile::set_enabled(true);
            let f = Compiled::new(|x| Ok(vec![x[0].sum(-2, true)?.add(&x[1])?.exp()?.reshape(&[-1])?]), true);
            let first = f.call(&[c.x(0).clone(), c.x(1).clone()]);
            let second = f.call(&[c.x(1).clone(), c.x(0).clone()]);
            compile::set_enabled(false);
            Ok::<_, mlx_core::Error>([first.unwrap_or_default(), second.unwrap_or_default()].concat())
        };
        "fast::gumbel" => |c| fast::gumbel(c.x(0), c.int(0));
        "vmap_of_bits" => |c| {
            vmap_with(
                |keys| {
                    let key = Key::from_array(keys[0].clone())?;
                    random::bits(&key, &[3], 4).map(Results::list)
                },
                &c.inputs,
                &[Some(c.int(0))],
                &[Some(0)],
            )
        };
        "grad_of_take" => |c| {
            let (at, axis) = (c.x(1).clone(), c.int(0));
            grad_with(|x| x[0].take(&at, axis)?.sum(.., false).map(Results::list), &c.inputs[..1], &[0])
        };
        "vmap_of_take" => |c| {
            let axis = c.int(0);
            vmap_with(|x| x[0].take(&x[1], axis).map(Results::list), &c.inputs, &[Some(c.int(1)), None], &[Some(0)])
        };
    }
}

/// Functions of `fast` that take no array of numbers, or that are called under another name.
const OTHERWISE: [&str; 3] = ["fast::form", "fast::plainly", "fast::check_packing"];

/// The functions of `fast` that the cases call.
pub fn names() -> BTreeSet<String> {
    let rows = rows().into_iter().map(|(name, _)| name.to_owned());
    rows.chain(OTHERWISE.map(str::to_owned)).collect()
}

/// The public functions of `fast`.
pub fn public() -> BTreeSet<String> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = vec![src.join("fast.rs")];
    for entry in std::fs::read_dir(src.join("fast")).unwrap() {
        files.push(entry.unwrap().path());
    }
    files.retain(|file| file.is_file() && !file.ends_with("plain.rs"));
    let text: String = files
        .iter()
        .map(|file| std::fs::read_to_string(file).unwrap())
        .collect();
    text.lines()
        .filter_map(|line| line.strip_prefix("pub fn "))
        .map(|line| {
            format!(
                "fast::{}",
                line.split(['(', '<']).next().unwrap_or_default()
            )
        })
        .collect()
}
