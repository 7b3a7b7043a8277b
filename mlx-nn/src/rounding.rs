//! Rounding of activations to few bits, as DeepSeek V4.1 does in the model itself: blocks of neighbouring features share a
//! scale, are rounded to numbers of 8 or 4 bits, and are multiplied by the scale again. Derivatives pass through unchanged.

use mlx_core::{Array, DType, Error, ErrorKind, Result};

/// Features that share a scale which is a power of two.
pub const ROUNDED_BLOCK: i32 = 32;

/// Features that share a scale of E4M3.
const FINE_BLOCK: i32 = 16;

/// The largest number of E4M3.
const LARGEST_8: f32 = 448.0;

/// The largest number of E2M1.
const LARGEST_4: f32 = 6.0;

/// `x [.., D]` rounded to E4M3, with a scale for each 32 features: the least power of two with which the largest fits. The
/// derivative is that of `x`.
///
/// ```
/// # fn main() -> mlx_core::Result<()> {
/// let mut x = [0.0f32; 32];
/// x[..3].copy_from_slice(&[448.0, 17.0, 0.3]);
/// let x = mlx_core::Array::from_slice(&x, &[1, 32])?;
/// let rounded = mlx_nn::rounded_to_eight_bits(&x)?.to_vec::<f32>()?;
/// assert_eq!(rounded[..3], [448.0, 16.0, 0.3125]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// D is not a multiple of 32.
pub fn eight_bits(x: &Array) -> Result<Array> {
    by_block(x, ROUNDED_BLOCK, |x, largest| {
        let scale = power_of_two(&largest.maximum(1e-4)?.multiply(1.0 / LARGEST_8)?)?;
        let scaled = x.divide(&scale)?.maximum(-LARGEST_8)?.minimum(LARGEST_8)?;
        scaled.to_fp8()?.from_fp8(DType::F32)?.multiply(scale)
    })
}

/// `x [.., D]` rounded to E2M1, with a power of two for each 32 features.
pub(crate) fn four_bits(x: &Array) -> Result<Array> {
    by_block(x, ROUNDED_BLOCK, |x, largest| {
        let largest = largest.maximum(LARGEST_4 * f32::MIN_POSITIVE)?;
        let scale = power_of_two(&largest.multiply(1.0 / LARGEST_4)?)?;
        rounded_to_e2m1(&x.divide(&scale)?)?.multiply(scale)
    })
}

/// `x [.., D]` rounded to E2M1, with a number of E4M3 for each 16 features.
pub(crate) fn four_bits_finely(x: &Array) -> Result<Array> {
    by_block(x, FINE_BLOCK, |x, largest| {
        // The least E4M3 above 0 is 2^-9. The largest is the bound of a scale.
        let scale = largest.maximum(LARGEST_4 / 512.0)?.divide(LARGEST_4)?;
        let scale = scale.minimum(LARGEST_8)?.to_fp8()?.from_fp8(DType::F32)?;
        rounded_to_e2m1(&x.divide(&scale)?)?.multiply(scale)
    })
}

/// `of` blocks F32 `[.., n, block]` and their largest absolute values `[.., n, 1]`.
fn by_block(x: &Array, block: i32, of: impl Fn(&Array, &Array) -> Result<Array>) -> Result<Array> {
    let (shape, width) = (x.shape(), x.dim(-1)?);
    if width % block != 0 {
        let message = format!("{width} features do not divide into blocks of {block} to round");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let mut apart = shape.to_vec();
    apart.pop();
    apart.extend([width / block, block]);
    let wide = x.stop_gradient()?.astype(DType::F32)?.reshape(&apart)?;
    let largest = wide.abs()?.max(-1, true)?;
    let rounded = of(&wide, &largest)?.reshape(shape)?.astype(x.dtype())?;
    match x.is_traced() {
        true => x.add(rounded.subtract(x)?.stop_gradient()?),
        false => Ok(rounded),
    }
}

/// The least powers of two that are not below `x`, F32 and normal.
fn power_of_two(x: &Array) -> Result<Array> {
    let bits = x.view(DType::U32)?;
    let unit = |value: u32| Array::scalar(value);
    let fraction = bits.bitwise_and(unit(0x7f_ffff)?)?;
    let exponent = bits.right_shift(unit(23)?)?;
    let above = fraction.not_equal(unit(0)?)?.astype(DType::U32)?;
    exponent.add(above)?.left_shift(unit(23)?)?.view(DType::F32)
}

/// The nearest numbers of E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. Of two that are equally near, the one
/// whose last bit is 0.
fn rounded_to_e2m1(x: &Array) -> Result<Array> {
    let size = x.abs()?.minimum(LARGEST_4)?;
    // Numbers are 0.5 apart below 2, 1 below 4, and 2 above.
    let step = size.greater_equal(2.0)?.astype(DType::F32)?.multiply(0.5)?;
    let step = step.add(size.greater_equal(4.0)?.astype(DType::F32)?)?;
    let step = step.add(0.5)?;
    let rounded = size.divide(&step)?.round()?.multiply(step)?;
    rounded.multiply(x.sign()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn padded(values: &[f32]) -> Array {
        let mut all = values.to_vec();
        all.resize(32, 0.0);
        Array::from_slice(&all, &[1, 32]).unwrap()
    }

    #[test]
    fn ties_of_four_bits_go_to_the_even_number() {
        let x = [
            6.0, 0.25, 0.26, 0.75, 1.25, 1.75, 2.5, 2.51, 3.5, 5.0, 5.1, -0.75, -5.0,
        ];
        let expected = [
            6.0, 0.0, 0.5, 1.0, 1.0, 2.0, 2.0, 3.0, 4.0, 4.0, 6.0, -1.0, -4.0,
        ];
        let found = four_bits(&padded(&x)).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(found[..x.len()], expected);
    }

    #[test]
    fn scales_are_the_least_powers_of_two_that_hold_the_largest_value() {
        // 6.1 needs the scale 2, so that steps are twice as large.
        let found = four_bits(&padded(&[6.1, 0.6])).unwrap();
        assert_eq!(found.to_vec::<f32>().unwrap()[..2], [6.0, 1.0]);
        let found = eight_bits(&padded(&[448.0, 17.0, 449.0 / 512.0])).unwrap();
        assert_eq!(found.to_vec::<f32>().unwrap()[..3], [448.0, 16.0, 0.875]);
        let found = eight_bits(&padded(&[449.0, 34.0])).unwrap();
        assert_eq!(found.to_vec::<f32>().unwrap()[..2], [448.0, 32.0]);
    }

    #[test]
    fn fine_scales_are_numbers_of_eight_bits_for_sixteen_features() {
        let mut x = vec![0.0f32; 32];
        (x[0], x[16]) = (7.0, 60.0);
        let found = four_bits_finely(&Array::from_slice(&x, &[1, 32]).unwrap()).unwrap();
        let found = found.to_vec::<f32>().unwrap();
        // 7 / 6 = 1.1667 is nearest to 1.125 in E4M3.
        assert_eq!((found[0], found[16]), (6.75, 60.0));
        let message = eight_bits(&Array::from_slice(&x[..31], &[31]).unwrap());
        assert!(message.unwrap_err().to_string().contains("31 features"));
    }
}
