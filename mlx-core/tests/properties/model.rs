//! Arrays as plain Rust: a shape, and the elements in row-major order.

use mlx_core::{Array, Result};

#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    pub shape: Vec<usize>,
    pub data: Vec<i32>,
}

/// All positions of a shape, in row-major order.
pub fn positions(shape: &[usize]) -> Vec<Vec<usize>> {
    shape.iter().fold(vec![vec![]], |prefixes, &size| {
        prefixes
            .iter()
            .flat_map(|prefix| (0..size).map(move |i| [&prefix[..], &[i]].concat()))
            .collect()
    })
}

impl Model {
    pub fn from_fn(shape: &[usize], f: impl Fn(&[usize]) -> i32) -> Self {
        Self {
            shape: shape.to_vec(),
            data: positions(shape).iter().map(|at| f(at)).collect(),
        }
    }

    pub fn counting(shape: &[usize]) -> Self {
        Self {
            shape: shape.to_vec(),
            data: (0..shape.iter().product::<usize>() as i32).collect(),
        }
    }

    pub fn get(&self, at: &[usize]) -> i32 {
        assert_eq!(at.len(), self.shape.len());
        let index = at.iter().zip(&self.shape).fold(0, |index, (&i, &size)| {
            assert!(i < size);
            index * size + i
        });
        self.data[index]
    }

    pub fn ndim(&self) -> usize {
        self.shape.len()
    }

    /// The element at `at` when this model is broadcast: axes are aligned at the right, and sizes of 1 are stretched.
    pub fn get_broadcast(&self, at: &[usize]) -> i32 {
        let own = &at[at.len() - self.ndim()..];
        let own: Vec<usize> = own
            .iter()
            .zip(&self.shape)
            .map(|(&i, &size)| if size == 1 { 0 } else { i })
            .collect();
        self.get(&own)
    }

    pub fn array(&self) -> Array {
        Array::from_slice(&self.data, &ints(&self.shape)).unwrap()
    }

    /// The contents of an array.
    pub fn read(array: &Array) -> Result<Self> {
        let shape = array.shape().iter().map(|&n| n as usize).collect();
        Ok(Self {
            shape,
            data: array.to_vec::<i32>()?,
        })
    }
}

pub fn ints(sizes: &[usize]) -> Vec<i32> {
    sizes.iter().map(|&n| n as i32).collect()
}

/// The shape to which two shapes broadcast.
pub fn broadcast(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let ndim = a.len().max(b.len());
    let at =
        |shape: &[usize], i: usize| (i + shape.len()).checked_sub(ndim).map_or(1, |i| shape[i]);
    (0..ndim)
        .map(|i| match (at(a, i), at(b, i)) {
            (m, n) if m == n => Some(m),
            (1, n) => Some(n),
            (m, 1) => Some(m),
            _ => None,
        })
        .collect()
}
