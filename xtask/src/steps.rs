//! The steps of `cargo xtask test`, in the order they run: quick ones first.

use std::env::consts::ARCH;

use crate::cli::TestOptions;
use crate::named::{self, NAMED};
use crate::needs::{self, Package};
use crate::process::{Call, cargo};
use crate::step::{self, Outcome, Step, Trouble};
use crate::tally::Tally;
use crate::{capi, cuda, gpu, house, ledger, package, python, supply};

/// A check every change has to pass.
pub struct Check {
    pub name: &'static str,
    /// A few words for its heading and for the help text.
    pub about: &'static str,
    run: fn() -> Outcome,
}

/// All of them, in the order they run.
pub const CHECKS: &[Check] = &[
    Check {
        name: "house",
        about: "file length, unfinished or ignored code, machine paths",
        run: house::check,
    },
    Check { name: "ledger", about: "tables are what their figures say", run: ledger::step },
    Check { name: "supply", about: "licences and sources of all crates, by deny.toml", run: supply::check },
    Check { name: "fmt", about: "formatting", run: fmt },
    Check { name: "clippy", about: "lints as errors; every unsafe block says why it is sound", run: clippy },
    Check { name: "test", about: "unit and integration tests of every crate", run: test },
    Check {
        name: "gpu",
        about: "whole models and kernels on lavapipe, a GPU in software",
        run: gpu::lavapipe,
    },
    Check {
        name: "cuda",
        about: "the CUDA backend, the engine and the command on a driver that stands in for a card",
        run: cuda::stand_in,
    },
    Check { name: "browser", about: "the HTML report and the server's page, in Chromium", run: browser },
    Check {
        name: "clients",
        about: "the openai, anthropic and ollama packages and schemathesis against a server",
        run: clients,
    },
    Check {
        name: "clients-js",
        about: "the openai package of JavaScript, in node and in Chromium",
        run: clients_js,
    },
    Check { name: "readers", about: "the gguf package reads converted models", run: readers },
    Check {
        name: "capi",
        about: "examples in C and C++ by gcc and clang, under AddressSanitizer",
        run: capi::check,
    },
    Check { name: "package", about: "every library crate can be packaged", run: package::check },
    Check {
        name: "python",
        about: "the Python package: its wheel, in a clean environment",
        run: python::test,
    },
    Check { name: "doctest", about: "the examples in the documentation", run: doctest },
    Check { name: "doc", about: "the documentation builds without a warning", run: doc },
    Check {
        name: "aarch64",
        about: "products, codecs and attention against their oracles on 64-bit ARM, under qemu",
        run: aarch64_quick,
    },
];

/// The crates whose code depends on the processor, by its instructions or by its order of memory accesses: what
/// runs under qemu, Miri and AddressSanitizer.
pub const KERNEL_CRATES: &[&str] =
    &["kvant-simd", "kvant-threads", "kvant-weights", "kvant-codec", "kvant-cache", "kvant-attention"];

const ARM_LINUX: &str = "aarch64-unknown-linux-gnu";
/// What links and runs programs for ARM Linux elsewhere. `pauth-impdef` spares qemu a cipher per return address.
const ARM_LINKER: &str = "aarch64-linux-gnu-gcc";
const ARM_RUNNER: &str = "qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu max,pauth-impdef=on";
/// The same processor as in a Raspberry Pi 4: of ARMv8.0, without dot products. What needs more ends with an illegal instruction.
const OLD_ARM_RUNNER: &str = "qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu cortex-a72";
const ARM_PACKAGES: &[Package] = &[
    Package { name: "gcc-aarch64-linux-gnu", brings: ARM_LINKER },
    Package { name: "libc6-dev-arm64-cross", brings: "/usr/aarch64-linux-gnu/lib/libc.so" },
    Package { name: "qemu-user", brings: "qemu-aarch64" },
];
/// qemu is some twenty times slower than the machine it runs on, so each property gets few cases there, and long lists are
/// gone through in part.
const ARM_PROPTEST_CASES: &str = "8";
/// What tests every kernel there is: the vocabulary and the products, then codecs and attention against oracles.
const ARM_QUICK: [&str; 2] =
    ["-p kvant-simd -p kvant-weights --tests", "-p kvant-codec -p kvant-attention --test proof --"];
