//! The native build, as far as it can be tested without a network: incomplete, foreign and broken files are not used.

#[path = "../build/native.rs"]
mod native;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use native::host::{self, Backend};
use native::prefix::{self, Prefix};
use native::report::Failure;
use native::store::{Entry, MARKER, sibling};
use native::{Options, instances, machine, pins, pip, source};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn write(path: PathBuf, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn entry(dir: &Path) -> Entry {
    Entry::new(
        dir.to_owned(),
        [("made-from", "wheat")],
        [PathBuf::from("lib/bread")],
    )
}

fn bake(dir: &Path) -> Result<(), Failure> {
    write(dir.join("lib/bread"), "crust");
    Ok(())
}

#[test]
fn a_folder_is_made_once_and_only_from_the_same_things() {
    let tmp = folder();
    let dir = tmp.path().join("a");
    entry(&dir).ensure(bake).unwrap();
    entry(&dir).ensure(|_| panic!("made twice")).unwrap();
    let rye = Entry::new(
        dir.clone(),
        [("made-from", "rye")],
        [PathBuf::from("lib/bread")],
    );
    assert_eq!(
        rye.unfinished().unwrap(),
        "made with made-from wheat, wanted rye"
    );
    rye.ensure(bake).unwrap();
    assert_eq!(rye.unfinished(), None);
    assert!(entry(&dir).unfinished().is_some());
    let names: Vec<_> = fs::read_dir(tmp.path())
        .unwrap()
        .map(|f| f.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 2, "something is left behind: {names:?}");
}

#[test]
fn a_half_made_folder_is_not_taken_for_a_finished_one() {
    let tmp = folder();
    let dir = tmp.path().join("a");
    // A build that was killed: every file is there except the mark of its end.
    write(dir.join("lib/bread"), "crust");
    write(sibling(&dir, "partial").join("lib/junk"), "dough");
    assert!(
        entry(&dir)
            .unfinished()
            .unwrap()
            .contains("never built, or not to the end")
    );
    entry(&dir).ensure(bake).unwrap();
    assert_eq!(entry(&dir).unfinished(), None);
    assert!(
        !dir.join("lib/junk").exists(),
        "what a killed build left is in the finished folder"
    );

    fs::write(dir.join("lib/bread"), "crumb").unwrap();
    assert_eq!(
        entry(&dir).unfinished().unwrap(),
        "lib/bread is not the file that was made"
    );
    fs::write(dir.join("lib/bread"), "cru").unwrap();
    assert_eq!(
        entry(&dir).unfinished().unwrap(),
        "lib/bread has 3 bytes, was made with 5"
    );
    fs::remove_file(dir.join("lib/bread")).unwrap();
    assert!(entry(&dir).unfinished().unwrap().contains("lib/bread"));
    fs::write(dir.join(MARKER), "").unwrap();
    assert_eq!(
        entry(&dir).unfinished().unwrap(),
        "made with made-from (unsaid), wanted wheat"
    );
}

#[test]
fn a_failed_build_leaves_nothing_that_counts() {
    let tmp = folder();
    let dir = tmp.path().join("a");
    let error = entry(&dir).ensure(|partial| {
        bake(partial)?;
        Err(Failure::new("the oven is cold"))
    });
    assert_eq!(error.unwrap_err().what(), "the oven is cold");
    assert!(!dir.exists());
    // A build that reports success without having made its files.
    let error = entry(&dir).ensure(|_| Ok(())).unwrap_err();
    assert!(error.what().contains("lib/bread"), "{error}");
    assert!(!dir.exists());
}

#[test]
fn builders_wait_for_each_other() {
    let tmp = folder();
    let dir = tmp.path().join("a");
    let baked = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                entry(&dir)
                    .ensure(|partial| {
                        baked.fetch_add(1, Ordering::SeqCst);
                        thread::sleep(std::time::Duration::from_millis(50));
                        bake(partial)
                    })
                    .unwrap();
            });
        }
    });
    assert_eq!(baked.load(Ordering::SeqCst), 1);
}

