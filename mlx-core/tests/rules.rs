//! The rules that protect a user of MLX: reads, errors, poisoned arrays, memory budgets, threads.

#[path = "failing/kernel.rs"]
mod failing;

use failing::{failing, failing_later};
use half::{bf16, f16};
use mlx_core::random::Key;
use mlx_core::{
    Array, Complex64, DType, Element, ErrorKind, Result, Stream, async_eval, concat, eval,
    eye_with, full, linalg, memory, ones, zeros,
};

/// Compiles only while a type has exactly one of the two implementations: is not `Send` (or `Sync`).
macro_rules! assert_not {
    ($bound:ident: $($ty:ty),*) => { $( const _: fn() = || {
        trait Ambiguous<A> { fn item() {} }
        struct Yes;
        impl<T: ?Sized> Ambiguous<()> for T {}
        impl<T: ?Sized + $bound> Ambiguous<Yes> for T {}
        <$ty as Ambiguous<_>>::item();
    }; )* };
}
assert_not!(Send: Array, Stream, Key);
assert_not!(Sync: Array, Stream, Key);

fn round_trip<T: Element>(values: &[T]) {
    let array = Array::from_slice(values, &[values.len() as i32]).unwrap();
    assert_eq!(array.dtype(), T::DTYPE);
    assert_eq!(array.to_vec::<T>().unwrap(), values);
    assert!(array.with_slice::<T, _>(|slice| slice == values).unwrap());
    assert_eq!(
        Array::scalar(values[0]).unwrap().item::<T>().unwrap(),
        values[0]
    );
    assert_eq!(array.nbytes(), values.len() * T::DTYPE.size());
}

#[test]
fn every_element_type_reads_back() {
    round_trip(&[true, false, true]);
    round_trip(&[0u8, 1, u8::MAX]);
    round_trip(&[0u16, 1, u16::MAX]);
    round_trip(&[0u32, 1, u32::MAX]);
    round_trip(&[0u64, 1, u64::MAX]);
    round_trip(&[i8::MIN, -1, i8::MAX]);
    round_trip(&[i16::MIN, -1, i16::MAX]);
    round_trip(&[i32::MIN, -1, i32::MAX]);
    round_trip(&[i64::MIN, -1, i64::MAX]);
    round_trip(&[f16::MIN, f16::from_f32(-0.5), f16::MAX]);
    round_trip(&[bf16::MIN, bf16::from_f32(-0.5), bf16::MAX]);
    round_trip(&[f32::MIN, -0.5, f32::INFINITY]);
    round_trip(&[f64::MIN, -0.5, f64::MAX]);
    round_trip(&[
        Complex64 { re: 1.0, im: -2.0 },
        Complex64::default(),
        Complex64 { re: 0.0, im: 3.0 },
    ]);
}

#[test]
fn reading_checks_the_dtype() {
    let array = Array::from_slice(&[1.0f32, 2.0], &[2]).unwrap();
    let half = array.astype(DType::BF16).unwrap();
    assert_eq!(array.to_vec::<f64>().unwrap_err().kind(), ErrorKind::DType);
    assert_eq!(
        array.to_vec::<i32>().unwrap_err().to_string(),
        "array holds F32, asked for I32"
    );
    assert_eq!(half.to_vec::<f32>().unwrap_err().kind(), ErrorKind::DType);
    assert_eq!(half.to_vec::<f16>().unwrap_err().kind(), ErrorKind::DType);
    assert_eq!(
        half.slice_axis(0, 1, 2).unwrap().item::<bf16>().unwrap(),
        bf16::from_f32(2.0)
    );
    assert_eq!(half.item::<bf16>().unwrap_err().kind(), ErrorKind::Shape);
    assert_eq!(array.item::<u8>().unwrap_err().kind(), ErrorKind::Shape);
}