/// Tests of the latter that the quick run leaves to the step `aarch64-wide`: they take minutes there and test names, refusals, statistics,
/// threads or batches rather than instructions, or more dimensions of what others test at a few.
const ARM_SLOW: [&str; 14] = [
    "a_long_sequence_among_short_ones_decodes_the_same_bits",
    "a_stranger_reads_every_codec_of_the_catalogue",
    "a_wrong_scale_or_plane_breaks_the_bound",
    "any_number_of_threads_decodes_the_same_bits",
    "golden::the_default",
    "keys_lie_in_a_plans_basis",
    "kernels_agree_with_decode_at_odd_dimensions",
    "neither_chunks_nor_threads_change_a_bit",
    "neither_the_batch_nor_threads_change_a_bit",
    "nothing_that_happens_to_a_cache_changes_a_bit",
    "odd_dimensions_are_padded_correctly",
    "refusals::",
    "spec::",
    "unbiased::",
];
/// Enough for the whole of every list.
const ARM_PROPTEST_CASES_WIDE: &str = "64";

/// What shows the HTML report and the server's page to their tests, and how tests are told that there is none.
const BROWSER: &[Package] = &[Package { name: "chromium", brings: "chromium" }];
const NO_BROWSER: (&str, &str) = ("KVANT_WITHOUT_BROWSER", "1");

/// Where Python finds the programs of other people that are tested against the server, and which they are.
const CLIENTS: &str = "target/clients";
const CLIENTS_LIST: &str = "crates/kvant-cli/tests/clients/requirements.txt";

/// The same for packages of JavaScript.
const CLIENTS_JS: &str = "target/clients-js";
const CLIENTS_JS_LIST: &str = "crates/kvant-cli/tests/clients/package.json";

/// The same for the many that take long, and are run by name.
const CLIENTS_WIDE: &str = "target/clients-wide";
const CLIENTS_WIDE_LIST: &str = "crates/kvant-cli/tests/clients_wide/requirements.txt";
const CLIENTS_WIDE_JS: &str = "target/clients-wide-js";
const CLIENTS_WIDE_JS_LIST: &str = "crates/kvant-cli/tests/clients_wide/package.json";

/// The same for what reads converted models.
const READERS: &str = "target/readers";
const READERS_LIST: &str = "crates/kvant-convert/tests/readers/requirements.txt";

/// The same for llama.cpp.
const LLAMA_CPP: &str = "target/llama-cpp";
const LLAMA_CPP_LIST: &str = "crates/kvant-convert/tests/readers/llama_cpp.txt";

/// What kernels are type-checked for and not run on.
const CHECKED_TARGETS: [&str; 4] =
    ["aarch64-apple-darwin", "aarch64-apple-ios", "aarch64-linux-android", "armv7-unknown-linux-gnueabihf"];

/// Runs the checks that were asked for; true when all is well.
pub fn run(options: &TestOptions) -> bool {
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
    let mut steps: Vec<Step> = CHECKS
        .iter()
        .filter(|check| wanted(check.name))
        .map(|check| Step::new(check.name, check.about, check.run))
        .collect();
    let named = |name: &str| options.all || options.only.iter().any(|only| only == name);
    steps.extend(NAMED.iter().filter(|step| named(step.name)).map(|step| step.step()));
    let on_ci = std::env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"));
    step::run_all_and_say(steps, options.strict || on_ci, || named::not_run(named))
}

/// `cargo test` with these arguments on 64-bit ARM; the kernel tests when there are none.
pub fn aarch64(args: Vec<String>) -> Step {
    Step::new("aarch64", "64-bit ARM, under qemu", move || on_aarch64(&args, ARM_PROPTEST_CASES))
}

