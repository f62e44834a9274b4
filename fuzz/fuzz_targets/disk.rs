//! Any bytes as a file of a folder of prefixes: opened, looked up and loaded, or left alone. Nothing of it is believed.
#![no_main]

use kvant_cache::{Arena, CacheLayout, DiskTier, KvShape, Policy, Sequence, Slots};
use libfuzzer_sys::fuzz_target;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

static LAYOUT: LazyLock<Arc<CacheLayout>> = LazyLock::new(|| {
    let policy: Policy = "k=ch4:p32,v=rot4g32:p32".parse().expect("a policy");
    let slots = Slots::uniform(1, KvShape { kv_heads: 1, key_dim: 8, value_dim: 8, window: None });
    Arc::new(CacheLayout::new(&policy, &slots).expect("a layout"))
});

/// A folder with one good file, and where that is. It is left behind in the folder for temporary files.
static FOLDER: LazyLock<(PathBuf, PathBuf, Vec<u8>)> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("kvant-fuzz-disk-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let mut sequence = Sequence::new(LAYOUT.clone(), Arena::new());
    sequence.reserve(36).expect("there is no cap");
    let rows: Vec<f32> = (0..36 * 8).map(|i| (i as f32 * 0.7).sin()).collect();
    let slots = Slots::uniform(1, KvShape { kv_heads: 1, key_dim: 8, value_dim: 8, window: None });
    for slot in slots.kv_slots() {
        sequence.append(slot, &rows, &rows).expect("the rows can be kept");
    }
    sequence.advance(36).expect("all slots have got them");
    tier(&folder).save(&tokens(), &sequence, || true).expect("the folder can be written");
    let mut files = fs::read_dir(&folder).expect("a folder").flatten().map(|entry| entry.path());
    let file = files.find(|path| path.extension().is_some_and(|end| end == "kvant")).expect("a file");
    let bytes = fs::read(&file).expect("a file");
    (folder, file, bytes)
});

fn tier(folder: &std::path::Path) -> DiskTier {
    DiskTier::open(folder, 1 << 20, LAYOUT.clone(), [7; 32], [8; 32], "fuzz").expect("the folder is there")
}

fn tokens() -> Vec<u32> {
    (0..36).collect()
}

fuzz_target!(|bytes: &[u8]| {
    let (folder, file, good) = &*FOLDER;
    // Bytes of the input go over those of the good file, at a place that they name; without one they are the file.
    let content = match bytes.split_first_chunk::<3>() {
        Some(([mode, low, high], rest)) if mode % 2 == 0 => {
            let at = usize::from(u16::from_le_bytes([*low, *high])) % good.len();
            let mut content = good.clone();
            let count = rest.len().min(good.len() - at);
            content[at..at + count].copy_from_slice(&rest[..count]);
            content
        }
        _ => bytes.to_vec(),
    };
    fs::write(file, &content).expect("the file can be written");
    let tier = tier(folder);
    let found = tier.longest(&tokens());
    let loaded = tier.load(&tokens(), Sequence::new(LAYOUT.clone(), Arena::new()));
    assert!(loaded.sequence.iter().all(|sequence| sequence.len() <= 36) && found <= 36);
    // Checksums cover every byte.
    assert_eq!(loaded.sequence.is_some(), content == *good);
});
