//! Steps of the backend for GPUs, on machines that have none: Vulkan in software, and MSL on the host.

mod check;
mod report;

use std::env::consts::ARCH;
use std::fs;
use std::path::Path;

pub use check::check;

use crate::needs::{self, Package};
use crate::process::{Call, cargo};
use crate::step::{Outcome, Trouble};
use crate::tally::Tally;

/// Vulkan on the processor, and the name by which tests ask for it.
const LAVAPIPE: &[Package] = &[
    Package { name: "mesa-vulkan-drivers", brings: "/usr/share/vulkan/icd.d/lvp_icd.x86_64.json" },
    Package { name: "libvulkan1", brings: "/usr/lib/x86_64-linux-gnu/libvulkan.so.1" },
];
const ADAPTER: &str = "KVANT_GPU";
const LAVAPIPE_NAME: &str = "llvmpipe";

/// The bits of lavapipe's vectors, of which a subgroup has one for 32. Mesa's cache of shaders does not know them apart, so each
/// width has a folder of its own.
const VECTOR_BITS: &str = "LP_NATIVE_VECTOR_WIDTH";
const MESA_CACHE: &str = "MESA_SHADER_CACHE_DIR";
const USUAL_BITS: u32 = 256;
const WIDE_BITS: u32 = 512;
/// Fewer caches, tokens and models: lavapipe takes a second for what a GPU does in a millisecond.
const SIZE: (&str, &str) = ("KVANT_GPU_TESTS", "short");

/// What compiles MSL with a library of ours; the name by which tests ask for it, and where it leaves what it has made.
const CPP: &[Package] = &[Package { name: "g++", brings: "g++" }];
const MSL_NAME: &str = "msl";
const MSL_FOLDER: &str = "KVANT_MSL_FOLDER";
/// Where kernels are, as the backend has them.
const KERNELS: &str = "crates/kvant-gpu/src/wgsl";

const APPLE_SILICON: &str = "aarch64-apple-darwin";
const WINDOWS: &str = "x86_64-pc-windows-gnu";

/// Tests of these packages on an adapter.
fn tests(packages: &[&str], adapter: &str) -> Call {
    let tests = if cargo(["nextest", "--version"]).probe().is_some() {
        // Of the whole workspace, so that nothing is built again with fewer features.
        let filter: Vec<String> = packages.iter().map(|name| format!("package({name})")).collect();
        cargo(["nextest", "run", "--workspace", "--no-fail-fast", "--lib", "--bins", "--tests"])
            .args(["--filterset", &filter.join(" | ")])
    } else {
        cargo(["test", "--tests", "--no-fail-fast"]).args(packages.iter().flat_map(|name| ["-p", name]))
    };
    tests.env(ADAPTER, adapter)
}

fn on_lavapipe(call: Call, bits: u32) -> Result<Call, Trouble> {
    let folder = std::path::absolute(format!("target/mesa-{bits}"))
        .map_err(|e| Trouble::failed(format!("there is no place for Mesa's cache: {e}")))?;
    Ok(call
        .env(ADAPTER, LAVAPIPE_NAME)
        .env(VECTOR_BITS, bits.to_string())
        .env(MESA_CACHE, folder.display().to_string()))
}

fn needs_lavapipe() -> Result<(), Trouble> {
    if ARCH == "x86_64" { needs::packages(LAVAPIPE) } else { Ok(()) }
}

/// Kernels and whole models on lavapipe with subgroups of 8, fewer cases of each, and the engine with the backend.
pub fn lavapipe() -> Outcome {
    needs_lavapipe()?;
    let tests = tests(&["kvant-gpu"], LAVAPIPE_NAME).env(SIZE.0, SIZE.1);
    let mut tally = on_lavapipe(tests, USUAL_BITS)?.run()?;
    // Of the whole workspace again.
    let engine = cargo(["test", "--workspace", "--test", "device"]);
    tally += on_lavapipe(engine, USUAL_BITS)?.run()?;
    Ok(tally)
}