/// The kernel tests with all their cases on 64-bit ARM, and whole models on an old one.
pub fn aarch64_wide() -> Outcome {
    let mut tally = on_aarch64(&[], ARM_PROPTEST_CASES_WIDE)?;
    tally += on_old_aarch64()?;
    Ok(tally)
}

/// The arguments for cargo, or `-p` each kernel crate and this selection of its tests.
pub fn or_kernel_tests(args: &[String], selection: &str) -> Vec<String> {
    if args.is_empty() {
        let packages = KERNEL_CRATES.iter().flat_map(|name| ["-p", name]);
        packages.chain([selection]).map(str::to_string).collect()
    } else {
        args.to_vec()
    }
}

/// The command before a program for 64-bit ARM that runs it here.
pub fn arm_emulator() -> Result<Vec<String>, Trouble> {
    needs::packages(ARM_PACKAGES)?;
    Ok(words(ARM_RUNNER))
}

fn aarch64_quick() -> Outcome {
    let [vocabulary, oracles] = ARM_QUICK.map(words);
    let skipped = ARM_SLOW.iter().flat_map(|name| ["--skip", name]).map(str::to_owned);
    let mut tally = on_aarch64(&vocabulary, ARM_PROPTEST_CASES)?;
    tally += on_aarch64(&oracles.into_iter().chain(skipped).collect::<Vec<_>>(), ARM_PROPTEST_CASES)?;
    Ok(tally)
}

fn fmt() -> Outcome {
    needs::component("rustfmt", "fmt")?;
    cargo(["fmt", "--all", "--check"]).run()
}

fn clippy() -> Outcome {
    needs::component("clippy", "clippy")?;
    let lints = ["--", "-D", "warnings", "-D", "clippy::undocumented_unsafe_blocks"];
    cargo(["clippy", "--workspace", "--all-targets"]).args(lints).run()?;
    // Not among "all": they have steps of their own.
    let apart = ["clients", "clients_wide", "readers", "c_examples", "device"].into_iter().chain(cuda::TESTS);
    cargo(["clippy", "--workspace"]).args(apart.flat_map(|name| ["--test", name])).args(lints).run()
}

/// All tests but those that have steps of their own.
const USUAL_TESTS: &str = "not package(kvant-gpu) and not package(kvant-msl)";

fn test() -> Outcome {
    let tests = if cargo(["nextest", "--version"]).probe().is_some() {
        // Without the examples, which clippy has checked.
        let selection = ["--lib", "--bins", "--tests", "--filterset", USUAL_TESTS];
        cargo(["nextest", "run", "--workspace", "--no-fail-fast"]).args(selection)
    } else {
        // `--tests` leaves the documentation's examples to their own step.
        let apart = ["--exclude", "kvant-gpu", "--exclude", "kvant-msl"];
        cargo(["test", "--workspace", "--tests", "--no-fail-fast"]).args(apart)
    };
    // Without a browser its test is left out here, and `browser` below says so in the closing table.
    match needs::packages(BROWSER) {
        Ok(()) => tests.run(),
        Err(_) => tests.env(NO_BROWSER.0, NO_BROWSER.1).run(),
    }
}

fn browser() -> Outcome {
    needs::packages(BROWSER)?;
    // Of the whole workspace, so that nothing is built again with fewer features.
    let mut tally = cargo(["test", "--workspace", "--test", "html"]).run()?;
    tally += cargo(["test", "--workspace", "--test", "api", "page::"]).run()?;
    Ok(tally)
}

fn clients() -> Outcome {
    let python = needs::environment(CLIENTS, CLIENTS_LIST)?;
    cargo(["test", "--workspace", "--test", "clients", "python_"]).env("KVANT_PYTHON", python).run()
}

fn clients_js() -> Outcome {
    let modules = needs::node_modules(CLIENTS_JS, CLIENTS_JS_LIST)?;
    needs::packages(BROWSER)?;
    cargo(["test", "--workspace", "--test", "clients", "javascript_"])
        .env("KVANT_NODE_MODULES", modules)
        .run()
}

