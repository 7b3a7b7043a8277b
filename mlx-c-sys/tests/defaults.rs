//! The environment variables that the library sets when it is loaded.

use std::env;
use std::process::Command;

/// A value that the user has set is kept.
#[test]
fn f32_is_not_rounded_on_tensor_cores_unless_asked_for() {
    if env::var_os("TELLS").is_some() {
        // SAFETY: the function takes no arguments; the call makes the linker keep the library.
        unsafe { mlx_c_sys::mlxrs_error_clear() };
        println!("setting {}", env::var("MLX_ENABLE_TF32").unwrap());
        return;
    }
    let of_child = |wanted: Option<&str>| {
        let mut child = Command::new(env::current_exe().unwrap());
        child.arg("--nocapture").env("TELLS", "1");
        child.env_remove("MLX_ENABLE_TF32");
        child.envs(wanted.map(|value| ("MLX_ENABLE_TF32", value)));
        String::from_utf8(child.output().unwrap().stdout).unwrap()
    };
    assert!(of_child(None).contains("setting 0"));
    assert!(of_child(Some("1")).contains("setting 1"));
}
