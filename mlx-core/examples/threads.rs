//! Several threads: each has its own streams, and evaluated arrays cross between them as `Frozen`.

use std::sync::mpsc;
use std::thread;

use mlx_core::{Array, DType, Result, eval, ones};

/// The sum of the squares of a part.
fn work(part: &Array) -> Result<f32> {
    part.square()?.sum(.., false)?.item()
}

fn main() -> Result<()> {
    mlx_core::init()?;
    // An `Array` cannot be sent: it may be a computation that has not run. A `Frozen` holds data only.
    let data = Array::from_slice(&(0..100).map(|i| i as f32).collect::<Vec<_>>(), &[4, 25])?;
    let data = data.freeze()?;
    let sums = thread::scope(|scope| {
        let data = &data;
        let workers: Vec<_> = (0..4)
            .map(|row| scope.spawn(move || work(&data.thaw().slice_axis(0, row, row + 1)?)))
            .collect();
        let joined = workers.into_iter().map(|worker| worker.join().unwrap());
        joined.collect::<Result<Vec<f32>>>()
    })?;
    println!("sums of squares: {sums:?}");

    // A pipeline: one thread makes arrays, another uses them.
    let (sender, receiver) = mpsc::sync_channel(2);
    let producer = thread::spawn(move || -> Result<()> {
        for step in 1..=3 {
            let batch = ones(&[2, 2], DType::F32)?.multiply(step)?;
            sender.send(batch.freeze()?).expect("the other end is open");
        }
        Ok(())
    });
    for batch in receiver {
        println!("batch: {}", batch.thaw().sum(.., false)?.item::<f32>()?);
    }
    producer.join().unwrap()?;

    // A failure stays on its thread, and does not end it.
    let table = ones(&[3], DType::F32)?;
    let worker = thread::spawn(move || -> Result<f32> {
        let table = ones(&[3], DType::F32)?;
        eval([&table])?;
        let wrong = table.take(&Array::scalar(7)?, 0)?.item::<f32>();
        println!("error: {}", wrong.unwrap_err());
        table.sum(.., false)?.item()
    });
    println!("after the error: {}", worker.join().unwrap()?);
    println!("here: {}", table.sum(.., false)?.item::<f32>()?);
    Ok(())
}