/// Agents and libraries that take long to install, against a server.
pub fn clients_wide() -> Outcome {
    let python = needs::environment(CLIENTS_WIDE, CLIENTS_WIDE_LIST)?;
    let modules = needs::node_modules(CLIENTS_WIDE_JS, CLIENTS_WIDE_JS_LIST)?;
    cargo(["test", "--workspace", "--test", "clients_wide"])
        .env("KVANT_PYTHON", python)
        .env("KVANT_NODE_MODULES", modules)
        .run()
}

fn readers() -> Outcome {
    let python = needs::environment(READERS, READERS_LIST)?;
    cargo(["test", "--workspace", "--test", "readers", "the_gguf_package"]).env("KVANT_PYTHON", python).run()
}

/// llama.cpp itself on converted models, and kvant on models that llama.cpp quantized.
pub fn llama_cpp() -> Outcome {
    let python = needs::environment(LLAMA_CPP, LLAMA_CPP_LIST)?;
    cargo(["test", "--workspace", "--test", "readers", "llama_cpp::"]).env("KVANT_PYTHON", python).run()
}

fn doctest() -> Outcome {
    cargo(["test", "--workspace", "--doc", "--no-fail-fast"]).run()
}

fn doc() -> Outcome {
    cargo(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings").run()
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

fn on_aarch64(args: &[String], cases: &str) -> Outcome {
    // Options go before the caller's arguments, which may end in `-- ...` for the test program.
    if ARCH == "aarch64" {
        println!("this machine is 64-bit ARM: no qemu needed");
        return cargo(["test", "--no-fail-fast"]).args(or_kernel_tests(args, "--tests")).run();
    }
    emulated(ARM_RUNNER, or_kernel_tests(args, "--tests"))?.env_default("PROPTEST_CASES", cases).run()
}

/// Where there are no dot products: the vocabulary, the products, and every small model with the tier that such a processor chooses.
fn on_old_aarch64() -> Outcome {
    let kernels = words("-p kvant-simd -p kvant-weights --tests");
    let mut tally =
        emulated(OLD_ARM_RUNNER, kernels)?.env_default("PROPTEST_CASES", ARM_PROPTEST_CASES).run()?;
    // The same models where there are, so that the two tiers can be told apart when one fails.
    let models = words("-p kvant-model -p kvant-cpu --test fixtures --test conformance -- --skip mixtures");
    for (runner, tier) in [(OLD_ARM_RUNNER, "neon-base"), (ARM_RUNNER, "neon")] {
        tally += emulated(runner, models.clone())?.env("KVANT_SIMD", tier).run()?;
    }
    Ok(tally)
}

/// `cargo test` on 64-bit ARM as qemu has it.
fn emulated(runner: &str, args: Vec<String>) -> Result<Call, Trouble> {
    needs::packages(ARM_PACKAGES)?;
    needs::target(ARM_LINUX)?;
    // In the environment and not in .cargo/config.toml, where they would break `cargo run` on a real ARM machine.
    Ok(cargo(["test", "--no-fail-fast", "--target", ARM_LINUX])
        .args(args)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", ARM_LINKER)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner))
}

/// Everything that differs by instruction set, and the C library, for machines that nobody here has.
pub fn phones() -> Outcome {
    let mut tally = Tally::default();
    for target in CHECKED_TARGETS {
        needs::target(target)?;
        // Checking needs no linker, so no SDK from Apple or Google either; but the TLS library of the command builds C, which
        // does. Everything that differs by instruction set is in the kernel crates.
        let packages = KERNEL_CRATES.iter().flat_map(|name| ["-p", name]);
        tally += cargo(["check", "--all-targets", "--target", target].into_iter().chain(packages)).run()?;
    }
    for target in &CHECKED_TARGETS[1..] {
        tally += cargo(["check", "-p", "kvant-capi", "--lib", "--target", target]).run()?;
    }
    Ok(tally)
}
