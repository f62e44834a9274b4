//! The cache through its C functions, held against kvant's own and against exact attention.

use crate::support::{bits, fails, message, ok, output, rows};
use kvant::*;
use kvant_attention::{KvCache, PassState, Scoring};
use kvant_cache::{KvShape, Slots};
use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};

const KV_HEADS: usize = 2;
const HEADS: usize = 6;
const DIM: usize = 64;
const LAYERS: usize = 2;
const LAYER: KvantLayer = KvantLayer { kv_heads: KV_HEADS, key_dim: DIM, value_dim: DIM, window: 0 };

/// Activations of a layer: (tokens, heads, DIM) from a position on.
fn project(layer: usize, kind: usize, from: usize, tokens: usize, heads: usize) -> Vec<f32> {
    let number = |token: usize, i: usize| ((token * 97 + layer * 31 + kind * 17 + i * 7) as f32 * 0.61).sin();
    (from..from + tokens).flat_map(|token| (0..heads * DIM).map(move |i| number(token, i))).collect()
}

pub fn cache_with(
    kv: &CStr,
    change: impl FnOnce(&mut KvantCacheOptions),
) -> Result<*mut KvantCache, KvantStatus> {
    let layers = [LAYER; LAYERS];
    let mut options = KvantCacheOptions {
        struct_size: size_of::<KvantCacheOptions>(),
        kv: kv.as_ptr(),
        layers: layers.as_ptr(),
        layer_count: LAYERS,
        capacity: 0,
        memory: 0,
        pool: null(),
    };
    change(&mut options);
    let mut cache = null_mut();
    // SAFETY: everything it points to lives.
    match unsafe { kvant_cache_new(&options, &mut cache) } {
        KvantStatus::Ok => Ok(cache),
        status => {
            assert!(cache.is_null(), "nothing is given out by what fails");
            Err(status)
        }
    }
}

fn cache(kv: &CStr) -> *mut KvantCache {
    cache_with(kv, |_| {}).unwrap_or_else(|_| panic!("{}", message()))
}

pub fn sequence(cache: *const KvantCache) -> *mut KvantSequence {
    let mut sequence = null_mut();
    // SAFETY: both live.
    ok(unsafe { kvant_sequence_new(cache, &mut sequence) });
    sequence
}

fn len(sequence: *const KvantSequence) -> usize {
    let mut tokens = 0;
    // SAFETY: both live.
    ok(unsafe { kvant_sequence_size(sequence, &mut tokens, null_mut()) });
    tokens
}

/// One pass over some tokens of every sequence; the last layer's output of each.
fn pass(cache: *const KvantCache, sequences: &[*mut KvantSequence], tokens: &[usize]) -> Vec<Vec<f32>> {
    let handles: Vec<*const KvantSequence> = sequences.iter().map(|sequence| sequence.cast_const()).collect();
    let starts: Vec<usize> = sequences.iter().map(|sequence| len(*sequence)).collect();
    let mut outputs: Vec<Vec<f32>> =
        tokens.iter().map(|tokens| vec![f32::NAN; tokens * HEADS * DIM]).collect();
    let mut begun = null_mut();
    // SAFETY: everything lives, and lists are as long as they are said to be.
    unsafe {
        ok(kvant_pass_begin(cache, handles.as_ptr(), tokens.as_ptr(), tokens.len(), &mut begun));
        for layer in 0..LAYERS {
            let of = |kind, heads| -> Vec<Vec<f32>> {
                starts
                    .iter()
                    .zip(tokens)
                    .map(|(from, count)| project(layer, kind, *from, *count, heads))
                    .collect()
            };
            let (keys, values, queries) = (of(0, KV_HEADS), of(1, KV_HEADS), of(2, HEADS));
            let all =
                |numbers: &[Vec<f32>]| -> Vec<KvantRows> { numbers.iter().map(|one| rows(one)).collect() };
            let mut places: Vec<KvantOutput> = outputs.iter_mut().map(|out| output(out)).collect();
            ok(kvant_pass_append(begun, layer, all(&keys).as_ptr(), all(&values).as_ptr()));
            ok(kvant_pass_attend(begun, layer, HEADS, all(&queries).as_ptr(), places.as_mut_ptr(), null()));
        }
        ok(kvant_pass_end(begun));
    }
    outputs
}

