//! Gives the shared library the name that programs look for at run time, where `cargo xtask dist` asks for one. Without it they
//! look for the file that they were linked with, which is right in a build folder.

fn main() {
    println!("cargo::rerun-if-env-changed=KVANT_SONAME");
    if let Ok(name) = std::env::var("KVANT_SONAME") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{name}");
    }
}
