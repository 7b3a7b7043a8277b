//! What is built, to the byte: versions, hashes, our changes. Everything is embedded, so that the build script and
//! `xtask` build the same from anywhere.

/// The MLX release. The reason for this one, and what differs in others, is in ARCHITECTURE.md.
pub const MLX: &str = "0.32.4";
/// The mlx-c release.
pub const MLX_C: &str = "0.7.0";
/// The oldest CMake that `shim/CMakeLists.txt` works with.
pub const CMAKE_MIN: (u32, u32) = (3, 20);

/// pip requirement files with the hashes of the wheels.
pub const REQUIRE_MLX_CPU: &str = include_str!("../requirements/mlx-cpu.txt");
/// See [`REQUIRE_MLX_CPU`].
pub const REQUIRE_MLX_CUDA_12: &str = include_str!("../requirements/mlx-cuda-12.txt");
/// See [`REQUIRE_MLX_CPU`].
pub const REQUIRE_MLX_CUDA_13: &str = include_str!("../requirements/mlx-cuda-13.txt");
/// See [`REQUIRE_MLX_CPU`].
pub const REQUIRE_MLX_METAL: &str = include_str!("../requirements/mlx-metal.txt");
/// See [`REQUIRE_MLX_CPU`].
pub const REQUIRE_CMAKE: &str = include_str!("../requirements/cmake.txt");
/// See [`REQUIRE_MLX_CPU`].
pub const REQUIRE_NINJA: &str = include_str!("../requirements/ninja.txt");
/// See [`REQUIRE_MLX_CPU`].
pub const REQUIRE_LIBCLANG: &str = include_str!("../requirements/libclang.txt");

/// The manifest, and its lock file with checksums, whose only dependency carries the mlx-c sources.
pub const SOURCE_MANIFEST: &str = include_str!("../mlx-c-source/manifest.toml");
/// See [`SOURCE_MANIFEST`].
pub const SOURCE_LOCK: &str = include_str!("../mlx-c-source/manifest.lock");
/// The package of [`SOURCE_MANIFEST`] that carries the sources.
pub const SOURCE_PACKAGE: &str = "mlx-sys";
/// Where in that package they are.
pub const SOURCE_FOLDER: &str = "src/mlx-c";

/// Our changes to mlx-c: file name, text.
pub const PATCHES: &[(&str, &str)] = &[(
    "gather-qmm.patch",
    include_str!("../patches/gather-qmm.patch"),
)];

macro_rules! shim {
    ($($path:literal,)*) => {
        &[$(($path, include_str!(concat!("../shim/", $path)))),*]
    };
}

/// The shim: path under `shim/`, text.
pub const SHIM: &[(&str, &str)] = shim![
    "CMakeLists.txt",
    "array.cpp",
    "compat/format",
    "defaults.cpp",
    "donate.cpp",
    "donate.h",
    "error.cpp",
    "finish.cpp",
    "fused.cpp",
    "fused/attention.cpp",
    "fused/attention_plain.cpp",
    "fused/attention_plan.h",
    "fused/attention_vjp.cpp",
    "fused/blank.cpp",
    "fused/choose.cpp",
    "fused/choose.h",
    "fused/cross_entropy.cpp",
    "fused/derivative.h",
    "fused/derivatives.cpp",
    "fused/draw.cpp",
    "fused/gated.cpp",
    "fused/heads.h",
    "fused/kernels.cpp",
    "fused/kernels.h",
    "fused/kernels/amx.cpp",
    "fused/kernels/attention.h",
    "fused/kernels/avx2.cpp",
    "fused/kernels/avx512.cpp",
    "fused/kernels/avx512bf16.cpp",
    "fused/kernels/choose.h",
    "fused/kernels/gradients.h",
    "fused/kernels/lanes.h",
    "fused/kernels/math.h",
    "fused/kernels/packed.h",
    "fused/kernels/packed_row.h",
    "fused/kernels/portable.cpp",
    "fused/kernels/rows.h",
    "fused/kernels/table.h",
    "fused/kernels/tiles.h",
    "fused/experts.cpp",
    "fused/linear.cpp",
    "fused/linear.h",
    "fused/lookup.cpp",
    "fused/node.h",
    "fused/operations.h",
    "fused/packed.cpp",
    "fused/product.h",
    "fused/products.cpp",
    "fused/rms_norm.cpp",
    "fused/rope.cpp",
    "fused/store.cpp",
    "fused/vocabulary.cpp",
    "guard.h",
    "isa.cpp",
    "isa.h",
    "kernel.cpp",
    "matmul/amx.cpp",
    "matmul/amx.h",
    "matmul/amx_configuration.h",
    "matmul/amx_tiles.h",
    "matmul/expand.cpp",
    "matmul/expand.h",
    "matmul/expand_avx2.cpp",
    "matmul/expand_avx512.cpp",
    "matmul/expand_plain.h",
    "matmul/floats.h",
    "matmul/floats_avx512.h",
    "matmul/job.h",
    "matmul/matmul.cpp",
    "matmul/matmul.h",
    "matmul/pairs.cpp",
    "matmul/pairs.h",
    "matmul/pairs_avx512.cpp",
    "matmul/panels.cpp",
    "matmul/panels.h",
    "matmul/small_floats.h",
    "matmul/turn.h",
    "matmul/turn_avx2.h",
    "matmul/unpack.h",
    "matmul/unpack_avx2.h",
    "matmul/vnni.cpp",
    "matmul/vnni_tiles.cpp",
    "matmul/whole.h",
    "matmul/whole_amx.cpp",
    "matmul/whole_amx_x.h",
    "matmul/whole_avx2.cpp",
    "matmul/whole_avx512.h",
    "matmul/whole_neon.cpp",
    "matmul/whole_numbers.h",
    "matmul/whole_rows.h",
    "matmul/whole_tiles.h",
    "matmul/whole_vectors.h",
    "memory.h",
    "mlxrs.h",
    "profile.cpp",
    "profile.h",
    "run_ahead.cpp",
    "run_ahead.h",
    "settings.h",
    "sgemm.cpp",
    "sgemm/avx2.cpp",
    "sgemm/avx512.cpp",
    "sgemm/avx512.h",
    "sgemm/kernels.h",
    "sgemm/packed.h",
    "sgemm/portable.cpp",
    "sgemm/product.h",
    "sgemm/tile.h",
    "threads.cpp",
    "threads.h",
];

/// A short name for what is built from our side (FNV-1a, 64 bit): it changes when any of it does.
pub fn inputs() -> String {
    let ours = PATCHES
        .iter()
        .chain(SHIM)
        .flat_map(|(name, text)| [*name, *text]);
    digest(ours.chain([SOURCE_MANIFEST, SOURCE_LOCK]))
}

/// FNV-1a over the parts, each closed by a zero byte.
pub fn digest<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for part in parts {
        for byte in part.bytes().chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    format!("{hash:016x}")
}