const WHEEL: &str = "
import sys, zipfile
with zipfile.ZipFile(sys.argv[1], 'w') as z:
    z.writestr('bread.py', '')
    z.writestr('bread-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: bread\\nVersion: 1.0\\n')
    z.writestr('bread-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    z.writestr('bread-1.0.dist-info/RECORD', '')
";

#[test]
fn a_wheel_with_another_hash_is_refused() {
    let tmp = folder();
    let wheel = tmp.path().join("bread-1.0-py3-none-any.whl");
    let made = std::process::Command::new(pip::python())
        .arg("-c")
        .arg(WHEEL)
        .arg(&wheel)
        .status();
    assert!(made.unwrap().success());
    let dir = tmp.path().join("out");
    fs::create_dir(&dir).unwrap();
    let wrong = format!("bread==1.0 --hash=sha256:{}\n", "0".repeat(64));
    let from = tmp.path().to_string_lossy();
    let error = pip::install(
        &dir,
        "bread",
        &wrong,
        &["--no-index", "--find-links", &*from],
    )
    .unwrap_err();
    let text = error.to_string();
    assert!(text.contains("not the file that was pinned"), "{text}");
    assert!(text.contains("sought: bread"), "{text}");
    assert!(!dir.join("bread.py").exists());
}

#[test]
fn requirements_are_all_pinned_with_hashes() {
    use native::pins::{REQUIRE_CMAKE, REQUIRE_CUDA_TOOLKIT_13, REQUIRE_LIBCLANG, REQUIRE_NINJA};
    let wheels = Backend::ALL.map(Backend::requirements);
    for text in wheels.iter().chain(&[
        REQUIRE_CMAKE,
        REQUIRE_CUDA_TOOLKIT_13,
        REQUIRE_LIBCLANG,
        REQUIRE_NINJA,
    ]) {
        let joined = text.replace("\\\n", "");
        for line in joined.lines().filter(|line| !line.starts_with('#')) {
            assert!(
                line.contains("==") && line.contains("--hash=sha256:"),
                "{line}"
            );
        }
    }
    for text in wheels {
        assert!(text.contains(&format!("=={} ", pins::MLX)), "{text}");
    }
}

#[test]
fn a_stock_mlx_c_is_refused_by_name() {
    let tmp = folder();
    let error = Prefix::given(tmp.path(), &host::triple())
        .unwrap_err()
        .to_string();
    assert!(error.contains("not made by this build"), "{error}");
    write(tmp.path().join("lib").join(host::library("mlxc")), "ELF");
    let error = Prefix::given(tmp.path(), &host::triple())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("stock mlx-c") && error.contains("mlxrs_*"),
        "{error}"
    );
    assert!(
        error.contains("MLX_C_DIR") && error.contains("to fix it"),
        "{error}"
    );
    let error = Prefix::given(Path::new("/no/such/folder"), &host::triple())
        .unwrap_err()
        .to_string();
    assert!(error.contains("/no/such/folder"), "{error}");
}

/// A folder with the files that make it an installed MLX.
fn mlx(dir: &Path, version: [u32; 3]) {
    let [major, minor, patch] = version;
    let header = format!(
        "#define MLX_VERSION_MAJOR {major}\n#define MLX_VERSION_MINOR {minor}\n#define MLX_VERSION_PATCH {patch}\n"
    );
    write(dir.join("include/mlx/version.h"), &header);
    write(dir.join("lib").join(host::library("mlx")), "ELF");
}

