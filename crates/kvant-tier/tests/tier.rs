//! Blocks of an engine through a tier: what comes back, what is refused, and who else may use the folder.

use half::f16;
use kvant_cache::Policy;
use kvant_codec::{CodecSpec, KvSpec, Side};
use kvant_tier::{BlockCodec, BlockForm, Blocks, HeadPlace, Held, Number, Options, Place, Tier};
use std::fs;
use std::path::Path;
use std::sync::Arc;

const HEADS: usize = 2;
const DIM: usize = 64;
const LAYERS: usize = 2;

/// Numbers that no two places share, from a fixed seed.
fn number(layer: usize, side: usize, token: usize, head: usize, channel: usize) -> f32 {
    let mut state = [layer, side, token, head, channel].iter().fold(0x9e37_79b9_u64, |state, part| {
        (state ^ *part as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(29)
    });
    state ^= state >> 31;
    let uniform = (state.wrapping_mul(0x94d0_49bb_1331_11eb) >> 40) as f32 / (1u64 << 24) as f32;
    f16::from_f32((uniform - 0.5) * (1.0 + (channel % 7) as f32)).to_f32()
}

/// How an engine orders a block.
#[derive(Clone, Copy)]
enum Order {
    /// (layer, K|V, token, head, channel)
    TokensFirst,
    /// (layer, head, token, K and V)
    HeadsFirst,
}

fn form(order: Order, tokens: usize) -> BlockForm {
    let layer_bytes = tokens * HEADS * 2 * DIM * 2;
    let place = |layer: usize, head: usize| match order {
        Order::TokensFirst => {
            let key = layer * layer_bytes + head * DIM * 2;
            HeadPlace { key, value: key + layer_bytes / 2 }
        }
        Order::HeadsFirst => {
            let key = layer * layer_bytes + head * tokens * 2 * DIM * 2;
            HeadPlace { key, value: key + DIM * 2 }
        }
    };
    BlockForm {
        number: Number::F16,
        tokens,
        key_dim: DIM,
        value_dim: DIM,
        token_stride: match order {
            Order::TokensFirst => HEADS * DIM * 2,
            Order::HeadsFirst => 2 * DIM * 2,
        },
        run: tokens,
        run_stride: 0,
        layers: (0..LAYERS)
            .map(|layer| (layer, (0..HEADS).map(|head| place(layer, head)).collect()))
            .collect(),
    }
}

/// An engine's memory.
struct Memory {
    form: BlockForm,
    bytes: Vec<u16>,
    stride: usize,
}

impl Memory {
    fn new(order: Order, tokens: usize, count: usize) -> Memory {
        let form = form(order, tokens);
        let stride = form.extent() + 64;
        Memory { bytes: vec![0; count * stride / 2], form, stride }
    }

    fn each(&self, block: usize, mut visit: impl FnMut(usize, [usize; 4])) {
        for (layer, places) in &self.form.layers {
            for (head, place) in places.iter().enumerate() {
                for (side, base) in [place.key, place.value].into_iter().enumerate() {
                    for token in 0..self.form.tokens {
                        for channel in 0..DIM {
                            let at =
                                block * self.stride + base + token * self.form.token_stride + channel * 2;
                            visit(at / 2, [*layer, side, head, token * DIM + channel]);
                        }
                    }
                }
            }
        }
    }

    fn fill(&mut self, block: usize, first: usize) {
        let mut numbers = Vec::new();
        self.each(block, |at, [layer, side, head, rest]| {
            numbers.push((at, number(layer, side, first + rest / DIM, head, rest % DIM)));
        });
        for (at, number) in numbers {
            self.bytes[at] = f16::from_f32(number).to_bits();
        }
    }

    /// (layer, head, side, token, channel)
    fn read(&self, block: usize) -> Vec<f32> {
        let mut numbers = Vec::new();
        self.each(block, |at, _| numbers.push(f16::from_bits(self.bytes[at]).to_f32()));
        numbers
    }

    fn lent(&mut self) -> Arc<Blocks> {
        let (base, len) = (self.bytes.as_mut_ptr().cast(), self.bytes.len() * 2);
        // SAFETY: the memory outlives its tiers in every test, and is looked at when jobs are done.
        Arc::new(unsafe { Blocks::new(base, len, self.stride, Box::new(())) })
    }
}

fn codec(memory: &Memory, kv: &str) -> BlockCodec {
    let policy: Policy = kv.parse().expect("a policy");
    BlockCodec::new(memory.form.clone(), &policy, "a model").expect("a codec")
}

fn tier(memory: &Memory, kv: &str, folder: Option<&Path>, limit: u64) -> Tier {
    let place = folder.map_or_else(Place::memory, |folder| Place::folder(folder).expect("a folder"));
    Tier::open(vec![codec(memory, kv)], place, Options { limit, threads: 2 }).expect("a tier")
}

fn list(blocks: impl IntoIterator<Item = usize>) -> Vec<(usize, Vec<u8>, usize)> {
    blocks.into_iter().map(|block| (0, key(block), block)).collect()
}

fn key(block: usize) -> Vec<u8> {
    format!("block {block}").into_bytes()
}

/// What codecs make of the tokens `first` on, padded to pages: the oracle, one page at a time.
fn expected(kv: &str, first: usize, count: usize, start: usize, tokens: usize) -> Vec<f32> {
    let spec: KvSpec = kv.parse().expect("a spec");
    let mut numbers = Vec::new();
    for layer in 0..LAYERS {
        for head in 0..HEADS {
            for side in [Side::Key, Side::Value] {
                let own: &CodecSpec = spec.side(side);
                let codec = own.build(side, DIM).expect("a codec");
                let page_tokens = codec.page_tokens();
                let mut all = Vec::new();
                for page in 0..count.div_ceil(page_tokens) {
                    let row = |token: usize| {
                        let token = first + (page * page_tokens + token).min(count - 1);
                        (0..DIM).map(move |channel| number(layer, side as usize, token, head, channel))
                    };
                    let rows: Vec<f32> = (0..page_tokens).flat_map(row).collect();
                    let (mut bytes, mut out) = (vec![0; codec.page_bytes()], vec![0.0; rows.len()]);
                    codec.encode(&rows, &mut bytes).expect("pages");
                    codec.decode(&bytes, &mut out).expect("rows");
                    all.extend(out);
                }
                let wanted = &all[(start - first) * DIM..][..tokens * DIM];
                numbers.extend(wanted.iter().map(|number| f16::from_f32(*number).to_f32()));
            }
        }
    }
    numbers
}

#[test]
fn blocks_come_back_as_the_codec_makes_them_whatever_the_order() {
    for order in [Order::TokensFirst, Order::HeadsFirst] {
        for kv in ["int4", "int8", "f16"] {
            let mut memory = Memory::new(order, 64, 2);
            memory.fill(0, 100);
            let (blocks, tier) = (memory.lent(), tier(&memory, kv, None, 1 << 30));
            tier.store(1, &blocks, &list([0])).unwrap();
            let done = tier.wait(1).unwrap();
            assert_eq!(
                (done.failed.len(), done.bytes as usize),
                (0, memory.form.bytes()),
                "{:?}",
                done.error
            );
            tier.load(2, &blocks, &[(0, key(0), 1)]).unwrap();
            assert_eq!(tier.wait(2).unwrap().error, None);
            assert_eq!(memory.read(1), expected(kv, 100, 64, 100, 64), "{kv}");
            if kv == "int4" {
                let usage = tier.usage();
                let share = usage.stored_bytes as f64 / usage.stored_raw as f64;
                assert!(share < 0.29, "{share}");
            }
        }
    }
}

#[test]
fn small_blocks_share_pages_and_a_rest_is_kept_exactly() {
    let mut memory = Memory::new(Order::TokensFirst, 16, 12);
    (0..6).for_each(|block| memory.fill(block, 16 * block));
    let (blocks, tier) = (memory.lent(), tier(&memory, "int4", None, 1 << 30));
    assert_eq!(tier.codecs()[0].group(), 4);
    tier.store(1, &blocks, &list(0..6)).unwrap();
    assert_eq!(tier.wait(1).unwrap().error, None);
    assert_eq!(tier.usage().entries, 2);
    // In another order than they were stored, one alone.
    let back: Vec<_> = [3, 0, 5, 2, 4, 1].into_iter().map(|block| (0, key(block), 6 + block)).collect();
    tier.load(2, &blocks, &back).unwrap();
    assert_eq!(tier.wait(2).unwrap().error, None);
    for block in 0..4 {
        assert_eq!(memory.read(6 + block), expected("int4", 0, 64, 16 * block, 16));
    }
    // 32 tokens as half a page of 4.5 bits are fewer bytes than in f16; 16 are not.
    assert_eq!(memory.read(10), expected("int4", 64, 32, 64, 16));
    memory.fill(0, 500);
    tier.store(3, &blocks, &[(0, b"alone".to_vec(), 0)]).unwrap();
    assert_eq!(tier.wait(3).unwrap().error, None);
    tier.load(4, &blocks, &[(0, b"alone".to_vec(), 6)]).unwrap();
    assert_eq!(tier.wait(4).unwrap().error, None);
    assert_eq!(memory.read(6), memory.read(0));
}

#[test]
fn others_find_what_is_in_a_folder_and_nobody_reads_what_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let mut memory = Memory::new(Order::TokensFirst, 16, 10);
    (0..4).for_each(|block| memory.fill(block, 16 * block));
    let blocks = memory.lent();
    let first = tier(&memory, "int4", Some(folder.path()), 1 << 30);
    let second = tier(&memory, "int4", Some(folder.path()), 1 << 30);
    assert_eq!(second.held(0, &key(2)), Held::Later);
    assert!(!second.held_now(0, &key(2)));
    first.store(1, &blocks, &list(0..4)).unwrap();
    first.drain();
    assert_eq!(first.held(0, &key(2)), Held::Yes);
    assert!(second.held_now(0, &key(2)) && second.held(0, &key(3)) == Held::Yes);
    second.load(2, &blocks, &[(0, key(2), 7)]).unwrap();
    assert_eq!(second.wait(2).unwrap().error, None);
    assert_eq!(memory.read(7), expected("int4", 0, 64, 32, 16));
    // Other settings have other names.
    let other = tier(&memory, "int8", Some(folder.path()), 1 << 30);
    assert!(!other.held_now(0, &key(2)));
    // A damaged entry goes under all its names, and is a miss.
    let names = || fs::read_dir(folder.path()).unwrap().map(|item| item.unwrap().path()).collect::<Vec<_>>();
    assert_eq!(names().len(), 4);
    drop((first, second));
    let mut bytes = fs::read(&names()[0]).unwrap();
    let at = bytes.len() - 5;
    bytes[at] ^= 4;
    fs::write(&names()[0], bytes).unwrap();
    let third = tier(&memory, "int4", Some(folder.path()), 1 << 30);
    third.load(3, &blocks, &list(0..2)).unwrap();
    let done = third.wait(3).unwrap();
    assert_eq!(done.failed, vec![key(0), key(1)]);
    assert!(done.error.unwrap().contains("checksum"));
    assert_eq!((third.usage().refused, third.held_now(0, &key(1)), names().len()), (1, false, 0));
}

