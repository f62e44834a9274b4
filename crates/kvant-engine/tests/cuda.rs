//! Models opened on an NVIDIA card, and what becomes of sessions when it fails. They are no part of `cargo test`: without a driver they
//! fail. `cargo xtask test cuda` runs them on the driver that stands in for a card (crates/kvant-cuda/tests/driver), `cargo xtask test card`
//! on a card, but for [`stand_in`]: a card cannot be made to fail.

use kvant_engine::device::{self, DeviceChoice};
use kvant_engine::{ActivationType, LoadedModel, OpenOptions, Policy, Session, Snapshot};
use kvant_model::synth::{self, Shape, WeightType};
use std::ffi::{CStr, c_char, c_int, c_longlong, c_void};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// The stand-in's `kvant_fault`; `None` where the driver is a real one.
fn fault() -> Option<unsafe extern "C" fn(*const c_char, c_longlong) -> c_int> {
    // SAFETY: names are C strings, and 2 is RTLD_NOW. The stand-in has a function of that name and type.
    unsafe {
        let library = dlopen(c"libcuda.so.1".as_ptr(), 2);
        let found = if library.is_null() { library } else { dlsym(library, c"kvant_fault".as_ptr()) };
        (!found.is_null()).then(|| {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char, c_longlong) -> c_int>(
                found,
            )
        })
    }
}

/// Faults are the process's: tests take turns, and what was broken is mended.
struct Driver(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Driver {
    fn get() -> Driver {
        static TURN: Mutex<()> = Mutex::new(());
        Driver(TURN.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn fail(&self, what: &CStr, n: i64) {
        let fault = fault().expect("a driver that stands in for a card: `cargo xtask test cuda` makes one");
        // SAFETY: a C string and a number.
        unsafe { fault(what.as_ptr(), n) };
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if fault().is_some() {
            [c"memory", c"lost", c"driver"].iter().for_each(|what| self.fail(what, -1));
        }
    }
}

fn model() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let shape = Shape {
        layers: 1,
        hidden: 128,
        heads: 2,
        kv_heads: 1,
        head_dim: 64,
        ffn: 128,
        vocabulary: 300,
        tied: false,
        rope_base: 10_000.0,
        context: 512,
    };
    std::fs::write(&path, synth::model(&shape, WeightType::F16, 5).unwrap().to_bytes().unwrap()).unwrap();
    (folder, path)
}

fn opened(device: DeviceChoice, path: &PathBuf) -> LoadedModel {
    let kv: Policy = "int4".parse().unwrap();
    let options = OpenOptions {
        device,
        kv: Some(kv.into()),
        activations: ActivationType::F32,
        context: Some(400),
        ..OpenOptions::default()
    };
    options.open(path).unwrap()
}

fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|n| 3 + n * 7 % 90).collect()
}

fn read(session: &mut Session, tokens: &[u32]) -> Result<Vec<f32>, String> {
    session.prefill(tokens).map_err(|error| error.to_string())?;
    Ok(session.logits().to_vec())
}

/// Five more tokens.
fn go_on(session: &mut Session) -> Result<Vec<f32>, String> {
    for token in 20..25 {
        session.step(token).map_err(|error| error.to_string())?;
    }
    Ok(session.logits().to_vec())
}

#[test]
fn auto_looks_at_cuda_before_the_portable_gpu() {
    let _turn = Driver::get();
    let found = device::open(DeviceChoice::Auto).unwrap().unwrap();
    assert!(found.name().starts_with("cuda:0 ("), "{}", found.name());
}

/// What only the driver that stands in for a card can be made to do.
mod stand_in {
    use super::*;

    #[test]
    fn an_old_driver_is_refused_by_name_and_auto_goes_on() {
        let driver = Driver::get();
        driver.fail(c"driver", 12040);
        let error = device::open(DeviceChoice::Cuda(0)).err().unwrap().to_string();
        assert!(error.contains("CUDA 12.4") && error.contains("570"), "{error}");
        let (_folder, path) = model();
        assert!(!opened(DeviceChoice::Auto, &path).engine().device().starts_with("cuda"));
    }

    #[test]
    fn a_card_without_memory_refuses_one_session_and_the_others_go_on() {
        let driver = Driver::get();
        let (_folder, path) = model();
        let there = opened(DeviceChoice::Cuda(0), &path);
        let (mut first, mut second) = (there.session().unwrap(), there.session().unwrap());
        // So little that memory for pages comes in pieces of 2 MiB, which a few sessions fill.
        driver.fail(c"memory", 16 << 20);
        read(&mut first, &tokens(100)).unwrap();
        let expected = go_on(&mut first.fork().unwrap()).unwrap();
        driver.fail(c"memory", 0);
        // More exact rows than what is mapped already holds.
        let mut said = String::new();
        for _ in 0..400 {
            let mut other = there.session().unwrap();
            match read(&mut other, &tokens(120)) {
                Ok(_) => std::mem::forget(other),
                Err(error) => {
                    said = error;
                    break;
                }
            }
        }
        assert!(said.contains("memory"), "{said}");
        assert_eq!(first.tokens().len(), 100);
        assert_eq!(go_on(&mut first).unwrap(), expected);
        driver.fail(c"memory", -1);
        assert_eq!(read(&mut second, &tokens(100)).unwrap().len(), expected.len());
    }

    #[test]
    fn a_lost_card_says_so_and_the_saved_session_goes_on_elsewhere() {
        let driver = Driver::get();
        let (folder, path) = model();
        let [there, here] = [DeviceChoice::Cuda(0), DeviceChoice::Cpu].map(|device| opened(device, &path));
        let (file, signature) = (folder.path().join("talk.kvant"), there.signature().unwrap());
        let mut session = there.session().unwrap();
        read(&mut session, &tokens(150)).unwrap();
        session.save(&file, signature, b"").unwrap();
        let bytes = std::fs::read(&file).unwrap();
        driver.fail(c"lost", 1);
        let error = go_on(&mut session).unwrap_err();
        assert!(error.contains("CUDA") && error.contains("CUDA_ERROR_LAUNCH_FAILED"), "{error}");
        // What cannot be read any more does not replace what was saved.
        let error = session.save(&file, signature, b"").unwrap_err().to_string();
        assert!(error.contains("read the pages"), "{error}");
        assert_eq!(std::fs::read(&file).unwrap(), bytes);
        drop(session);
        let mut session = here.session().unwrap();
        session.resume(&Snapshot::open(&file).unwrap(), &signature).unwrap();
        assert_eq!(session.tokens().len(), 150);
        assert!(go_on(&mut session).unwrap().iter().all(|logit| logit.is_finite()));
    }
}
