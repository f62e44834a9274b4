//! Steps of the backend for NVIDIA's cards: on a driver that stands in for a card, and on a real one.
//!
//! Test programs that need a driver are marked `test = false`, so that no other step runs them: without a driver they fail.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use crate::needs::{self, Package};
use crate::process::{Call, call, cargo};
use crate::step::{Outcome, Trouble};
use crate::tally::Tally;

/// The test programs: `card` of the backend, `cuda` of the engine and of the command.
pub const TESTS: [&str; 2] = ["card", "cuda"];

/// What compiles the driver that stands in for a card.
const CPP: &[Package] = &[Package { name: "g++", brings: "g++" }];
/// Its source, and the folders of everything in it.
const DRIVER: &str = "crates/kvant-cuda/tests/driver/libcuda.cpp";
const SOURCES: [&str; 3] =
    ["crates/kvant-cuda/tests/driver", "crates/kvant-cuda/bench/host", "crates/kvant-cuda/kernels"];
/// Where it is put, and the names that programs look for.
const FOLDER: &str = "target/cuda-driver";
const LIBRARY: &str = "libcuda.so.1";
const OTHER_NAME: &str = "libcuda.so";
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// Smaller models and fewer tokens: the stand-in takes a second for what a card does in a millisecond.
const SIZE: (&str, &str) = ("KVANT_CARD_TESTS", "short");
/// Which form of the kernels a card is given.
const FORM: &str = "KVANT_CARD_FORM";
/// The compute capability whose cards take cubins.
const HOPPER: &str = "9.0";
/// Tests that make the driver fail, which a card cannot be made to do.
const STAND_IN: &str = "stand_in::";

/// The backend, the engine and the command with a driver that stands in for a card.
pub fn stand_in() -> Outcome {
    if !cfg!(target_os = "linux") {
        return Err(Trouble::not_run("the driver that stands in for a card runs on Linux"));
    }
    needs::packages(CPP)?;
    let folder = driver()?;
    let path = match std::env::var(LIBRARY_PATH) {
        Ok(others) if !others.is_empty() => format!("{folder}:{others}"),
        _ => folder,
    };
    let tests = if cargo(["nextest", "--version"]).probe().is_some() {
        // A process for each test: kernels of one process run one after the other.
        cargo(["nextest", "run", "--no-fail-fast"])
    } else {
        cargo(["test", "--no-fail-fast"])
    };
    some(selected(tests).env(LIBRARY_PATH, path).env(SIZE.0, SIZE.1).run()?)
}

/// The same at full size on a card, with its kernels as cubins and as PTX.
pub fn card() -> Outcome {
    let Some(card) = GraphicsCard::first() else {
        return Err(Trouble::not_run(
            "no NVIDIA card: nvidia-smi does not answer; `cuda` runs the tests on a driver that stands in for one",
        ));
    };
    println!("{}: tests that make a driver fail ({STAND_IN}) are left to the step `cuda`", card.shown());
    let forms: &[&str] = if card.capability == HOPPER { &["cubin", "ptx"] } else { &["ptx"] };
    let mut tally = Tally::default();
    for form in forms {
        let tests = selected(cargo(["test", "--no-fail-fast"])).env(FORM, *form);
        tally += some(tests.args(["--", "--test-threads=1", "--skip", STAND_IN]).run()?)?;
    }
    Ok(tally)
}

/// Of the whole workspace, so that nothing is built again with fewer features.
fn selected(tests: Call) -> Call {
    tests.args(["--workspace"]).args(TESTS.iter().flat_map(|name| ["--test", name]))
}

/// No tests are no success.
fn some(tally: Tally) -> Outcome {
    match tally.passed {
        0 => Err(Trouble::failed("no test of the backend ran")),
        _ => Ok(tally),
    }
}

