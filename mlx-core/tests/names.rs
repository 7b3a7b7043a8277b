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
        ("mlx.core", 305),
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
