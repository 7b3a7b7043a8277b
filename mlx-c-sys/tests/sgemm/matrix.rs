//! Matrices in any layout, and `cblas_sgemm` for them.

/// `cblas_sgemm` of libmlxc. MLX calls it, and none of our headers declares it.
pub type Sgemm = unsafe extern "C" fn(
    i32,
    i32,
    i32,
    i32,
    i32,
    i32,
    f32,
    *const f32,
    i32,
    *const f32,
    i32,
    f32,
    *mut f32,
    i32,
);

/// See [`Sgemm`].
pub fn cblas_sgemm() -> Sgemm {
    let found = mlx_c_sys::symbol(c"cblas_sgemm").expect("libmlxc has cblas_sgemm");
    unsafe { std::mem::transmute(found) }
}

/// A generator with a fixed seed (splitmix64).
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn chance(&mut self) -> bool {
        self.next() & 1 == 1
    }

    /// A size: often at the edge of a tile or of a code path, seldom large.
    pub fn size(&mut self, most: usize) -> usize {
        let top = [4, 30, 100, most][self.below(4)];
        1 + self.below(top)
    }

    pub fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n)
            .map(|_| (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0)
            .collect()
    }
}

/// A matrix in memory, with `ld` elements from one row (or column) to the next, and with elements before and after it.
#[derive(Clone)]
pub struct Matrix {
    pub data: Vec<f32>,
    pub by_rows: bool,
    pub ld: usize,
}

/// The number of elements before the first.
pub const BEFORE: usize = 3;

impl Matrix {
    pub fn random(
        random: &mut Random,
        rows: usize,
        cols: usize,
        by_rows: bool,
        pad: usize,
    ) -> Self {
        let (lines, ld) = if by_rows {
            (rows, cols + pad)
        } else {
            (cols, rows + pad)
        };
        let data = random.values(BEFORE + lines * ld + 5);
        Self { data, by_rows, ld }
    }

    pub fn at(&self, row: usize, col: usize) -> usize {
        let (line, place) = if self.by_rows { (row, col) } else { (col, row) };
        BEFORE + line * self.ld + place
    }

    pub fn get(&self, row: usize, col: usize) -> f32 {
        self.data[self.at(row, col)]
    }
}

/// `c = alpha a b + beta c`; the order is that of `c`.
pub fn multiply(
    [m, n, k]: [usize; 3],
    alpha: f32,
    a: &Matrix,
    b: &Matrix,
    beta: f32,
    c: &mut Matrix,
) {
    let order = if c.by_rows { 101 } else { 102 };
    let trans = |x: &Matrix| if x.by_rows == c.by_rows { 111 } else { 112 };
    let (trans_a, trans_b) = (trans(a), trans(b));
    assert!(c.data.len() >= c.at(m - 1, n - 1));
    unsafe {
        cblas_sgemm()(
            order,
            trans_a,
            trans_b,
            m as i32,
            n as i32,
            k as i32,
            alpha,
            a.data[BEFORE..].as_ptr(),
            a.ld as i32,
            b.data[BEFORE..].as_ptr(),
            b.ld as i32,
            beta,
            c.data[BEFORE..].as_mut_ptr(),
            c.ld as i32,
        );
    }
}

/// FNV-1a over the bits.
pub fn hash(values: &[f32], mut hash: u64) -> u64 {
    for byte in values.iter().flat_map(|x| x.to_bits().to_le_bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    hash
}