fn free(cache: *mut KvantCache, sequences: &[*mut KvantSequence]) {
    // SAFETY: made above, and freed once.
    unsafe {
        kvant_cache_free(cache);
        sequences.iter().for_each(|sequence| kvant_sequence_free(*sequence));
    }
}

/// The same pass by kvant's own interface.
fn own_pass(kv: &mut KvCache, slots: &Slots, tokens: usize) -> Vec<f32> {
    let from = kv.len();
    let mut out = vec![0.0; tokens * HEADS * DIM];
    kv.begin(&[tokens]).unwrap();
    for layer in 0..LAYERS {
        let slot = slots.kv(layer).unwrap();
        let of = |kind, heads| project(layer, kind, from, tokens, heads);
        kv.append(slot, &of(0, KV_HEADS), &of(1, KV_HEADS)).unwrap();
        kv.attend(slot, of(2, HEADS)[..].into(), &Scoring::new(0.125), &mut out).unwrap();
    }
    kv.end().unwrap();
    out
}

#[test]
fn passes_give_the_bits_of_the_library_alone_and_together() {
    let shape = KvShape { kv_heads: KV_HEADS, key_dim: DIM, value_dim: DIM, window: None };
    let slots = Slots::uniform(LAYERS, shape);
    for kv in [c"int4", c"int8;recent=64", c"k=ch4,v=rot4g32"] {
        let policy: kvant_cache::Policy = kv.to_str().unwrap().parse().unwrap();
        let mut own = KvCache::new(policy, &slots, 4096).unwrap();
        let (first, second) = (own_pass(&mut own, &slots, 200), own_pass(&mut own, &slots, 1));

        let mut pool = null_mut();
        // SAFETY: it lives.
        ok(unsafe { kvant_pool_new(2, &mut pool) });
        let shared = cache_with(kv, |options| options.pool = pool).unwrap();
        // SAFETY: the cache keeps what it needs of it.
        unsafe { kvant_pool_free(pool) };
        let both = [sequence(shared), sequence(shared)];
        // The second one is elsewhere meanwhile.
        pass(shared, &both[1..], &[77]);
        let found = pass(shared, &both, &[200, 3]);
        assert_eq!(bits(&found[0]), bits(&first), "{kv:?}");
        let next = pass(shared, &[both[1], both[0]], &[5, 1]);
        assert_eq!(bits(&next[1]), bits(&second), "{kv:?}");
        assert_eq!((len(both[0]), len(both[1])), (201, 85));
        let mut bytes = 0;
        // SAFETY: both live.
        ok(unsafe { kvant_sequence_size(both[0], null_mut(), &mut bytes) });
        assert_eq!(bytes, own.bytes());
        // SAFETY: it lives.
        let per_token = unsafe { kvant_cache_bytes_per_token(shared) };
        assert_eq!(per_token, own.sequence().layout().bytes_per_token());
        free(shared, &both);
    }
}

#[test]
fn forks_and_rollbacks_change_no_bit_of_what_they_share() {
    let shared = cache(c"int4");
    let first = sequence(shared);
    pass(shared, &[first], &[300]);
    // SAFETY: it lives.
    let before = unsafe { kvant_cache_bytes(shared) };
    let mut fork = null_mut();
    // SAFETY: all of them live.
    unsafe {
        ok(kvant_sequence_fork(first, &mut fork));
        assert!(kvant_cache_bytes(shared) < before + before / 2, "pages are shared");
    }
    let expected = pass(shared, &[first], &[4]);
    let mut left = 0;
    // SAFETY: all of them live.
    unsafe {
        ok(kvant_sequence_rollback(fork, 150, &mut left));
        assert!(left <= 150 && left + 64 > 150 && len(fork) == left, "{left}");
        ok(kvant_sequence_rollback(fork, 1000, null_mut()));
    }
    let again = pass(shared, &[fork], &[304 - left]);
    let width = 4 * HEADS * DIM;
    assert_eq!(bits(&again[0][again[0].len() - width..]), bits(&expected[0]));
    free(shared, &[first, fork]);
}

