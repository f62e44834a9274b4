//! Files of an archive: written, copied, listed and summed up.

use std::fs;
use std::path::{Path, PathBuf};

use crate::process::call;
use crate::step::Trouble;

/// Copies a file, with the folders on the way.
pub fn copy(from: &Path, to: &Path) -> Result<(), Trouble> {
    let failed = |e| Trouble::failed(format!("cannot copy {} to {}: {e}", from.display(), to.display()));
    fs::create_dir_all(to.parent().unwrap_or(to)).map_err(failed)?;
    fs::copy(from, to).map(drop).map_err(failed)
}

/// Writes a text, with the folders on the way.
pub fn write(path: &Path, text: &str) -> Result<(), Trouble> {
    let failed = |e| Trouble::failed(format!("cannot write {}: {e}", path.display()));
    fs::create_dir_all(path.parent().unwrap_or(path)).map_err(failed)?;
    fs::write(path, text).map_err(failed)
}

/// Reads a text.
pub fn read(path: &str) -> Result<String, Trouble> {
    fs::read_to_string(path).map_err(|e| Trouble::failed(format!("cannot read {path}: {e}")))
}

/// An empty folder.
pub fn empty(folder: &Path) -> Result<(), Trouble> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(broken("remove what is left of the last time"))?;
    }
    fs::create_dir_all(folder).map_err(broken("make a folder"))
}

/// All files of a folder, links left out, in order.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>, Trouble> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(broken("list a folder"))? {
        let path = entry.map_err(broken("list a folder"))?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else if !path.is_symlink() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Lines as sha256sum writes and checks them, with paths from `root` on.
pub fn checksums(root: &Path, files: &[PathBuf]) -> Result<String, Trouble> {
    let paths: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let sums =
        call("sha256sum", &paths).probe().or_else(|| call("shasum", ["-a", "256"]).args(&paths).probe());
    let sums = sums.ok_or_else(|| Trouble::not_run("there is neither sha256sum nor shasum"))?;
    let prefix = format!("  {}/", root.display());
    Ok(sums.lines().map(|line| line.replacen(&prefix, "  ", 1) + "\n").collect())
}

/// A folder within `parent` as an archive: the same for the same files, whoever packs them and when.
pub fn pack(parent: &Path, name: &str, archive: &Path) -> Result<(), Trouble> {
    let time = call("git", ["log", "-1", "--format=%ct"]).probe();
    let time = format!("--mtime=@{}", time.as_deref().map_or("0", str::trim));
    let same = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", &time];
    let tar = call("tar", if cfg!(target_os = "linux") { &same[..] } else { &[] });
    let (parent, archive) = (parent.display().to_string(), archive.display().to_string());
    tar.args(["-C", &parent, "-czf", &archive, name]).run().map(drop)
}

/// An error of the system, with what was tried.
pub fn broken(doing: &'static str) -> impl Fn(std::io::Error) -> Trouble {
    move |error| Trouble::failed(format!("cannot {doing}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_files_under_their_own_names() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let sums =
            checksums(folder, &[folder.join("Cargo.toml")]).unwrap_or_else(|trouble| panic!("{trouble:?}"));
        assert!(sums.ends_with("  Cargo.toml\n") && sums.len() == 64 + 13, "{sums}");
    }
}
