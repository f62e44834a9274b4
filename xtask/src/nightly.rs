//! What needs the nightly toolchain: Miri, sanitizers and fuzzing.

use std::fs;
use std::path::Path;

use crate::cli::FuzzOptions;
use crate::needs;
use crate::process::{Call, call};
use crate::step::{Outcome, Step, Trouble};
use crate::steps::or_kernel_tests;
use crate::tally::Tally;

/// Miri runs a few hundred times slower than the machine: it is after the memory accesses, not the numbers.
const MIRI_PROPTEST_CASES: &str = "2";
/// AddressSanitizer costs about a factor of two.
const ASAN_PROPTEST_CASES: &str = "64";
/// ThreadSanitizer costs about a factor of ten.
const TSAN_PROPTEST_CASES: &str = "4";
/// Crates whose threads share something, and the tests that run them.
const TSAN_TESTS: &[(&str, &str)] = &[
    ("kvant-threads", "--lib"),
    ("kvant-cache", "--lib --test disk --test files --test prefix --test store"),
    ("kvant-attention", "--lib --test passes"),
    ("kvant-engine", "--lib --test scheduler --test grammar"),
    ("kvant-server", "--lib --test api"),
];
/// Of each kernel crate, the tests that are small enough.
const MIRI_TESTS: &[[&str; 3]] = &[["-p", "kvant-codec", "--test=memory"], ["-p", "kvant-threads", "--lib"]];
const FUZZ_TARGETS: &str = "fuzz/fuzz_targets";
/// Targets that parse files: no number in a file may size memory, so little is allowed.
const FILE_TARGETS: &[&str] =
    &["convert", "disk", "gguf", "hub", "plan", "safetensors", "snapshot", "tokenizer_json", "vocabulary"];
const FILE_LIMITS: [&str; 2] = ["-rss_limit_mb=512", "-malloc_limit_mb=64"];
/// Seconds for each target where all are run among other steps.
const FUZZ_SECONDS: u32 = 20;

/// `cargo miri test` with these arguments; every verb on small pages and the thread pool when there are none.
pub fn miri(args: Vec<String>) -> Step {
    Step::new("miri", "the portable kernels and the thread pool under Miri", move || run_miri(&args))
}

/// `cargo test` under AddressSanitizer with these arguments; the tests of the kernel crates when there are none.
pub fn asan(args: Vec<String>) -> Step {
    Step::new("asan", "the kernels under AddressSanitizer", move || run_asan(&args))
}

/// `cargo test` under ThreadSanitizer with these arguments; what runs several threads when there are none.
pub fn tsan(args: Vec<String>) -> Step {
    Step::new("tsan", "threads, scheduler and server under ThreadSanitizer", move || run_tsan(&args))
}

/// One step for the fuzz target asked for, or one for each.
pub fn fuzz(options: &FuzzOptions) -> Result<Vec<Step>, String> {
    let seconds = options.seconds;
    let targets = chosen(fuzz_targets(Path::new(FUZZ_TARGETS))?, options.target.as_deref())?;
    let step = |target: String| {
        Step::new(&format!("fuzz {target}"), &format!("{seconds} s of hostile input"), move || {
            run_fuzz(&target, seconds)
        })
    };
    Ok(targets.into_iter().map(step).collect())
}

/// As [`miri`].
pub fn run_miri(args: &[String]) -> Outcome {
    needs::nightly(&["miri", "rust-src"])?;
    let test = |args: &[String]| {
        nightly_cargo(&["miri", "test"])
            .args(args)
            // Miri knows few vector instructions. Isolation would forbid the clock and the files proptest reads.
            .env("KVANT_SIMD", "scalar")
            .env("MIRIFLAGS", "-Zmiri-disable-isolation")
            .env_default("PROPTEST_CASES", MIRI_PROPTEST_CASES)
            .run()
    };
    if !args.is_empty() {
        return test(args);
    }
    let mut ran = Tally::default();
    for selection in MIRI_TESTS {
        ran += test(&selection.map(str::to_string))?;
    }
    Ok(ran)
}

/// As [`asan`].
pub fn run_asan(args: &[String]) -> Outcome {
    needs::nightly(&[])?;
    // Naming the target, though it is the host, keeps the sanitizer out of build scripts and macros; a folder
    // of its own keeps the other builds.
    nightly_cargo(&[
        "test",
        "--no-fail-fast",
        "--target",
        &needs::host_triple()?,
        "--target-dir",
        "target/asan",
    ])
    .args(or_kernel_tests(args, "--tests"))
    .env("RUSTFLAGS", "-Zsanitizer=address")
    .env_default("PROPTEST_CASES", ASAN_PROPTEST_CASES)
    .run()
}