/// The file with another byte in some page, and checksums that vouch for it.
fn flipped(file: &[u8], page: &[u8], byte: usize) -> Vec<u8> {
    let (mut file, len) = (file.to_vec(), page.len());
    let at = (0..file.len() - len).step_by(64).find(|&at| &file[at..at + len] == page).expect("its page");
    let before = crc32fast::hash(page).to_le_bytes();
    file[at + byte] ^= 0x88;
    let after = crc32fast::hash(&file[at..at + len]).to_le_bytes();
    let preamble = u64::from_le_bytes(file[16..24].try_into().unwrap()) as usize;
    let place = (16..=preamble - 4).rev().find(|&i| file[i..i + 4] == before).expect("its checksum");
    file[place..place + 4].copy_from_slice(&after);
    let sum = crc32fast::hash(&file[16..preamble]).to_le_bytes();
    file[12..16].copy_from_slice(&sum);
    file
}

#[test]
fn a_saved_sequence_goes_on_and_a_corrupted_byte_changes_the_output() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sequence");
    let (shared, other) = (cache(c"int4"), cache(c"int8"));
    let first = sequence(shared);
    pass(shared, &[first], &[300]);
    let name = CString::new(path.to_str().unwrap()).unwrap();
    let load = |cache, model: &CStr| {
        let mut loaded = null_mut();
        // SAFETY: everything lives.
        let status = unsafe { kvant_sequence_load(cache, name.as_ptr(), model.as_ptr(), &mut loaded) };
        assert_eq!(loaded.is_null(), status != KvantStatus::Ok);
        (status, loaded)
    };
    fails(load(shared, c"model").0, KvantStatus::Io, &["open"]);
    // SAFETY: everything lives.
    ok(unsafe { kvant_sequence_save(first, name.as_ptr(), c"model".as_ptr()) });
    fails(load(shared, c"another model").0, KvantStatus::Mismatch, &["int4"]);
    fails(load(other, c"model").0, KvantStatus::Mismatch, &[]);
    let short = cache_with(c"int4", |options| options.capacity = 299).unwrap();
    fails(load(short, c"model").0, KvantStatus::ContextFull, &["300", "299"]);
    let (status, loaded) = load(shared, c"model");
    ok(status);
    let expected = pass(shared, &[first], &[1]);
    assert_eq!(bits(&pass(shared, &[loaded], &[1])[0]), bits(&expected[0]));

    // The bytes of a page of keys and of one of values, by kvant's own interface.
    let shape = KvShape { kv_heads: KV_HEADS, key_dim: DIM, value_dim: DIM, window: None };
    let slots = Slots::uniform(LAYERS, shape);
    let mut own = KvCache::new("int4".parse::<kvant_cache::Policy>().unwrap(), &slots, 4096).unwrap();
    own_pass(&mut own, &slots, 300);
    let file = std::fs::read(&path).unwrap();
    let mut changed = 0;
    for side in [kvant_codec::Side::Key, kvant_codec::Side::Value] {
        let store = own.sequence().side(slots.kv(1).unwrap(), 1, side).unwrap();
        let page = store.encoded(1).unwrap();
        for byte in (0..page.len()).step_by(97) {
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, flipped(&file, page, byte)).unwrap();
            let (status, loaded) = load(shared, c"model");
            // A scale that is no number any more is refused by name.
            ok(status);
            changed += usize::from(bits(&pass(shared, &[loaded], &[1])[0]) != bits(&expected[0]));
            // SAFETY: made above, and freed once.
            unsafe { kvant_sequence_free(loaded) };
        }
        let count = page.len().div_ceil(97);
        assert!(changed * 10 >= count * 9, "{changed} of {count} bytes count");
        changed = 0;
    }
    let mut damaged = file.clone();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, damaged).unwrap();
    fails(load(shared, c"model").0, KvantStatus::BadFile, &["sequence", "damaged"]);
    free(shared, &[first, loaded]);
    free(other, &[]);
    free(short, &[]);
}

