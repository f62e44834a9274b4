//! Everything there is to hand out, in one archive with checksums.
//!
//! ```text
//! kvant-VERSION-TRIPLE/
//!   bin/kvant                          the command
//!   include/kvant.h
//!   lib/libkvant.a, libkvant.so.ABI    and libkvant.so, a link to it
//!   lib/pkgconfig/kvant.pc             finds the others wherever the folder is put
//!   lib/cmake/kvant                    so does find_package(kvant)
//!   share/man/man1                     manual pages
//!   share/{bash-completion, zsh, fish} completions
//!   share/doc/kvant                    licences, the bill of materials, the manual for C, the examples
//!   wheel                              the Python package, where there is one
//!   SHA256SUMS                         of every file
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use crate::needs;
use crate::package;
use crate::process::{call, cargo};
use crate::step::{Outcome, Trouble};
use crate::supply;
use crate::tally::Tally;

/// Where the archive is made.
const FOLDER: &str = "target/dist";

/// Texts that go along.
const DOCUMENTS: &[&str] = &["README.md", "CHANGELOG.md", "LICENSE", "THIRD_PARTY.md", "docs/c.md"];

/// Where each shell looks for completions.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "share/bash-completion/completions/kvant"),
    ("zsh", "share/zsh/site-functions/_kvant"),
    ("fish", "share/fish/vendor_completions.d/kvant.fish"),
];

/// What the system's linker calls things.
struct Names {
    /// The shared library, as cargo makes it.
    shared: &'static str,
    /// The same with the version of its interface, by which programs look for it.
    versioned: Option<String>,
}

impl Names {
    fn of_this_system(abi: u32) -> Self {
        match std::env::consts::OS {
            "macos" => Self { shared: "libkvant.dylib", versioned: None },
            "windows" => Self { shared: "kvant.dll", versioned: None },
            _ => Self { shared: "libkvant.so", versioned: Some(format!("libkvant.so.{abi}")) },
        }
    }
}

/// Builds it all, and packs it.
pub fn make() -> Outcome {
    let workspace = package::workspace()?;
    let target = PathBuf::from(workspace["target_directory"].as_str().unwrap_or("target")).join("release");
    let version = version_of(&workspace, "kvant-capi")?;
    let header = fs::read_to_string("include/kvant.h").map_err(broken("read include/kvant.h"))?;
    let names = Names::of_this_system(abi_of(&header)?);
    let name = format!("kvant-{version}-{}", needs::host_triple()?);
    let root = Path::new(FOLDER).join(&name);
    if root.exists() {
        fs::remove_dir_all(&root).map_err(broken("remove what is left of the last one"))?;
    }

    let build =
        cargo(["build", "--release", "--locked", "--package", "kvant-cli", "--package", "kvant-capi"]);
    match &names.versioned {
        Some(name) => build.env("KVANT_SONAME", name).run()?,
        None => build.run()?,
    };
    let program = target.join("kvant").with_extension(std::env::consts::EXE_EXTENSION);
    let own = program.file_name().map(Path::new).unwrap_or(Path::new("kvant"));
    copy(&program, &root.join("bin").join(own))?;
    copy(Path::new("include/kvant.h"), &root.join("include/kvant.h"))?;
    libraries(&target, &root.join("lib"), &names)?;
    let native = native_libraries()?;
    write(&root.join("lib/pkgconfig/kvant.pc"), &pkg_config(&version, &native))?;
    let cmake = root.join("lib/cmake/kvant");
    write(&cmake.join("kvantConfig.cmake"), &cmake_config(&names, &native))?;
    write(&cmake.join("kvantConfigVersion.cmake"), &cmake_version(&version))?;
    shell_and_manual(&program, &root)?;
    let documents = root.join("share/doc/kvant");
    for path in DOCUMENTS.iter().map(Path::new) {
        copy(path, &documents.join(path.file_name().unwrap_or_default()))?;
    }
    write(&documents.join("sbom.cdx.json"), &supply::document()?)?;
    for file in files(Path::new("examples/c"))? {
        copy(&file, &documents.join(&file))?;
    }
    wheel(&root.join("wheel"))?;

    let all = files(&root)?;
    write(&root.join("SHA256SUMS"), &checksums(&root, &all)?)?;
    let archive = Path::new(FOLDER).join(format!("{name}.tar.gz"));
    pack(&name, &archive)?;
    write(
        &Path::new(FOLDER).join("SHA256SUMS"),
        &checksums(Path::new(FOLDER), std::slice::from_ref(&archive))?,
    )?;
    let size = fs::metadata(&archive).map_err(broken("look at the archive"))?.len();
    println!("{}: {} files, {:.1} MB", archive.display(), all.len() + 1, size as f64 / 1e6);
    Ok(Tally::default())
}