#[test]
fn a_finished_folder_that_was_moved_is_refused() {
    let tmp = folder();
    let root = fs::canonicalize(tmp.path()).unwrap();
    mlx(&root.join("mlx"), [0, 32, 4]);
    let options = Options {
        target: host::triple(),
        root: root.clone(),
        backend: Backend::Cpu,
        mlx_c_dir: None,
        mlx_dir: None,
        prebuilt_dir: None,
        from_source: false,
        architectures: Vec::new(),
    };
    let prefix = Prefix::planned(&options, Some(&root.join("mlx")), "c++ 14");
    let fill = |dir: &Path| {
        for file in &prefix.entry().files {
            write(dir.join(file), "made");
        }
        fs::write(
            dir.join("lib").join(host::library("mlxc")),
            head(&host::triple()),
        )
        .unwrap();
        Ok(())
    };
    prefix.entry().ensure(fill).unwrap();
    assert_eq!(Prefix::given(&prefix.dir, &host::triple()).unwrap(), prefix);
    let moved = root.join("moved");
    fs::rename(&prefix.dir, &moved).unwrap();
    let error = Prefix::given(&moved, &host::triple())
        .unwrap_err()
        .to_string();
    assert!(error.contains("made with location"), "{error}");
}

#[test]
fn an_installed_mlx_is_found_where_people_have_it_and_other_versions_are_refused() {
    let tmp = folder();
    let root = fs::canonicalize(tmp.path()).unwrap();
    let site = root.join("env/lib/python3.11/site-packages");
    mlx(&site.join("mlx"), [0, 32, 4]);
    for dir in [root.join("env"), site.clone(), site.join("mlx")] {
        assert_eq!(prefix::installed_mlx(&dir).unwrap(), site.join("mlx"));
    }
    let old = root.join("old");
    mlx(&old, [0, 31, 2]);
    let error = prefix::installed_mlx(&old).unwrap_err().to_string();
    assert!(
        error.contains("MLX 0.31.2") && error.contains("needs 0.32.4"),
        "{error}"
    );
    let error = prefix::installed_mlx(&root).unwrap_err().to_string();
    assert!(
        error.contains("found: neither") && error.contains("MLX_DIR"),
        "{error}"
    );
}

#[test]
fn back_ends_are_known_by_name_and_system() {
    let linux = "x86_64-unknown-linux-gnu";
    assert_eq!(Backend::parse("cuda13", linux).unwrap(), Backend::Cuda13);
    assert_eq!(Backend::default_for("aarch64-apple-darwin"), Backend::Metal);
    let error = Backend::parse("rocm", linux).unwrap_err().to_string();
    assert!(error.contains("cpu, cuda12, cuda13, metal"), "{error}");
    assert!(Backend::parse("metal", linux).is_err());
}

#[test]
fn a_patch_applies_at_its_place_or_not_at_all() {
    let tmp = folder();
    let source_file = tmp.path().join("a.cpp");
    let patch = "# why\nfile: a.cpp\nwithin: f(\nafter: one,\ninsert: two,\n";
    fs::write(&source_file, "g(one, x) f(zero, one, three)").unwrap();
    source::patch(tmp.path(), "p", patch).unwrap();
    assert_eq!(
        fs::read_to_string(&source_file).unwrap(),
        "g(one, x) f(zero, one,\ntwo, three)"
    );
    for (text, why) in [
        ("f(one,) f(one,)", "2 times"),
        ("h(one,)", "0 times"),
        ("one, f(zero)", "does not follow"),
    ] {
        fs::write(&source_file, text).unwrap();
        let error = source::patch(tmp.path(), "p", patch)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(why) && error.contains("patch p does not apply"),
            "{error}"
        );
        assert_eq!(fs::read_to_string(&source_file).unwrap(), text);
    }
}