#[test]
fn the_oldest_go_and_the_limit_holds_in_a_folder_too() {
    let folder = tempfile::tempdir().unwrap();
    for place in [None, Some(folder.path())] {
        let mut memory = Memory::new(Order::TokensFirst, 64, 9);
        (0..8).for_each(|block| memory.fill(block, 64 * block));
        let one = codec(&memory, "int4").entry_bytes(1, key(0).len()) as u64;
        let (blocks, tier) = (memory.lent(), tier(&memory, "int4", place, 3 * one));
        for block in 0..3 {
            tier.store(block as u64, &blocks, &list([block])).unwrap();
            tier.drain();
        }
        tier.touch(0, &[key(0)]);
        tier.store(3, &blocks, &list([3])).unwrap();
        tier.drain();
        let held: Vec<bool> = (0..4).map(|block| tier.held_now(0, &key(block))).collect();
        assert_eq!(held, [true, false, true, true]);
        let usage = tier.usage();
        assert_eq!((usage.entries, usage.bytes, usage.evicted), (3, 3 * one, 1));
        // What was used survives the program, and a smaller limit is kept at once.
        drop(tier);
        if let Some(place) = place {
            fs::write(place.join(".1-0.part"), b"half").unwrap();
            let again = self::tier(&memory, "int4", Some(place), one);
            assert_eq!((again.usage().entries, fs::read_dir(place).unwrap().count()), (1, 1));
            assert!(again.held_now(0, &key(3)));
        }
        let tiny = self::tier(&memory, "int4", None, one - 1);
        tiny.store(9, &blocks, &list([0])).unwrap();
        assert!(tiny.wait(9).unwrap().error.unwrap().contains("raise the limit"));
    }
}

