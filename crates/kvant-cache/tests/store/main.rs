//! Sequences whose pages a device owns: what is done to them is done by handles, and files are the host's byte for byte.

#[path = "../files/talk.rs"]
mod talk;
mod toy;

use kvant_cache::{
    Arena, ArenaError, CacheError, PageStore, PrefixTree, Sequence, Snapshot, Store, WhenFull,
};
use proptest::prelude::*;
use std::sync::Arc;
use talk::{SIGNATURE, Talk, readable};
use toy::Toy;

fn on(toy: &Arc<Toy>) -> Store {
    Store::from(Arc::clone(toy) as Arc<dyn PageStore>)
}

fn loaded(talk: &Talk, file: &[u8], store: impl Into<Store>) -> Sequence {
    let snapshot = Snapshot::from_bytes(file.to_vec()).unwrap();
    snapshot.sequence(&SIGNATURE, talk.layout.clone(), store).unwrap()
}

const POLICIES: [&str; 5] = [
    "int4",
    "f16;recent=70;state=bf16",
    "f16;recent=70",
    "int4;recent=100;sinks=9;state=int8",
    "k8v4;sinks=0",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// A file loaded to the device, forked, cut, cut out of and saved again is what the host makes of it.
    #[test]
    fn a_device_saves_what_the_host_saves(
        policy in prop::sample::select(&POLICIES),
        window in prop::sample::select(vec![None, Some(60), Some(200)]),
        tokens in 1_usize..500,
        back in 0_usize..150,
        cut in 0_usize..500,
    ) {
        let talk = Talk::mixed(policy, window);
        let file = talk.bytes(&talk.of(tokens), b"note");
        let toy = Toy::new(None);
        let (mut host, mut device) = (loaded(&talk, &file, Arena::new()), loaded(&talk, &file, on(&toy)));
        prop_assert!(talk.bytes(&device, b"note") == file, "saved as it was loaded");

        let (host_fork, device_fork) = (host.fork().unwrap(), device.fork().unwrap());
        prop_assert!(talk.bytes(&device_fork, b"") == talk.bytes(&host_fork, b""));
        let to = tokens.saturating_sub(back);
        prop_assert_eq!(device.truncate(to).unwrap(), host.truncate(to).unwrap());
        prop_assert!(talk.bytes(&device, b"") == talk.bytes(&host, b""));
        let (host_prefix, device_prefix) = (host_fork.prefix(cut).unwrap(), device_fork.prefix(cut).unwrap());
        prop_assert!(talk.bytes(&device_prefix, b"") == talk.bytes(&host_prefix, b""));
        // The fork is what it was.
        prop_assert!(talk.bytes(&device_fork, b"note") == file);
        // Nothing of it can be read on the host.
        for (slot, head, side, _) in talk.layout.sides() {
            let store = device_fork.side(talk.slots.kv(slot).unwrap(), head, side).unwrap();
            prop_assert!(store.sinks().is_none() && (0..9).all(|page| store.encoded(page).is_none()));
            prop_assert!((0..9).all(|page| store.exact(page).is_none()));
        }
        // From the device to the host, and the other way round.
        let back = loaded(&talk, &talk.bytes(&device, b""), Arena::new());
        prop_assert!(readable(&back) == readable(&loaded(&talk, &talk.bytes(&host, b""), Arena::new())));
        drop((device, device_fork, device_prefix));
        prop_assert_eq!((toy.usage().pages, toy.usage().used), (0, 0));
    }

    /// Rows appended from the host become the same pages, and a prefix tree shares them.
    #[test]
    fn rows_from_the_host_become_the_same_pages(
        policy in prop::sample::select(&POLICIES),
        tokens in 1_usize..300,
        more in 1_usize..100,
    ) {
        let talk = Talk::usual(policy, Some(60));
        let toy = Toy::new(None);
        let mut device = Sequence::new(talk.layout.clone(), on(&toy));
        talk.read(&mut device, tokens);
        prop_assert!(talk.bytes(&device, b"") == talk.bytes(&talk.of(tokens), b""));
        let ids: Vec<u32> = (0..tokens as u32).collect();
        let mut tree = PrefixTree::new(talk.layout.clone(), on(&toy), WhenFull::Evict);
        let kept = tree.insert(&ids, &device).unwrap();
        let mut found = tree.find(&ids).unwrap();
        prop_assert_eq!(found.len(), kept);
        talk.read(&mut found, tokens + more);
        talk.read(&mut device, tokens + more);
        prop_assert!(talk.bytes(&found, b"") == talk.bytes(&device, b""));
        let converted = device.convert(talk.layout.clone(), Arena::new()).unwrap();
        prop_assert_eq!(converted.len(), tokens + more);
        drop((device, found));
        tree.clear();
        prop_assert_eq!(toy.usage().pages, 0);
    }
}

/// Pages stay on the device: only what changes travels.
#[test]
fn forks_prefixes_and_rollbacks_move_no_bytes_to_the_host() {
    let talk = Talk::mixed("int4", None);
    let file = talk.bytes(&talk.of(300), b"");
    let toy = Toy::new(None);
    let mut device = loaded(&talk, &file, on(&toy));
    let pages = toy.usage().pages;
    assert!(toy.traffic()[1] >= pages);
    let fork = device.fork().unwrap();
    let [read, written, copied] = toy.traffic();
    // Tails, and rows of open chunks.
    assert_eq!((read, written), (0, 0));
    assert_eq!(toy.usage().pages - pages, copied);
    device.truncate(290).unwrap();
    assert_eq!(toy.traffic()[..2], [0, 0]);
    assert_eq!(fork.prefix(260).unwrap().len(), 260);
    assert_eq!(toy.traffic()[1], 0, "what is cut at a page is shared");
    assert!(!device.store().is_host() && device.store().name() == "toy:0");
    let page =
        fork.side(talk.slots.kv(1).unwrap(), 0, kvant_codec::Side::Key).unwrap().pages().next().unwrap();
    assert!(page.host().is_none() && page.id().is_some() && page.canonical().len() == page.size());
}

#[test]
fn the_cap_of_a_device_is_kept() {
    let talk = Talk::usual("int4", None);
    let toy = Toy::new(Some(60_000));
    let mut device = Sequence::new(talk.layout.clone(), on(&toy));
    talk.read(&mut device, 100);
    let error = device.reserve(1000).unwrap_err();
    assert!(matches!(error, ArenaError::Full { cap: 60_000, .. }), "{error}");
    device.abandon().unwrap();
    assert!(matches!(CacheError::from(error), CacheError::Memory(_)));
    assert!(toy.usage().used <= 60_000 && device.store().cap() == Some(60_000));
    assert!(talk.bytes(&device, b"") == talk.bytes(&talk.of(100), b""));
}
