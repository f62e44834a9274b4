//! A kernel's text compiled by a C++ compiler and loaded into this process.
//!
//! [`Library::compile`] and [`Library::launch`] are what Metal's `newLibraryWithSource` and `dispatchThreadgroups` are: a text
//! with buffers by slots.

use crate::translate::Translated;
use std::ffi::{CStr, CString, c_char, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::{env, fs};

/// The environment variable that names the C++ compiler; `g++` without it.
const COMPILER_VARIABLE: &str = "CXX";

/// Constants without a suffix are floats in MSL. Whatever a compiler may change without being told is left as written.
const OPTIONS: [&str; 10] = [
    "-std=c++17",
    "-O1",
    "-w",
    "-fsingle-precision-constant",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-U_FORTIFY_SOURCE",
    "-fPIC",
    "-shared",
];

/// More options: what Metal's compiler may do where nobody asked it not to, which wgpu does not. `-ffast-math` itself would
/// flush small numbers to zero in the whole process.
const FAST_OPTIONS: [&str; 6] = [
    "-ffinite-math-only",
    "-fassociative-math",
    "-freciprocal-math",
    "-fno-signed-zeros",
    "-fno-trapping-math",
    "-ffp-contract=fast",
];

const STDLIB: &str = include_str!("shim/metal_stdlib");
const THREADS: &str = include_str!("shim/threads.h");

/// In which order the threads of a workgroup, and workgroups, have their turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Forward,
    Backward,
    Shuffled,
}

impl Order {
    pub(crate) const ALL: [Order; 3] = [Order::Forward, Order::Backward, Order::Shuffled];
}

type Launch = unsafe extern "C" fn(*const *mut c_void, *const u32, *const u32, u32) -> *const c_char;

/// A loaded kernel. It stays loaded.
#[derive(Debug)]
pub(crate) struct Library {
    launch: Launch,
    threads: [u32; 3],
}

/// All kernels share what is below them: one runs at a time.
static RUNNING: Mutex<()> = Mutex::new(());

impl Library {
    /// Compiles a kernel, unless the same text lies compiled in `folder` already.
    pub(crate) fn compile(kernel: &Translated, folder: &Path, fast: bool) -> Result<Library, String> {
        let text = format!("{}\n{}", with_swizzles(&kernel.msl), caller(kernel)?);
        let compiler = env::var(COMPILER_VARIABLE).unwrap_or_else(|_| "g++".to_owned());
        let options = OPTIONS.iter().chain(if fast { FAST_OPTIONS.iter() } else { [].iter() });
        let options: Vec<&str> = options.copied().collect();
        let mut hasher = DefaultHasher::new();
        (&text, STDLIB, THREADS, &compiler, &options).hash(&mut hasher);
        let name = format!("{:016x}", hasher.finish());
        let library = folder.join(format!("{name}.so"));
        if !library.exists() {
            build(&compiler, &options, &text, folder, &library)?;
        }
        // SAFETY: the library is one that this function has made; what it runs when it is loaded is nothing.
        let launch = unsafe { load(&library) }?;
        Ok(Library { launch, threads: kernel.threads })
    }

    /// Runs a grid of workgroups.
    ///
    /// # Safety
    /// Every slot has the address of as many bytes as the kernel was told that there are, and nobody else uses them meanwhile.
    pub(crate) unsafe fn launch(
        &self,
        slots: &[*mut c_void],
        grid: [u32; 3],
        order: Order,
    ) -> Result<(), String> {
        let _alone = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as the caller vouches; the function reads three numbers of each of the two lists.
        let said =
            unsafe { (self.launch)(slots.as_ptr(), grid.as_ptr(), self.threads.as_ptr(), order as u32) };
        if said.is_null() {
            return Ok(());
        }
        // SAFETY: a message is a text of the library, which stays loaded, with a zero at its end.
        Err(unsafe { CStr::from_ptr(said) }.to_string_lossy().into_owned())
    }
}

fn build(compiler: &str, options: &[&str], text: &str, folder: &Path, library: &Path) -> Result<(), String> {
    let shown = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    // Others may compile the same text at the same time; what is loaded is renamed into its place.
    static COMPILED: AtomicUsize = AtomicUsize::new(0);
    let number = COMPILED.fetch_add(1, Ordering::Relaxed);
    let own = folder.join(format!("{}-{number}", std::process::id()));
    fs::create_dir_all(&own).map_err(|e| shown(&own, e))?;
    let write = |name: &str, text: &str| -> Result<PathBuf, String> {
        let path = own.join(name);
        fs::write(&path, text).map_err(|e| shown(&path, e)).map(|()| path)
    };
    write("metal_stdlib", STDLIB)?;
    write("threads.h", THREADS)?;
    fs::create_dir_all(own.join("simd")).map_err(|e| shown(&own, e))?;
    write("simd/simd.h", "")?;
    let source = write("kernel.cpp", text)?;
    let made = own.join("kernel.so");
    let output = Command::new(compiler)
        .args(options)
        .arg("-I")
        .arg(&own)
        .arg("-o")
        .args([&made, &source])
        .output()
        .map_err(|e| format!("cannot start {compiler} (Debian: g++): {e}"))?;
    if !output.status.success() {
        let kept = library.with_extension("cpp");
        let said = String::from_utf8_lossy(&output.stderr);
        let said: Vec<&str> = said.lines().filter(|line| line.contains("error")).take(8).collect();
        fs::rename(&source, &kept).map_err(|e| shown(&kept, e))?;
        return Err(format!("{compiler} does not compile {}:\n{}", kept.display(), said.join("\n")));
    }
    fs::rename(&made, library).map_err(|e| shown(library, e))?;
    fs::remove_dir_all(&own).map_err(|e| shown(&own, e))
}

