//! Choosing a token.

use criterion::Criterion;
use mlx_core::fast::{self, Draw};
use mlx_core::{Array, DType, Result};

use crate::normal;
use crate::timed::{Amount, time};

/// The vocabulary sizes of Qwen3 and of Gemma3.
const VOCABULARIES: [i32; 2] = [151_936, 262_144];

pub fn choose(c: &mut Criterion) {
    for vocabulary in VOCABULARIES {
        for rows in [1, 32] {
            let of = format!("of {rows} rows of {vocabulary}");
            // Each number is read and compared once.
            let logits = || -> Result<_> {
                let logits = normal(&[rows, vocabulary], DType::F32)?;
                let amount = Amount::elementwise(&[&logits], 1.0);
                Ok((amount, logits))
            };
            time(c, &format!("argmax {of}"), || {
                let (amount, logits) = logits()?;
                Ok((amount, move || fast::argmax(&logits)))
            });
            time(c, &format!("logsumexp {of}"), || {
                let (amount, logits) = logits()?;
                Ok((amount, move || fast::logsumexp(&logits)))
            });
            time(c, &format!("top 40 {of}"), || {
                let (amount, logits) = logits()?;
                Ok((amount, move || Ok(fast::top(&logits, 40)?.0)))
            });
            let with = |temperature, top_p, top_k| Draw {
                temperature,
                top_p,
                min_p: 0.0,
                top_k,
                key: [1, 2],
            };
            for (name, draw) in [
                ("greedy draw", with(1.0, 1.0, 1)),
                ("draw", with(1.0, 1.0, 0)),
                ("draw, top-p 0.9", with(0.7, 0.9, 0)),
                ("draw, top-k 40", with(0.7, 1.0, 40)),
            ] {
                time(c, &format!("{name} {of}"), || {
                    let (amount, logits) = logits()?;
                    let draws = vec![draw; rows as usize];
                    let draw = move || Ok(fast::draw(&logits, &draws)?.checked);
                    Ok((amount, draw))
                });
            }
            time(c, &format!("nucleus 0.9 {of}"), || {
                let (amount, logits) = logits()?;
                let p = Array::from_slice(&vec![0.9f32; rows as usize], &[rows, 1])?;
                Ok((amount, move || fast::nucleus(&logits, &p)))
            });
        }
    }
}
