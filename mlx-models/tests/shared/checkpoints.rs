//! The folder of a tiny checkpoint, for several tests.
//!
//! Some have `weights.json`, a formula of the weights, in place of `model.safetensors`
//! (`xtask/golden/formula.py`). They are expanded once into a folder beside the compiled tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// Integers up to this are exact in bfloat16.
const MOST: i64 = 256;

/// The folder of a checkpoint of `testdata/models`, with its weights.
pub fn checkpoint(name: &str) -> PathBuf {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models");
    let source = models.join(name);
    if !source.join("weights.json").exists() {
        return source;
    }
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR")).join("checkpoints");
    expand(&source, &parent).unwrap_or_else(|error| panic!("{}: {error}", source.display()))
}

/// Writes a copy of the folder with its weights into `parent`. The copy's name has the hash of
/// the source, and the copy appears when it is complete.
fn expand(source: &Path, parent: &Path) -> Result<PathBuf, String> {
    let entries = fs::read_dir(source).map_err(|error| error.to_string())?;
    let mut files = BTreeMap::new();
    for entry in entries {
        let path = entry.map_err(|error| error.to_string())?.path();
        let bytes = fs::read(&path).map_err(|error| error.to_string())?;
        files.insert(path.file_name().unwrap().to_owned(), bytes);
    }
    let hash = files.iter().fold(FNV, |hash, (name, bytes)| {
        fnv(fnv(hash, name.as_encoded_bytes()), bytes)
    });
    let name = source.file_name().unwrap().display();
    let made = parent.join(format!("{name}-{hash:016x}"));
    if made.exists() {
        return Ok(made);
    }
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(parent)?;
        let new = tempfile::tempdir_in(parent)?;
        for (name, bytes) in &files {
            if name == "weights.json" {
                let weights = safetensors(&serde_json::from_slice(bytes)?);
                fs::write(new.path().join("model.safetensors"), weights)?;
            } else {
                fs::write(new.path().join(name), bytes)?;
            }
        }
        // Another test may have written the same.
        match fs::rename(new.path(), &made) {
            Err(error) if !made.exists() => Err(error),
            _ => Ok(()),
        }
    };
    write().map_err(|error| error.to_string())?;
    Ok(made)
}

const FNV: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a, continued.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// `count` integers from -radius to radius.
fn integers(seed: u64, name: &str, count: usize, radius: i64) -> impl Iterator<Item = i64> {
    let start = fnv(FNV, format!("{seed}/{name}").as_bytes());
    (0..count as u64).map(move |at| {
        let x = start.wrapping_add(at.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let x = x ^ (x >> 31);
        ((x >> 33) % (2 * radius as u64 + 1)) as i64 - radius
    })
}

/// A safetensors file of the tensors that a `weights.json` describes.
fn safetensors(file: &Value) -> Vec<u8> {
    let seed = file["seed"].as_u64().unwrap();
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for entry in file["tensors"].as_array().unwrap() {
        let pattern = entry["name"].as_str().unwrap();
        for numbers in entry["at"].as_str().unwrap_or_default().split(' ') {
            let mut numbers = numbers.split('.');
            let mut parts = pattern.split('#');
            let mut name = parts.next().unwrap_or_default().to_owned();
            for part in parts {
                name.push_str(numbers.next().unwrap());
                name.push_str(part);
            }
            let dtype = entry["dtype"].as_str().or(file["dtype"].as_str()).unwrap();
            let start = data.len();
            values(seed, &name, entry, dtype, &mut data);
            let tensor = json!({
                "dtype": dtype,
                "shape": entry["shape"],
                "data_offsets": [start, data.len()],
            });
            header.insert(name, tensor);
        }
    }
    let header = Value::Object(header).to_string();
    let length = (header.len() as u64).to_le_bytes();
    [&length, header.as_bytes(), &data].concat()
}

/// Appends the values of a tensor.
fn values(seed: u64, name: &str, entry: &Value, dtype: &str, data: &mut Vec<u8>) {
    let write = |data: &mut Vec<u8>, value: f64| match dtype {
        "F32" => data.extend((value as f32).to_le_bytes()),
        "BF16" => data.extend(((value as f32).to_bits() >> 16).to_le_bytes()[..2].iter()),
        "I32" => data.extend((value as i32).to_le_bytes()),
        "I64" => data.extend((value as i64).to_le_bytes()),
        other => panic!("{name}: no formula for {other}"),
    };
    if let Some(values) = entry["values"].as_array() {
        for value in values {
            match (dtype, value.as_i64()) {
                // Not every integer of 64 bits is an f64.
                ("I64", Some(whole)) => data.extend(whole.to_le_bytes()),
                _ => write(data, value.as_f64().unwrap()),
            }
        }
        return;
    }
    let number = |key: &str| entry[key].as_i64().unwrap();
    let [center, radius] = ["center", "radius"].map(number);
    assert!(center.abs() + radius <= MOST, "{name}: beyond bfloat16");
    let unit = (number("exponent") as f64).exp2();
    let shape = entry["shape"].as_array().unwrap();
    let count: u64 = shape.iter().map(|size| size.as_u64().unwrap()).product();
    for whole in integers(seed, name, count as usize, radius) {
        write(data, (center + whole) as f64 * unit);
    }
}

/// The numbers are those that the Python script writes.
#[test]
fn formulas_equal_those_of_the_script() {
    let file = json!({"seed": 3, "dtype": "BF16", "tensors": [
        {"name": "a.#.b.#.w", "at": "0.1 2.0", "shape": [1, 3], "center": 4, "radius": 250, "exponent": -6},
        {"name": "ids", "shape": [3], "dtype": "I64", "values": [5, -7, (1i64 << 60) + 1]},
        {"name": "s", "shape": [2], "center": 0, "radius": 9, "exponent": 1, "dtype": "F32"},
    ]});
    let bytes = safetensors(&file);
    let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let of = |name: &str| {
        let offsets = &header[name]["data_offsets"];
        let [start, end] = [0, 1].map(|at| 8 + length + offsets[at].as_u64().unwrap() as usize);
        &bytes[start..end]
    };
    let halves = |name: &str| -> Vec<f32> {
        let (pairs, _) = of(name).as_chunks::<2>();
        let pairs = pairs.iter().map(|pair| u16::from_le_bytes(*pair));
        pairs
            .map(|pair| f32::from_bits(u32::from(pair) << 16))
            .collect()
    };
    assert_eq!(halves("a.0.b.1.w"), [-1.84375, -3.609375, -0.6875]);
    assert_eq!(halves("a.2.b.0.w"), [1.234375, 2.078125, 0.90625]);
    assert_eq!(
        of("ids"),
        [5, -7, (1i64 << 60) + 1].map(i64::to_le_bytes).concat()
    );
    assert_eq!(of("s"), [-10.0f32, 6.0].map(f32::to_le_bytes).concat());
}
