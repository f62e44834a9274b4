//! The cache through its C functions: calls in any order get a status each, and all memory comes back.
#![no_main]

use kvant::*;
use kvant_fuzz::Numbers;
use libfuzzer_sys::fuzz_target;
use std::ffi::CStr;
use std::ptr::{null, null_mut};

const DIM: usize = 16;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const LAYERS: usize = 2;
const SPECS: [&CStr; 5] = [c"int4", c"int4;recent=40", c"k8v4;sinks=0", c"f16", c"nothing"];

/// A failure says something.
fn told(status: KvantStatus) -> bool {
    // SAFETY: the library's own text, of this thread.
    let message = unsafe { CStr::from_ptr(kvant_error_message()) };
    assert!(status == KvantStatus::Ok || !message.is_empty(), "{status:?} says nothing");
    status == KvantStatus::Ok
}

/// Numbers for so many tokens, or for fewer.
fn rows(numbers: &[f32]) -> KvantRows {
    let (data, length) = (numbers.as_ptr().cast(), numbers.len());
    KvantRows { data, length, row_stride: 0, head_stride: 0, dtype: KvantDtype::F32 as i32 }
}

fn output(numbers: &mut [f32]) -> KvantOutput {
    let (data, length) = (numbers.as_mut_ptr().cast(), numbers.len());
    KvantOutput { data, length, row_stride: 0, head_stride: 0, dtype: KvantDtype::F32 as i32 }
}

fn cache(numbers: &mut Numbers<'_>) -> Option<*mut KvantCache> {
    let layer =
        KvantLayer { kv_heads: KV_HEADS, key_dim: DIM, value_dim: DIM, window: numbers.pick(&[0, 0, 70]) };
    let layers = [layer; LAYERS];
    let options = KvantCacheOptions {
        struct_size: size_of::<KvantCacheOptions>(),
        kv: numbers.pick(&SPECS).as_ptr(),
        layers: layers.as_ptr(),
        layer_count: LAYERS,
        capacity: numbers.pick(&[0, 300, usize::MAX]),
        // Without a bound a pass of endless tokens is given the machine's memory, as it was asked.
        memory: numbers.pick(&[1 << 20, 1 << 20, 40_000]),
        pool: null(),
    };
    let mut cache = null_mut();
    // SAFETY: everything it points to lives.
    told(unsafe { kvant_cache_new(&options, &mut cache) }).then_some(cache)
}

fuzz_target!(|input: &[u8]| {
    let mut numbers = Numbers(input);
    let Some(cache) = cache(&mut numbers) else { return };
    let (mut sequences, mut begun) = (Vec::<*mut KvantSequence>::new(), None);
    while !numbers.is_empty() {
        let (kind, which) = (numbers.below(9), numbers.below(8));
        let (one, mut made) = (sequences.get(which % sequences.len().max(1)).copied(), null_mut());
        // SAFETY: handles live until the end or until they are freed here, and lists are as long as they are said to be.
        unsafe {
            match (kind, one, begun) {
                (0, _, _) | (_, None, _) => {
                    told(kvant_sequence_new(cache, &mut made));
                }
                (1, Some(one), _) => {
                    told(kvant_sequence_fork(one, &mut made));
                }
                (2, Some(one), _) => {
                    told(kvant_sequence_rollback(one, numbers.below(400), null_mut()));
                }
                (3, Some(one), None) => {
                    sequences.retain(|other| *other != one);
                    kvant_sequence_free(one);
                }
                (4, _, Some((pass, _))) => {
                    begun = None;
                    kvant_pass_abandon(pass);
                }
                (5, _, Some((pass, _))) => {
                    begun = None;
                    told(kvant_pass_end(pass));
                }
                (_, Some(one), None) => {
                    let (members, tokens) =
                        ([one.cast_const()], [numbers.pick(&[1, 5, 64, 130, 0, usize::MAX])]);
                    let mut pass = null_mut();
                    if told(kvant_pass_begin(cache, members.as_ptr(), tokens.as_ptr(), 1, &mut pass)) {
                        begun = Some((pass, tokens[0]));
                    }
                }
                (kind, _, Some((pass, tokens))) => {
                    let layer = numbers.pick(&[0, 1, 0, 1, 2, usize::MAX]);
                    let heads = if kind == 6 { KV_HEADS } else { HEADS };
                    let right = tokens * heads * DIM;
                    let mut given: Vec<f32> = (0..numbers.pick(&[right, right, right, right + 7, right / 2]))
                        .map(|i| ((i + kind) as f32 * 0.7).sin())
                        .collect();
                    if kind == 6 {
                        let (keys, values) = ([rows(&given)], [rows(&given)]);
                        told(kvant_pass_append(pass, layer, keys.as_ptr(), values.as_ptr()));
                    } else {
                        let queries = given.clone();
                        let (asked, answers) = ([rows(&queries)], [output(&mut given)]);
                        let heads = numbers.pick(&[HEADS, HEADS, KV_HEADS, 0, 3, usize::MAX]);
                        told(kvant_pass_attend(pass, layer, heads, asked.as_ptr(), answers.as_ptr(), null()));
                    }
                }
            }
        }
        if !made.is_null() {
            sequences.push(made);
        }
    }
    // SAFETY: each was made above and is freed once.
    unsafe {
        if let Some((pass, _)) = begun {
            kvant_pass_abandon(pass);
        }
        sequences.into_iter().for_each(|one| kvant_sequence_free(one));
        assert_eq!(kvant_cache_bytes(cache), 0, "pages are given back");
        kvant_cache_free(cache);
    }
});