/// The version of a crate of the workspace.
fn version_of(workspace: &serde_json::Value, name: &str) -> Result<String, Trouble> {
    let mut packages = workspace["packages"].as_array().into_iter().flatten();
    let version =
        packages.find(|package| package["name"] == name).and_then(|package| package["version"].as_str());
    version.map(str::to_string).ok_or_else(|| Trouble::failed(format!("there is no crate {name}")))
}

/// The version of the interface that a header describes.
fn abi_of(header: &str) -> Result<u32, Trouble> {
    let line = header.lines().find_map(|line| line.strip_prefix("#define KVANT_ABI_VERSION "));
    let number = line.and_then(|number| number.trim().parse().ok());
    number.ok_or_else(|| Trouble::failed("include/kvant.h says no KVANT_ABI_VERSION"))
}

fn libraries(from: &Path, to: &Path, names: &Names) -> Result<(), Trouble> {
    let fixed = if cfg!(windows) { "kvant.lib" } else { "libkvant.a" };
    copy(&from.join(fixed), &to.join(fixed))?;
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
fn native_libraries() -> Result<String, Trouble> {
    let unused = std::env::temp_dir().join(format!("kvant-{}.a", std::process::id())).display().to_string();
    // The list comes on stderr, as a note.
    let command = format!("rustc --crate-type staticlib --print native-static-libs -o '{unused}' - 2>&1");
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
    let shared = match cfg!(windows) {
        true => String::new(),
        false => target("kvant::kvant", "SHARED", names.versioned.as_deref().unwrap_or(names.shared), ""),
    };
    let fixed = if cfg!(windows) { "kvant.lib" } else { "libkvant.a" };
    format!(
        "get_filename_component(_kvant_prefix \"${{CMAKE_CURRENT_LIST_DIR}}/../../..\" ABSOLUTE)\n{shared}{}unset(_kvant_prefix)\n",
        target("kvant::static", "STATIC", fixed, &system)
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

fn shell_and_manual(program: &Path, root: &Path) -> Result<(), Trouble> {
    let program = program.display().to_string();
    for (shell, place) in COMPLETIONS {
        let script = call(&program, ["completions", shell]).probe();
        let script = script.ok_or_else(|| Trouble::failed(format!("`kvant completions {shell}` failed")))?;
        write(&root.join(place), &script)?;
    }
    let pages = root.join("share/man/man1");
    fs::create_dir_all(&pages).map_err(broken("make a folder for manual pages"))?;
    call(&program, ["man", "--folder", &pages.display().to_string()]).run().map(drop)
}

/// The Python package, where there is one and maturin can be had; else it is said that there is none.
fn wheel(to: &Path) -> Result<(), Trouble> {
    if !Path::new("python/pyproject.toml").is_file() {
        println!("no wheel: there is no python folder");
        return Ok(());
    }
    let environment = Path::new(FOLDER).join("maturin").display().to_string();
    let python = format!("{environment}/bin/python");
    let ready = call("python3", ["-m", "venv", &environment]).run().and_then(|_| {
        call(&python, ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "maturin"]).run()
    });
    if ready.is_err() {
        println!("no wheel: maturin cannot be had (above)");
        return Ok(());
    }
    let (out, manifest) = (to.display().to_string(), "python/Cargo.toml");
    let build = ["-m", "maturin", "build", "--release", "--manifest-path", manifest, "--out", &out];
    call(&python, build).run().map(drop)
}

/// Lines as sha256sum writes and checks them, with paths from `root` on.
fn checksums(root: &Path, files: &[PathBuf]) -> Result<String, Trouble> {
    let paths: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let sums =
        call("sha256sum", &paths).probe().or_else(|| call("shasum", ["-a", "256"]).args(&paths).probe());
    let sums = sums.ok_or_else(|| Trouble::not_run("there is neither sha256sum nor shasum"))?;
    let prefix = format!("  {}/", root.display());
    Ok(sums.lines().map(|line| line.replacen(&prefix, "  ", 1) + "\n").collect())
}

/// The folder as an archive: the same for the same files, whoever packs them and when.
fn pack(name: &str, archive: &Path) -> Result<(), Trouble> {
    let time = call("git", ["log", "-1", "--format=%ct"]).probe();
    let time = format!("--mtime=@{}", time.as_deref().map_or("0", str::trim));
    let same = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", &time];
    let tar = call("tar", if cfg!(target_os = "linux") { &same[..] } else { &[] });
    tar.args(["-C", FOLDER, "-czf", &archive.display().to_string(), name]).run().map(drop)
}

/// All files of a folder, links left out, in order.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Trouble> {
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

fn copy(from: &Path, to: &Path) -> Result<(), Trouble> {
    let failed = |e| Trouble::failed(format!("cannot copy {} to {}: {e}", from.display(), to.display()));
    fs::create_dir_all(to.parent().unwrap_or(to)).map_err(failed)?;
    fs::copy(from, to).map(drop).map_err(failed)
}

fn write(path: &Path, text: &str) -> Result<(), Trouble> {
    let failed = |e| Trouble::failed(format!("cannot write {}: {e}", path.display()));
    fs::create_dir_all(path.parent().unwrap_or(path)).map_err(failed)?;
    fs::write(path, text).map_err(failed)
}

fn broken(doing: &'static str) -> impl Fn(std::io::Error) -> Trouble {
    move |error| Trouble::failed(format!("cannot {doing}: {error}"))
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
        let names = Names { shared: "libkvant.so", versioned: Some("libkvant.so.1".into()) };
        let text = cmake_config(&names, "-lm -lc");
        assert!(
            text.starts_with("get_filename_component(_kvant_prefix \"${CMAKE_CURRENT_LIST_DIR}/../../..\""),
            "{text}"
        );
        assert!(text.contains("INTERFACE_LINK_LIBRARIES \"-lm;-lc\""), "{text}");
        assert_eq!(text.contains("\"${_kvant_prefix}/lib/libkvant.so.1\""), !cfg!(windows), "{text}");
        assert!(
            cmake_version("0.3.1").contains("MATCHES \"^0\\\\.3(\\\\.|$)\""),
            "{}",
            cmake_version("0.3.1")
        );
        assert!(cmake_version("2.3.1").contains("MATCHES \"^2(\\\\.|$)\""), "{}", cmake_version("2.3.1"));
    }

    #[test]
    fn the_standard_library_names_what_it_links_with() {
        let list = native_libraries().unwrap_or_else(|trouble| panic!("{trouble:?}"));
        assert!(!list.contains("note"), "{list}");
    }

    #[test]
    fn sums_are_those_of_the_files_under_their_own_names() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let sums =
            checksums(folder, &[folder.join("Cargo.toml")]).unwrap_or_else(|trouble| panic!("{trouble:?}"));
        assert!(sums.ends_with("  Cargo.toml\n") && sums.len() == 64 + 13, "{sums}");
    }
}