/// # Safety
/// As `dlopen`: what the library does when it is loaded must be sound.
unsafe fn load(library: &Path) -> Result<Launch, String> {
    let path = CString::new(library.as_os_str().as_encoded_bytes()).map_err(|e| e.to_string())?;
    // SAFETY: a path and a name with zeros at their ends; a handle is used only if there is one.
    let symbol = unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        if handle.is_null() { handle } else { libc::dlsym(handle, c"kvant_launch".as_ptr()) }
    };
    if symbol.is_null() {
        return Err(format!("cannot load {}", library.display()));
    }
    // SAFETY: the shim defines the function of this name with this signature.
    Ok(unsafe { std::mem::transmute::<*mut c_void, Launch>(symbol) })
}

/// `v.xy` as a function of ours: `v.swizzle<0, 1>()`.
fn with_swizzles(msl: &str) -> String {
    let mut text = String::with_capacity(msl.len());
    for (index, part) in msl.split('.').enumerate() {
        let word =
            part.len() - part.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_').len();
        let components: Option<Vec<String>> =
            part[..word].chars().map(|c| Some("xyzw".find(c)?.to_string())).collect();
        match components {
            Some(components) if index > 0 && components.len() > 1 => {
                text += &format!(".swizzle<{}>(){}", components.join(", "), &part[word..]);
            }
            _ => {
                text += if index > 0 { "." } else { "" };
                text += part;
            }
        }
    }
    text
}

/// The call of the kernel's function, with what each of its parameters asks for.
fn caller(kernel: &Translated) -> Result<String, String> {
    let head = format!("kernel void {}(\n", kernel.entry);
    let missing = || format!("the text has no function {}", kernel.entry);
    let (_, rest) = kernel.msl.split_once(&head).ok_or_else(missing)?;
    let (parameters, _) = rest.split_once("\n) {").ok_or_else(missing)?;
    let mut shared = Vec::new();
    let arguments = parameters.lines().map(|line| argument(line, &mut shared));
    let arguments: Vec<String> = arguments.collect::<Result<_, _>>()?;
    Ok(format!(
        "static void shim::call(const shim::Thread& self) {{ {}({}); }}\n",
        kernel.entry,
        arguments.join(", ")
    ))
}

/// What a parameter is given; `shared` has the types of variables in workgroup memory so far.
fn argument(parameter: &str, shared: &mut Vec<String>) -> Result<String, String> {
    let Some((_, attribute)) = parameter.split_once("[[") else {
        let of_type = parameter.split_once("threadgroup ").and_then(|(_, rest)| rest.split_once('&'));
        let (of_type, _) =
            of_type.ok_or_else(|| format!("the shim has nothing for the parameter `{parameter}`"))?;
        let before = shared.iter().map(|before| format!(", {before}")).collect::<String>();
        shared.push(of_type.to_owned());
        return Ok(format!("shim::variable<{of_type}{before}>()"));
    };
    let attribute = attribute.trim_end().trim_end_matches("]]");
    if let Some(slot) = attribute.strip_prefix("buffer(") {
        return Ok(format!("shim::Slot{{{}}}", slot.trim_end_matches(')')));
    }
    let told = match attribute {
        "thread_index_in_threadgroup" => "index",
        "thread_position_in_threadgroup" => "place",
        "threadgroup_position_in_grid" => "group",
        "threadgroups_per_grid" => "groups",
        "thread_position_in_grid" => "in_grid()",
        "threads_per_threadgroup" => "threads",
        "thread_index_in_simdgroup" => "lane()",
        "simdgroup_index_in_threadgroup" => "simdgroup()",
        "simdgroups_per_threadgroup" => "simdgroups()",
        "threads_per_simdgroup" => return Ok("shim::WIDTH".to_owned()),
        _ => return Err(format!("the shim has nothing for [[{attribute}]]")),
    };
    Ok(format!("self.{told}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swizzles_become_calls() {
        assert_eq!(
            with_swizzles("a.xy + b.x * 1.0 - c.inner[0].wzyx;"),
            "a.swizzle<0, 1>() + b.x * 1.0 - c.inner[0].swizzle<3, 2, 1, 0>();"
        );
        assert_eq!(with_swizzles("_e.xyz_1 0.5.zw"), "_e.xyz_1 0.5.swizzle<2, 3>()");
    }

    #[test]
    fn parameters_are_told_what_they_ask_for() {
        let mut shared = Vec::new();
        let mut told = |line: &str| argument(line, &mut shared);
        assert_eq!(told("  uint t [[thread_index_in_threadgroup]]"), Ok("self.index".to_owned()));
        assert_eq!(told(", device type_1 const& x [[buffer(3)]]"), Ok("shim::Slot{3}".to_owned()));
        assert_eq!(told(", threadgroup type_2& a"), Ok("shim::variable<type_2>()".to_owned()));
        assert_eq!(told(", threadgroup uint& b"), Ok("shim::variable<uint, type_2>()".to_owned()));
        assert!(told(", metal::texture2d<float> t [[texture(0)]]").is_err());
    }
}
