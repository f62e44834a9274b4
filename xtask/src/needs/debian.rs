//! Packages of Debian and its descendants.

use std::io::IsTerminal;
use std::path::Path;

use super::on_path;
use crate::process::{Call, call};
use crate::step::Trouble;

/// A Debian package, and the proof that what it brings is there, however it came.
pub struct Package {
    pub name: &'static str,
    /// A program on the PATH, or an absolute path.
    pub brings: &'static str,
}

impl Package {
    fn is_present(&self) -> bool {
        if self.brings.starts_with('/') { Path::new(self.brings).exists() } else { on_path(self.brings) }
    }
}

/// Makes sure that all of these are there.
pub fn packages(wanted: &[Package]) -> Result<(), Trouble> {
    let missing = || wanted.iter().filter(|package| !package.is_present());
    if missing().next().is_none() {
        return Ok(());
    }
    let names: Vec<&str> = missing().map(|package| package.name).collect();
    let list = names.join(", ");
    if !on_path("apt-get") {
        let brings: Vec<&str> = missing().map(|package| package.brings).collect();
        return Err(Trouble::not_run(format!(
            "missing: {}; there is no apt-get here to install them (Debian packages {list})",
            brings.join(", ")
        )));
    }
    let root = call("id", ["-u"]).probe().is_some_and(|id| id.trim() == "0");
    if !root && !on_path("sudo") {
        return Err(Trouble::not_run(format!(
            "the packages {list} are missing, and installing them needs root or sudo"
        )));
    }
    println!("the packages {list} are missing: installing them");
    let install = || apt_get(root, &["install", "--yes", "--no-install-recommends"]).args(&names).run();
    // The lists of a fresh container are empty and those of an old one out of date: either way the first
    // attempt fails and fresh lists mend it.
    if install().is_err() {
        println!("that failed: fetching fresh package lists and trying again");
        let _ = apt_get(root, &["update"]).run();
        if install().is_err() {
            return Err(Trouble::not_run(format!(
                "the packages {list} are missing and apt-get failed (above)"
            )));
        }
    }
    match missing().next() {
        None => Ok(()),
        Some(package) => {
            Err(Trouble::not_run(format!("{} was installed but brought no {}", package.name, package.brings)))
        }
    }
}

fn apt_get(root: bool, args: &[&str]) -> Call {
    let command = ["DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet"];
    let apt = if root {
        call("env", command)
    } else if std::io::stdin().is_terminal() {
        call("sudo", ["env"]).args(command).with_keyboard()
    } else {
        call("sudo", ["-n", "env"]).args(command)
    };
    // Waits for another apt-get, forgives a bad network, and draws no progress bars into a log.
    apt.args(["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3", "-o", "Dpkg::Use-Pty=0"])
        .args(args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_known_by_what_it_brings() {
        let by_path = Package { name: "any", brings: env!("CARGO_MANIFEST_DIR") };
        let by_program = Package { name: "any", brings: "cargo" };
        assert!(by_path.is_present() && by_program.is_present());
        assert!(packages(&[by_path, by_program]).is_ok());
        let absent = Package { name: "any", brings: "kvant-no-such-program" };
        assert!(!absent.is_present());
    }
}
