//! Steps that take too long for every change. Each is a line of [`NAMED`]; `cargo xtask test NAME` or `--all` runs it.
//!
//! A named step that ran leaves a line in [`FILE`]: what became of it, on which day and machine, how many tests there were,
//! and a hash of every folder it covers. Whoever runs the tests without it is told the last of these, and which folders
//! have changed since.
//!
//! **Invariant:** nothing is left out silently. A named step that did not run is listed below the closing table.

mod machine;
mod ran;
pub mod tree;

use std::path::Path;

use crate::capi;
use crate::cuda;
use crate::dist;
use crate::gpu;
use crate::nightly;
use crate::process::cargo;
use crate::python;
use crate::step::{Outcome, Step, Trouble};
use crate::steps::{self, KERNEL_CRATES};
use crate::tally::Tally;
pub use machine::{name as machine_name, today};
use ran::{Ran, Runs};

/// Where named steps leave word.
const FILE: &str = "docs/results/checks.json";

/// A step that takes long.
pub struct Named {
    pub name: &'static str,
    /// A few words for its heading and for the help text.
    pub about: &'static str,
    /// Folders whose change makes what it found out of date.
    covers: fn() -> Vec<String>,
    run: fn() -> Outcome,
}

/// All of them, in the order they run.
pub const NAMED: &[Named] = &[
    Named {
        name: "record",
        about: "logits, pages, old sessions and KL figures are those of docs/results/record.json",
        covers: || vec!["crates".to_string()],
        run: record,
    },
    Named {
        name: "miri",
        about: "the portable kernels and the thread pool under Miri",
        covers: || crates(&["kvant-simd", "kvant-threads", "kvant-codec"]),
        run: || nightly::run_miri(&[]),
    },
    Named {
        name: "asan",
        about: "the kernels under AddressSanitizer",
        covers: || crates(KERNEL_CRATES),
        run: || nightly::run_asan(&[]),
    },
    Named {
        name: "tsan",
        about: "threads, scheduler and server under ThreadSanitizer",
        covers: || crates(&nightly::tsan_crates()),
        run: || nightly::run_tsan(&[]),
    },
    Named {
        name: "models",
        about: "pool, pages, scheduler and disk writer in every order of their threads (loom)",
        covers: || {
            let mut folders = crates(&["kvant-threads", "kvant-cache", "kvant-engine"]);
            folders.push("loom".to_string());
            folders
        },
        run: || cargo(["run", "--release", "--manifest-path", "loom/Cargo.toml"]).run(),
    },
    Named {
        name: "valgrind",
        about: "the examples in C and C++ under valgrind",
        covers: || {
            let mut folders = crates(KERNEL_CRATES);
            folders.extend(crates(&["kvant-cpu", "kvant-engine", "kvant-capi"]));
            folders.push("examples".to_string());
            folders
        },
        run: capi::valgrind,
    },
    Named {
        name: "fuzz",
        about: "every fuzz target for a short while",
        covers: || {
            let mut folders = crates(&["kvant-codec", "kvant-cache", "kvant-model", "kvant-text"]);
            folders.extend(crates(&[
                "kvant-engine",
                "kvant-server",
                "kvant-hub",
                "kvant-convert",
                "kvant-capi",
            ]));
            folders.push("fuzz".to_string());
            folders
        },
        run: nightly::fuzz_all,
    },
    Named {
        name: "clients-wide",
        about: "litellm, langchain, llm, instructor, openai-agents, the AI SDK, Codex and others against a server",
        covers: || crates(&["kvant-server", "kvant-cli"]),
        run: steps::clients_wide,
    },
    Named {
        name: "llama-cpp",
        about: "llama.cpp computes from converted models what kvant computes, and kvant from what llama.cpp quantized",
        covers: || crates(&["kvant-convert", "kvant-model", "kvant-cpu"]),
        run: steps::llama_cpp,
    },
    Named {
        name: "speculation",
        about: "ten thousand generations with and without speculative decoding, to the bit",
        covers: || {
            crates(&[
                "kvant-engine",
                "kvant-cpu",
                "kvant-attention",
                "kvant-cache",
                "kvant-codec",
                "kvant-weights",
            ])
        },
        run: speculation,
    },
    Named {
        name: "aarch64-wide",
        about: "every case of the kernel tests on 64-bit ARM, and whole models on an old one, under qemu",
        covers: || [crates(KERNEL_CRATES), crates(&["kvant-model", "kvant-cpu"])].concat(),
        run: steps::aarch64_wide,
    },
    Named {
        name: "phones",
        about: "kernels and the C library type-check for Apple silicon, iOS, Android and 32-bit ARM",
        covers: || [crates(KERNEL_CRATES), crates(&["kvant-capi"])].concat(),
        run: steps::phones,
    },
    Named {
        name: "msl",
        about: "whole models and kernels as Metal would be given them, on the host",
        covers: || {
            let own = crates(&["kvant-gpu", "kvant-codec", "kvant-cache"]);
            own.into_iter().chain(["dev/kvant-conformance", "dev/kvant-msl"].map(String::from)).collect()
        },
        run: gpu::msl,
    },
    Named {
        name: "gpu-wide",
        about: "every case of whole models and kernels on lavapipe, with subgroups of 16",
        covers: || crates(&["kvant-gpu", "kvant-codec", "kvant-cache"]),
        run: gpu::lavapipe_wide,
    },
    Named {
        name: "gpu-systems",
        about: "the backend for GPUs and the command with it type-check for macOS and Windows",
        covers: || crates(&["kvant-gpu", "kvant-engine", "kvant-cli"]),
        run: gpu::other_systems,
    },
    Named {
        name: "card",
        about: "the CUDA backend, the engine and the command on a real card, as cubins and as PTX",
        covers: || crates(&["kvant-cuda", "kvant-codec", "kvant-cache", "kvant-engine"]),
        run: cuda::card,
    },
    Named {
        name: "hf",
        about: "the cache for transformers, on five architectures; 0.6 GB to fetch once",
        covers: python_folders,
        run: python::test_hf,
    },
    Named {
        name: "hf-wide",
        about: "the cache for transformers, on every kind of attention layer",
        covers: python_folders,
        run: python::test_hf_wide,
    },
    Named {
        name: "mlx",
        about: "the cache for mlx-lm, on mlx for processors, and its Metal kernels on the host",
        covers: || [python_folders(), vec!["dev/kvant-msl".to_string()]].concat(),
        run: python::test_mlx,
    },
    Named {
        name: "tiers",
        about: "the cold tier, with the classes of vLLM, SGLang and LMCache",
        covers: python_folders,
        run: python::test_tiers,
    },
    Named {
        name: "ray",
        about: "replicas and batches, with the real Ray",
        covers: python_folders,
        run: python::test_ray,
    },
    Named {
        name: "wheel",
        about: "the Python package as `pip install ./python` makes it",
        covers: python_folders,
        run: python::test_as_installed,
    },
    Named {
        name: "notebook",
        about: "docs/kvant.ipynb, from its first cell to its last",
        covers: python_folders,
        run: python::run_notebook,
    },
    Named {
        name: "dist",
        about: "archives, wheel, npm's packages and container, each made and tried in a clean place",
        covers: || ["crates", "python", "include", "examples", "packaging"].map(str::to_string).to_vec(),
        run: dist::clean::check,
    },
    Named {
        name: "lm-eval",
        about: "the Python package's adapter under lm-eval itself, whose packages take 0.8 GB",
        covers: || vec!["python".to_string()],
        run: python::test_lm_eval,
    },
];