/// Compiles the driver that stands in for a card unless it is newer than its sources; the folder it is in.
fn driver() -> Result<String, Trouble> {
    let failed = |e: std::io::Error| Trouble::failed(format!("no driver in {FOLDER}: {e}"));
    fs::create_dir_all(FOLDER).map_err(failed)?;
    let folder = std::path::absolute(FOLDER).map_err(failed)?;
    let library = folder.join(LIBRARY);
    if !is_newer(&library, &SOURCES.map(Path::new)).map_err(failed)? {
        // Under another name at first, so that one which was not finished is not taken for a driver.
        let made = folder.join("made").display().to_string();
        let flags = ["-std=c++17", "-O1", "-U_FORTIFY_SOURCE", "-fPIC", "-shared", "-w", "-DKVANT_HOST"];
        let folders = SOURCES[1..].iter().map(|folder| format!("-I{folder}"));
        call("g++", flags).args(folders).args([DRIVER, "-o", &made, "-ldl"]).run()?;
        fs::rename(&made, &library).map_err(failed)?;
        // The same file, not a copy: a program that asks for both names is to get one driver. The link of the last one is in the way.
        let other = folder.join(OTHER_NAME);
        let _ = fs::remove_file(&other);
        fs::hard_link(&library, &other).map_err(failed)?;
    }
    Ok(folder.display().to_string())
}

/// Whether a file is there and newer than every file of these folders.
fn is_newer(file: &Path, folders: &[&Path]) -> std::io::Result<bool> {
    let Ok(made) = fs::metadata(file).and_then(|data| data.modified()) else { return Ok(false) };
    let newest = |folder: &Path| -> std::io::Result<SystemTime> {
        let mut newest = SystemTime::UNIX_EPOCH;
        for entry in fs::read_dir(folder)? {
            newest = newest.max(entry?.metadata()?.modified()?);
        }
        Ok(newest)
    };
    for folder in folders {
        if newest(folder)? >= made {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A card of this machine, as its driver describes it.
#[derive(Debug, PartialEq)]
pub struct GraphicsCard {
    name: String,
    driver: String,
    capability: String,
}

impl GraphicsCard {
    /// The first, if there is one.
    pub fn first() -> Option<GraphicsCard> {
        let query = ["--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"];
        GraphicsCard::parse(&call("nvidia-smi", query).probe()?)
    }

    /// From a line of `nvidia-smi`.
    fn parse(lines: &str) -> Option<GraphicsCard> {
        let fields: Vec<&str> = lines.lines().next()?.split(", ").map(str::trim).collect();
        let [name, driver, capability] = fields[..] else { return None };
        Some(GraphicsCard { name: name.into(), driver: driver.into(), capability: capability.into() })
    }

    /// Its name, and the version of its driver.
    pub fn shown(&self) -> String {
        format!("{}, driver {}", self.name, self.driver)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_read_from_what_its_driver_says() {
        let card =
            GraphicsCard::parse("NVIDIA H200, 580.159.03, 9.0\nNVIDIA H200, 580.159.03, 9.0\n").unwrap();
        assert_eq!(
            (card.shown().as_str(), card.capability.as_str()),
            ("NVIDIA H200, driver 580.159.03", HOPPER)
        );
        assert_eq!(GraphicsCard::parse("No devices were found\n"), None);
        assert_eq!(GraphicsCard::parse(""), None);
    }

    #[test]
    fn a_driver_is_made_again_when_a_source_has_changed() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = std::env::temp_dir().join(format!("kvant-xtask-driver-{}", std::process::id()));
        fs::create_dir_all(folder.join("sources")).unwrap();
        let (library, source) = (folder.join("library"), folder.join("sources/kernel.cu"));
        let at = |path: &Path, seconds: u64| {
            let file = fs::File::create(path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds)).unwrap();
        };
        let is_newer = || is_newer(&library, &[&folder.join("sources")]).unwrap();
        at(&source, 100);
        assert!(!is_newer(), "there is none");
        at(&library, 200);
        assert!(is_newer());
        at(&source, 300);
        assert!(!is_newer());
        fs::remove_dir_all(&folder).unwrap();
        assert!(SOURCES.iter().all(|folder| here.join("..").join(folder).is_dir()));
    }

    #[test]
    fn a_run_without_tests_is_no_success() {
        assert!(some(Tally::default()).is_err());
        assert!(some(Tally { passed: 1, ..Tally::default() }).is_ok());
    }
}
