//! Pages are written and read as they are: a corrupt byte changes the output, and files move between devices and back.

use crate::caches::on_host;
use crate::cases::Case;
use crate::policies::{CACHES, is_streaming, policy};
use crate::reading::{distance, largest_difference, read};
use crate::store::BytePages;
use crate::subject::{Bounds, Loaded, Subject};
use kvant_attention::KvCache;
use kvant_cache::snapshot::{self, Record};
use kvant_cache::{Arena, KvSlot, Policy, Snapshot, Store};
use kvant_codec::{Element, PageFormat, Side};
use kvant_model::Model;
use std::sync::Arc;

/// Tokens that are read after a file was moved.
const MORE: usize = 6;

pub(crate) fn are_read_and_move(subject: &Subject) {
    let case = subject.plain();
    let (on, host) = (subject.load(&case.checkpoint), on_host(&case.checkpoint));
    let runs = CACHES.into_iter().filter(|text| subject.refusal(text).is_none() && !is_streaming(text));
    // Others than those of which the part `caches` reads one in three.
    for text in runs.skip(subject.count(0, 1)).step_by(subject.count(1, 3)) {
        // A page that is older than the exact ones of every cache.
        let talk = Talk::new(subject, &case, &on, text, subject.count(200, 172));
        talk.corrupt_bytes_change_the_output(subject);
        talk.moves(&host, subject, 0.1, 2e-2);
        drop(talk);
        assert_eq!(on.store.usage().used, 0, "{text}: pages are given back");
    }
    for case in subject.cases().into_iter().filter(Case::is_recurrent).take(subject.count(3, 2)) {
        let (on, host) = (subject.load(&case.checkpoint), on_host(&case.checkpoint));
        Talk::new(subject, &case, &on, "f16", 80).moves(&host, subject, 1e-2, 1e-2);
    }
}

/// A sequence of the device that has read some tokens.
struct Talk<'a> {
    name: String,
    on: &'a Loaded,
    kept: Policy,
    ids: Vec<u32>,
    cache: KvCache,
}