/// What the Python package is made of.
fn python_folders() -> Vec<String> {
    vec!["crates".to_string(), "python".to_string()]
}

/// Instruction sets whose fixtures are held against the record besides the best one of this machine.
const OTHER_TIERS: &[&str] = &["avx2", "scalar"];
/// Model files to hold against the record, and the text they read.
pub const MODELS: &str = "KVANT_MODELS";
const TEXT: &str = "KVANT_TEXT";

impl Named {
    /// As a step that leaves word of what became of it.
    pub fn step(&'static self) -> Step {
        Step::new(self.name, self.about, || {
            let tree = tree::hashes(Path::new("."), &(self.covers)());
            let outcome = (self.run)();
            if matches!(outcome, Err(Trouble::NotRun { .. })) {
                return outcome;
            }
            let written = tree.and_then(|tree| {
                let mut runs = Runs::read(Path::new(FILE))?;
                runs.insert(self.name, Ran::new(&outcome, machine::today(), machine::name(), tree));
                runs.write(Path::new(FILE))
            });
            // A failure of the step itself is the more important one.
            outcome.and_then(|tests| written.map(|()| tests).map_err(Trouble::failed))
        })
    }
}

/// What is to be said of the named steps that were not run; empty if all were.
pub fn not_run(ran: impl Fn(&str) -> bool) -> String {
    let left_out: Vec<&Named> = NAMED.iter().filter(|named| !ran(named.name)).collect();
    let runs = match Runs::read(Path::new(FILE)) {
        Ok(runs) => runs,
        Err(message) => return format!("{message}\n"),
    };
    let mut text = String::new();
    for named in left_out {
        let status = match tree::hashes(Path::new("."), &(named.covers)()) {
            Ok(tree) => runs.status(named.name, &tree),
            Err(message) => message,
        };
        text += &format!("  {:<12} {status}\n", named.name);
    }
    match text.is_empty() {
        true => text,
        false => format!("not run here (cargo xtask test NAME, or --all):\n{text}"),
    }
}

