//! Attention of queries whose keys are all hidden by a mask of booleans: the mean of all values, as in MLX, whatever the
//! instruction set, the number of chunks and the other queries of a tile.

use mlx_core::fast::{self, Attention, Mask, plainly};
use mlx_core::transforms::grad_with;
use mlx_core::{Array, DType, Result};

use super::attention::{Inputs, inputs, scheme};
use super::{TYPES, check, kernels_are_off, normal};

fn options(mask: &Array, soft_cap: Option<f32>) -> Attention<'static> {
    Attention {
        scale: 0.3,
        soft_cap,
        mask: Mask::Array(mask.clone()),
        sinks: None,
    }
}

/// Which keys are seen: none by every third query, those of the first or the second half by others, any by the rest.
fn seen(tokens: i32, slots: i32) -> Result<Array> {
    let noise = normal(99, &[tokens, slots], DType::F32)?.to_vec::<f32>()?;
    let at = |query: i32, key: i32| match query % 6 {
        0 | 3 => false,
        1 => key < slots / 2,
        2 => key >= slots / 2,
        _ => noise[(query * slots + key) as usize] > 0.2,
    };
    let all: Vec<bool> = (0..tokens)
        .flat_map(|query| (0..slots).map(move |key| at(query, key)))
        .collect();
    Array::from_slice(&all, &[1, 1, tokens, slots])
}

/// Runs in many settings, as `attentions` does.
#[test]
fn hidden_queries_get_the_mean() -> Result<()> {
    let mut digest = 0xcbf2_9ce4_8422_2325;
    for (case, (sizes, tokens, slots)) in [
        ([2, 6, 2, 7, 5], 3, 9),
        ([1, 1, 1, 64, 64], 1, 5),
        ([1, 4, 4, 64, 64], 70, 70),
        ([1, 8, 2, 96, 128], 20, 277),
        ([1, 4, 1, 256, 256], 1, 1100),
        ([1, 2, 1, 64, 80], 40, 600),
    ]
    .into_iter()
    .enumerate()
    {
        let mask = seen(tokens, slots)?;
        for dtype in TYPES {
            let x = inputs(10 * case as u64, sizes, tokens, slots, dtype)?;
            let wide = |x: &Array| x.astype(DType::F32);
            for soft_cap in [None, Some(3.0)] {
                let options = options(&mask, soft_cap);
                let what = format!("{sizes:?}, {tokens} of {slots}, {dtype}, cap {soft_cap:?}");
                let Inputs { q, k, v, .. } = &x;
                let found = fast::attention(q, k, v, &options)?;
                let plain = plainly(|| fast::attention(&wide(q)?, &wide(k)?, &wide(v)?, &options))?;
                // The plain form has the mean too.
                let hidden = |y: &Array| y.slice_axis(2, 0, 1);
                let mean = wide(v)?.mean(2, true)?.repeat(sizes[1] / sizes[2], 1)?;
                check(&hidden(&plain)?, &mean, 0.0, &mut 0, &what)?;
                check(&hidden(&found)?, &mean, 3.0, &mut 0, &what)?;
                if dtype == DType::F32 || !kernels_are_off() {
                    check(&found, &plain, 3.0, &mut digest, &what)?;
                }
            }
        }
    }
    println!("digest {digest:016x}");
    Ok(())
}

/// Runs in many settings, as `attentions` does.
#[test]
fn hidden_queries_over_packed_keys_get_the_mean() -> Result<()> {
    let mut digest = 0xcbf2_9ce4_8422_2325;
    let scheme = scheme(8, 32);
    for dtype in TYPES {
        let Inputs { q, k, v, .. } = inputs(3, [1, 4, 2, 64, 64], 13, 300, dtype)?;
        let (k, v) = (fast::pack(&k, scheme)?, fast::pack(&v, scheme)?);
        let options = options(&seen(13, 300)?, None);
        let found = fast::packed_attention(&q, &k, &v, scheme, &options)?;
        let values = fast::unpack(&v, scheme, dtype)?.astype(DType::F32)?;
        let mean = values.mean(2, true)?.repeat(2, 1)?;
        let what = format!("packed, {dtype}");
        check(&found.slice_axis(2, 3, 4)?, &mean, 3.0, &mut digest, &what)?;
        check(&found, &found.astype(DType::F32)?, 1.0, &mut digest, &what)?;
    }
    println!("digest {digest:016x}");
    Ok(())
}

/// Hidden scores have no gradient, whatever their weights are.
#[test]
fn gradients_of_hidden_queries_are_those_of_the_plain_form() -> Result<()> {
    let Inputs { q, k, v, .. } = inputs(5, [1, 4, 2, 16, 24], 7, 21, DType::F32)?;
    let options = options(&seen(7, 21)?, None);
    let gradients = || {
        let loss = |x: &[Array]| {
            let y = fast::attention(&x[0], &x[1], &x[2], &options)?;
            Ok(vec![y.square()?.sum(.., false)?])
        };
        grad_with(loss, &[q.clone(), k.clone(), v.clone()], &[0, 1, 2])
    };
    let (found, plain) = (gradients()?, plainly(gradients)?);
    for ((found, plain), what) in found.iter().zip(&plain).zip(["q", "k", "v"]) {
        check(found, plain, 0.0, &mut 0, what)?;
    }
    let of_hidden = found[0].slice_axis(2, 0, 1)?.to_vec::<f32>()?;
    assert!(of_hidden.iter().all(|&x| x == 0.0), "{of_hidden:?}");
    Ok(())
}
