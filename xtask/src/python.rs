//! The Python package: its wheel is made, installed into an environment of its own, and tested there.

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::fs;
use std::path::{Path, PathBuf};

use crate::capi;
use crate::named::MODELS;
use crate::needs;
use crate::process::{Call, call, cargo};
use crate::step::{Outcome, Trouble};

/// Where wheels are put.
const WHEELS: &str = "target/wheels";

/// The package with nothing but what its tests need.
const PACKAGE: &str = "target/python";
const PACKAGE_LIST: &str = "python/tests/requirements.txt";

/// The same with what parts of it work beside.
const HF: &str = "target/python-hf";
const HF_LIST: &str = "python/tests/requirements-hf.txt";
/// Models this small are slower on several threads, and on a busy machine many times so.
const ONE_THREAD: (&str, &str) = ("OMP_NUM_THREADS", "1");
const MLX: &str = "target/python-mlx";
const MLX_LIST: &str = "python/tests/requirements-mlx.txt";
const TIERS: &str = "target/python-tiers";
const TIERS_LIST: &str = "python/tests/requirements-tiers.txt";
const RAY: &str = "target/python-ray";
const RAY_LIST: &str = "python/tests/requirements-ray.txt";

const NOTEBOOK: &str = "target/python-notebook";
const NOTEBOOK_LIST: &str = "python/tests/requirements-notebook.txt";

/// The same as people install it.
const INSTALLED: &str = "target/python-installed";

/// The package beside lm-eval, which brings much.
const LM_EVAL: &str = "target/python-lm-eval";
const LM_EVAL_LIST: &str = "python/tests/lm_eval_requirements.txt";

/// The tests of the package itself.
pub fn test() -> Outcome {
    let python = installed(PACKAGE, PACKAGE_LIST, Build::WithTests)?;
    pytest(&python, &["python/tests"])
}

/// The cache for transformers, with five architectures.
pub fn test_hf() -> Outcome {
    let python = installed_with_torch(HF, HF_LIST, Build::WithTests)?;
    pytest_call(&python, &["python/tests/test_hf.py"]).env(ONE_THREAD.0, ONE_THREAD.1).run()
}

/// The same with every kind of attention layer.
pub fn test_hf_wide() -> Outcome {
    let python = installed_with_torch(HF, HF_LIST, Build::Release)?;
    let tests = ["python/tests/test_hf.py", "python/tests/test_hf_wide.py"];
    pytest_call(&python, &tests).env(ONE_THREAD.0, ONE_THREAD.1).env("KVANT_WIDE", "1").run()
}

/// The cache for mlx-lm, on mlx for processors; its Metal kernels by a C++ compiler.
pub fn test_mlx() -> Outcome {
    needs::packages(capi::GCC)?;
    let python = installed(MLX, MLX_LIST, Build::Release)?;
    pytest(&python, &["python/tests/test_mlx.py", "python/tests/test_metal.py"])
}

/// The cold tier, with the classes of vLLM, SGLang and LMCache.
pub fn test_tiers() -> Outcome {
    let python = installed_with_torch(TIERS, TIERS_LIST, Build::Release)?;
    let tests = ["python/tests/test_tier.py", "python/tests/test_tiers.py"];
    pytest_call(&python, &tests).env(ONE_THREAD.0, ONE_THREAD.1).run()
}

/// Replicas and batches, with the real Ray on this machine.
pub fn test_ray() -> Outcome {
    let python = installed(RAY, RAY_LIST, Build::Release)?;
    pytest(&python, &["python/tests/test_ray.py"])
}

