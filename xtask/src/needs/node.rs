//! Packages of JavaScript, in a folder of their own: nothing outside `target` is touched, and no script of theirs is run.

use std::fs;
use std::path::Path;

use super::debian::{Package, packages};
use crate::process::call;
use crate::step::Trouble;

const NODE: &[Package] =
    &[Package { name: "nodejs", brings: "node" }, Package { name: "npm", brings: "npm" }];

/// A `node_modules` with exactly the packages that the file `list` (a `package.json`) names, below `folder`; made when it is not
/// there, or when the list has changed since.
pub fn node_modules(folder: &str, list: &str) -> Result<String, Trouble> {
    packages(NODE)?;
    let wanted = fs::read_to_string(list).map_err(|e| Trouble::failed(format!("cannot read {list}: {e}")))?;
    let folder = std::path::absolute(folder)
        .map_err(|e| Trouble::failed(format!("there is no place for {folder}: {e}")))?;
    let modules = folder.join("node_modules");
    // Written last, so that it stands for a whole folder.
    let installed = folder.join("installed.json");
    if !is_done(&installed, &wanted) {
        let failed = |e: std::io::Error| Trouble::failed(format!("cannot write {}: {e}", folder.display()));
        fs::create_dir_all(&folder).map_err(failed)?;
        fs::write(folder.join("package.json"), &wanted).map_err(failed)?;
        let place = folder.display().to_string();
        call(
            "npm",
            [
                "install",
                "--prefix",
                &place,
                "--ignore-scripts",
                "--no-audit",
                "--no-fund",
                "--loglevel",
                "error",
            ],
        )
        .run()
        .map_err(|_| Trouble::not_run("npm install failed (above)"))?;
        fs::write(&installed, wanted).map_err(failed)?;
    }
    Ok(modules.display().to_string())
}

fn is_done(installed: &Path, wanted: &str) -> bool {
    fs::read_to_string(installed).is_ok_and(|text| text == wanted)
}
