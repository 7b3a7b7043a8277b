//! Rows without pages in the plain form, which pads them if it knows the most tokens of a row; and a row whose queries see
//! keys after their own.

use mlx_core::fast::{self, FlatAttention, RaggedRows, Seen, plainly};
use mlx_core::transforms::grad_with;
use mlx_core::{Array, DType, Result, graph_size};

use super::{SEES_ALL, ints, near, normal, options, texts_of};

/// Rows with so many tokens that padding compares fewer pairs of them.
const ROWS: [i32; 6] = [40, 0, 70, 1, 64, 80];

/// The numbers of all cases: masks of several shapes, slopes and sinks.
struct Given {
    masks: Vec<Array>,
    slopes: Array,
    sinks: Array,
}

impl Given {
    fn new(tokens: i32) -> Result<Self> {
        let mut masks = Vec::new();
        for (heads, own) in [(1, 1), (1, tokens), (4, 1), (4, tokens)] {
            for columns in [80, 100] {
                let numbers = normal(5, &[heads, own, columns], DType::F32)?;
                masks.extend([numbers.greater(-0.5f32)?, numbers]);
            }
        }
        Ok(Self {
            masks,
            slopes: normal(6, &[4], DType::F32)?.multiply(0.1f32)?,
            sinks: normal(7, &[4], DType::F32)?,
        })
    }

    fn cases(&self) -> Vec<FlatAttention<'_>> {
        let mut all = vec![
            SEES_ALL,
            Seen {
                window: Some(20),
                ..SEES_ALL
            },
            Seen {
                chunk: Some(32),
                slopes: Some(&self.slopes),
                ..SEES_ALL
            },
        ];
        for (window, ahead) in [(None, i32::MAX), (Some(9), 8), (Some(100), 1), (None, 1)] {
            all.push(Seen {
                window,
                ahead,
                ..SEES_ALL
            });
        }
        let masks = self.masks.iter().enumerate();
        all.extend(masks.map(|(at, mask)| Seen {
            mask: Some(mask),
            ahead: [0, 7, i32::MAX][at % 3],
            ..SEES_ALL
        }));
        let sinks = all.iter().map(|seen| FlatAttention {
            sinks: Some(&self.sinks),
            soft_cap: Some(3.0),
            ..options(*seen)
        });
        sinks.chain(all.iter().map(|seen| options(*seen))).collect()
    }
}

#[test]
fn padded_rows_are_those_without_padding() -> Result<()> {
    let (inputs, starts) = texts_of(&ROWS, [4, 2, 24, 16], DType::F32)?;
    let [q, k, v] = &inputs;
    let tokens = ROWS.iter().sum::<i32>() + 2;
    let given = Given::new(tokens)?;
    for (case, options) in given.cases().into_iter().enumerate() {
        let attend = |longest| {
            let rows = RaggedRows {
                starts: &starts,
                longest,
            };
            let own = plainly(|| fast::ragged_attention(q, k, v, &rows, &options))?;
            let latents = plainly(|| fast::ragged_latents(q, k, 16, &rows, &options))?;
            Ok::<_, mlx_core::Error>([own, latents])
        };
        let whole = attend(i32::MAX)?;
        for longest in [80, 90] {
            for (padded, whole) in attend(longest)?.iter().zip(&whole) {
                assert!(graph_size([padded])? > graph_size([whole])?, "not padded");
                near(padded, whole, 2e-5, &format!("case {case}, {longest}"))?;
            }
        }
    }
    Ok(())
}

#[test]
fn padded_rows_have_the_same_gradients() -> Result<()> {
    let (inputs, starts) = texts_of(&ROWS, [4, 2, 24, 16], DType::F32)?;
    let tokens = ROWS.iter().sum::<i32>() + 2;
    let weights = normal(9, &[1, 4, tokens, 16], DType::F32)?;
    for (window, ahead) in [(None, 0), (None, i32::MAX), (Some(12), 30)] {
        let seen = Seen {
            window,
            ahead,
            ..SEES_ALL
        };
        let gradient = |longest| {
            let sum = |a: &[Array]| {
                let rows = RaggedRows {
                    starts: &starts,
                    longest,
                };
                let of = options(seen);
                let y = plainly(|| fast::ragged_attention(&a[0], &a[1], &a[2], &rows, &of))?;
                Ok(vec![y.multiply(&weights)?.sum(.., false)?])
            };
            grad_with(sum, &inputs, &[0, 1, 2])
        };
        for (padded, whole) in gradient(80)?.iter().zip(gradient(i32::MAX)?) {
            near(padded, &whole, 1e-4, &format!("{window:?}, {ahead}"))?;
        }
    }
    Ok(())
}

/// The bound of the plain form is no part of a result: rows that exceed it are NaN, and not something near to it.
#[test]
fn rows_over_the_bound_are_nan_in_the_plain_form() -> Result<()> {
    let starts = ints(&[0, 3, 9])?;
    let x = normal(1, &[1, 2, 9, 8], DType::F32)?;
    let rows = RaggedRows {
        starts: &starts,
        longest: 4,
    };
    let all = Seen {
        ahead: i32::MAX,
        ..SEES_ALL
    };
    let y = plainly(|| fast::ragged_attention(&x, &x, &x, &rows, &options(all)))?;
    let is_nan = |from, to| -> Result<Vec<bool>> {
        let part = y.slice_axis(2, from, to)?.to_vec::<f32>()?;
        Ok(part.iter().map(|y| y.is_nan()).collect())
    };
    assert!(is_nan(0, 3)?.iter().all(|&is| !is));
    assert!(is_nan(7, 9)?.iter().all(|&is| is));
    Ok(())
}

/// What a query sees, by positions that are their own values: the mean of the first to the last position.
#[test]
fn the_range_of_positions_is_exact() -> Result<()> {
    let rows = [30, 6, 1, 40, 29];
    let starts = ints(&[0, 30, 36, 37, 77, 106])?;
    let place: Vec<f32> = rows.iter().flat_map(|&n| 0..n).map(|p| p as f32).collect();
    let v = Array::from_slice(&place, &[1, 1, 106, 1])?;
    let q = mlx_core::zeros(&[1, 1, 106, 8], DType::F32)?;
    for window in [1, 2, 7, 64] {
        for ahead in [0, 1, 5, 38, 39, 40, i32::MAX] {
            let seen = Seen {
                window: Some(window),
                ahead,
                ..SEES_ALL
            };
            let rows_of = RaggedRows {
                starts: &starts,
                longest: 40,
            };
            let attend = || fast::ragged_attention(&q, &q, &v, &rows_of, &options(seen));
            let means = rows.iter().flat_map(|&n| {
                (0..n).map(move |p: i32| {
                    let first = (p - window + 1).max(0);
                    let last = p.saturating_add(ahead).min(n - 1);
                    (first + last) as f32 / 2.0
                })
            });
            let means = Array::from_slice(&means.collect::<Vec<f32>>(), &[1, 1, 106, 1])?;
            let what = format!("window {window}, {ahead} ahead");
            near(&attend()?, &means, 1e-5, &what)?;
            near(&plainly(attend)?, &means, 1e-5, &what)?;
        }
    }
    Ok(())
}
