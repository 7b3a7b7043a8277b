//! The operations of exported functions, and this crate's operations for them.

use super::read::{Rest, Stated};
use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};
use crate::fast::{self, Mask, Rope};
use crate::ops::conv::ConvGeneral;
use crate::ops::quantize::{QuantMode, Scheme, quantized_matmul_with};
use crate::ops::shape::PadMode;
use crate::ops::{Side, arange, broadcast_arrays, concat};
use crate::random;

/// Builds the results of a node from its inputs. The first result's shape and dtype are those that the file states.
pub(super) type Operation = Box<dyn Fn(&[&Array], &Stated) -> Result<Vec<Array>>>;

/// A reduction over axes, and a scan along one.
type Reduce = fn(&Array, &[i32]) -> Result<Array>;
type Scan = fn(&Array, i32, bool, bool) -> Result<Array>;
type Read = fn(&mut Rest<'_>) -> Result<Operation, String>;

/// An operation of `N` inputs with one result.
fn exactly<const N: usize>(
    f: impl Fn([&Array; N], &Stated) -> Result<Array> + 'static,
) -> Result<Operation, String> {
    Ok(Box::new(move |inputs, stated| {
        let given: [&Array; N] = inputs.try_into().map_err(|_| {
            let message = format!("{} inputs, expected {N}", inputs.len());
            Error::new(ErrorKind::Format, message)
        })?;
        Ok(vec![f(given, stated)?])
    }))
}

fn unary(f: fn(&Array) -> Result<Array>) -> Result<Operation, String> {
    exactly(move |[x], _| f(x))
}

fn binary(f: fn(&Array, &Array) -> Result<Array>) -> Result<Operation, String> {
    exactly(move |[x, y], _| f(x, y))
}

/// An operation of any number of inputs, but at least one.
fn several(
    f: impl Fn(&[&Array], &Stated) -> Result<Vec<Array>> + 'static,
) -> Result<Operation, String> {
    Ok(Box::new(move |inputs, stated| {
        if inputs.is_empty() {
            return Err(Error::new(ErrorKind::Format, "no inputs"));
        }
        f(inputs, stated)
    }))
}

/// How values at one place are combined.
#[derive(Clone, Copy)]
enum Combine {
    Max,
    Min,
    Sum,
    Prod,
    Replace,
}

const COMBINE: [Combine; 5] = [
    Combine::Max,
    Combine::Min,
    Combine::Sum,
    Combine::Prod,
    Combine::Replace,
];

/// Reads the state of the operation `name`.
pub(super) fn read(name: &str, rest: &mut Rest<'_>) -> Result<Operation, String> {
    match OPERATIONS.iter().find(|(known, _)| *known == name) {
        Some((_, read)) => read(rest),
        None => {
            let known: Vec<&str> = OPERATIONS.iter().map(|(name, _)| *name).collect();
            Err(format!("not read; read: {}", known.join(", ")))
        }
    }
}

const OPERATIONS: &[(&str, Read)] = &[
    // Elementwise, without state.
    ("Abs", |_| unary(Array::abs)),
    ("ArcCos", |_| unary(Array::arccos)),
    ("ArcCosh", |_| unary(Array::arccosh)),
    ("ArcSin", |_| unary(Array::arcsin)),
    ("ArcSinh", |_| unary(Array::arcsinh)),
    ("ArcTan", |_| unary(Array::arctan)),
    ("ArcTanh", |_| unary(Array::arctanh)),
    ("BitwiseInvert", |_| unary(Array::bitwise_invert)),
    ("Ceil", |_| unary(Array::ceil)),
    ("Conjugate", |_| unary(Array::conjugate)),
    ("Copy", |_| unary(Array::copy)),
    ("Cos", |_| unary(Array::cos)),
    ("Cosh", |_| unary(Array::cosh)),
    ("Erf", |_| unary(Array::erf)),
    ("ErfInv", |_| unary(Array::erfinv)),
    ("Exp", |_| unary(Array::exp)),
    ("Expm1", |_| unary(Array::expm1)),
    ("Floor", |_| unary(Array::floor)),
    ("Imag", |_| unary(Array::imag)),
    ("Log1p", |_| unary(Array::log1p)),
    ("LogicalNot", |_| unary(Array::logical_not)),
    ("Negative", |_| unary(Array::negative)),
    ("Real", |_| unary(Array::real)),
    ("Round", |_| unary(Array::round)),
    ("Sigmoid", |_| unary(Array::sigmoid)),
    ("Sign", |_| unary(Array::sign)),
    ("Sin", |_| unary(Array::sin)),
    ("Sinh", |_| unary(Array::sinh)),
    ("Square", |_| unary(Array::square)),
    ("StopGradient", |_| unary(Array::stop_gradient)),
    ("Tan", |_| unary(Array::tan)),
    ("Tanh", |_| unary(Array::tanh)),
    ("Add", |_| binary(|x, y| x.add(y))),
    ("ArcTan2", |_| binary(|x, y| x.arctan2(y))),
    ("Divide", |_| binary(|x, y| x.divide(y))),
    ("FloorDivide", |_| binary(|x, y| x.floor_divide(y))),
    ("Greater", |_| binary(|x, y| x.greater(y))),
    ("GreaterEqual", |_| binary(|x, y| x.greater_equal(y))),
    ("Less", |_| binary(|x, y| x.less(y))),
    ("LessEqual", |_| binary(|x, y| x.less_equal(y))),
    ("LogAddExp", |_| binary(|x, y| x.logaddexp(y))),
    ("LogicalAnd", |_| binary(|x, y| x.logical_and(y))),
    ("LogicalOr", |_| binary(|x, y| x.logical_or(y))),
    ("Matmul", |_| binary(|x, y| x.matmul(y))),
    ("Maximum", |_| binary(|x, y| x.maximum(y))),
    ("Minimum", |_| binary(|x, y| x.minimum(y))),
    ("Multiply", |_| binary(|x, y| x.multiply(y))),
    ("NotEqual", |_| binary(|x, y| x.not_equal(y))),
    ("Power", |_| binary(|x, y| x.power(y))),
    ("Remainder", |_| binary(|x, y| x.remainder(y))),
    ("Subtract", |_| binary(|x, y| x.subtract(y))),
    ("Select", |_| exactly(|[c, x, y], _| c.select(x, y))),
    ("DivMod", |_| {
        several(|inputs, _| match inputs {
            [x, y] => x.divmod(*y).map(|(quotient, rest)| vec![quotient, rest]),
            _ => Err(Error::new(ErrorKind::Format, "expected two inputs")),
        })
    }),
    // Elementwise, with state.
    ("AsType", |rest| {
        let dtype = rest.dtype()?;
        exactly(move |[x], _| x.astype(dtype))
    }),
    ("View", |rest| {
        let dtype = rest.dtype()?;
        exactly(move |[x], _| x.view(dtype))
    }),
    ("BitwiseBinary", |rest| {
        let kinds: [fn(&Array, &Array) -> Result<Array>; 5] = [
            |x, y| x.bitwise_and(y),
            |x, y| x.bitwise_or(y),
            |x, y| x.bitwise_xor(y),
            |x, y| x.left_shift(y),
            |x, y| x.right_shift(y),
        ];
        binary(rest.choice(&kinds)?)
    }),
    ("Equal", |rest| match rest.boolean()? {
        false => binary(|x, y| x.equal(y)),
        true => binary(|x, y| {
            let both = x.isnan()?.logical_and(&y.isnan()?)?;
            x.equal(y)?.logical_or(&both)
        }),
    }),
    ("Log", |rest| {
        let kinds: [fn(&Array) -> Result<Array>; 3] = [Array::log2, Array::log10, Array::log];
        unary(rest.choice(&kinds)?)
    }),
    ("Sqrt", |rest| match rest.boolean()? {
        false => unary(Array::sqrt),
        true => unary(Array::rsqrt),
    }),
    // Shapes.
    ("AsStrided", |rest| {
        let (shape, strides) = (rest.shape()?, rest.longs()?);
        let offset = usize::try_from(rest.u64()?).map_err(|error| error.to_string())?;
        exactly(move |[x], _| x.as_strided_with(&shape, &strides, offset))
    }),
    ("Broadcast", |rest| {
        let shape = rest.shape()?;
        several(move |inputs, _| match inputs {
            [x] => Ok(vec![x.broadcast_to(&shape)?]),
            _ => Ok(broadcast_arrays(inputs)?.drain(..1).collect()),
        })
    }),
    ("BroadcastAxes", |rest| {
        let ignored = rest.ints()?;
        several(move |inputs, _| broadcast_axes(inputs, &ignored))
    }),
    ("Concatenate", |rest| {
        let axis = rest.i32()?;
        several(move |inputs, _| Ok(vec![concat(inputs, axis)?]))
    }),
    ("ExpandDims", |rest| {
        let axes = rest.ints()?;
        exactly(move |[x], _| x.expand_dims(&axes))
    }),
    ("Flatten", |rest| {
        let (start, end) = (rest.i32()?, rest.i32()?);
        exactly(move |[x], _| x.flatten_with(start, end))
    }),
    ("Full", |_| {
        exactly(|[x], stated| x.broadcast_to(&stated.shape))
    }),
    ("NumberOfElements", |rest| {
        let (axes, inverted, dtype) = (rest.ints()?, rest.boolean()?, rest.dtype()?);
        exactly(move |[x], _| x.number_of_elements(&axes, inverted, dtype))
    }),
    ("Pad", |rest| {
        let (axes, low, high) = (rest.ints()?, rest.shape()?, rest.shape()?);
        if axes.len() != low.len() || axes.len() != high.len() {
            return Err(format!(
                "{} axes, {} and {} widths",
                axes.len(),
                low.len(),
                high.len()
            ));
        }
        let widths = axes.iter().zip(low.iter().zip(&high));
        let widths: Vec<(i32, i32, i32)> = widths.map(|(&a, (&l, &h))| (a, l, h)).collect();
        exactly(move |[x, value], _| x.pad_with(&widths, value, PadMode::Constant))
    }),
    ("Reshape", |rest| {
        let shape = rest.ints()?;
        exactly(move |[x], _| x.reshape(&shape))
    }),
    ("Split", |rest| {
        let (places, axis) = (rest.ints()?, rest.i32()?);
        several(move |inputs, _| inputs[0].split_at(&places, axis))
    }),
    ("Squeeze", |rest| {
        let axes = rest.ints()?;
        exactly(move |[x], _| x.squeeze(&axes))
    }),
    ("Transpose", |rest| {
        let axes = rest.ints()?;
        exactly(move |[x], _| x.transpose(&axes))
    }),
    ("Unflatten", |rest| {
        let (axis, shape) = (rest.i32()?, rest.ints()?);
        exactly(move |[x], _| x.unflatten(axis, &shape))
    }),
    // Slices and indices.
    ("DynamicSlice", |rest| {
        let (axes, sizes) = (rest.ints()?, rest.shape()?);
        exactly(move |[x, start], _| x.slice_dynamic(start, &axes, &sizes))
    }),
    ("DynamicSliceUpdate", |rest| {
        let axes = rest.ints()?;
        exactly(move |[x, update, start], _| x.slice_update_dynamic(update, start, &axes))
    }),
    ("Gather", |rest| {
        let (axes, sizes) = (rest.ints()?, rest.shape()?);
        several(move |inputs, _| Ok(vec![inputs[0].gather(&inputs[1..], &axes, &sizes)?]))
    }),
    ("GatherAxis", |rest| {
        let axis = rest.i32()?;
        exactly(move |[x, indices], _| x.take_along_axis(indices, axis))
    }),
    ("MaskedScatter", |_| {
        exactly(|[x, mask, source], _| x.masked_scatter(mask, source))
    }),
    ("Scatter", |rest| {
        let (combine, axes) = (rest.choice(&COMBINE)?, rest.ints()?);
        several(move |inputs, _| {
            let [x, indices @ .., updates] = inputs else {
                return Err(Error::new(
                    ErrorKind::Format,
                    "expected at least two inputs",
                ));
            };
            Ok(vec![match combine {
                Combine::Max => x.scatter_max(indices, updates, &axes),
                Combine::Min => x.scatter_min(indices, updates, &axes),
                Combine::Sum => x.scatter_add(indices, updates, &axes),
                Combine::Prod => x.scatter_prod(indices, updates, &axes),
                Combine::Replace => x.scatter(indices, updates, &axes),
            }?])
        })
    }),
    ("ScatterAxis", |rest| {
        let adds = rest.choice(&[true, false])?;
        let axis = rest.i32()?;
        exactly(move |[x, indices, values], _| match adds {
            true => x.scatter_add_axis(indices, values, axis),
            false => x.put_along_axis(indices, values, axis),
        })
    }),
    ("SearchSorted", |rest| {
        let side = if rest.boolean()? {
            Side::Right
        } else {
            Side::Left
        };
        exactly(move |[x, values], _| x.searchsorted_with(values, side))
    }),
    ("Slice", |rest| {
        let (starts, stops, strides) = (rest.ints()?, rest.ints()?, rest.ints()?);
        exactly(move |[x], _| x.slice_strided(&starts, &stops, &strides))
    }),
    ("SliceUpdate", |rest| {
        let combine = rest.choice(&COMBINE)?;
        let (starts, stops, strides) = (rest.ints()?, rest.ints()?, rest.ints()?);
        exactly(move |[x, update], _| match combine {
            Combine::Max => x.slice_update_max(update, &starts, &stops, &strides),
            Combine::Min => x.slice_update_min(update, &starts, &stops, &strides),
            Combine::Sum => x.slice_update_add(update, &starts, &stops, &strides),
            Combine::Prod => x.slice_update_prod(update, &starts, &stops, &strides),
            Combine::Replace => x.slice_update_strided(update, &starts, &stops, &strides),
        })
    }),
    // Along axes.
    ("ArgPartition", |rest| {
        let (kth, axis) = (rest.i32()?, rest.i32()?);
        exactly(move |[x], _| x.argpartition(kth, axis))
    }),
    ("ArgReduce", |rest| {
        let smallest = rest.choice(&[true, false])?;
        let axis = rest.i32()?;
        exactly(move |[x], _| match smallest {
            true => x.argmin(axis, true),
            false => x.argmax(axis, true),
        })
    }),
    ("ArgSort", |rest| {
        let axis = rest.i32()?;
        exactly(move |[x], _| x.argsort(axis))
    }),
    ("LogSumExp", |_| unary(|x| x.logsumexp(-1, true))),
    ("Partition", |rest| {
        let (kth, axis) = (rest.i32()?, rest.i32()?);
        exactly(move |[x], _| x.partition(kth, axis))
    }),
    ("Reduce", |rest| {
        let kinds: [Reduce; 6] = [
            |x, axes| x.all(axes, true),
            |x, axes| x.any(axes, true),
            |x, axes| x.sum(axes, true),
            |x, axes| x.prod(axes, true),
            |x, axes| x.min(axes, true),
            |x, axes| x.max(axes, true),
        ];
        let (reduce, axes) = (rest.choice(&kinds)?, rest.ints()?);
        exactly(move |[x], _| reduce(x, &axes))
    }),
    ("Scan", |rest| {
        let kinds: [Scan; 5] = [
            |x, axis, reverse, inclusive| x.cummax_with(axis, reverse, inclusive),
            |x, axis, reverse, inclusive| x.cummin_with(axis, reverse, inclusive),
            |x, axis, reverse, inclusive| x.cumsum_with(axis, reverse, inclusive),
            |x, axis, reverse, inclusive| x.cumprod_with(axis, reverse, inclusive),
            |x, axis, reverse, inclusive| x.logcumsumexp_with(axis, reverse, inclusive),
        ];
        let (scan, axis) = (rest.choice(&kinds)?, rest.i32()?);
        let (reverse, inclusive) = (rest.boolean()?, rest.boolean()?);
        exactly(move |[x], _| scan(x, axis, reverse, inclusive))
    }),
    ("Softmax", |rest| {
        let precise = rest.boolean()?;
        exactly(move |[x], _| x.softmax_with(-1, precise))
    }),
    ("Sort", |rest| {
        let axis = rest.i32()?;
        exactly(move |[x], _| x.sort(axis))
    }),
    // Products.
    ("AddMM", |rest| {
        let (alpha, beta) = (rest.f32()?, rest.f32()?);
        exactly(move |[a, b, c], _| c.addmm_with(a, b, alpha, beta))
    }),
    ("Convolution", |rest| {
        let conv = ConvGeneral {
            stride: rest.ints()?,
            padding_lo: rest.ints()?,
            padding_hi: rest.ints()?,
            kernel_dilation: rest.ints()?,
            input_dilation: rest.ints()?,
            groups: rest.i32()?,
            flip: rest.boolean()?,
        };
        exactly(move |[x, weight], _| x.conv_general(weight, &conv))
    }),
    ("QuantizedMatmul", |rest| {
        let (group_size, bits) = (rest.i32()?, rest.i32()?);
        let (mode, transpose) = (rest.choice(&QuantMode::ALL)?, rest.boolean()?);
        let scheme = Scheme::new(group_size, bits, mode).map_err(|error| error.to_string())?;
        several(move |inputs, _| match inputs {
            [x, w, scales] => Ok(vec![quantized_matmul_with(
                x, w, scales, None, transpose, scheme,
            )?]),
            [x, w, scales, biases] => {
                let biases = Some(*biases);
                Ok(vec![quantized_matmul_with(
                    x, w, scales, biases, transpose, scheme,
                )?])
            }
            _ => Err(Error::new(
                ErrorKind::Format,
                "expected three or four inputs",
            )),
        })
    }),
    // Arrays from nothing, and random numbers.
    ("Arange", |rest| {
        let (start, stop, step) = (rest.f64()?, rest.f64()?, rest.f64()?);
        exactly(move |[], stated| arange(start, stop, step, stated.dtype))
    }),
    ("RandomBits", |rest| {
        let (shape, width) = (rest.shape()?, rest.i32()?);
        exactly(move |[key], _| {
            let key = random::Key::from_array((*key).clone())?;
            random::bits(&key, &shape, width)
        })
    }),
    // Fused operations, in files that were written on a GPU.
    ("RMSNorm", |rest| {
        let eps = rest.f32()?;
        exactly(move |[x, weight], _| {
            // A scalar stands for no weight.
            let weight = Some(weight).filter(|weight| weight.ndim() > 0);
            fast::rms_norm(x, weight, eps)
        })
    }),
    ("LayerNorm", |rest| {
        let eps = rest.f32()?;
        exactly(move |[x, weight, bias], _| {
            let given = |array: &'_ Array| array.ndim() > 0;
            fast::layer_norm(
                x,
                Some(weight).filter(|weight| given(weight)),
                Some(bias).filter(|bias| given(bias)),
                eps,
            )
        })
    }),
    ("RoPE", |rest| {
        let (dims, traditional) = (rest.i32()?, rest.boolean()?);
        let (base, scale, forward) = (rest.f32()?, rest.f32()?, rest.boolean()?);
        if !forward {
            return Err("a rotation backwards is not read".into());
        }
        several(move |inputs, _| {
            let (x, offsets, freqs) = match inputs {
                [x, offsets] => (x, offsets, None),
                [x, offsets, freqs] => (x, offsets, Some(*freqs)),
                _ => {
                    return Err(Error::new(
                        ErrorKind::Format,
                        "expected two or three inputs",
                    ));
                }
            };
            let rope = Rope {
                dims,
                traditional,
                base: freqs.is_none().then_some(base),
                scale,
                freqs,
            };
            Ok(vec![fast::rope_with(x, &rope, offsets)?])
        })
    }),
    ("ScaledDotProductAttention", |rest| {
        let (scale, causal) = (rest.f32()?, rest.boolean()?);
        let (sinks, logsumexp, _) = (rest.boolean()?, rest.boolean()?, rest.boolean()?);
        if logsumexp {
            return Err("attention with a second result is not read".into());
        }
        several(move |inputs, _| {
            let [q, k, v, others @ ..] = inputs else {
                return Err(Error::new(
                    ErrorKind::Format,
                    "expected at least three inputs",
                ));
            };
            let (others, sinks) = match others.split_last() {
                Some((last, others)) if sinks => (others, Some(*last)),
                _ => (others, None),
            };
            let mask = match (others, causal) {
                ([], false) => Mask::None,
                ([], true) => Mask::Causal,
                ([mask], false) => Mask::Array((*mask).clone()),
                _ => return Err(Error::new(ErrorKind::Format, "more than one mask")),
            };
            let output = fast::scaled_dot_product_attention(q, k, v, scale, mask, sinks)?;
            Ok(vec![output])
        })
    }),
];

/// The first input, broadcast to the sizes of all inputs except along the ignored axes.
fn broadcast_axes(inputs: &[&Array], ignored: &[i32]) -> Result<Vec<Array>> {
    let refuse = |message: String| Error::new(ErrorKind::Shape, message);
    let first = inputs[0];
    let ndim = inputs.iter().map(|input| input.ndim()).max().unwrap_or(0);
    let mut shape = vec![1; ndim];
    for input in inputs {
        let missing = ndim - input.ndim();
        for (size, &other) in shape[missing..].iter_mut().zip(input.shape()) {
            *size = match (*size, other) {
                (1, other) => other,
                (size, _) => size,
            };
        }
    }
    for &axis in ignored {
        let place = usize::try_from(if axis < 0 { axis + ndim as i32 } else { axis });
        let size = place.ok().and_then(|place| {
            let own = place.checked_sub(ndim - first.ndim())?;
            Some((place, *first.shape().get(own)?))
        });
        let Some((place, size)) = size else {
            return Err(refuse(format!("axis {axis} of {:?}", first.shape())));
        };
        shape[place] = size;
    }
    Ok(vec![first.broadcast_to(&shape)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    #[test]
    fn every_operation_has_one_reader() {
        let mut names: Vec<&str> = OPERATIONS.iter().map(|(name, _)| *name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn broadcasting_ignores_axes() {
        let ones = |shape: &[i32]| crate::ops::ones(shape, DType::F32).unwrap();
        let (x, y) = (ones(&[1, 5, 3]), ones(&[4, 7, 1]));
        let found = broadcast_axes(&[&x, &y], &[-2]).unwrap();
        assert_eq!(found[0].shape(), [4, 5, 3]);
        assert!(broadcast_axes(&[&x, &y], &[3]).is_err());
        assert!(broadcast_axes(&[&x, &y], &[i32::MIN]).is_err());
    }
}
