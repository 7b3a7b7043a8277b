//! The official clients. `cargo xtask test` names a Python that has them; without one the test says that it was left out.

use std::path::Path;
use std::process::Command;

use crate::client::SERVER;

#[test]
fn the_official_clients_work() {
    let Some(python) = std::env::var_os("MLX_TEST_PYTHON") else {
        eprintln!("left out: MLX_TEST_PYTHON names no Python with the clients");
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/serve/clients.py");
    let output = Command::new(python)
        .arg(script)
        .arg(format!("http://{}", SERVER.address))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        .env("NO_PROXY", "127.0.0.1")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let ran = String::from_utf8_lossy(&output.stdout).into_owned();
    eprintln!("clients: {ran}");
    assert!(ran.contains("openai") && ran.contains("anthropic"), "{ran}");
}