#[test]
fn rows_of_halves_and_with_gaps_are_read_where_they_lie() {
    let shared = cache(c"f32");
    let tokens = 70;
    let plain: Vec<f32> = (0..LAYERS).flat_map(|layer| project(layer, 0, 0, tokens, KV_HEADS)).collect();
    // (heads, tokens, DIM + 3), in bfloat16.
    let wide = |layer: usize, numbers: &[f32]| -> Vec<half::bf16> {
        let own = &numbers[layer * tokens * KV_HEADS * DIM..];
        let at = |head: usize, token: usize, i: usize| match i < DIM {
            true => half::bf16::from_f32(own[(token * KV_HEADS + head) * DIM + i]),
            false => half::bf16::NAN,
        };
        (0..KV_HEADS)
            .flat_map(|head| (0..tokens).flat_map(move |token| (0..DIM + 3).map(move |i| (head, token, i))))
            .map(|(head, token, i)| at(head, token, i))
            .collect()
    };
    let mut outputs = [vec![0.0f32; tokens * HEADS * DIM], vec![0.0f32; tokens * HEADS * DIM]];
    for (gaps, out) in outputs.iter_mut().enumerate() {
        let one = sequence(shared);
        let mut begun = null_mut();
        // SAFETY: everything lives, and lists are as long as they are said to be.
        unsafe {
            ok(kvant_pass_begin(shared, [one.cast_const()].as_ptr(), [tokens].as_ptr(), 1, &mut begun));
            for layer in 0..LAYERS {
                let narrow = wide(layer, &plain);
                let rounded: Vec<f32> = project(layer, 0, 0, tokens, KV_HEADS)
                    .iter()
                    .map(|x| half::bf16::from_f32(*x).to_f32())
                    .collect();
                let given = match gaps {
                    0 => rows(&rounded),
                    _ => KvantRows {
                        data: narrow.as_ptr().cast(),
                        length: narrow.len() - 3,
                        row_stride: DIM + 3,
                        head_stride: tokens * (DIM + 3),
                        dtype: KvantDtype::Bf16 as i32,
                    },
                };
                let queries = project(layer, 2, 0, tokens, HEADS);
                ok(kvant_pass_append(begun, layer, &given, &given));
                ok(kvant_pass_attend(begun, layer, HEADS, &rows(&queries), &output(out), null()));
            }
            ok(kvant_pass_end(begun));
            kvant_sequence_free(one);
        }
    }
    assert_eq!(bits(&outputs[0]), bits(&outputs[1]));
    free(shared, &[]);
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let shared = cache(c"int4");
    let (one, two) = (sequence(shared), sequence(shared));
    let numbers = project(0, 0, 0, 3, KV_HEADS);
    let queries = project(0, 2, 0, 3, HEADS);
    let mut out = vec![0.0; 3 * HEADS * DIM];
    let mut begun = null_mut();
    let handles = [one.cast_const(), two.cast_const()];
    // SAFETY: everything lives, and lists are as long as they are said to be.
    unsafe {
        let begin =
            |cache, sequences: &[*const KvantSequence], tokens: &[usize], pass: *mut *mut KvantPass| {
                kvant_pass_begin(cache, sequences.as_ptr(), tokens.as_ptr(), sequences.len(), pass)
            };
        fails(begin(null(), &handles, &[3, 3], &mut begun), KvantStatus::InvalidArgument, &["cache is NULL"]);
        fails(begin(shared, &handles, &[3, 0], &mut begun), KvantStatus::InvalidArgument, &["sequence 1"]);
        fails(
            begin(shared, &[one, null()], &[3, 3], &mut begun),
            KvantStatus::InvalidArgument,
            &["sequence 1 is NULL"],
        );
        fails(begin(shared, &[one, one], &[3, 3], &mut begun), KvantStatus::Busy, &["sequence 1"]);
        fails(begin(shared, &[], &[], &mut begun), KvantStatus::InvalidArgument, &["at least one"]);
        let elsewhere = cache(c"int4");
        fails(
            begin(elsewhere, &handles, &[3, 3], &mut begun),
            KvantStatus::InvalidArgument,
            &["another cache"],
        );
        kvant_cache_free(elsewhere);
        assert!(begun.is_null());

        ok(begin(shared, &handles[..1], &[3], &mut begun));
        let (good, short) = (rows(&numbers), rows(&numbers[1..]));
        let invalid = KvantStatus::InvalidArgument;
        fails(kvant_pass_append(begun, 0, &short, &good), invalid, &["keys of sequence 0", "length is 383"]);
        fails(kvant_pass_append(begun, 0, &good, null()), invalid, &["values is NULL"]);
        fails(kvant_pass_append(begun, 9, &good, &good), invalid, &["no layer 9"]);
        fails(kvant_pass_append(null(), 0, &good, &good), invalid, &["pass is NULL"]);
        let attend = |heads, queries: &[f32], out: &mut [f32]| {
            kvant_pass_attend(begun, 0, heads, &rows(queries), &output(out), null())
        };
        fails(attend(HEADS, &queries, &mut out), invalid, &["sequence 0", "appended"]);
        fails(kvant_sequence_rollback(one, 0, null_mut()), KvantStatus::Busy, &["pass"]);
        fails(kvant_sequence_fork(one, null_mut()), invalid, &["fork is NULL"]);
        ok(kvant_pass_append(begun, 0, &good, &good));
        fails(attend(5, &queries, &mut out), invalid, &["5 query heads"]);
        fails(attend(0, &queries, &mut out), invalid, &["no query heads"]);
        fails(attend(HEADS, &queries[1..], &mut out), invalid, &["queries of sequence 0"]);
        let (less, _) = out.split_at_mut(7);
        fails(attend(HEADS, &queries, less), invalid, &["outputs of sequence 0"]);
        ok(attend(HEADS, &queries, &mut out));
        // The other layer has got nothing.
        fails(kvant_pass_end(begun), invalid, &["sequence 0", "layer 1"]);
        assert_eq!(len(one), 0);
        fails(kvant_pass_end(null_mut()), invalid, &["pass is NULL"]);
        kvant_pass_abandon(null_mut());
    }
    assert_eq!(bits(&pass(shared, &[one], &[3])[0]).len(), 3 * HEADS * DIM);
    free(shared, &[one, two]);
}

