//! The libraries for C and C++ with what tells compilers where they are.

use std::fs;
use std::path::Path;

#[cfg(unix)]
use super::files::broken;
use super::files::{copy, write};
use crate::process::call;
use crate::step::Trouble;

/// What the system's linker calls things.
pub struct Names {
    /// The static library.
    fixed: &'static str,
    /// The shared library, as cargo makes it.
    shared: &'static str,
    /// The same with the version of its interface, by which programs look for it.
    versioned: Option<String>,
}

impl Names {
    /// Those of a system, by its triple.
    pub fn of(triple: &str, abi: u32) -> Self {
        if triple.contains("apple") {
            Self { fixed: "libkvant.a", shared: "libkvant.dylib", versioned: None }
        } else if triple.contains("windows") {
            Self { fixed: "kvant.lib", shared: "kvant.dll", versioned: None }
        } else {
            Self { fixed: "libkvant.a", shared: "libkvant.so", versioned: Some(format!("libkvant.so.{abi}")) }
        }
    }

    /// The name that programs look for at run time, where it is not the file's.
    pub fn soname(&self) -> Option<&str> {
        self.versioned.as_deref()
    }
}

/// The version of the interface that a header describes.
pub fn abi_of(header: &str) -> Result<u32, Trouble> {
    let line = header.lines().find_map(|line| line.strip_prefix("#define KVANT_ABI_VERSION "));
    let number = line.and_then(|number| number.trim().parse().ok());
    number.ok_or_else(|| Trouble::failed("include/kvant.h says no KVANT_ABI_VERSION"))
}

/// Copies the libraries, with the links by which they are found, and writes what pkg-config and CMake read.
pub fn put(from: &Path, to: &Path, names: &Names, version: &str, triple: &str) -> Result<(), Trouble> {
    copy(&from.join(names.fixed), &to.join(names.fixed))?;
    shared_library(from, to, names)?;
    let native = native_libraries(triple)?;
    write(&to.join("pkgconfig/kvant.pc"), &pkg_config(version, &native))?;
    let cmake = to.join("cmake/kvant");
    write(&cmake.join("kvantConfig.cmake"), &cmake_config(names, &native))?;
    write(&cmake.join("kvantConfigVersion.cmake"), &cmake_version(version))
}

fn shared_library(from: &Path, to: &Path, names: &Names) -> Result<(), Trouble> {
    let Some(versioned) = &names.versioned else {
        return copy(&from.join(names.shared), &to.join(names.shared));
    };
    copy(&from.join(names.shared), &to.join(versioned))?;
    link(versioned, &to.join(names.shared))
}

#[cfg(unix)]
fn link(to: &str, name: &Path) -> Result<(), Trouble> {
    std::os::unix::fs::symlink(to, name).map_err(broken("link the library"))
}

#[cfg(not(unix))]
fn link(to: &str, name: &Path) -> Result<(), Trouble> {
    copy(&name.with_file_name(to), name)
}

/// What programs that link with the static library need besides, as the compiler tells it of the standard library: kvant itself
/// needs nothing.
fn native_libraries(triple: &str) -> Result<String, Trouble> {
    let unused = std::env::temp_dir().join(format!("kvant-{}.a", std::process::id())).display().to_string();
    // The list comes on stderr, as a note.
    let command = format!(
        "rustc --target {triple} --crate-type staticlib --print native-static-libs -o '{unused}' - 2>&1"
    );
    let said = call("sh", ["-c", &command]).probe_with("");
    let list = said
        .as_deref()
        .and_then(|said| said.lines().find_map(|line| line.split_once("native-static-libs: ")));
    let list = list.map(|(_, list)| list.trim().to_string());
    let _ = fs::remove_file(unused);
    list.ok_or_else(|| Trouble::failed("rustc does not say which system libraries it links with"))
}

/// What pkg-config reads. Paths begin where the file is, so the folder can be put anywhere.
fn pkg_config(version: &str, private: &str) -> String {
    format!(
        "prefix=${{pcfiledir}}/../..\n\n\
         Name: kvant\n\
         Description: LLM inference with a KV cache that is always compressed\n\
         Version: {version}\n\
         Cflags: -I${{prefix}}/include\n\
         Libs: -L${{prefix}}/lib -lkvant\n\
         Libs.private: {private}\n"
    )
}

