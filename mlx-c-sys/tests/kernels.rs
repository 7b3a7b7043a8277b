//! The CUDA kernels of the build, as far as they can be tested without a GPU: the cards that they are compiled for, the
//! sources that are compiled anew, the contents of libmlxc, and the arithmetic that they share with the CPU.
#![cfg(target_os = "linux")]

#[path = "../build/native.rs"]
mod native;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use native::cuda::{self, Architecture, Toolkit};
use native::host::{self, Backend};
use native::prefix::Prefix;
use native::store::MARKER;
use native::{Options, kernels, pins, tools};

fn list(text: &str) -> Vec<Architecture> {
    Architecture::list(text).unwrap()
}

#[test]
fn a_card_runs_the_closest_machine_code_or_else_ptx() {
    let all = list("");
    assert_eq!(all, list(cuda::ARCHITECTURES));
    let choice = |list: &[Architecture], card: &str| {
        let capability = cuda::capability(card).unwrap();
        cuda::choice(list, capability).map_or("none".to_owned(), ToString::to_string)
    };
    let cards = [
        ("7.5", "none"),
        ("8.0", "80"),
        ("8.6", "80"),
        ("8.9", "89"),
        ("9.0", "90a"),
        ("10.0", "100"),
        ("10.3", "100"),
        ("11.0", "ptx100"),
        ("12.0", "120"),
        ("12.1", "120"),
        ("13.0", "ptx100"),
    ];
    for (card, of) in cards {
        assert_eq!(choice(&all, card), of, "compute capability {card}");
    }
    // `a` runs on its own capability only, `f` on its family.
    let features = list("90a,100f,ptx90");
    assert_eq!(choice(&features, "10.3"), "100f");
    assert_eq!(choice(&features, "12.0"), "ptx90");
    assert_eq!(choice(&list("100a"), "10.3"), "none");
    assert_eq!(choice(&list("86"), "8.0"), "none");
    assert_eq!(cuda::capability("9"), None);
    assert_eq!(cuda::capability("[N/A]"), None);
}

