//! Runs a Python program that nobody has read: it may compute and read files, and nothing else. `guard.py` says how. A program that
//! sets out to lie can still say that its tests passed.

use crate::error::EvalError;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const GUARD: &str = include_str!("guard.py");
/// The most time a program has, its interpreter included.
const RUN_TIMEOUT: Duration = Duration::from_secs(20);

/// Whether a program comes to its end without an exception.
///
/// # Errors
/// If there is no sandbox: it takes Linux on x86-64, and `python3`. No program is ever run without one.
pub fn passes(program: &str) -> Result<bool, EvalError> {
    let failed = |reason: String| EvalError::Sandbox { reason };
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err(failed("it is made for Linux on x86-64".to_owned()));
    }
    let mut child = Command::new("python3")
        .args(["-I", "-S", "-c", GUARD])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| failed(format!("python3 does not start: {e}")))?;
    // One that ends early says so by its exit status.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(program.as_bytes()));
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(_)) => break,
            Ok(None) if start.elapsed() < RUN_TIMEOUT => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) | Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                break;
            }
        }
    }
    let mut said = String::new();
    if let Some(stdout) = child.stdout.take() {
        // What the guard says is shorter than this.
        let _ = stdout.take(64).read_to_string(&mut said);
    }
    match said.as_str() {
        "ready passed" => Ok(true),
        "ready " => Ok(false),
        _ => Err(failed("its filter of system calls was refused, or python3 lacks ctypes".to_owned())),
    }
}

#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod tests {
    use super::passes;

    #[test]
    fn programs_compute_and_import() {
        for program in [
            "assert sum(range(5)) == 10",
            "import math, re, collections, hashlib, typing, heapq\nassert math.gcd(6, 4) == 2",
            "print('much' * 100000)",
        ] {
            assert!(passes(program).unwrap(), "{program}");
        }
        for program in [
            "assert False",
            "def f(:",
            "raise SystemExit(0)",
            "x = [0] * (1 << 30)",
            "import os\nos._exit(0)",
        ] {
            assert!(!passes(program).unwrap(), "{program}");
        }
    }

    #[test]
    fn nothing_outside_is_changed_or_reached() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "there").unwrap();
        let path = file.display();
        for tried in [
            format!("open({path:?}, 'w')", path = path.to_string()),
            format!("open('{path}', 'a')"),
            format!("os.open('{path}', os.O_RDWR)"),
            format!("os.remove('{path}')"),
            format!("os.rename('{path}', '{path}2')"),
            format!("os.chmod('{path}', 0)"),
            format!("os.mkdir('{path}3')"),
            "os.fork()".to_owned(),
            "os.kill(os.getppid(), 9)".to_owned(),
            "os.execv('/bin/true', ['true'])".to_owned(),
            "__import__('socket').socket()".to_owned(),
            "__import__('subprocess').run(['true'])".to_owned(),
            "__import__('threading').Thread(target=print).start()".to_owned(),
            "__import__('resource').setrlimit(0, (99, 99))".to_owned(),
        ] {
            let program = format!(
                "import os\ntry:\n    {tried}\nexcept (OSError, RuntimeError, ValueError):\n    refused = True\nassert refused"
            );
            assert!(passes(&program).unwrap(), "{tried}");
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "there");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