/// What CMake's `find_package(kvant)` reads: the targets `kvant::kvant` and `kvant::static`. Paths begin where the file is.
fn cmake_config(names: &Names, native: &str) -> String {
    let target = |target: &str, kind: &str, file: &str, more: &str| {
        format!(
            "if(NOT TARGET {target})\n  \
               add_library({target} {kind} IMPORTED)\n  \
               set_target_properties({target} PROPERTIES\n    \
                 IMPORTED_LOCATION \"${{_kvant_prefix}}/lib/{file}\"\n    \
                 INTERFACE_INCLUDE_DIRECTORIES \"${{_kvant_prefix}}/include\"{more})\n\
             endif()\n"
        )
    };
    let libraries = native.split_whitespace().collect::<Vec<_>>().join(";");
    let system = format!("\n    INTERFACE_LINK_LIBRARIES \"{libraries}\"");
    // Windows links with an import library, which is not in the archive.
    let shared = match names.shared.ends_with(".dll") {
        true => String::new(),
        false => target("kvant::kvant", "SHARED", names.versioned.as_deref().unwrap_or(names.shared), ""),
    };
    format!(
        "get_filename_component(_kvant_prefix \"${{CMAKE_CURRENT_LIST_DIR}}/../../..\" ABSOLUTE)\n{shared}{}unset(_kvant_prefix)\n",
        target("kvant::static", "STATIC", names.fixed, &system)
    )
}

/// Which versions `find_package(kvant VERSION)` takes: those that differ from this one behind the first number that is not 0.
fn cmake_version(version: &str) -> String {
    let mut numbers = version.split('.');
    let own: Vec<&str> = match numbers.next() {
        Some("0") => vec!["0", numbers.next().unwrap_or("0")],
        first => first.into_iter().collect(),
    };
    let pattern = format!("^{}(\\\\.|$)", own.join("\\\\."));
    format!(
        "set(PACKAGE_VERSION \"{version}\")\n\
         if(PACKAGE_FIND_VERSION MATCHES \"{pattern}\" AND NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)\n  \
           set(PACKAGE_VERSION_COMPATIBLE TRUE)\n  \
           if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)\n    \
             set(PACKAGE_VERSION_EXACT TRUE)\n  \
           endif()\n\
         endif()\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_says_its_version() {
        let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../include/kvant.h");
        assert!(abi_of(&fs::read_to_string(header).unwrap()).unwrap() >= 1);
        assert!(abi_of("#define KVANT_ABI_VERSION x\n").is_err());
    }

    #[test]
    fn paths_of_pkg_config_begin_where_the_file_is() {
        let text = pkg_config("1.2.3", "-lm -lc");
        assert!(text.starts_with("prefix=${pcfiledir}/../..\n\nName: kvant\n"), "{text}");
        assert!(text.contains("Version: 1.2.3\n") && text.ends_with("Libs.private: -lm -lc\n"), "{text}");
    }

    #[test]
    fn cmake_finds_the_archive_beside_its_file_and_takes_no_other_interface() {
        let names = Names::of("x86_64-unknown-linux-gnu", 1);
        let text = cmake_config(&names, "-lm -lc");
        assert!(
            text.starts_with("get_filename_component(_kvant_prefix \"${CMAKE_CURRENT_LIST_DIR}/../../..\""),
            "{text}"
        );
        assert!(text.contains("INTERFACE_LINK_LIBRARIES \"-lm;-lc\""), "{text}");
        assert!(text.contains("\"${_kvant_prefix}/lib/libkvant.so.1\""), "{text}");
        assert!(!cmake_config(&Names::of("x86_64-pc-windows-msvc", 1), "").contains("kvant::kvant"));
        assert!(
            cmake_version("0.3.1").contains("MATCHES \"^0\\\\.3(\\\\.|$)\""),
            "{}",
            cmake_version("0.3.1")
        );
        assert!(cmake_version("2.3.1").contains("MATCHES \"^2(\\\\.|$)\""), "{}", cmake_version("2.3.1"));
    }

    #[test]
    fn the_standard_library_names_what_it_links_with() {
        let own = crate::needs::host_triple().unwrap_or_else(|trouble| panic!("{trouble:?}"));
        let list = native_libraries(&own).unwrap_or_else(|trouble| panic!("{trouble:?}"));
        assert!(!list.contains("note"), "{list}");
    }
}
