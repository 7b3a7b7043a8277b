//! Masks of grammars.

use std::sync::Arc;

use mlx_core::fast::{self, plainly};
use mlx_core::{Array, DType, Result};

use super::on_gpu;

#[test]
fn forbidden_tokens_are_minus_infinity() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    for v in [31i32, 1000, 32001] {
        let words = (v as usize).div_ceil(32);
        let mask = |seed: u32| -> Arc<[u32]> {
            (0..words as u32)
                .map(|i| (i + seed).wrapping_mul(0x9e37_79b9))
                .collect()
        };
        let rows = [Some(mask(1)), None, Some(mask(2))];
        let mut numbers: Vec<f32> = (0..3 * v).map(|i| (i % 97) as f32 - 48.0).collect();
        numbers[3] = f32::NAN;
        numbers[5] = f32::INFINITY;
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let x = Array::from_slice(&numbers, &[3, v])?.astype(dtype)?;
            let bits = |a: Array| -> Result<Vec<u32>> {
                let numbers = a.astype(DType::F32)?.to_vec::<f32>()?;
                Ok(numbers.iter().map(|x| x.to_bits()).collect())
            };
            let found = bits(fast::allow(&x, &rows)?)?;
            let wanted = bits(plainly(|| fast::allow(&x, &rows))?)?;
            assert!(found == wanted, "{dtype} {v}");
            assert!(found[3..].contains(&f32::NEG_INFINITY.to_bits()));
        }
    }
    Ok(())
}
