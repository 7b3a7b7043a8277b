//! The vectors that layers keep of the last positions of rows ([`LayerKind::LatentWindow`](crate::LayerKind)), which they
//! read one by one.

use mlx_core::ops::create;
use mlx_core::{Array, DType, Result};

use super::Step;
use super::paged::{self, StepPages};
use crate::attend::Keys;
use crate::cache::pages::PAGE;

/// The vectors of the positions of rows.
#[derive(Clone, Debug)]
pub(super) enum Vectors {
    /// In pages: `[pages, 1, PAGE, D]`, and the tables of pages, I32 `[B, P]`.
    Pages { pool: Array, tables: Array },
    /// Those of the step's tokens `[1, T, D]`, whose rows hold nothing else.
    Tokens(Array),
}

impl Vectors {
    /// The vectors of layer `layer`, which keeps those of the step's tokens, `[1, T, D]`.
    pub(super) fn keep(step: &mut Step<'_>, layer: usize, vectors: &Array) -> Result<Self> {
        let keys = Keys::Heads(vectors.expand_dims(1)?);
        step.check_step(layer, &keys)?;
        if !step.stores() {
            return Ok(Self::Tokens(vectors.clone()));
        }
        if vectors.is_traced() {
            step.refuse_held(layer)?;
        }
        let StepPages { paged, .. } = paged::of_layer(step, layer)?;
        let (arrays, _) = step.write(layer, None, &keys, None, &paged)?;
        // Gradients pass through the step's own vectors, and not through pages.
        Ok(match vectors.is_traced() {
            true => Self::Tokens(vectors.clone()),
            false => Self::Pages {
                pool: arrays[0].clone(),
                tables: paged.tables,
            },
        })
    }

    /// The vectors of positions of rows, I32 `[N, L] -> [N, L, D]`. Row `rows[n]` has a vector at each of its positions,
    /// which are at least 0.
    pub(super) fn at(&self, step: &Step<'_>, rows: &[usize], positions: &Array) -> Result<Array> {
        let [n, _] = positions.dims()?;
        match self {
            Self::Pages { pool, tables } => {
                let tables = of_rows(tables, rows)?;
                let columns = positions
                    .floor_divide(PAGE as i32)?
                    .remainder(tables.dim(1)?)?;
                let pages = tables.take_along_axis(&columns, 1)?;
                let slots = positions.remainder(PAGE as i32)?;
                let places = pages.multiply(PAGE as i32)?.add(slots)?;
                pool.reshape(&[-1, pool.dim(-1)?])?.take(&places, 0)
            }
            Self::Tokens(vectors) => {
                let starts: Vec<i32> = step.axis.each().map(|places| places.start as i32).collect();
                let starts: Vec<i32> = rows.iter().map(|&row| starts[row]).collect();
                let places = positions.add(Array::from_slice(&starts, &[n, 1])?)?;
                vectors.squeeze(0)?.take(&places, 0)
            }
        }
    }
}

/// The rows of an array `[B, …]`.
pub(super) fn of_rows(all: &Array, rows: &[usize]) -> Result<Array> {
    let n = rows.len();
    if rows.windows(2).all(|pair| pair[0] + 1 == pair[1]) && n > 0 {
        return match n as i32 == all.dim(0)? {
            true => Ok(all.clone()),
            false => all.slice_axis(0, rows[0] as i32, (rows[0] + n) as i32),
        };
    }
    let rows: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
    all.take(&Array::from_slice(&rows, &[n as i32])?, 0)
}

/// The numbers I32 `[n]` from `begin` on, made by an operation, so that steps that differ in nothing else have the same graph.
pub(super) fn numbers(begin: i32, n: i32) -> Result<Array> {
    create::arange(f64::from(begin), f64::from(begin + n), 1.0, DType::I32)
}
