//! A libmlxc in a wheel is used if it is of the same inputs, has its hash and can be loaded; else it is built here.

#[path = "../build/native.rs"]
mod native;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use native::host::{self, Backend};
use native::prebuilt::{self, Wheel};
use native::{Options, pip};

fn options(root: &Path, prebuilt_dir: Option<&Path>) -> Options {
    Options {
        target: host::triple(),
        root: root.to_owned(),
        backend: Backend::Cpu,
        mlx_c_dir: None,
        mlx_dir: None,
        prebuilt_dir: prebuilt_dir.map(Path::to_owned),
        from_source: false,
        architectures: Vec::new(),
    }
}

/// Makes the wheel of a folder, and prints its SHA-256.
const WHEEL: &str = "
import hashlib, pathlib, sys, zipfile
folder, output, version = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
info = f'mlxrs_native-{version}.dist-info'
with zipfile.ZipFile(output, 'w') as z:
    for path in sorted(folder.rglob('*')):
        if path.is_file():
            z.write(path, path.relative_to(folder))
    z.writestr(f'{info}/METADATA', f'Metadata-Version: 2.1\\nName: mlxrs-native\\nVersion: {version}\\n')
    z.writestr(f'{info}/WHEEL', 'Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: false\\nTag: py3-none-any\\n')
    z.writestr(f'{info}/RECORD', '')
print(hashlib.sha256(open(output, 'rb').read()).hexdigest())
";

/// Packs a folder into `to`.
fn pack(folder: &Path, to: &Path) -> PathBuf {
    let platform = format!("linux_{}", std::env::consts::ARCH);
    let name = prebuilt::file_name(&options(to, None), &platform);
    fs::create_dir_all(to).unwrap();
    let wheel = to.join(&name);
    let output = Command::new(pip::python())
        .args(["-c", WHEEL])
        .arg(folder)
        .arg(&wheel)
        .arg(prebuilt::version(&options(to, None)))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    fs::write(to.join(format!("{name}.sha256")), output.stdout).unwrap();
    wheel
}

fn copy(from: &Path, to: &Path) {
    for item in fs::read_dir(from).unwrap().flatten() {
        let (from, to) = (item.path(), to.join(item.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(from, to).unwrap();
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_wheel_with_this_build_is_used_and_others_are_not() {
    let (build, mlx) = (Path::new(env!("MLXC_BUILD")), Path::new(env!("MLXC_MLX")));
    let wheel_of_mlx = mlx.parent().unwrap();
    let place = wheel_of_mlx.file_name().unwrap_or_default();
    if !place.to_string_lossy().starts_with("wheel-cpu-") {
        return eprintln!("left out: this build is not one for the CPU with the wheel of MLX");
    }
    let tmp = tempfile::tempdir().unwrap();
    let tmp = fs::canonicalize(tmp.path()).unwrap();
    // A cache of another user, with the wheel of MLX in it.
    let cache = |name: &str| {
        let root = tmp.join(name);
        fs::create_dir(&root).unwrap();
        std::os::unix::fs::symlink(wheel_of_mlx, root.join(place)).unwrap();
        root
    };
    let ensure = |root: &Path, wheels: &Path| {
        let mut said = String::new();
        let mlx = root.join(place).join("mlx");
        let made = prebuilt::ensure(&options(root, Some(wheels)), Some(&mlx), &mut |text| {
            said += text;
            said.push('\n');
        });
        (made.unwrap(), said)
    };
    let parts = tmp.join("parts");
    copy(&build.join("lib"), &parts.join("lib"));
    copy(&build.join("include"), &parts.join("include"));
    let wheels = tmp.join("wheels");
    let wheel = pack(&parts, &wheels);
    let root = cache("good");
    let (prefix, said) = ensure(&root, &wheels);
    let prefix = prefix.unwrap_or_else(|| panic!("{said}"));
    assert_eq!(prefix.entry().unfinished(), None);
    let library = prefix.lib().join("libmlxc.so");
    assert!(library.starts_with(&root), "{}", library.display());
    let bytes = fs::read(library).unwrap();
    assert!(bytes == fs::read(build.join("lib/libmlxc.so")).unwrap());
    // It looks for MLX in the cache that it is in.
    let relative = format!("$ORIGIN/../../{}/mlx/lib\0", place.to_string_lossy());
    let relative = relative.as_bytes();
    assert!(bytes.windows(relative.len()).any(|part| part == relative));

    // Another file than the one with the hash.
    let mut bytes = fs::read(&wheel).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&wheel, bytes).unwrap();
    let (prefix, said) = ensure(&cache("damaged"), &wheels);
    assert!(prefix.is_none());
    assert!(
        said.contains("not the file that was pinned") && said.contains("is built here"),
        "{said}"
    );

    // A library that cannot be loaded.
    fs::write(parts.join("lib/libmlxc.so"), "ELF").unwrap();
    pack(&parts, &wheels);
    let (prefix, said) = ensure(&cache("broken"), &wheels);
    assert!(prefix.is_none());
    assert!(said.contains("cannot be loaded"), "{said}");

    // A folder without a wheel of these inputs.
    let (prefix, said) = ensure(&cache("empty"), &parts);
    assert!(prefix.is_none());
    assert!(said.contains("has no mlxrs_native-"), "{said}");
}

#[test]
fn a_release_has_wheels_by_version_and_processor() {
    let options = options(Path::new("/cache"), None);
    let version = prebuilt::version(&options);
    let processor = std::env::consts::ARCH;
    let list = format!(
        "# words\n{version} other 00 https://example.org/other\n0.0.0+cpu.0 {processor} 11 https://example.org/old\n\
         {version} {processor} 22 https://example.org/own\n"
    );
    let expected = Wheel {
        address: "https://example.org/own".to_owned(),
        sha256: "22".to_owned(),
    };
    assert_eq!(prebuilt::pinned(&options, &list), Some(expected));
    assert_eq!(prebuilt::pinned(&options, ""), None);
    // Each line that is pinned has a hash and an address.
    for line in native::pins::PREBUILT.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_whole = words.len() == 4 && words[2].len() == 64 && words[3].starts_with("https://");
        assert!(line.starts_with('#') || is_whole, "{line}");
    }
}