impl<'a> Talk<'a> {
    fn new(subject: &Subject, case: &Case, on: &'a Loaded, text: &str, count: usize) -> Talk<'a> {
        let kept = policy(text, on.model.slots());
        let ids = case.tokens(count + MORE, on.model.vocabulary());
        let mut cache = on.cache(&kept, ids.len());
        read(&on.model, &mut cache, &ids[..count], &[subject.count(90, count)]);
        Talk { name: format!("{} {text}", case.name), on, kept, ids, cache }
    }

    /// The tokens that were read, and those that come.
    fn halves(&self) -> (&[u32], &[u32]) {
        self.ids.split_at(self.ids.len() - MORE)
    }

    fn file(&self, cache: &KvCache) -> Vec<u8> {
        let (name, tokens) = (self.kept.to_string(), self.halves().0);
        let record = Record { signature: [1; 32], numerics: [2; 32], policy: &name, tokens, note: b"" };
        let mut bytes = Vec::new();
        snapshot::write(cache.sequence(), &record, &mut bytes).unwrap();
        bytes
    }

    fn restored(&self, file: Vec<u8>, store: Store) -> KvCache {
        let mut fresh =
            KvCache::in_arena(self.kept.clone(), self.on.model.slots(), self.ids.len(), store).unwrap();
        fresh.restore(&Snapshot::from_bytes(file).unwrap(), &[1; 32]).unwrap();
        fresh
    }

    /// The logits of one more token.
    fn next(&self, cache: &KvCache) -> Vec<f32> {
        let mut fork = cache.over(cache.sequence().fork().unwrap());
        read(&self.on.model, &mut fork, &self.halves().1[..1], &[1])
    }

    /// A byte of every part of a page: of scales, zeros and codes of every width, of the first layer and of the last.
    fn corrupt_bytes_change_the_output(&self, subject: &Subject) {
        let before = self.next(&self.cache);
        let slots: Vec<KvSlot> = self.on.model.slots().kv_slots().collect();
        let layout = self.cache.sequence().layout();
        let last = *slots.last().unwrap();
        let places = [(last, layout.slots()[last.index()].heads().len() - 1), (slots[0], 0)];
        for (slot, head) in places.into_iter().take(subject.count(2, 1)) {
            for side in [Side::Key, Side::Value] {
                let codecs = layout.slots()[slot.index()].heads()[head].side(side).unwrap();
                let page = self.cache.sequence().side(slot, head, side).unwrap().pages().next().unwrap();
                let bytes = page.canonical().into_owned();
                let format = codecs.codec().format();
                // One number of four bytes may be lost where its token hardly counts and activations are f16: all from there on are not.
                let is_wide =
                    matches!(&format, Some(PageFormat::Exact(format)) if format.element == Element::F32);
                let step = if is_wide { 4 } else { bytes.len() };
                for at in parts(format.as_ref(), bytes.len()) {
                    let mut corrupt = bytes.clone();
                    corrupt[at..].iter_mut().step_by(step).for_each(|byte| *byte ^= 0x37);
                    let after = self.with_page(slot, head, side, &corrupt, &bytes);
                    assert!(before != after, "{}: byte {at} of {} of {side:?}", self.name, bytes.len());
                }
                let again = self.with_page(slot, head, side, &bytes, &bytes);
                assert!(before == again, "{}: the bytes as they were, of {side:?}", self.name);
            }
        }
    }

    /// The logits of one more token where the first page of a side has these bytes, which are then what they were.
    fn with_page(&self, slot: KvSlot, head: usize, side: Side, bytes: &[u8], were: &[u8]) -> Vec<f32> {
        let id = |cache: &KvCache| {
            let page = cache.sequence().side(slot, head, side).unwrap().pages().next().unwrap().id();
            page.expect("a page of a store")
        };
        match &self.on.store {
            Store::Device(store) => {
                let id = id(&self.cache);
                store.write(id, bytes);
                let found = self.next(&self.cache);
                store.write(id, were);
                found
            }
            // Pages of the host are never changed: a file of other bytes is brought in.
            Store::Host(_) | Store::Split(_) => {
                let pages = Arc::new(BytePages::default());
                let copy = self.restored(self.file(&self.cache), Store::Device(Arc::clone(&pages) as _));
                kvant_cache::PageStore::write(&*pages, id(&copy), bytes);
                self.next(&self.restored(self.file(&copy), Arena::new().into()))
            }
        }
    }

    /// A file of the device is one of the host, to the byte, and a talk goes on from it on both; and the other way round.
    fn moves(&self, host: &Model, subject: &Subject, of_largest: f64, apart: f64) {
        let (name, (read_tokens, more)) = (&self.name, self.halves());
        let in_host = || Store::from(Arena::new());
        let file = self.file(&self.cache);
        let mut there = self.restored(file.clone(), in_host());
        assert!(self.file(&there) == file, "{name}: the file changed on the host");
        let mut back = self.restored(self.file(&there), self.on.store.clone());
        assert!(self.file(&back) == file, "{name}: the file changed on the way back");
        let mut here = self.cache.over(self.cache.sequence().fork().unwrap());
        let on = read(&self.on.model, &mut here, more, &[4, 1]);
        assert!(read(&self.on.model, &mut back, more, &[3]) == on, "{name}: other bits after the way back");
        let moved = read(host, &mut there, more, &[MORE]);
        // What the host began goes on here.
        let mut own = KvCache::in_arena(self.kept.clone(), host.slots(), self.ids.len(), in_host()).unwrap();
        read(host, &mut own, read_tokens, &[read_tokens.len()]);
        let begun = self.file(&own);
        assert_eq!(begun.len(), file.len(), "{name}: files of other sizes");
        let brought = read(&self.on.model, &mut self.restored(begun, self.on.store.clone()), more, &[MORE]);
        let stayed = read(host, &mut own, more, &[MORE]);
        for (what, found, truth) in [("to the host", &moved, &on), ("from the host", &brought, &stayed)] {
            let size = truth.iter().fold(0.0f64, |size, x| size.max(f64::from(x.abs())));
            let (off, bound) = match subject.bounds {
                Bounds::F32(_) => (largest_difference(found, truth), of_largest * size),
                Bounds::F16 => (distance(found, truth), apart),
            };
            println!("{name}: {what} off by {off:.1e} of {bound:.1e}");
            assert!(off < bound, "{name}: {what} off by {off:.1e} of {bound:.1e}");
        }
    }
}

/// Where bytes of every part of a page lie; of pages whose parts nobody names, at the start, in the middle and at the end.
fn parts(format: Option<&PageFormat>, bytes: usize) -> Vec<usize> {
    match format {
        Some(PageFormat::Packed(format)) => {
            let arrays =
                [&format.channel_scale, &format.channel_zero, &format.token_scale, &format.token_zero];
            let ranges = arrays.into_iter().flatten().map(|range| range.start + 1);
            ranges.chain(format.spans.iter().map(|span| span.codes + 1)).chain([bytes - 3]).collect()
        }
        // Of numbers of four bytes one that devices with f16 see too: the lowest exponent bit, and the upper ones of the fraction.
        Some(PageFormat::Exact(format)) if format.element == Element::F32 => {
            vec![2, bytes / 2 + 2]
        }
        _ => vec![1, bytes / 2 + 1, bytes - 3],
    }
}