#[test]
fn nan_is_refused_by_layer_head_and_position_and_the_pass_is_over() {
    let shared = cache(c"int4");
    let one = sequence(shared);
    pass(shared, &[one], &[10]);
    for (kind, bad) in [f32::NAN, f32::INFINITY, 1e6].into_iter().enumerate() {
        let mut numbers = project(0, 0, 10, 2, KV_HEADS);
        numbers[KV_HEADS * DIM + DIM + kind] = bad;
        let mut begun = null_mut();
        // SAFETY: everything lives.
        unsafe {
            ok(kvant_pass_begin(shared, [one.cast_const()].as_ptr(), [2].as_ptr(), 1, &mut begun));
            let words = ["sequence 0", "values of kv head 1, layer 0", "position 11"];
            let plain = project(0, 0, 10, 2, KV_HEADS);
            fails(
                kvant_pass_append(begun, 0, &rows(&plain), &rows(&numbers)),
                KvantStatus::BadNumber,
                &words,
            );
            fails(
                kvant_pass_append(begun, 0, &rows(&plain), &rows(&plain)),
                KvantStatus::InvalidArgument,
                &["the pass has failed"],
            );
            fails(kvant_pass_end(begun), KvantStatus::InvalidArgument, &["the pass has failed"]);
        }
        assert_eq!(len(one), 10);
    }
    let (next, fresh) = (pass(shared, &[one], &[2]), sequence(shared));
    let whole = pass(shared, &[fresh], &[12]);
    assert_eq!(bits(&whole[0][10 * HEADS * DIM..]), bits(&next[0]), "what was refused has left no trace");
    free(shared, &[one, fresh]);
}