#[test]
fn architectures_are_named_as_cards_are() {
    let names = |text: &str| {
        list(text)
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(names("90a"), ["90a"]);
    assert_eq!(names("80;90a 80,ptx100"), ["80", "90a", "ptx100"]);
    let targets: Vec<String> = list("90a,ptx100")
        .iter()
        .map(Architecture::target)
        .collect();
    assert_eq!(targets, ["sm_90a", "compute_100"]);
    for wrong in [
        "native", "9.0", "90b", "90aa", "sm_90", "75", "ptx", "", "-80", "090",
    ] {
        if wrong.is_empty() {
            assert!(Architecture::parse(wrong).is_none());
            continue;
        }
        let error = Architecture::list(wrong).unwrap_err().to_string();
        assert!(
            error.contains("MLX_CUDA_ARCHITECTURES") && error.contains(wrong),
            "{error}"
        );
        assert!(error.contains(cuda::ARCHITECTURES), "{error}");
    }
}

#[test]
fn the_architectures_are_part_of_what_a_build_is_made_from() {
    let options = |backend, architectures: &str| Options {
        target: host::triple(),
        root: PathBuf::from("/cache"),
        backend,
        mlx_c_dir: None,
        mlx_dir: None,
        prebuilt_dir: None,
        from_source: false,
        architectures: list(architectures),
    };
    let place = |backend, architectures| {
        Prefix::planned(
            &options(backend, architectures),
            Some(Path::new("/mlx")),
            "c++ 14",
        )
        .dir
    };
    assert_ne!(place(Backend::Cuda13, ""), place(Backend::Cuda13, "90a"));
    assert_eq!(place(Backend::Cpu, ""), place(Backend::Cpu, "90a"));
    assert_eq!(cuda::fact(&options(Backend::Cuda12, "90a")), "");
    assert!(cuda::left_out(Backend::Cuda12).is_some());
    assert!(cuda::left_out(Backend::Cuda13).is_none());
}

/// Sources in the form that the build reads.
fn sources(files: &[(&str, &str)]) -> Vec<(String, String)> {
    files
        .iter()
        .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
        .collect()
}

const DOUBLED: [(&str, &str); 4] = [
    (
        "cuda/deep.cuh",
        "#pragma once\n__device__ inline float twice(float x) { return 2 * x; }\n",
    ),
    (
        "cuda/device.cuh",
        "#pragma once\n#include <cuda_bf16.h>\n#include \"deep.cuh\"\n",
    ),
    (
        "ops/doubled/cuda/doubled.cu",
        "#include \"cuda/device.cuh\"\n#include \"own.cuh\"\nextern \"C\" __global__ void doubled(OWN* x) { x[threadIdx.x] = twice(x[threadIdx.x]); }\n",
    ),
    (
        "ops/doubled/cuda/own.cuh",
        "#pragma once\n#define OWN float\n",
    ),
];

#[test]
fn kernels_are_found_in_the_folders_of_operations() {
    let files = sources(&DOUBLED);
    let units = kernels::units(&files).unwrap();
    let names: Vec<&str> = units.iter().map(|unit| &*unit.name).collect();
    assert_eq!(names, ["doubled/doubled"]);
    let astray = sources(&[("cuda/doubled.cu", "")]);
    let error = kernels::units(&astray).unwrap_err().to_string();
    assert!(
        error.contains("cuda/doubled.cu") && error.contains("ops/<operation>/cuda"),
        "{error}"
    );
}

#[test]
fn a_kernel_is_compiled_anew_when_a_header_of_ours_has_changed() {
    let files = sources(&DOUBLED);
    let of = |files: &[(String, String)]| kernels::digest(files, "ops/doubled/cuda/doubled.cu");
    for (path, _) in DOUBLED {
        let mut changed = files.clone();
        let file = changed.iter_mut().find(|(known, _)| known == path).unwrap();
        file.1.push(' ');
        assert_ne!(of(&changed), of(&files), "{path}");
    }
    let mut other = files.clone();
    other.push(("cuda/other.cuh".into(), "#pragma once\n".into()));
    assert_eq!(of(&other), of(&files), "a file that it does not include");
}

/// The compiler of kernels, where a build or `cargo xtask kernels` has fetched it.
fn toolkit() -> Option<(PathBuf, Toolkit)> {
    let root = native::cache::folder()?;
    if !Toolkit::place(&root).join(MARKER).is_file() {
        eprintln!("left out: the CUDA compiler is not here (`cargo xtask kernels` fetches it)");
        return None;
    }
    let toolkit = Toolkit::ensure(&root, &mut |_| ()).unwrap();
    Some((root, toolkit))
}

fn write(path: PathBuf, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Compiles C++ with our headers, and returns what the program prints.
fn output_of(sources: &[PathBuf], folder: &Path, include: &[PathBuf]) -> String {
    let program = folder.join("program");
    let mut compile = Command::new(&tools::Compiler::get().unwrap().path);
    compile.args([
        "-std=c++20",
        "-O1",
        "-ffp-contract=off",
        "-Wall",
        "-Wno-unknown-pragmas",
        "-Werror",
        "-o",
    ]);
    compile.arg(&program).args(sources);
    for folder in include {
        compile.arg("-I").arg(folder);
    }
    let output = compile.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let output = Command::new(&program).output().unwrap();
    let (text, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{}: {text}{errors}", output.status);
    text.into_owned()
}

fn test_source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/cuda")
        .join(name)
}

#[test]
fn kernels_are_compiled_once_and_embedded_under_their_names() {
    let Some((_, toolkit)) = toolkit() else {
        return;
    };
    let tmp = tempfile::tempdir().unwrap();
    let (shim, cache, out) = (
        tmp.path().join("shim"),
        tmp.path().join("cache"),
        tmp.path().join("out"),
    );
    let files = sources(&DOUBLED);
    for (path, text) in &files {
        write(shim.join(path), text);
    }
    let mut steps = Vec::new();
    let mut compile = |files: &[(String, String)], targets: &str| {
        kernels::compile(
            &toolkit,
            &cache,
            &shim,
            files,
            &list(targets),
            &mut |step| {
                steps.push(step.to_owned());
            },
        )
    };
    let compiled = compile(&files, "90a,ptx100").unwrap();
    assert_eq!(compiled.len(), 2);
    assert!(
        compiled[0]
            .log
            .contains("Compiling entry function 'doubled' for 'sm_90a'"),
        "{}",
        compiled[0].log
    );
    let ptx = fs::read_to_string(&compiled[1].file).unwrap();
    assert!(ptx.contains(".target sm_100"), "{ptx}");
    compile(&files, "90a").unwrap();
    assert_eq!(steps.len(), 2, "compiled again: {steps:?}");

    kernels::embed(&toolkit, &compiled, &out).unwrap();
    let include = [pins::shim_folder()];
    let text = output_of(
        &[out.join("embedded.cpp"), test_source("list.cpp")],
        tmp.path(),
        &include,
    );
    assert_eq!(text, "doubled/doubled fat whole\n");
    // A library without kernels.
    kernels::embed(&toolkit, &[], &out).unwrap();
    let text = output_of(
        &[out.join("embedded.cpp"), test_source("list.cpp")],
        tmp.path(),
        &include,
    );
    assert_eq!(text, "");

    // A source that does not compile is named, and no output of it is kept.
    let broken = sources(&[(
        "ops/broken/cuda/broken.cu",
        "extern \"C\" __global__ void broken() { nonsense; }\n",
    )]);
    write(shim.join(&broken[0].0), &broken[0].1);
    let error = kernels::compile(&toolkit, &cache, &shim, &broken, &list("90a"), &mut |_| ());
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("ops/broken/cuda/broken.cu does not compile for sm_90a"),
        "{error}"
    );
    assert!(error.contains("nonsense"), "{error}");
    let kept = fs::read_dir(&cache)
        .unwrap()
        .map(|item| item.unwrap().file_name());
    let kept: Vec<_> = kept
        .filter(|name| name.to_string_lossy().starts_with("broken"))
        .collect();
    assert!(kept.is_empty(), "{kept:?}");
}

/// Runs a test in C++ of a header that the kernels and the CPU share, or of device code with stand-ins for CUDA's headers.
fn device_code(name: &str) {
    let tmp = tempfile::tempdir().unwrap();
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda");
    let include = [own.join("device"), own, pins::shim_folder()];
    let text = output_of(&[test_source(name)], tmp.path(), &include);
    assert!(text.ends_with(" checked, 0 wrong\n"), "{text}");
}

#[test]
fn queries_see_the_keys_that_a_cache_written_in_order_has_for_them() {
    device_code("key_mask.cpp");
}

#[test]
fn codes_are_unpacked_as_they_are_packed() {
    device_code("codes.cpp");
}

#[test]
fn the_library_of_a_cuda_build_holds_all_kernels() {
    let options = Options::from_env(&host::triple()).unwrap();
    if options.backend != Backend::Cuda13 {
        eprintln!("left out: MLX_BACKEND is not cuda13");
        return;
    }
    let prefix = native::ensure(&options, &mut |_| ()).unwrap();
    let library = fs::read(prefix.lib().join(host::library("mlxc"))).unwrap();
    let count = |text: &[u8]| {
        library
            .windows(text.len())
            .filter(|bytes| *bytes == text)
            .count()
    };
    let units = kernels::units(&pins::SHIM).unwrap();
    assert!(!units.is_empty());
    for unit in &units {
        assert!(
            count(format!("{}\0", unit.name).as_bytes()) >= 1,
            "{}",
            unit.name
        );
    }
    // A fat binary starts with its magic number, version 1 and the size of its header.
    let head = [0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0];
    assert_eq!(count(&head), units.len());
}
