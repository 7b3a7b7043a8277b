//! Wrong values of environment variables are an error of the first call, and of `settings::check`.

use std::process::Command;

use mlx_core::{DType, ErrorKind, ones, settings};

const CHILD: &str = "MLX_CORE_TEST_SETTING";

/// Run by the child.
#[test]
fn a_setting_is_wrong() {
    let Some(expected) = std::env::var_os(CHILD) else {
        return;
    };
    let expected = expected.into_string().unwrap();
    for _ in 0..2 {
        let errors = [
            settings::check().unwrap_err(),
            ones(&[4], DType::F32).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
    }
}

#[test]
fn wrong_settings_are_refused_by_name() {
    settings::check().unwrap();
    let many = "123456789012345678901234567890";
    let threads = "MLX_CPU_THREADS must be a whole number from 1 to 1024, given";
    let rayon = "RAYON_NUM_THREADS must be a whole number from 0 to 1024, given";
    let isa = "MLX_CPU_ISA must be one that this machine has (";
    let kernels = "MLX_CPU_KERNELS must be on or off, given \"no\"";
    for (name, value, expected) in [
        ("MLX_CPU_THREADS", "0", threads),
        ("MLX_CPU_THREADS", "-1", threads),
        ("MLX_CPU_THREADS", "", threads),
        ("MLX_CPU_THREADS", "2x", threads),
        ("MLX_CPU_THREADS", "1025", threads),
        ("MLX_CPU_THREADS", many, threads),
        ("MLX_CPU_ISA", "sse", isa),
        ("MLX_CPU_KERNELS", "no", kernels),
        ("RAYON_NUM_THREADS", "100000", rayon),
        ("RAYON_NUM_THREADS", "-1", rayon),
        ("RAYON_NUM_THREADS", "two", rayon),
        ("RAYON_NUM_THREADS", many, rayon),
    ] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "settings::a_setting_is_wrong"])
            .env(CHILD, expected)
            .env(name, value)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{name}={value}: {said}");
        assert!(said.contains("1 passed"), "{said}");
    }
}