#[test]
fn shapes_given_from_outside_are_checked() {
    assert_eq!(
        Array::from_slice(&[1i32, 2, 3], &[2, 2])
            .unwrap_err()
            .kind(),
        ErrorKind::Shape
    );
    assert_eq!(
        Array::from_slice(&[1i32], &[-1]).unwrap_err().kind(),
        ErrorKind::Shape
    );
    assert_eq!(
        Array::from_slice::<i32>(&[], &[i32::MAX; 9])
            .unwrap_err()
            .kind(),
        ErrorKind::Budget
    );
    assert_eq!(
        Array::from_slice::<i32>(&[], &[0, 3])
            .unwrap()
            .to_vec::<i32>()
            .unwrap(),
        Vec::<i32>::new()
    );
    let array = ones(&[2, 3], DType::F32).unwrap();
    assert_eq!(array.dims::<2>().unwrap(), [2, 3]);
    assert_eq!(array.dims::<3>().unwrap_err().kind(), ErrorKind::Shape);
    assert_eq!((array.dim(-1).unwrap(), array.dim(0).unwrap()), (3, 2));
    assert!(array.dim(2).is_err() && array.dim(-3).is_err() && array.dim(i32::MIN).is_err());
}

#[test]
fn what_exceeds_the_limit_is_refused_before_mlx() {
    let huge = 1 << 22; // its square in F32 takes 64 TiB
    let column = ones(&[huge, 1], DType::F32).unwrap();
    let row = ones(&[1, huge], DType::F32).unwrap();
    let refused: Vec<(&str, Result<Array>)> = vec![
        ("zeros", zeros(&[huge, huge], DType::F32)),
        ("ones", ones(&[huge, huge], DType::F32)),
        ("full", full(&[huge, huge], 1.5, DType::F32)),
        ("eye", eye_with(huge, huge, 0, DType::F32)),
        ("overflow", zeros(&[i32::MAX; 40], DType::Bool)),
        ("broadcast_to", row.broadcast_to(&[huge, huge])),
        ("add", column.add(&row)),
        ("matmul", column.matmul(&row)),
        ("outer", column.outer(&row)),
        ("kron", column.kron(&row)),
        ("repeat", row.repeat(huge, 0)),
        ("tile", row.tile(&[huge, 1])),
        ("take", row.take(&zeros(&[huge], DType::U32).unwrap(), 0)),
    ];
    for (name, result) in refused {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Budget, "{name}");
    }
    let before = memory::array_limit();
    memory::set_array_limit(1024);
    let small = zeros(&[256], DType::F32);
    let large = zeros(&[257], DType::F32);
    memory::set_array_limit(before);
    assert_eq!(small.unwrap().to_vec::<f32>().unwrap(), vec![0.0; 256]);
    let message = large.unwrap_err().to_string();
    assert_eq!(
        message,
        "an array of shape [257] and dtype F32 exceeds the limit of 1024 bytes"
    );
}

