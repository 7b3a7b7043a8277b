//! Each public name of Python's `mlx.nn` and `mlx.optimizers` has this crate's name or the reason
//! why there is none.

#[path = "../../mlx-core/tests/shared/names.rs"]
mod shared;

#[test]
fn every_name_of_python_has_a_row() {
    let counts = shared::check(&|group| group.starts_with("mlx.nn") || group == "mlx.optimizers");
    assert_eq!(counts.len(), 6);
    // A table that loses its links would pass otherwise.
    for (group, least) in [
        ("mlx.nn layers", 66),
        ("mlx.nn functions", 29),
        ("mlx.nn.Module", 18),
        ("mlx.nn.init", 10),
        ("mlx.nn.losses", 14),
        ("mlx.optimizers", 18),
    ] {
        let (ours, all) = counts[group];
        assert!(ours >= least, "{group}: {ours} of {all}, at least {least}");
    }
}