#[test]
fn numbers_that_cannot_be_kept_are_said_and_others_are_kept() {
    let mut memory = Memory::new(Order::TokensFirst, 64, 3);
    (0..2).for_each(|block| memory.fill(block, 64 * block));
    memory.bytes[700] = f16::NAN.to_bits();
    let (blocks, tier) = (memory.lent(), tier(&memory, "int4", None, 1 << 30));
    tier.store(1, &blocks, &list(0..2)).unwrap();
    let done = tier.wait(1).unwrap();
    assert_eq!((done.failed, tier.usage().failed), (vec![key(0)], 1));
    assert!(done.error.unwrap().starts_with("layer 0, kv head"));
    assert_eq!((tier.held(0, &key(0)), tier.held(0, &key(1))), (Held::No, Held::Yes));
    tier.load(2, &blocks, &[(0, key(0), 2)]).unwrap();
    assert_eq!(tier.wait(2).unwrap().error.unwrap(), "the block is not held");
    for (list, words) in [
        (vec![(1, key(0), 0)], "no group 1"),
        (vec![(0, key(0), 3)], "no block 3"),
        (vec![(0, Vec::new(), 0)], "a key of 0 bytes"),
    ] {
        assert!(tier.store(3, &blocks, &list).unwrap_err().to_string().contains(words));
    }
}

