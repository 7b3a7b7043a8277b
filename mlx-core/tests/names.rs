//! Each public name of Python's MLX has a row with an item of this crate, or with the reason why
//! there is none.

#[path = "shared/names.rs"]
mod shared;

#[test]
fn every_name_of_python_has_a_row() {
    let counts = shared::check(&|group| group.starts_with("mlx.core") || group == "mlx.utils");
    assert_eq!(counts.len(), 10);
    // A table that loses its links would pass otherwise.
    for (group, least) in [
        ("mlx.core", 306),
        ("mlx.core.array", 55),
        ("mlx.core.fast", 9),
        ("mlx.core.fft", 18),
        ("mlx.core.linalg", 19),
        ("mlx.core.random", 13),
    ] {
        let (ours, all) = counts[group];
        assert!(ours >= least, "{group}: {ours} of {all}, at least {least}");
    }
}

/// Functions of Python that are methods here and no functions.
const METHODS_ONLY: &[(&str, &str)] = &[
    ("array", "array! and Array::from"),
    ("asarray", "array! and Array::from"),
    ("block_masked_mm", "it takes a struct of masks"),
    ("conv_general", "it takes a struct of settings"),
    (
        "conv_transpose1d",
        "as functions convolutions take all arguments",
    ),
    (
        "conv_transpose2d",
        "as functions convolutions take all arguments",
    ),
    (
        "conv_transpose3d",
        "as functions convolutions take all arguments",
    ),
    ("gather_mm", "it takes optional indices"),
    ("get_array_buffer_size", "a property"),
    ("segmented_mm", "it takes segments"),
    ("slice", "an index"),
    ("slice_update", "an index"),
];

#[test]
fn methods_that_python_has_as_functions_are_functions() {
    let read = |path: &str| {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(root.join("src").join(path)).unwrap()
    };
    let functions = ["functions", "conv", "create", "shape"]
        .map(|file| read(&format!("ops/{file}.rs")))
        .concat();
    // A function, or a line of a macro that declares functions.
    let is_function = |name: &str| {
        functions.lines().any(|line| {
            let line = line.strip_prefix("pub fn ").or(line.strip_prefix("    "));
            line.and_then(|line| line.strip_prefix(name))
                .is_some_and(|rest| rest.starts_with(['(', ',', '<']))
        })
    };
    let mut rows = 0;
    let mut missing = Vec::new();
    for line in read("python.rs").lines() {
        let Some((name, ours)) = line
            .strip_prefix("//! | `mx.")
            .and_then(|row| row.split_once("` | [`Array::"))
        else {
            continue;
        };
        let ours = ours.split('`').next().unwrap();
        let is_known = METHODS_ONLY.iter().any(|(method, _)| *method == name);
        rows += 1;
        let is_function = is_function(name) || is_function(ours);
        if is_known == is_function && !name.contains('.') {
            missing.push(name.to_owned());
        }
    }
    assert!(rows > 150, "{rows}");
    assert!(missing.is_empty(), "{missing:?}");
}
