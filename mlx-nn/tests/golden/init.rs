//! Initialisers.

use mlx_core::{Array, random};
use mlx_nn::init::{self, Fan, Initializer};

use crate::{arrays, distance, index, names};

fn make(case: &str) -> Initializer {
    match case {
        "constant" => init::constant(0.7),
        "normal" => init::normal(0.5, 2.0),
        "uniform" => init::uniform(-0.5, 2.0),
        "identity" => init::identity(),
        "glorot_normal" => init::glorot_normal(),
        "glorot_normal_gain" => Initializer::GlorotNormal { gain: 2.0 },
        "glorot_uniform" => init::glorot_uniform(),
        "glorot_uniform_gain" => Initializer::GlorotUniform { gain: 2.0 },
        "he_normal" => init::he_normal(),
        "he_normal_out" => Initializer::HeNormal {
            fan: Fan::Out,
            gain: 2.0,
        },
        "he_uniform" => init::he_uniform(),
        "he_uniform_out" => Initializer::HeUniform {
            fan: Fan::Out,
            gain: 2.0,
        },
        "sparse" => Initializer::Sparse {
            sparsity: 0.3,
            mean: 0.5,
            std: 2.0,
        },
        "orthogonal" => Initializer::Orthogonal { gain: 2.0 },
        "orthogonal_wide" => init::orthogonal(),
        other => panic!("no initialiser for the case {other}"),
    }
}

#[test]
fn initializers_draw_the_numbers_of_mlx() {
    let (index, golden) = (index(), arrays("init"));
    let cases = names(&index, "init");
    assert_eq!(cases.len(), 15);
    for (seed, case) in cases.iter().enumerate() {
        let expected = golden.array(case).unwrap();
        random::seed(seed as u64);
        let found = make(case).draw(expected.shape()).unwrap();
        let off = distance(&found, &expected);
        assert!(off < 5e-6, "{case}: off by {off}");
    }
}

/// Mean, mean of squares and of fourth powers of large arrays.
#[test]
fn initializers_have_the_moments_of_mlx() {
    let index = index();
    let cases = names(&index, "init");
    let moments = index["moments"].as_object().unwrap();
    assert_eq!(moments.len(), 14);
    for (case, moments) in moments {
        let seed = cases.iter().position(|name| name == case).unwrap();
        random::seed(seed as u64);
        let drawn = make(case).draw(&[200, 150]).unwrap();
        for (power, moment) in [1.0, 2.0, 4.0].into_iter().zip(moments.as_array().unwrap()) {
            let moment = moment.as_f64().unwrap() as f32;
            let mean = |array: Array| array.mean(.., false).unwrap().item::<f32>().unwrap();
            let found = mean(drawn.power(power).unwrap());
            let off = (found - moment).abs() / moment.abs().max(1.0);
            assert!(
                off < 2e-4,
                "{case}: mean of powers {power}: {found}, not {moment}"
            );
        }
    }
}

/// Matrices of any size, also without elements.
#[test]
fn no_size_panics() {
    for shape in [&[0, 0][..], &[0, 3], &[3, 0], &[1, 1], &[2, 3]] {
        for initializer in [
            init::constant(1.0),
            init::normal(0.0, 1.0),
            init::uniform(0.0, 1.0),
            init::identity(),
            init::glorot_normal(),
            init::glorot_uniform(),
            init::he_normal(),
            init::he_uniform(),
            init::sparse(0.0),
            init::sparse(1.0),
            init::orthogonal(),
        ] {
            if let Ok(drawn) = initializer.draw(shape) {
                assert_eq!(drawn.shape(), shape, "{initializer:?}");
                drawn.to_vec::<f32>().unwrap();
            }
        }
    }
    let numbers = init::sparse(0.0).draw(&[2, 3]).unwrap();
    assert!(!numbers.to_vec::<f32>().unwrap().contains(&0.0));
    let zeros = init::sparse(1.0).draw(&[2, 3]).unwrap();
    assert_eq!(zeros.to_vec::<f32>().unwrap(), [0.0; 6]);
}

#[test]
fn shapes_that_cannot_be_drawn_are_refused() {
    for (initializer, shape, message) in [
        (
            init::he_normal(),
            &[3][..],
            "Glorot and He initialisers need two dimensions or more, found the shape [3]",
        ),
        (
            init::identity(),
            &[2, 3],
            "the identity is square, found the shape [2, 3]",
        ),
        (
            init::orthogonal(),
            &[2, 2, 2],
            "an orthogonal initialiser needs a matrix, found the shape [2, 2, 2]",
        ),
        (
            init::sparse(1.5),
            &[2, 2],
            "sparsity must be in [0, 1], given 1.5",
        ),
    ] {
        let error = initializer.draw(shape).unwrap_err().to_string();
        assert_eq!(error, message);
    }
}
