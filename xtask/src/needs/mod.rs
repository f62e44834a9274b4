//! What a step needs, installed by its package name when it is missing.
//!
//! Each function returns once the thing is there, or the reason why it cannot be: that reason is what the
//! closing table prints beside the step.

mod debian;
mod node;
mod python;
mod rustup;

pub use debian::{Package, packages};
pub use node::node_modules;
pub use python::environment;
pub use rustup::{cargo_tool, component, host_triple, nightly, target};

use std::path::Path;

/// True when a program of that name is on the PATH.
fn on_path(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| is_program(&folder.join(program))))
}

#[cfg(unix)]
fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_program(path: &Path) -> bool {
    path.is_file() || path.with_extension("exe").is_file()
}