/// Every case of kernels and whole models, on lavapipe with subgroups of 16.
pub fn lavapipe_wide() -> Outcome {
    needs_lavapipe()?;
    on_lavapipe(tests(&["kvant-gpu"], LAVAPIPE_NAME), WIDE_BITS)?.run()
}

/// What Metal would be given, on the host: the tests of the backend, with their oracles.
pub fn msl() -> Outcome {
    if !cfg!(target_os = "linux") {
        return Err(Trouble::not_run(
            "MSL runs on the host of a Linux machine; a Mac has `cargo xtask gpu-check`",
        ));
    }
    needs::packages(CPP)?;
    let folder = std::path::absolute("target/msl")
        .map_err(|e| Trouble::failed(format!("there is no place for compiled kernels: {e}")))?;
    let ran = folder.join("ran");
    // Left by the last run, or not there.
    let _ = fs::remove_dir_all(&ran);
    let tests = tests(&["kvant-gpu", "kvant-msl"], MSL_NAME);
    let tally = tests.env(MSL_FOLDER, folder.display().to_string()).run()?;
    match not_run(Path::new(KERNELS), &ran)?.as_slice() {
        [] => Ok(tally),
        names => Err(Trouble::Failed {
            reason: format!("kernels that no test ran: {}", names.join(", ")),
            tests: tally,
        }),
    }
}

/// Kernels none of the texts in `ran` begins with or has in it: files with an entry point, known by their first lines.
fn not_run(kernels: &Path, ran: &Path) -> Result<Vec<String>, Trouble> {
    let texts: Vec<String> = texts_of(ran)?.into_iter().map(|(_, text)| text).collect();
    let missing = texts_of(kernels)?.into_iter().filter(|(_, kernel)| {
        let first = kernel.lines().next().unwrap_or_default();
        kernel.contains("@compute") && !texts.iter().any(|text| text.lines().any(|line| line == first))
    });
    let mut names: Vec<String> = missing.map(|(name, _)| name).collect();
    names.sort();
    Ok(names)
}

/// The files of a folder.
fn texts_of(folder: &Path) -> Result<Vec<(String, String)>, Trouble> {
    let failed = |e: std::io::Error| Trouble::failed(format!("cannot read {}: {e}", folder.display()));
    let mut texts = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_file() {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            texts.push((name, fs::read_to_string(&path).map_err(failed)?));
        }
    }
    Ok(texts)
}

/// The backend type-checks where Metal and DirectX 12 are, and the command with it and with the one for CUDA. Checking needs no linker; the library for
/// TLS builds C, so the command is checked without fetching.
pub fn other_systems() -> Outcome {
    for triple in [APPLE_SILICON, WINDOWS] {
        needs::target(triple)?;
        cargo(["check", "--all-targets", "-p", "kvant-gpu", "--target", triple]).run()?;
        let command = ["check", "-p", "kvant-cli", "--no-default-features", "--features", "gpu,cuda"];
        cargo(command.into_iter().chain(["--target", triple])).run()?;
    }
    Ok(Tally::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_left_no_mark_are_named() {
        let folder = std::env::temp_dir().join(format!("kvant-xtask-marks-{}", std::process::id()));
        let (kernels, ran) = (folder.join("wgsl"), folder.join("ran"));
        fs::create_dir_all(&kernels).unwrap();
        fs::create_dir_all(&ran).unwrap();
        for name in ["a.wgsl", "b.wgsl"] {
            fs::write(kernels.join(name), format!("// {name}\n@compute fn main() {{}}")).unwrap();
        }
        fs::write(kernels.join("part.wgsl"), "fn half() {}").unwrap();
        fs::write(ran.join("1.wgsl"), "const N = 1u;\n// a.wgsl\n@compute fn main() {}").unwrap();
        assert_eq!(not_run(&kernels, &ran).unwrap(), ["b.wgsl"]);
        fs::remove_dir_all(&folder).unwrap();
    }
}
