//! Arrays and functions in files that Python's MLX and NumPy read.
//!
//! `cargo run -p mlx-core --example files -- FOLDER` writes them into a folder, which must exist; without an argument
//! they go to a temporary one.

use std::collections::BTreeMap;
use std::path::PathBuf;

use mlx_core::export::{export_function, import_function};
use mlx_core::files::Npz;
use mlx_core::gguf::{self, Gguf, Value};
use mlx_core::{Array, DType, Result, Safetensors, arange, load, ones, save, savez_compressed};
use mlx_core::{save_safetensors, zeros};

fn main() -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let folder = std::env::args()
        .nth(1)
        .map_or(temporary.path().into(), PathBuf::from);
    let at = |name: &str| folder.join(name);
    let weight = arange(0.0, 6.0, 1.0, DType::F32)?.reshape(&[2, 3])?;
    let bias = zeros(&[3], DType::F16)?;

    // One array: numpy.load, mx.load.
    save(at("weight.npy"), &weight)?;
    println!("npy: {:?}", load(at("weight.npy"))?.into_array()?);

    // Several arrays by their names. A list of pairs, or a map.
    savez_compressed(at("layer.npz"), [("weight", &weight), ("bias", &bias)])?;
    let archive = Npz::open(at("layer.npz"))?;
    println!("npz: {:?}", archive.names().collect::<Vec<_>>());
    let layer = BTreeMap::from([("weight", weight.clone()), ("bias", bias)]);
    save_safetensors(at("layer.safetensors"), &layer)?;
    println!(
        "safetensors: {:?}",
        Safetensors::open(at("layer.safetensors"))?.array("bias")?
    );

    // With metadata of many types.
    let metadata = BTreeMap::from([
        ("general.architecture".to_owned(), Value::from("example")),
        ("example.sizes".to_owned(), Value::from(vec![2u32, 3])),
    ]);
    gguf::save(at("layer.gguf"), &layer, &metadata)?;
    let file = Gguf::open(at("layer.gguf"))?;
    println!("gguf: {:?}", file.value::<&[u32]>("example.sizes")?);

    // A function, with the array that it captures.
    let function = move |x: &[Array]| Ok(vec![x[0].matmul(&weight)?]);
    let x = ones(&[1, 2], DType::F32)?;
    export_function(at("layer.mlxfn"), function, std::slice::from_ref(&x))?;
    let imported = import_function(at("layer.mlxfn"))?;
    println!("mlxfn: {}", imported.call(&[x])?[0]);

    // A file that is damaged is refused, with its name and the place.
    std::fs::write(at("damaged.npy"), &std::fs::read(at("weight.npy"))?[..140])?;
    let error = load(at("damaged.npy")).unwrap_err().to_string();
    println!(
        "damaged: {}",
        error.rsplit("damaged.npy: ").next().unwrap_or(&error)
    );
    Ok(())
}
