//! Logits come from the encoded bytes: another byte, other logits; other memory, the same ones.

use kvant_cache::snapshot::{Record, write};
use kvant_codec::Side;
use kvant_cpu::LoadOptions;
use kvant_engine::{Arena, KvCache, Policy, Snapshot};
use kvant_model::{Checkpoint, Chunk, Model, Pass};
use std::path::Path;

const TOKENS: usize = 230;
const SIGNATURE: [u8; 32] = [7; 32];

fn model(name: &str) -> Model {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures");
    kvant_cpu::load(&Checkpoint::open(fixtures.join(name)).unwrap(), LoadOptions::default()).unwrap()
}

fn tokens(model: &Model) -> Vec<u32> {
    (0..TOKENS).map(|i| ((i * 7919 + 13) % model.vocabulary()) as u32).collect()
}

/// Bits of the logits after the last of these tokens.
fn read(model: &Model, kv: &mut KvCache, tokens: &[u32]) -> Vec<u32> {
    let chunk = Chunk::new(tokens, tokens.len() - 1..tokens.len());
    let logits = model.forward(Pass::new(&[chunk]), &mut [kv.sequence_mut()]).unwrap().into_logits();
    logits.data().iter().map(|x| x.to_bits()).collect()
}

/// The file with another byte in the page at `at`, and checksums that vouch for it.
fn flipped(file: &[u8], at: usize, len: usize, byte: usize) -> Vec<u8> {
    let mut file = file.to_vec();
    let before = crc32fast::hash(&file[at..at + len]).to_le_bytes();
    // The highest bit of both codes.
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
fn a_flipped_byte_of_the_cache_changes_the_logits() {
    let model = model("llama");
    let policy: Policy = "int4".parse().unwrap();
    let all = tokens(&model);
    let (held, last) = all.split_at(TOKENS - 1);
    let mut kv = KvCache::new(&policy, model.slots(), TOKENS).unwrap();
    read(&model, &mut kv, held);
    let mut file = Vec::new();
    let record = Record { signature: SIGNATURE, numerics: [1; 32], policy: "int4", tokens: held, note: b"" };
    write(kv.sequence(), &record, &mut file).unwrap();
    let answer = |file: Vec<u8>| {
        let mut kv = KvCache::new(&policy, model.slots(), TOKENS).unwrap();
        kv.restore(&Snapshot::from_bytes(file).unwrap(), &SIGNATURE).unwrap();
        read(&model, &mut kv, last)
    };
    let right = answer(file.clone());
    assert!(right == read(&model, &mut kv, last), "the file holds the cache");

    let (mut tried, mut changed) = (0, 0);
    for slot in model.slots().kv_slots() {
        let shape = model.slots().get(slot.index()).and_then(|slot| slot.kind.stored()).unwrap();
        for head in 0..shape.kv_heads {
            for side in [Side::Key, Side::Value] {
                let store = kv.sequence().side(slot, head, side).unwrap();
                for page in store.pages().map(|page| page.host().unwrap()) {
                    let at = file.windows(page.len()).position(|bytes| bytes == page).expect("its bytes");
                    for byte in [0, page.len() / 2, page.len() - 1] {
                        tried += 1;
                        changed += usize::from(answer(flipped(&file, at, page.len(), byte)) != right);
                    }
                }
            }
        }
    }
    // A code of a token with hardly any weight may be lost in the rounding.
    assert!(tried >= 36 && changed * 10 >= tried * 9, "{changed} of {tried} bytes matter");
}

/// Exact rows are freed once their page is encoded. Whatever their memory holds afterwards, nobody reads it.
#[test]
fn memory_of_rows_that_are_encoded_may_hold_anything() {
    for (name, policies) in
        [("llama", ["int4", "int8;recent=64"]), ("gemma3", ["int4;recent=64", "k8v4;sinks=0"])]
    {
        let model = model(name);
        for policy in policies {
            let parsed: Policy = policy.parse().unwrap();
            let all = tokens(&model);
            let mut plain = KvCache::new(&parsed, model.slots(), TOKENS).unwrap();
            let arena = Arena::new();
            let mut haunted = KvCache::in_arena(&parsed, model.slots(), TOKENS, arena.clone()).unwrap();
            for (step, chunk) in all.chunks(45).enumerate() {
                let expected = read(&model, &mut plain, chunk);
                assert!(read(&model, &mut haunted, chunk) == expected, "{name}, {policy}, step {step}");
                let sides = haunted.sequence().layout().sides();
                let sizes: Vec<usize> =
                    sides.map(|(.., side)| kvant_codec::PageCodec::page_bytes(side.exact())).collect();
                sizes.into_iter().for_each(|size| fill_free_memory(&arena, size));
            }
        }
    }
}

/// Writes NaN, in f16 as in f32, to every free slot for pages of this size.
fn fill_free_memory(arena: &Arena, page_bytes: usize) {
    let reserved = arena.usage().reserved;
    let mut pages = Vec::new();
    while arena.usage().reserved == reserved {
        let mut page = arena.page(page_bytes).unwrap();
        page.host_mut().unwrap().fill(0xff);
        pages.push(page);
    }
}
