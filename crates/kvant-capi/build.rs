//! What the shared library's linker is told.
//!
//! It exports kvant's own functions alone: a dependency (llguidance) has functions for C too, which a program that links with both
//! would find here. On macOS and Windows the linker has no such switch, and they stay visible.
//!
//! `KVANT_SONAME` is the name that programs look for at run time, where `cargo xtask dist` asks for one. Without it they look for
//! the file that they were linked with, which is right in a build folder.

use std::env;

fn main() {
    println!("cargo::rerun-if-env-changed=KVANT_SONAME");
    println!("cargo::rerun-if-changed=build.rs");
    if let Ok(name) = env::var("KVANT_SONAME") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{name}");
    }
    let is_elf = env::var_os("CARGO_CFG_UNIX").is_some()
        && env::var("CARGO_CFG_TARGET_VENDOR").is_ok_and(|vendor| vendor != "apple");
    if is_elf {
        println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    }
}
