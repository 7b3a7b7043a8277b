//! The types of tensors that GGUF files have.

use std::fmt;

use crate::dtype::DType;
use crate::ops::quantize::QuantMode;

macro_rules! types {
    ($($name:ident = $number:literal, $block:literal in $bytes:literal;)*) => {
        /// The type of a tensor in a GGUF file: plain elements, or blocks that hold several elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types, missing_docs)]
        #[non_exhaustive]
        pub enum TensorType { $($name,)* }

        impl TensorType {
            /// Every type whose size this crate has.
            pub const ALL: &'static [TensorType] = &[$(TensorType::$name,)*];

            /// The number that stands for the type in files.
            pub const fn number(self) -> u32 {
                match self { $(Self::$name => $number,)* }
            }

            /// Elements of a block, which are neighbours in a row; 1 for plain elements.
            pub const fn block(self) -> usize {
                match self { $(Self::$name => $block,)* }
            }

            /// Bytes of a block.
            pub const fn block_bytes(self) -> usize {
                match self { $(Self::$name => $bytes,)* }
            }

            /// The name that llama.cpp uses.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }
        }
    };
}

types! {
    F32 = 0, 1 in 4;
    F16 = 1, 1 in 2;
    Q4_0 = 2, 32 in 18;
    Q4_1 = 3, 32 in 20;
    Q5_0 = 6, 32 in 22;
    Q5_1 = 7, 32 in 24;
    Q8_0 = 8, 32 in 34;
    Q8_1 = 9, 32 in 40;
    Q2_K = 10, 256 in 84;
    Q3_K = 11, 256 in 110;
    Q4_K = 12, 256 in 144;
    Q5_K = 13, 256 in 176;
    Q6_K = 14, 256 in 210;
    Q8_K = 15, 256 in 292;
    IQ2_XXS = 16, 256 in 66;
    IQ2_XS = 17, 256 in 74;
    IQ3_XXS = 18, 256 in 98;
    IQ1_S = 19, 256 in 50;
    IQ4_NL = 20, 32 in 18;
    IQ3_S = 21, 256 in 110;
    IQ2_S = 22, 256 in 82;
    IQ4_XS = 23, 256 in 136;
    I8 = 24, 1 in 1;
    I16 = 25, 1 in 2;
    I32 = 26, 1 in 4;
    I64 = 27, 1 in 8;
    F64 = 28, 1 in 8;
    IQ1_M = 29, 256 in 56;
    BF16 = 30, 1 in 2;
    TQ1_0 = 34, 256 in 54;
    TQ2_0 = 35, 256 in 66;
    MXFP4 = 39, 32 in 17;
    NVFP4 = 40, 64 in 36;
    Q1_0 = 41, 128 in 18;
}

impl TensorType {
    /// Whether [`save_as`](super::save_as) writes this type: plain elements, Q4_0 and Q8_0.
    ///
    /// ```
    /// use mlx_core::gguf::TensorType;
    ///
    /// assert!(TensorType::Q4_0.is_encoded() && !TensorType::Q4_K.is_encoded());
    /// ```
    pub const fn is_encoded(self) -> bool {
        self.dtype().is_some() || matches!(self, Self::Q4_0 | Self::Q8_0)
    }

    /// The bytes of a tensor of this shape. `None` if its rows are no whole number of blocks.
    pub(super) fn bytes_of(self, shape: &[i32]) -> Option<usize> {
        let row = shape.last().map_or(1, |&size| size as usize);
        let elements: usize = shape.iter().map(|&size| size as usize).product();
        row.is_multiple_of(self.block())
            .then(|| elements / self.block() * self.block_bytes())
    }

    /// The type of plain elements of a dtype. `None` for dtypes that GGUF does not have.
    pub fn of(dtype: DType) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|kind| kind.dtype() == Some(dtype))
    }

    /// The dtype of plain elements. `None` for blocks.
    pub const fn dtype(self) -> Option<DType> {
        Some(match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::BF16 => DType::BF16,
            Self::F64 => DType::F64,
            Self::I8 => DType::I8,
            Self::I16 => DType::I16,
            Self::I32 => DType::I32,
            Self::I64 => DType::I64,
            _ => return None,
        })
    }

    /// The scheme of MLX in which blocks of this type keep their values.
    pub(super) const fn exact(self) -> Option<Exact> {
        let (bits, group) = match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q4_K => (4, 32),
            Self::Q5_0 | Self::Q5_1 | Self::Q5_K => (5, 32),
            Self::Q8_0 | Self::IQ4_NL | Self::IQ4_XS => (8, 32),
            // 3 bits times a scale of 6 bits for 16 elements.
            Self::Q3_K => (8, 128),
            Self::MXFP4 => {
                let mode = QuantMode::Mxfp4;
                return Some(Exact {
                    mode,
                    bits: 4,
                    group: 32,
                });
            }
            _ => return None,
        };
        let mode = QuantMode::Affine;
        Some(Exact { mode, bits, group })
    }

    pub(super) fn from_number(number: u32) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|kind| kind.number() == number)
    }
}

/// A scheme of MLX.
pub(super) struct Exact {
    pub mode: QuantMode,
    pub bits: usize,
    pub group: usize,
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
