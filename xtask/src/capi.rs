//! kvant.h and libkvant: the examples in C and C++, compiled as the manual says, with what finds misuse of memory.

use std::fs;

use crate::needs::{self, Package};
use crate::process::{Call, call, cargo};
use crate::step::{Outcome, Trouble};

/// What compiles C and C++, and looks into libraries.
pub const GCC: &[Package] = &[Package { name: "gcc", brings: "gcc" }, Package { name: "g++", brings: "g++" }];
const CLANG: &[Package] = &[Package { name: "clang", brings: "clang++" }];
/// What clang links sanitised programs with. It brings no program to know it by, only this.
const CLANG_RUNTIME: &[Package] =
    &[Package { name: "libclang-rt-dev", brings: "/var/lib/dpkg/info/libclang-rt-dev.list" }];
const VALGRIND: &[Package] = &[Package { name: "valgrind", brings: "valgrind" }];

const SANITIZE: &str = "-fsanitize=address";

/// The examples with gcc and clang under AddressSanitizer, which also tells what was never freed.
pub fn check() -> Outcome {
    needs::packages(GCC)?;
    needs::packages(CLANG)?;
    if !can_sanitize("clang")? {
        needs::packages(CLANG_RUNTIME)?;
    }
    examples().env("KVANT_CC", "gcc,clang").env("KVANT_C_FLAGS", SANITIZE).run()
}

/// The examples under valgrind, which sees every access of the library too, with the widest instructions that it knows.
pub fn valgrind() -> Outcome {
    needs::packages(GCC)?;
    needs::packages(VALGRIND)?;
    let runner = "valgrind --quiet --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite";
    let examples = examples().env("KVANT_CC", "gcc").env("KVANT_C_RUNNER", runner);
    if cfg!(target_arch = "x86_64") { examples.env("KVANT_SIMD", "avx2").run() } else { examples.run() }
}

/// Of the whole workspace, so that nothing is built again with fewer features.
fn examples() -> Call {
    cargo(["test", "--workspace", "--test", "c_examples"])
}

/// Whether a compiler has what it needs to link with.
fn can_sanitize(compiler: &str) -> Result<bool, Trouble> {
    let failed = |e: std::io::Error| Trouble::failed(format!("cannot make a folder in target: {e}"));
    fs::create_dir_all("target/capi").map_err(failed)?;
    let arguments = [SANITIZE, "-x", "c", "-", "-o", "target/capi/empty"];
    Ok(call(compiler, arguments).probe_with("int main(void) { return 0; }\n").is_some())
}
