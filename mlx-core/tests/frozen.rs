//! Arrays across threads.

use std::slice::from_ref;
use std::thread;

use mlx_core::transforms::{grad_with, vmap_with};
use mlx_core::{Array, DType, ErrorKind, Frozen, Result, synchronize};

fn is_send_and_sync<T: Send + Sync + Clone + 'static>(_: &T) {}

#[test]
fn frozen_arrays_are_used_on_many_threads_at_once() -> Result<()> {
    let lazy = mlx_core::arange(0.0, 64.0, 1.0, DType::F32)?
        .reshape(&[8, 8])?
        .transpose(&[1, 0])?;
    let frozen = lazy.freeze()?;
    is_send_and_sync(&frozen);
    assert_eq!(
        (frozen.shape(), frozen.dtype(), frozen.nbytes()),
        (&[8, 8][..], DType::F32, 256)
    );
    let threads: Vec<_> = (0..4)
        .map(|number| {
            let frozen = frozen.clone();
            thread::spawn(move || -> Result<Vec<f32>> {
                let mut sums = Vec::new();
                for _ in 0..50 {
                    let array = frozen.thaw();
                    let sum = array
                        .multiply(number as f32)?
                        .matmul(&array)?
                        .sum(.., false)?;
                    sums.push(sum.item::<f32>()?);
                    // Clones are made and dropped on several threads.
                    drop((frozen.clone(), array.clone()));
                }
                Ok(sums)
            })
        })
        .collect();
    let array = frozen.thaw();
    let expected = array.matmul(&array)?.sum(.., false)?.item::<f32>()?;
    for (number, thread) in threads.into_iter().enumerate() {
        assert_eq!(thread.join().unwrap()?, vec![expected * number as f32; 50]);
    }
    Ok(())
}

#[test]
fn results_come_back_and_die_elsewhere() -> Result<()> {
    // Made on a thread that has ended before they are used.
    let made = thread::spawn(|| -> Result<Frozen> {
        Array::from_slice(&[1.0f32, 2.0], &[2])?.add(1.0)?.freeze()
    });
    let frozen = made.join().unwrap()?;
    assert_eq!(frozen.thaw().multiply(2.0)?.to_vec::<f32>()?, [4.0, 6.0]);
    // The last owner is dropped on another thread.
    thread::spawn(move || drop(frozen)).join().unwrap();
    synchronize()
}

#[test]
fn the_maker_may_go_on_using_the_array() -> Result<()> {
    let array = Array::from_slice(&[1i32, 2, 3], &[3])?;
    let frozen = array.clone().freeze()?;
    let other = thread::spawn(move || frozen.thaw().add(1)?.to_vec::<i32>());
    assert_eq!(array.add(10)?.to_vec::<i32>()?, [11, 12, 13]);
    assert_eq!(other.join().unwrap()?, [2, 3, 4]);
    Ok(())
}

#[test]
fn a_traced_array_cannot_be_frozen() -> Result<()> {
    let x = Array::from_slice(&[1.0f32], &[1])?;
    let freeze = |x: &[Array]| {
        let y = x[0].add(1.0)?;
        y.clone().freeze()?;
        Ok(vec![y.sum(.., false)?])
    };
    assert!(vmap_with(freeze, from_ref(&x), &[Some(0)], &[Some(0)]).is_err());
    assert_eq!(
        grad_with(freeze, &[x], &[0]).unwrap_err().kind(),
        ErrorKind::Invalid
    );
    Ok(())
}