fn poisoned(array: &Array) {
    assert_eq!(
        array.to_vec::<f32>().unwrap_err().kind(),
        ErrorKind::Poisoned
    );
    assert_eq!(eval([array]).unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(async_eval([array]).unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(array.add(1.0).unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(concat(&[array], 0).unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(
        array.sum(.., false).unwrap_err().kind(),
        ErrorKind::Poisoned
    );
}

#[test]
fn a_failed_evaluation_poisons_what_depends_on_it_and_the_next_is_right() {
    let data = Array::from_slice(&[1.0f32, 2.0], &[2]).unwrap();
    let lazy_before = data.add(5.0).unwrap();
    let table = data.multiply(10.0).unwrap();
    let root = table.add(1.0).unwrap();
    eval([&root]).unwrap();
    // Used again after the evaluation that computed it.
    let sum = table.add(&root).unwrap();
    let broken = failing(&data, "out of luck").unwrap();
    let after = broken.add(1.0).unwrap();
    let beside = broken.clone();
    let error = eval([&after]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Eval);
    assert!(error.to_string().contains("out of luck"), "{error}");
    for array in [&broken, &after, &beside] {
        poisoned(array);
    }
    // On other systems arrays that were made before the failure are lost too.
    if cfg!(target_os = "linux") {
        assert_eq!(sum.to_vec::<f32>().unwrap(), [21.0, 41.0]);
        assert_eq!(lazy_before.to_vec::<f32>().unwrap(), [6.0, 7.0]);
    }
    assert!(
        after
            .add(1.0)
            .unwrap_err()
            .to_string()
            .contains("out of luck")
    );
    // Data, results of successful evaluations, and arrays found finished since are unchanged.
    assert_eq!(data.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(root.to_vec::<f32>().unwrap(), [11.0, 21.0]);
    assert_eq!(table.to_vec::<f32>().unwrap(), [10.0, 20.0]);
    let next = data.add(&root).unwrap().multiply(&table).unwrap();
    assert_eq!(next.to_vec::<f32>().unwrap(), [120.0, 460.0]);
    // The old arrays stay poisoned after successful steps.
    poisoned(&after);
}

#[test]
fn an_error_in_the_background_reaches_the_next_wait_and_poisons_what_failed() {
    let data = Array::from_slice(&[3.0f32], &[1]).unwrap();
    let (broken, fail) = failing_later(&data, "late").unwrap();
    let held = broken.add(1.0).unwrap();
    let late = held.add(1.0).unwrap();
    async_eval([&late]).unwrap();
    drop(fail);
    let unrelated = data.multiply(2.0).unwrap();
    let error = eval([&unrelated]).unwrap_err();
    assert!(error.to_string().contains("late"), "{error}");
    for array in [&broken, &held, &late] {
        poisoned(array);
    }
    if cfg!(target_os = "linux") {
        assert_eq!(unrelated.to_vec::<f32>().unwrap(), [6.0]);
    }
    assert_eq!(data.multiply(2.0).unwrap().to_vec::<f32>().unwrap(), [6.0]);
}

#[test]
fn a_pipeline_of_steps_survives_a_failed_one() {
    let data = Array::from_slice(&[1.0f32], &[1]).unwrap();
    for round in 0..3 {
        let mut state = data.clone();
        for step in 0..20 {
            let next = if (round, step) == (1, 10) {
                failing(&state, "step 10").unwrap()
            } else {
                state.add(1.0).unwrap()
            };
            // The next call that waits or queues reports a failure in the background.
            match async_eval([&next]).and_then(|()| state.item::<f32>()) {
                Ok(value) => assert_eq!(value, 1.0 + step as f32),
                Err(error) => {
                    assert_eq!((round, error.kind()), (1, ErrorKind::Eval), "{error}");
                    break;
                }
            }
            state = next;
            assert!((round, step) != (1, 12), "no call reported the failure");
        }
    }
}

#[test]
fn a_singular_matrix_is_an_error_of_evaluation() {
    let singular = zeros(&[2, 2], DType::F32).unwrap();
    let inverse = linalg::inv(&singular).unwrap();
    assert_eq!(inverse.to_vec::<f32>().unwrap_err().kind(), ErrorKind::Eval);
    assert_eq!(
        inverse.to_vec::<f32>().unwrap_err().kind(),
        ErrorKind::Poisoned
    );
    let regular = Array::from_slice(&[2.0f32, 0.0, 0.0, 4.0], &[2, 2]).unwrap();
    assert_eq!(
        linalg::inv(&regular).unwrap().to_vec::<f32>().unwrap(),
        [0.5, 0.0, 0.0, 0.25]
    );
}

#[test]
fn percent_signs_in_messages_are_text() {
    let data = Array::from_slice(&[3.0f32], &[1]).unwrap();
    let error = eval([failing(&data, "100%done %s%n%d %9999999s").unwrap()]).unwrap_err();
    assert!(
        error.to_string().contains("100%done %s%n%d %9999999s"),
        "{error}"
    );
    let error = mlx_core::einsum("%s%n,%n->%s", &[&data, &data]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mlx);
    let error = mlx_core::einsum("i\0", &[&data]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[test]
fn messages_are_short() {
    let error = ones(&[2], DType::F32)
        .unwrap()
        .add(ones(&[3], DType::F32).unwrap())
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "[broadcast_shapes] Shapes (2) and (3) cannot be broadcast."
    );
    assert!(format!("{error:?}").starts_with("Mlx: [broadcast_shapes]"));
    assert_eq!(
        error.context("layer 3").to_string(),
        "layer 3: [broadcast_shapes] Shapes (2) and (3) cannot be broadcast."
    );
    assert_eq!(size_of::<mlx_core::Error>(), size_of::<usize>());
}