#[test]
fn sources_are_written_from_the_list_of_instances() {
    let list = "For readers: $5.\n\n== a_$1.cu: bf16 __BF16__ | f16 __F16__\n#ifdef $2\nOF($1)\n#endif\n\n== b.cu:\nB\n";
    let expected = [
        ("a_bf16.cu", "#ifdef __BF16__\nOF(bf16)\n#endif\n"),
        ("a_f16.cu", "#ifdef __F16__\nOF(f16)\n#endif\n"),
        ("b.cu", "B\n"),
    ];
    let expected = expected.map(|(path, text)| (path.to_owned(), text.to_owned()));
    assert_eq!(instances::sources(list).unwrap(), expected);
    for (list, why) in [
        ("\n== a.cu\nA\n", "has no colon"),
        (
            "\n== a.cu: x\nA($2)\n",
            "a.cu: \"$2)\" is none of the words \"x\"",
        ),
        ("\n== a.cu: x | y\nA\n", "a.cu is there twice"),
    ] {
        let error = instances::sources(list).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    // Those of the shim are among its files.
    let of_list = |path: &str| pins::SHIM.iter().any(|(known, _)| known == path);
    assert!(of_list("ops/cpu/avx2.cpp") && of_list("ops/linear/cuda/many_f16.cu"));
}

/// The first bytes of a shared library for a machine.
fn head(machine: &str) -> Vec<u8> {
    let elf = |number: u8| {
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(18, 0);
        bytes.extend([number, 0]);
        bytes
    };
    let mach = |number: u8| vec![0xcf, 0xfa, 0xed, 0xfe, number, 0, 0, 1];
    match machine {
        "x86_64-unknown-linux-gnu" => elf(62),
        "aarch64-unknown-linux-gnu" => elf(183),
        "x86_64-apple-darwin" => mach(7),
        "aarch64-apple-darwin" => mach(12),
        other => panic!("{other}"),
    }
}

const MACHINES: [&str; 4] = [
    "x86_64-unknown-linux-gnu",
    "aarch64-unknown-linux-gnu",
    "x86_64-apple-darwin",
    "aarch64-apple-darwin",
];

#[test]
fn a_library_tells_its_machine() {
    let tmp = folder();
    let file = tmp.path().join("library");
    for of_library in MACHINES {
        fs::write(&file, head(of_library)).unwrap();
        for target in MACHINES {
            let fault = machine::fault(&file, target);
            assert_eq!(
                fault.is_none(),
                of_library == target,
                "{of_library} on {target}: {fault:?}"
            );
        }
    }
    // A Mach-O file for both processors, and files that are none.
    let mut both = vec![0xca, 0xfe, 0xba, 0xbe, 0, 0, 0, 2];
    for number in [7u8, 12] {
        both.extend([1, 0, 0, number]);
        both.resize(both.len() + 16, 0);
    }
    fs::write(&file, both).unwrap();
    assert_eq!(machine::fault(&file, "aarch64-apple-darwin"), None);
    assert_eq!(machine::fault(&file, "x86_64-apple-darwin"), None);
    let fault = machine::fault(&file, "x86_64-unknown-linux-gnu").unwrap();
    assert!(fault.contains("macOS x86_64 and macOS aarch64"), "{fault}");
    for text in ["", "ELF", "\u{7f}ELF", "!<arch>\n"] {
        fs::write(&file, text).unwrap();
        let fault = machine::fault(&file, host::triple().as_str()).unwrap();
        assert!(fault.contains("no ELF or Mach-O library"), "{fault}");
    }
    // The real one is of this machine.
    let own = std::env::current_exe().unwrap();
    assert_eq!(machine::fault(&own, &host::triple()), None);
}

#[test]
fn a_finished_folder_of_another_machine_is_refused() {
    let tmp = folder();
    for of_library in MACHINES {
        let dir = tmp.path().join(of_library);
        write(dir.join(MARKER), "");
        let library = dir.join("lib").join(host::library_of(of_library, "mlxc"));
        fs::create_dir_all(library.parent().unwrap()).unwrap();
        fs::write(&library, head(of_library)).unwrap();
        for target in MACHINES.into_iter().filter(|target| *target != of_library) {
            let error = Prefix::given(&dir, target).unwrap_err().to_string();
            let told = format!("and the target is {target}");
            assert!(
                error.contains("MLX_C_DIR") && error.contains(&told),
                "{error}"
            );
        }
    }
}
