//! Recorded figures of mlx-lm and llama.cpp, for hosts on which these do not run: measured with the
//! same work.

use super::checkpoint::{Format, Model};
use super::work::Work;

/// The origin of the figures, as a sentence.
pub const ORIGIN: &str = "Figures marked as recorded are of one H100 80 GB, 2026-11-25, by mlx-lm 0.32.2 and by llama.cpp built for sm_90a with flash attention; \
     several figures of a cell are different runs";

/// The figures of mlx-lm and those of llama.cpp.
type Figures = (Model, Format, Work, &'static [f64], &'static [f64]);

const FIGURES: [Figures; 24] = {
    use Format::{Bf16, Q4};
    use Model::{Gemma3, Qwen3};
    use Work::{Classify, Decode, Prefill};
    [
        (Gemma3, Q4, Prefill(512), &[13_300.0], &[29_000.0, 43_000.0]),
        (Gemma3, Q4, Prefill(2048), &[24_800.0], &[36_000.0]),
        (Gemma3, Q4, Decode(1), &[127.0], &[633.0]),
        (Gemma3, Q4, Decode(8), &[697.0], &[2_706.0]),
        (Gemma3, Q4, Decode(32), &[1_789.0], &[5_683.0]),
        (Gemma3, Q4, Decode(64), &[2_006.0], &[7_459.0]),
        (Gemma3, Q4, Classify, &[1_812.0], &[]),
        (Gemma3, Bf16, Prefill(512), &[9_300.0], &[43_200.0]),
        (Gemma3, Bf16, Prefill(2048), &[30_400.0], &[40_000.0]),
        (Gemma3, Bf16, Decode(1), &[120.0], &[442.0]),
        (Gemma3, Bf16, Decode(8), &[701.0], &[2_081.0]),
        (Gemma3, Bf16, Decode(32), &[2_731.0], &[7_240.0]),
        (Gemma3, Bf16, Decode(64), &[4_489.0], &[9_511.0]),
        (Gemma3, Bf16, Classify, &[8_919.0], &[]),
        (Qwen3, Q4, Prefill(2048), &[29_500.0], &[33_800.0, 38_300.0]),
        (Qwen3, Q4, Decode(1), &[149.0], &[856.0]),
        (Qwen3, Q4, Decode(8), &[832.0], &[3_778.0]),
        (Qwen3, Q4, Decode(32), &[2_945.0], &[7_310.0]),
        (Qwen3, Q4, Decode(64), &[3_309.0], &[9_899.0]),
        (Qwen3, Bf16, Decode(1), &[170.0], &[647.0]),
        (Qwen3, Bf16, Decode(8), &[918.0], &[3_146.0]),
        (Qwen3, Bf16, Decode(32), &[2_798.0], &[9_448.0]),
        (Qwen3, Bf16, Decode(64), &[4_008.0], &[13_122.0]),
        (Qwen3, Bf16, Classify, &[11_888.0], &[]),
    ]
};

/// The figures of mlx-lm and of llama.cpp for a work; empty where there are none.
pub fn figures(model: Model, format: Format, work: Work) -> [Vec<f64>; 2] {
    let cell = |figures: &&Figures| (figures.0, figures.1, figures.2) == (model, format, work);
    match FIGURES.iter().find(cell) {
        Some(figures) => [figures.3.to_vec(), figures.4.to_vec()],
        None => Default::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_has_no_figures() {
        let of = |work| figures(Model::Gemma3, Format::Q4, work);
        assert_eq!(of(Work::Decode(64)), [vec![2_006.0], vec![7_459.0]]);
        assert_eq!(of(Work::Classify), [vec![1_812.0], Vec::new()]);
        assert_eq!(of(Work::Fresh), [const { Vec::<f64>::new() }; 2]);
        let prompt = figures(Model::Gemma3, Format::Q4, Work::Prefill(512));
        assert_eq!(prompt[1].len(), 2);
    }

    #[test]
    fn no_cell_is_there_twice() {
        for (at, one) in FIGURES.iter().enumerate() {
            let same = |other: &&Figures| (one.0, one.1, one.2) == (other.0, other.1, other.2);
            assert!(!FIGURES[..at].iter().any(|other| same(&other)), "{one:?}");
        }
    }
}
