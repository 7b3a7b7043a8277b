//! Products against float64, and against the same products as parts of other matrices.

use super::matrix::{Matrix, Random, hash, multiply};

/// Compares `cases` random products with float64, and checks that the memory around the results is unchanged. Returns a
/// hash of the results.
pub fn compare(cases: usize) -> u64 {
    let mut random = Random(7);
    let mut digest = 0xcbf2_9ce4_8422_2325;
    for case in 0..cases {
        let [m, n, k] = [random.size(300), random.size(300), random.size(1500)];
        let mut flags = || [random.chance(), random.chance(), random.chance()];
        let ([a_rows, b_rows, c_rows], [scaled, kept, padded]) = (flags(), flags());
        let mut pad = || if padded { random.below(5) } else { 0 };
        let pads = [pad(), pad(), pad()];
        let a = Matrix::random(&mut random, m, k, a_rows, pads[0]);
        let b = Matrix::random(&mut random, k, n, b_rows, pads[1]);
        let mut c = Matrix::random(&mut random, m, n, c_rows, pads[2]);
        let alpha = if scaled { -0.7 } else { 1.0 };
        let beta = if kept { 0.3 } else { 0.0 };
        if !kept {
            // With beta = 0 the old elements are not read.
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let at = c.at(i, j);
                c.data[at] = f32::NAN;
            }
        }
        let old = c.clone();
        multiply([m, n, k], alpha, &a, &b, beta, &mut c);

        let mut around = c.data.clone();
        for i in 0..m {
            for j in 0..n {
                around[c.at(i, j)] = old.get(i, j);
            }
        }
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(
            bits(&around) == bits(&old.data),
            "case {case} wrote beside its result"
        );

        for _ in 0..200 {
            let (i, j) = (random.below(m), random.below(n));
            let terms = (0..k).map(|x| f64::from(a.get(i, x)) * f64::from(b.get(x, j)));
            let (sum, size) = terms.fold((0.0, 0.0), |(s, t), x: f64| (s + x, t + x.abs()));
            let was = if kept { f64::from(old.get(i, j)) } else { 0.0 };
            let expected = f64::from(alpha) * sum + f64::from(beta) * was;
            let error = (f64::from(c.get(i, j)) - expected).abs();
            // At most k / 4 roundings of a lane, plus those of the sum over lanes, of alpha and of beta.
            let allowed = (k as f64 / 4.0 + 8.0) * f64::from(f32::EPSILON) / 2.0 * (size + 1.0);
            assert!(
                error <= allowed,
                "case {case}, {m} x {n} x {k}, element {i}, {j}: {} instead of {expected}",
                c.get(i, j)
            );
        }
        digest = hash(&c.data, digest);
    }
    digest
}

/// Computes rows and columns of a large product as parts of smaller matrices and in other layouts. The results are the
/// same to the bit.
pub fn compare_parts() {
    let mut random = Random(11);
    let sizes = [1, 7, 16, 100, 515, 1041].map(|k| (200, 150, k));
    // The last k is more than one packed block.
    for (m, n, k) in sizes.into_iter().chain([(540, 105, 8200)]) {
        let a = Matrix::random(&mut random, m, k, true, 0);
        let b = Matrix::random(&mut random, k, n, true, 0);
        let mut expected = Matrix::random(&mut random, m, n, true, 0);
        multiply([m, n, k], 1.0, &a, &b, 0.0, &mut expected);
        for layout in 0..8_u32 {
            let by_rows = |bit: u32| (layout >> bit) & 1 == 1;
            for rows in [1, 2, 4, 5, 7, 25, 96, 97] {
                let cols = [1, 3, 9, 26, 100][random.below(5)];
                let (top, left) = (random.below(m - rows + 1), random.below(n - cols + 1));
                let mut part_a = Matrix::random(&mut random, rows, k, by_rows(0), 1);
                let mut part_b = Matrix::random(&mut random, k, cols, by_rows(1), 2);
                for x in 0..k {
                    for i in 0..rows {
                        let at = part_a.at(i, x);
                        part_a.data[at] = a.get(top + i, x);
                    }
                    for j in 0..cols {
                        let at = part_b.at(x, j);
                        part_b.data[at] = b.get(x, left + j);
                    }
                }
                let mut c = Matrix::random(&mut random, rows, cols, by_rows(2), 0);
                multiply([rows, cols, k], 1.0, &part_a, &part_b, 0.0, &mut c);
                for (i, j) in (0..rows).flat_map(|i| (0..cols).map(move |j| (i, j))) {
                    let (small, large) = (c.get(i, j), expected.get(top + i, left + j));
                    assert!(
                        small.to_bits() == large.to_bits(),
                        "k {k}, layout {layout}: {small} in {rows} x {cols}, {large} in {m} x {n}"
                    );
                }
            }
        }
    }
}