fn crates(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| format!("crates/{name}")).collect()
}

/// What `KVANT_SPECULATION_CASES` has to be for ten thousand comparisons: of every four cases there are seventeen.
const SPECULATION_CASES: &str = "2400";

/// Sessions, batches and prefixes of tiny models whose proposals come from a guesser, from the text, a draft model and heads.
fn speculation() -> Outcome {
    let tests = cargo(["test", "--workspace", "--test", "speculation"]);
    tests.env("KVANT_SPECULATION_CASES", SPECULATION_CASES).run()
}

/// Every fixture on every instruction set of this machine, and models on the best one.
fn record() -> Outcome {
    let run = |options: &[String]| {
        let example = ["run", "--release", "-p", "kvant-eval", "--example", "record", "--"];
        cargo(example).args(["check", "docs/results/record.json"]).args(options)
    };
    let mut options = Vec::new();
    if let Some(models) = std::env::var_os(MODELS) {
        let models = std::env::split_paths(&models).map(|model| model.display().to_string());
        options.extend(models.flat_map(|model| ["--model".to_string(), model]));
        if let Ok(text) = std::env::var(TEXT) {
            options.extend(["--text".to_string(), text]);
        }
    } else {
        println!(
            "real models are held against the record too where {MODELS} lists their files, and {TEXT} a text"
        );
    }
    let mut tally = run(&options).run()?;
    if cfg!(target_arch = "x86_64") {
        for tier in OTHER_TIERS {
            tally += run(&[]).env("KVANT_SIMD", *tier).run()?;
        }
    }
    match tally.passed {
        0 => Err(Trouble::failed("no line of the record was compared")),
        _ => Ok(Tally { reports: 1, ..tally }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_steps_cover_folders_that_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for named in NAMED {
            for folder in (named.covers)() {
                assert!(root.join(&folder).is_dir(), "{}: there is no {folder}", named.name);
            }
        }
    }

    #[test]
    fn names_are_no_names_of_other_steps() {
        for named in NAMED {
            assert!(steps::CHECKS.iter().all(|check| check.name != named.name), "{}", named.name);
        }
    }
}