/// The same with the package that `pip install ./python` makes, by maturin and with the release profile.
pub fn test_as_installed() -> Outcome {
    let python = needs::environment(INSTALLED, PACKAGE_LIST)?;
    let pip = ["-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "--force-reinstall"];
    call(&python, pip).args(["./python"]).run()?;
    pytest(&python, &["python/tests"])
}

/// A task of ours through lm-eval itself; nothing is fetched but its packages.
pub fn test_lm_eval() -> Outcome {
    let python = installed(LM_EVAL, LM_EVAL_LIST, Build::Release)?;
    let tests = ["python/tests/lm_eval_real.py", "python/tests/test_lm_eval.py"];
    call(&python, PYTEST).args(tests).env("HF_HUB_OFFLINE", "1").env("HF_HOME", format!("{LM_EVAL}/hf")).run()
}

/// Runs the notebook, with the first of [`MODELS`] if there are any, and else with a model that it fetches.
pub fn run_notebook() -> Outcome {
    let python = installed(NOTEBOOK, NOTEBOOK_LIST, Build::Release)?;
    let run = call(&python, ["python/tests/run_notebook.py", "docs/kvant.ipynb"]);
    let models = std::env::var_os(MODELS);
    let first = models.as_ref().and_then(|models| std::env::split_paths(models).next());
    match first {
        Some(model) => run.env("KVANT_MODEL", model.display().to_string()).run(),
        None => run.run(),
    }
}

/// A Python with torch among its packages. Torch's wheel wants libraries of CUDA: 4 GB, which are not fetched.
fn installed_with_torch(folder: &str, requirements: &str, build: Build) -> Result<String, Trouble> {
    let python = installed(folder, requirements, build)?;
    if call(&python, ["-c", "import torch"]).probe().is_none() {
        needs::packages(capi::GCC)?;
        call(&python, ["python/tests/without_cuda.py"]).run()?;
    }
    Ok(python)
}

/// A Python with the packages listed in the file `requirements` and the wheel of this tree, in `folder`.
fn installed(folder: &str, requirements: &str, build: Build) -> Result<String, Trouble> {
    let python = needs::environment(folder, requirements)?;
    let wheel = wheel(&python, build)?.display().to_string();
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"];
    call(&python, pip).args(["--force-reinstall", &wheel]).run()?;
    Ok(python)
}

/// The current folder is not looked through, so that what is tested is what was installed.
const PYTEST: [&str; 5] = ["-P", "-m", "pytest", "-p", "no:cacheprovider"];

/// Runs pytest.
pub fn pytest(python: &str, args: &[&str]) -> Outcome {
    pytest_call(python, args).run()
}

fn pytest_call(python: &str, args: &[&str]) -> Call {
    call(python, PYTEST).args(args)
}

/// How the module is compiled.
#[derive(Clone, Copy)]
enum Build {
    /// As a part of the workspace, with the profile and the features that the tests have compiled everything with.
    WithTests,
    /// Alone and in full, as people get it: what takes long is done with that.
    Release,
}

/// Compiles the module and packs it.
fn wheel(python: &str, build: Build) -> Result<PathBuf, Trouble> {
    let folder = match build {
        Build::WithTests => {
            cargo(["build", "--workspace", "--lib", "--tests", "--profile", "test"]).run()?;
            "debug"
        }
        Build::Release => {
            cargo(["build", "--release", "--package", "kvant-python"]).run()?;
            "release"
        }
    };
    if Path::new(WHEELS).exists() {
        fs::remove_dir_all(WHEELS).map_err(|e| Trouble::failed(format!("cannot empty {WHEELS}: {e}")))?;
    }
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_string());
    let library = format!("{target}/{folder}/{DLL_PREFIX}_kvant{DLL_SUFFIX}");
    call(python, ["python/pack_wheel.py", &library, WHEELS]).run()?;
    let made = fs::read_dir(WHEELS).map_err(|e| Trouble::failed(format!("cannot read {WHEELS}: {e}")))?;
    let mut wheels = made.filter_map(|entry| Some(entry.ok()?.path()));
    let is_wheel = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "whl");
    wheels.find(is_wheel).ok_or_else(|| Trouble::failed(format!("there is no wheel in {WHEELS}")))
}