/// As [`tsan`].
pub fn run_tsan(args: &[String]) -> Outcome {
    needs::nightly(&["rust-src"])?;
    let host = needs::host_triple()?;
    let test = |args: &[&str]| {
        // The standard library is built with it too: its locks and channels are what orders memory.
        nightly_cargo(&[
            "test",
            "--no-fail-fast",
            "-Zbuild-std",
            "--target",
            &host,
            "--target-dir",
            "target/tsan",
        ])
        .args(args)
        .env("RUSTFLAGS", "-Zsanitizer=thread")
        .env_default("PROPTEST_CASES", TSAN_PROPTEST_CASES)
        .run()
    };
    if !args.is_empty() {
        return test(&args.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let mut ran = Tally::default();
    for &(name, tests) in TSAN_TESTS {
        ran += test(&["-p", name].into_iter().chain(tests.split(' ')).collect::<Vec<_>>())?;
    }
    Ok(ran)
}

/// The crates that [`tsan`] is about.
pub fn tsan_crates() -> Vec<&'static str> {
    TSAN_TESTS.iter().map(|(name, _)| *name).collect()
}

/// Builds every fuzz target and runs each for a short while.
pub fn fuzz_all() -> Outcome {
    let targets = fuzz_targets(Path::new(FUZZ_TARGETS)).map_err(Trouble::failed)?;
    let mut ran = Tally { reports: 1, ..Tally::default() };
    for target in targets {
        run_fuzz(&target, FUZZ_SECONDS)?;
        ran.passed += 1;
    }
    Ok(ran)
}

fn run_fuzz(target: &str, seconds: u32) -> Outcome {
    needs::nightly(&[])?;
    needs::cargo_tool("cargo-fuzz")?;
    let seeds = format!("fuzz/seeds/{target}");
    let mut run = nightly_cargo(&["fuzz", "run", target]);
    if Path::new(&seeds).is_dir() {
        // libFuzzer adds what it finds to the first folder and only reads the others.
        let corpus = format!("fuzz/corpus/{target}");
        fs::create_dir_all(&corpus).map_err(|e| Trouble::failed(format!("cannot make {corpus}: {e}")))?;
        run = run.args([&corpus, &seeds]);
    }
    let limits: &[&str] = if FILE_TARGETS.contains(&target) { &FILE_LIMITS } else { &[] };
    run.args(["--", &format!("-max_total_time={seconds}")]).args(limits).run()
}

fn nightly_cargo(args: &[&str]) -> Call {
    call("rustup", ["run", "nightly", "cargo"]).args(args)
}

/// The names of the fuzz targets: one file each.
fn fuzz_targets(folder: &Path) -> Result<Vec<String>, String> {
    let entries =
        fs::read_dir(folder).map_err(|error| format!("cannot list {}: {error}", folder.display()))?;
    let files = entries.flatten().map(|entry| entry.path());
    let mut names: Vec<String> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_string()))
        .collect();
    names.sort();
    if names.is_empty() { Err(format!("there is no fuzz target in {}", folder.display())) } else { Ok(names) }
}

fn chosen(targets: Vec<String>, name: Option<&str>) -> Result<Vec<String>, String> {
    match name {
        None => Ok(targets),
        Some(name) if targets.iter().any(|target| target == name) => Ok(vec![name.to_string()]),
        Some(name) => Err(format!("there is no fuzz target `{name}`; there are {}", targets.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fuzz_target_is_a_rust_file() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let names = fuzz_targets(&sources).unwrap();
        assert!(names.contains(&"nightly".to_string()) && names.is_sorted(), "{names:?}");
        assert!(fuzz_targets(&sources.join("nowhere")).unwrap_err().contains("nowhere"));
    }

    #[test]
    fn every_target_with_limits_exists() {
        let targets = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(FUZZ_TARGETS);
        let names = fuzz_targets(&targets).unwrap();
        assert!(FILE_TARGETS.iter().all(|target| names.iter().any(|name| name == target)), "{names:?}");
    }

    #[test]
    fn an_unknown_target_is_refused_with_the_list() {
        let targets = || vec!["page".to_string(), "spec".to_string()];
        assert_eq!(chosen(targets(), None), Ok(targets()));
        assert_eq!(chosen(targets(), Some("spec")), Ok(vec!["spec".to_string()]));
        assert!(chosen(targets(), Some("sepc")).unwrap_err().contains("page, spec"));
    }
}
