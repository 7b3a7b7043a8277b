//! Goldens of models in 16 bits: the log probabilities of the tiny checkpoints of
//! `testdata/models`, whose references were computed in 32 bits.
//!
//! The noise of 16 bits is the error of the plain form on the CPU, with the same weights in the
//! same dtype. The GPU's error may be a small multiple of it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::correct::{Check, Verdict};
use crate::bench::session::Session;

/// Checkpoints whose layers have kernels: families, norms, ropes, windows, caps, tied heads, and stored codings.
pub const CASES: [&str; 24] = [
    "llama_tied",
    "llama_bias",
    "llama_head_dim",
    "llama_yarn",
    "mistral",
    "ministral3",
    "qwen2",
    "qwen2_window",
    "qwen3",
    "qwen3_tied",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi3",
    "phi3_partial",
    "olmo2",
    "granite",
    "smollm3",
    "q_llama_b2_g32",
    "q_llama_b4_g64",
    "q_llama_b8_g128",
    "q_llama_mxfp4",
    "q_qwen3_b6_g64",
    "q_gemma3_text_b4_g32",
];

const DTYPES: [&str; 2] = ["BF16", "F16"];

/// The largest error of the GPU as a multiple of the noise, both as root mean squares over all log
/// probabilities. The CPU's kernels reach 0.4 to 1.25.
const MOST: f64 = 2.0;

/// The error of both devices for a checkpoint and dtype.
struct Errors {
    case: &'static str,
    dtype: &'static str,
    gpu: f64,
    cpu: f64,
}

/// Checks all cases with a session on the GPU and one on the CPU.
pub fn checks(testdata: &Path, gpu: &mut Session, cpu: &mut Session) -> Result<Vec<Check>> {
    let mut all = Vec::new();
    for case in CASES {
        let folder = testdata.join("models").join(case);
        let golden: Value = serde_json::from_slice(&read(&folder.join("golden.json"))?)?;
        let prompts: Vec<Vec<u32>> = serde_json::from_value(golden["prompts"].clone())
            .with_context(|| format!("{case}: prompts of golden.json"))?;
        let file = read(&folder.join("golden.safetensors"))?;
        for dtype in DTYPES {
            eprintln!("golden {case}, {dtype}");
            let mut off = [0.0; 2];
            for (session, off) in [&mut *gpu, &mut *cpu].into_iter().zip(&mut off) {
                let found = session.score(&folder, dtype, &prompts)?;
                ensure!(
                    found.len() == prompts.len(),
                    "{case}: prompts without a score"
                );
                let (mut sum, mut count) = (0.0, 0);
                for (index, rows) in found.iter().enumerate() {
                    let wanted = log_probabilities(&tensor(&file, &format!("logits.{index}"))?);
                    ensure!(
                        rows.len() == wanted.len(),
                        "{case}: {} positions",
                        rows.len()
                    );
                    for (found, wanted) in rows.iter().zip(&wanted) {
                        ensure!(
                            found.len() == wanted.len(),
                            "{case}: {} tokens",
                            found.len()
                        );
                        let pairs = found.iter().zip(wanted);
                        sum += pairs.map(|(a, b)| (a - b).powi(2)).sum::<f64>();
                        count += wanted.len();
                    }
                }
                *off = (sum / count.max(1) as f64).sqrt();
            }
            all.push(Errors {
                case,
                dtype,
                gpu: off[0],
                cpu: off[1],
            });
        }
    }
    Ok(DTYPES
        .iter()
        .flat_map(|dtype| judged(dtype, &all))
        .collect())
}

/// One check for all cases within the limit, and one for each other case.
fn judged(dtype: &str, all: &[Errors]) -> Vec<Check> {
    let of = all.iter().filter(|errors| errors.dtype == dtype);
    // NaN is not within the limit.
    let (near, far): (Vec<_>, Vec<_>) = of.partition(|errors| errors.gpu <= MOST * errors.cpu);
    let check = |what, verdict, found| Check {
        what,
        verdict,
        found,
    };
    let mut checks: Vec<Check> = far
        .iter()
        .map(|errors| {
            let what = format!("golden {} in {dtype}", errors.case);
            let found = format!(
                "off by {:.1e}, on the CPU by {:.1e}",
                errors.gpu, errors.cpu
            );
            check(what, Verdict::Failed, found)
        })
        .collect();
    let ratios = near.iter().map(|errors| errors.gpu / errors.cpu);
    let worst = ratios.fold(0.0, f64::max);
    if !near.is_empty() {
        let what = format!("goldens of {} models in {dtype}", near.len());
        let found = format!("off by at most {worst:.2} times what the CPU is");
        checks.push(check(what, Verdict::Passed, found));
    }
    checks
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Rows of an F32 matrix of a safetensors file.
fn tensor(file: &[u8], name: &str) -> Result<Vec<Vec<f64>>> {
    let length = file
        .first_chunk::<8>()
        .map(|bytes| u64::from_le_bytes(*bytes) as usize);
    let header = length.and_then(|length| file.get(8..8 + length));
    let (length, header) = length.zip(header).context("a golden without a header")?;
    let header: Value = serde_json::from_slice(header).context("the header of a golden")?;
    let entry = &header[name];
    ensure!(
        entry["dtype"] == "F32",
        "the golden has no F32 tensor {name}"
    );
    let number = |value: &Value| value.as_u64().map(|number| number as usize);
    let [start, end] = [0, 1].map(|at| number(&entry["data_offsets"][at]));
    let columns = number(&entry["shape"][1]).filter(|&columns| columns > 0);
    let bytes = start
        .zip(end)
        .and_then(|(start, end)| file.get(8 + length + start..8 + length + end));
    let (bytes, columns) = bytes
        .zip(columns)
        .with_context(|| format!("the golden's {name}"))?;
    let (numbers, _) = bytes.as_chunks::<4>();
    let numbers: Vec<f64> = numbers
        .iter()
        .map(|bytes| f64::from(f32::from_le_bytes(*bytes)))
        .collect();
    Ok(numbers.chunks(columns).map(<[f64]>::to_vec).collect())
}

fn log_probabilities(logits: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let of = |row: &Vec<f64>| {
        let most = row.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = row.iter().map(|logit| (logit - most).exp()).sum();
        row.iter().map(|logit| logit - most - sum.ln()).collect()
    };
    logits.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cargo;

    #[test]
    fn every_case_has_a_golden() {
        let models = cargo::repository().join("testdata").join("models");
        for case in CASES {
            let file = fs::read(models.join(case).join("golden.safetensors")).unwrap();
            let rows = log_probabilities(&tensor(&file, "logits.0").unwrap());
            let sum: f64 = rows[0].iter().map(|logprob| logprob.exp()).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{case}: {sum}");
            assert!(tensor(&file, "logits.99").is_err());
        }
    }

    #[test]
    fn an_error_beyond_the_noise_fails() {
        let errors = |case, gpu, cpu| Errors {
            case,
            dtype: "BF16",
            gpu,
            cpu,
        };
        let checks = judged("BF16", &[errors("a", 0.01, 0.008), errors("b", 0.05, 0.01)]);
        assert_eq!(checks[0].what, "golden b in BF16");
        assert_eq!(checks[0].verdict, Verdict::Failed);
        assert_eq!(checks[1].what, "goldens of 1 models in BF16");
        assert_eq!(checks[1].found, "off by at most 1.25 times what the CPU is");
        let nan = judged("BF16", &[errors("a", f64::NAN, 0.008)]);
        assert_eq!(nan[0].verdict, Verdict::Failed);
        assert!(judged("F16", &[errors("a", 1.0, 1.0)]).is_empty());
    }
}
