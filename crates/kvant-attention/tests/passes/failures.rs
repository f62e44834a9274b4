//! A pass that fails names the sequence, and leaves every one as it was.

use crate::model::{Toy, WIDTH, bits};
use crate::toy;
use kvant_attention::{Attention, Batch, CacheFull, KvCache, PassState, StateErrorKind};
use kvant_cache::{Arena, CacheError, PageStore, Policy, RecurrentShape, Slots, Store};
use std::sync::Arc;

fn caches(toy: &Toy, arena: &Arena, lengths: &[usize]) -> Vec<KvCache> {
    let policy: Policy = "int4".parse().unwrap();
    let mut caches: Vec<KvCache> =
        lengths.iter().map(|_| KvCache::in_arena(&policy, &toy.slots, 400, arena.clone()).unwrap()).collect();
    for (salt, (cache, len)) in caches.iter_mut().zip(lengths).enumerate() {
        toy.read(cache, salt as u64, *len);
    }
    caches
}

#[test]
fn a_number_that_cannot_be_stored_names_its_sequence_and_all_are_taken_back() {
    let toy = Toy::new(Some(100));
    let arena = Arena::new();
    let (mut caches, mut calm) = (caches(&toy, &arena, &[130, 67]), caches(&toy, &Arena::new(), &[130, 67]));
    let before = arena.usage();
    let mut attention = Attention::new().unwrap();
    let mut batch = Batch::new(&mut attention, caches.iter_mut().collect());
    // The second layer, third token of the second sequence, second kv head.
    let spoil = |layer: usize, values: &mut [f32]| {
        if layer == 1 {
            values[(70 + 2) * 32 + 20] = f32::INFINITY;
        }
    };
    let error = toy.pass(&mut batch, &[0, 1], &[70, 5], spoil).unwrap_err();
    assert_eq!(error.sequence, 1);
    let message = error.to_string();
    assert!(message.contains("values of kv head 1, layer 1, at position 69: inf"), "{message}");
    assert!(matches!(error.kind, StateErrorKind::Cache(CacheError::Number { .. })));
    batch.abandon();
    assert!(batch.sequences().iter().map(|pass| (pass.start, pass.tokens)).eq([(130, 0), (67, 0)]));
    assert_eq!((arena.usage().pages, arena.usage().used), (before.pages, before.used));
    // They go on as if nothing had been tried.
    let rows = toy.pass(&mut batch, &[0, 1], &[70, 5], |_, _| {}).unwrap();
    drop(batch);
    for (cache, (salt, own)) in calm.iter_mut().zip([(0, &rows[..70 * WIDTH]), (1, &rows[70 * WIDTH..])]) {
        assert_eq!(bits(own), bits(&toy.read(cache, salt, own.len() / WIDTH)));
    }
}

#[test]
fn a_pass_that_is_left_open_is_taken_back_by_the_next_and_by_dropping() {
    let toy = Toy::new(None);
    let mut caches = caches(&toy, &Arena::new(), &[50, 60]);
    let mut attention = Attention::new().unwrap();
    let mut batch = Batch::new(&mut attention, caches.iter_mut().collect());
    batch.begin(&[3, 4]).unwrap();
    let slot = toy.slots.kv(0).unwrap();
    batch.append(slot, &[0.5; 7 * 32], &[0.5; 7 * 32]).unwrap();
    batch.begin(&[2, 2]).unwrap();
    assert!(batch.sequences().iter().map(|pass| (pass.start, pass.tokens)).eq([(50, 2), (60, 2)]));
    batch.append(slot, &[0.5; 4 * 32], &[0.5; 4 * 32]).unwrap();
    drop(batch);
    for (cache, len) in caches.iter().zip([50, 60]) {
        assert_eq!((cache.len(), cache.sequence().slot_len(slot)), (len, len));
    }
}

#[test]
fn a_full_context_and_full_memory_name_their_sequence() {
    let toy = Toy::new(None);
    let arena = Arena::with_cap(400_000);
    let mut held = caches(&toy, &arena, &[10, 390, 20]);
    let used = arena.usage().used;
    let mut attention = Attention::new().unwrap();
    let mut batch = Batch::new(&mut attention, held.iter_mut().collect());
    let error = batch.begin(&[5, 11, 5]).unwrap_err();
    assert_eq!(error.sequence, 1);
    assert_eq!(error.kind, CacheFull { held: 390, asked: 11, capacity: 400 }.into());
    assert_eq!(arena.usage().used, used, "what was reserved for the first is given back");
    let error = batch.begin(&[5, 1]).unwrap_err();
    assert!(error.to_string().contains("another number of sequences"), "{error}");
    drop(batch);

    let filler: Vec<_> = std::iter::from_fn(|| arena.page(4096).ok()).collect();
    let used = arena.usage().used;
    let mut batch = Batch::new(&mut attention, held.iter_mut().collect());
    let error = batch.begin(&[1, 1, 380]).unwrap_err();
    assert_eq!(error.sequence, 2);
    assert!(matches!(error.kind, StateErrorKind::Cache(CacheError::Memory(_))), "{error}");
    assert_eq!(arena.usage().used, used);
    drop(filler);
    batch.begin(&[1, 1, 380]).unwrap();
}

#[test]
fn calls_out_of_order_are_refused() {
    let toy = Toy::new(None);
    let mut cache = toy.cache("int4", None);
    let slot = toy.slots.kv(0).unwrap();
    let early = cache.append(slot, &[0.5; 32], &[0.5; 32]).unwrap_err().to_string();
    assert!(early.contains("no pass is under way"), "{early}");
    assert!(cache.end().unwrap_err().to_string().contains("no pass is under way"));
    assert!(cache.begin(&[1, 1]).unwrap_err().to_string().contains("use a batch"));
    // A pass that has skipped a slot cannot end.
    cache.begin(&[2]).unwrap();
    cache.append(slot, &[0.5; 64], &[0.5; 64]).unwrap();
    let error = cache.end().unwrap_err().to_string();
    assert!(error.contains("0 were appended to layer 1"), "{error}");
    assert_eq!((cache.len(), cache.sequence().slot_len(slot)), (0, 0));
    // A view is read only.
    cache.begin(&[1]).unwrap();
    let view = toy.slots.kv(2).unwrap();
    let error = cache.append(view, &[0.5; 32], &[0.5; 32]).unwrap_err().to_string();
    assert!(error.contains("a view of another slot"), "{error}");
}

/// Attention of this processor reads host memory, and nothing else silently.
#[test]
fn pages_of_a_device_are_not_attended_to_on_the_host() {
    let toy = Toy::new(None);
    let device = toy::Toy::new(None);
    let store = || Store::from(Arc::clone(&device) as Arc<dyn PageStore>);
    let policy: Policy = "int4".parse().unwrap();
    let mut cache = KvCache::in_arena(&policy, &toy.slots, 400, store()).unwrap();
    let error = toy.pass(&mut cache, &[0], &[5], |_, _| {}).unwrap_err();
    assert!(error.to_string().contains("lies in toy:0, which this processor cannot read"), "{error}");
    cache.abandon();
    assert_eq!((cache.len(), device.usage().pages, device.traffic()[2]), (0, 0, 0));

    let mut slots = Slots::new();
    let state = slots.recurrent(0, RecurrentShape { state: 2, row: 1 });
    let mut cache = KvCache::in_arena(&policy, &slots, 400, store()).unwrap();
    cache.begin(&[1]).unwrap();
    let error = cache.recurrent(state, 0).err().unwrap();
    assert!(error.to_string().contains("toy:0"), "{error}");
}