#[test]
fn caches_that_cannot_be_are_refused() {
    let invalid = KvantStatus::InvalidArgument;
    let refused = |kv: &CStr, change: &dyn Fn(&mut KvantCacheOptions)| cache_with(kv, change).unwrap_err();
    fails(refused(c"int5", &|_| {}), invalid, &["int5"]);
    fails(refused(c"auto", &|_| {}), invalid, &["auto"]);
    fails(refused(c"int4;layers 2:k=f16", &|_| {}), KvantStatus::Unsupported, &["layer"]);
    fails(refused(c"nowhere.kvplan", &|_| {}), KvantStatus::BadFile, &["nowhere.kvplan"]);
    fails(refused(c"int4", &|options| options.layer_count = 0), invalid, &["at least one layer"]);
    fails(refused(c"int4", &|options| options.layers = null()), invalid, &["layers is NULL"]);
    fails(refused(c"int4", &|options| options.struct_size = 0), invalid, &["struct_size is 0"]);
    fails(refused(c"int4", &|options| options.struct_size = 1 << 40), invalid, &["struct_size"]);
    fails(refused(c"\xff", &|_| {}), invalid, &["UTF-8"]);
    let flat = [KvantLayer { key_dim: 0, ..LAYER }];
    let none = [KvantLayer { kv_heads: 0, ..LAYER }];
    for (layers, status) in [(&flat, KvantStatus::Unsupported), (&none, invalid)] {
        let change = |options: &mut KvantCacheOptions| {
            (options.layers, options.layer_count) = (layers.as_ptr(), 1);
        };
        fails(refused(c"int4", &change), status, &[]);
    }
    let mut cache = null_mut();
    // SAFETY: all zeros, and nothing at all.
    unsafe {
        fails(kvant_cache_new(null(), &mut cache), invalid, &["at least one layer"]);
        fails(kvant_cache_new(null(), null_mut()), invalid, &["cache is NULL"]);
    }
}

#[test]
fn the_cap_and_the_capacity_are_kept() {
    let small = cache_with(c"int4", |options| options.memory = 100_000).unwrap();
    let short = cache_with(c"int4", |options| options.capacity = 100).unwrap();
    for (cache, status) in [(small, KvantStatus::OutOfMemory), (short, KvantStatus::ContextFull)] {
        let one = sequence(cache);
        let mut begun = null_mut();
        // SAFETY: everything lives.
        unsafe {
            let handles = [one.cast_const()];
            fails(
                kvant_pass_begin(cache, handles.as_ptr(), [5000].as_ptr(), 1, &mut begun),
                status,
                &["sequence 0"],
            );
            assert!(begun.is_null());
        }
        pass(cache, &[one], &[20]);
        assert_eq!(len(one), 20);
        free(cache, &[one]);
    }
}

/// Without a cap such a pass took memory page by page until the machine had none.
#[test]
fn a_pass_of_endless_tokens_is_refused_before_any_memory_is_taken() {
    let cache = cache(c"int4");
    let one = sequence(cache);
    pass(cache, &[one], &[5]);
    // SAFETY: the cache lives.
    let bytes = || unsafe { kvant_cache_bytes(cache) };
    let before = bytes();
    for tokens in [usize::MAX - 5, usize::MAX / 2, 1 << 40] {
        let mut begun = null_mut();
        // SAFETY: everything lives.
        let status =
            unsafe { kvant_pass_begin(cache, [one.cast_const()].as_ptr(), [tokens].as_ptr(), 1, &mut begun) };
        fails(status, KvantStatus::OutOfMemory, &["sequence 0", "KV memory is full"]);
        assert!(begun.is_null() && bytes() == before, "{tokens} tokens");
    }
    pass(cache, &[one], &[20]);
    assert_eq!(len(one), 25);
    free(cache, &[one]);
}
