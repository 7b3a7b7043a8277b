//! A program on `mlx-c-sys` alone.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    mlx_c_sys::load()?;
    let libraries = mlx_c_sys::libraries()?;
    let is_there = libraries.iter().all(|library| library.file.is_file());
    println!("{} {is_there}", mlx_c_sys::MLX_VERSION);
    Ok(())
}
