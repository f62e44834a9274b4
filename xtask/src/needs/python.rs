//! Packages of Python, in an environment of their own: nothing outside `target` is touched.

use std::fs;
use std::path::Path;

use super::debian::{Package, packages};
use crate::process::call;
use crate::step::Trouble;

/// Debian's Python comes without what makes environments. The package brings no program to know it by, only this.
const VENV: Package = Package { name: "python3-venv", brings: "/var/lib/dpkg/info/python3-venv.list" };

/// A Python that has exactly the packages listed in the file `requirements`, in `folder`; made when it is not there, or
/// when the list has changed since.
pub fn environment(folder: &str, requirements: &str) -> Result<String, Trouble> {
    let wanted = fs::read_to_string(requirements)
        .map_err(|e| Trouble::failed(format!("cannot read {requirements}: {e}")))?;
    let folder = std::path::absolute(folder)
        .map_err(|e| Trouble::failed(format!("there is no place for {folder}: {e}")))?;
    let (bin, program) = if cfg!(windows) { ("Scripts", "python.exe") } else { ("bin", "python") };
    let python = folder.join(bin).join(program).display().to_string();
    // Written last, so that it stands for a whole environment.
    let installed = folder.join("installed.txt");
    if is_done(&installed, &wanted) && call(&python, ["--version"]).probe().is_some() {
        return Ok(python);
    }
    if !can_make() {
        packages(&[VENV])?;
    }
    let place = folder.display().to_string();
    let failed = |what: &str| Trouble::not_run(format!("{what} failed (above)"));
    call("python3", ["-m", "venv", "--clear", &place]).run().map_err(|_| failed("python3 -m venv"))?;
    // The list is complete, and nothing is compiled that needs more than Python.
    let options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"];
    call(&python, ["-m", "pip", "install"])
        .args(options)
        .args(["--requirement", requirements])
        .run()
        .map_err(|_| failed("pip install"))?;
    fs::write(&installed, wanted)
        .map_err(|e| Trouble::failed(format!("cannot write {}: {e}", installed.display())))?;
    Ok(python)
}

fn is_done(installed: &Path, wanted: &str) -> bool {
    fs::read_to_string(installed).is_ok_and(|text| text == wanted)
}

fn can_make() -> bool {
    call("python3", ["-c", "import ensurepip, venv"]).probe().is_some()
}
