//! Products by wgmma (`kernels/wide.cuh`), which the driver that stands in for a card has once it is asked for tensor maps.

use super::{Loaded, cache, count, llama, load, read, shape, tokens};
use kvant_conformance::wide::families;
use kvant_cuda::CudaGpu;
use kvant_cuda::kernels::Form;
use kvant_model::synth;
use std::ffi::{c_char, c_int, c_longlong, c_void};
use std::sync::Arc;

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Whether the driver that stands in for a card has tensor maps from now on. A real one has what it has.
fn maps(there: bool) {
    // SAFETY: names are C strings, and 2 is RTLD_NOW. The stand-in has a function of that name and type.
    unsafe {
        let library = dlopen(c"libcuda.so.1".as_ptr(), 2);
        let found = if library.is_null() { library } else { dlsym(library, c"kvant_fault".as_ptr()) };
        if !found.is_null() {
            type Fault = unsafe extern "C" fn(*const c_char, c_longlong) -> c_int;
            let fault = std::mem::transmute::<*mut c_void, Fault>(found);
            fault(c"maps".as_ptr(), there.into());
        }
    }
}

#[test]
fn the_widest_tiles_have_the_bits_of_few_tokens() {
    maps(true);
    let card = Arc::new(CudaGpu::open_as(0, Some(Form::Cubin)).unwrap());
    maps(false);
    assert!(card.limits().wide, "a card without tensor maps: {}", card.name());
    let mixtures = families(true).into_iter().filter(|(name, _)| ["qwen3_moe", "gpt_oss"].contains(name));
    let dense = [("llama, int4", llama(&shape(4, 2, 64), synth::WeightType::Int4))];
    for (name, checkpoint) in mixtures.chain(dense.into_iter().take(count(1, 0))) {
        let Loaded { backend, model } = load(&card, &checkpoint);
        // Groups of more than 64 pairs and of fewer.
        let n = count(300, 140);
        let ids = tokens(n, model.vocabulary());
        let logits = |chunks: &[usize]| {
            read(&model, &mut cache(&model, "int4", Some(backend.store()), n + 64), &ids, chunks)
        };
        let whole = logits(&[n]);
        assert!(whole.iter().all(|logit| logit.is_finite()), "{name}");
        assert!(whole == logits(&[n - 5, 1, 4]), "{name}: few tokens");
        assert!(whole == logits(&[n - 90, 7, 83]), "{name}: other chunks");
    }
}