#[test]
fn two_tiers_that_race_in_a_small_folder_keep_the_limit_and_every_number() {
    let folder = tempfile::tempdir().unwrap();
    let mut memory = Memory::new(Order::TokensFirst, 16, 64);
    (0..32).for_each(|block| memory.fill(block, 16 * block));
    let one = codec(&memory, "int4").entry_bytes(4, key(10).len()) as u64;
    let tiers: Vec<Tier> = (0..2).map(|_| tier(&memory, "int4", Some(folder.path()), 5 * one)).collect();
    let blocks = memory.lent();
    std::thread::scope(|scope| {
        for tier in &tiers {
            scope.spawn(|| {
                for round in 0..8 {
                    tier.store(round, &blocks, &list(4 * round as usize..4 * round as usize + 4)).unwrap();
                    assert_eq!(tier.wait(round).unwrap().error, None);
                }
            });
        }
    });
    for tier in &tiers {
        assert!(tier.usage().bytes <= 5 * one);
        for round in 0..8 {
            let list: Vec<_> = (4 * round..4 * round + 4).map(|block| (0, key(block), 32 + block)).collect();
            tier.load(100, &blocks, &list).unwrap();
            if tier.wait(100).unwrap().error.is_none() {
                for block in 0..4 {
                    let first = 64 * round;
                    assert_eq!(
                        memory.read(32 + 4 * round + block),
                        expected("int4", first, 64, first + 16 * block, 16)
                    );
                }
            }
        }
    }
}
