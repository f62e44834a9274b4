//! Prefixes in a folder: what is found again, and what is not.

mod support;

use kvant_cache::disk::Loaded;
use kvant_cache::{Arena, CacheLayout, DiskError, DiskTier, Sequence};
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use support::*;
use tempfile::TempDir;

const SIGNATURE: [u8; 32] = [0x5a; 32];
const NUMERICS: [u8; 32] = [0x17; 32];
const PLENTY: u64 = 1 << 30;

fn open_with(folder: &Path, limit: u64, layout: &Arc<CacheLayout>) -> DiskTier {
    DiskTier::open(folder, limit, layout.clone(), SIGNATURE, NUMERICS, "test").unwrap()
}

fn open(folder: &TempDir) -> DiskTier {
    open_with(folder.path(), PLENTY, &usual())
}

fn empty(layout: &Arc<CacheLayout>) -> Sequence {
    Sequence::new(layout.clone(), Arena::new())
}

fn save(tier: &DiskTier, layout: &Arc<CacheLayout>, tokens: &[u32]) -> usize {
    tier.save(tokens, &fresh(layout, tokens), || true).unwrap()
}

fn load(tier: &DiskTier, layout: &Arc<CacheLayout>, tokens: &[u32]) -> Loaded {
    tier.load(&tokens[..tier.longest(tokens)], empty(layout))
}

/// The files of prefixes, by size.
fn files(folder: &Path) -> Vec<(u64, PathBuf)> {
    let paths = fs::read_dir(folder).unwrap().map(|item| item.unwrap().path());
    let ours = paths.filter(|path| path.extension().is_some_and(|extension| extension == "kvant"));
    let mut files: Vec<_> = ours.map(|path| (fs::metadata(&path).unwrap().len(), path)).collect();
    files.sort();
    files
}

fn total(folder: &Path) -> u64 {
    files(folder).iter().map(|(bytes, _)| bytes).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// After a restart everything is found that was saved, bit for bit, and every page is there once.
    #[test]
    fn the_longest_saved_beginning_is_found_after_a_restart(prompts in prompts(10), held in 0_usize..4) {
        let (layout, folder) = (usual(), TempDir::new().unwrap());
        let mut known = Vec::new();
        for prompt in prompts {
            let tier = open(&folder);
            prop_assert!(tier.unusable_files().is_none());
            let expected = longest(&known, &prompt);
            prop_assert_eq!(tier.longest(&prompt), expected);
            // Some of it may be in memory already.
            let base = fresh(&layout, &prompt[..whole(held * PAGE).min(expected)]);
            let start = base.len();
            let loaded = tier.load(&prompt[..expected], base);
            prop_assert!(loaded.refused.is_none());
            prop_assert_eq!(loaded.sequence.is_some(), expected > start);
            let mut sequence = loaded.sequence.unwrap_or_else(|| fresh(&layout, &prompt[..start]));
            prop_assert!(same(&sequence, &fresh(&layout, &prompt[..expected])));
            read(&mut sequence, &prompt);
            prop_assert!(same(&sequence, &fresh(&layout, &prompt)));
            prop_assert_eq!(tier.save(&prompt, &sequence, || true).unwrap(), whole(prompt.len()));
            known.push(prompt);
            let steps = steps(&known);
            prop_assert_eq!(files(folder.path()).len(), steps.len());
            prop_assert_eq!(tier.usage().bytes, total(folder.path()));
        }
    }

    /// Windows and recent rows: whatever is found is right, and what was saved last is found whole.
    #[test]
    fn windows_and_recent_rows_come_back_as_they_were(
        prompts in prompts(8),
        case in prop::sample::select(vec![
            ("k=ch4:p32,v=rot4g32:p32;sinks=3", Some(50)),
            ("k=ch4:p32,v=rot4g32:p32;sinks=3;recent=50", None),
            ("f16:p32;sinks=3;recent=40", Some(70)),
        ]),
    ) {
        let (layout, folder) = (layout(case.0, case.1), TempDir::new().unwrap());
        let mut known = Vec::new();
        for prompt in prompts {
            let tier = open_with(folder.path(), PLENTY, &layout);
            let found = tier.longest(&prompt);
            prop_assert!(found <= longest(&known, &prompt));
            let mut sequence = match found {
                0 => empty(&layout),
                _ => load(&tier, &layout, &prompt).sequence.expect("what is promised is there"),
            };
            prop_assert_eq!(sequence.len(), found);
            prop_assert!(same(&sequence, &fresh(&layout, &prompt[..found])));
            read(&mut sequence, &prompt);
            prop_assert!(same(&sequence, &fresh(&layout, &prompt)));
            let held = sequence.prefix(whole(prompt.len())).unwrap();
            let saved = tier.save(&prompt, &held, || true).unwrap();
            prop_assert_eq!(saved, whole(held.len()));
            if held.len() == whole(prompt.len()) {
                prop_assert_eq!(tier.longest(&prompt), saved);
            }
            known.push(prompt);
        }
    }

    /// No damage is ever read.
    #[test]
    fn a_damaged_file_is_not_used(at in 0.0_f64..1.0, flip in 1_u8..=255, cut in any::<bool>(), which in 0_usize..3) {
        let (layout, folder) = (usual(), TempDir::new().unwrap());
        let tokens = prompt(&[(1, SINKS + PAGE), (2, PAGE), (3, PAGE)]);
        let names = (1..=3).map(|steps| {
            save(&open(&folder), &layout, &tokens[..SINKS + steps * PAGE]);
            let names = files(folder.path()).into_iter().map(|(_, path)| path);
            names.max_by_key(|path| fs::metadata(path).unwrap().modified().unwrap()).unwrap()
        });
        let path = &names.collect::<Vec<_>>()[which];
        let before = SINKS + which * PAGE;
        let before = if which == 0 { 0 } else { before };
        let mut bytes = fs::read(path).unwrap();
        let place = (at * bytes.len() as f64) as usize;
        if cut {
            bytes.truncate(place);
        } else {
            bytes[place] ^= flip;
        }
        fs::write(path, &bytes).unwrap();
        let tier = open(&folder);
        let loaded = load(&tier, &layout, &tokens);
        // Damage is found at the start, or when the file is wanted.
        let warned = tier.unusable_files().map(str::to_owned).or(loaded.refused).expect("it is told");
        prop_assert!(warned.contains(path.file_name().unwrap().to_str().unwrap()), "{}", warned);
        prop_assert_eq!(loaded.sequence.as_ref().map_or(0, Sequence::len), before);
        if let Some(sequence) = loaded.sequence {
            prop_assert!(same(&sequence, &fresh(&layout, &tokens[..before])));
        }
        prop_assert_eq!(tier.longest(&tokens), before, "it is not tried again");
        // Computed anew, it is replaced.
        prop_assert_eq!(save(&tier, &layout, &tokens), tokens.len());
        drop(tier);
        let tier = open(&folder);
        prop_assert!(tier.unusable_files().is_none());
        prop_assert!(same(&load(&tier, &layout, &tokens).sequence.unwrap(), &fresh(&layout, &tokens)));
    }
}

/// Numbers under a right checksum are no more to be believed than those under a wrong one.
#[test]
fn absurd_numbers_do_no_harm() {
    let (layout, folder) =
        (layout("k=ch4:p32,v=rot4g32:p32;sinks=3;recent=40", Some(50)), TempDir::new().unwrap());
    let tokens = prompt(&[(1, SINKS + PAGE), (2, PAGE), (3, PAGE)]);
    save(&open_with(folder.path(), PLENTY, &layout), &layout, &tokens);
    let mut found = 0;
    for (_, path) in files(folder.path()) {
        let bytes = fs::read(&path).unwrap();
        let preamble = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) as usize;
        for at in (16..preamble).step_by(8).filter(|at| !(32..64).contains(at)) {
            for number in [0, 1, 3, 67, 1 << 16, u64::MAX / 2, u64::MAX] {
                let mut other = bytes.clone();
                let end = (at + 8).min(preamble);
                other[at..end].copy_from_slice(&number.to_le_bytes()[..end - at]);
                let sum = crc32fast::hash(&other[16..preamble]);
                other[12..16].copy_from_slice(&sum.to_le_bytes());
                fs::write(&path, &other).unwrap();
                let tier = open_with(folder.path(), PLENTY, &layout);
                if let Some(mut sequence) = load(&tier, &layout, &tokens).sequence {
                    found += 1;
                    read(&mut sequence, &[&tokens[..], &[5; 70]].concat());
                }
            }
        }
        fs::write(&path, &bytes).unwrap();
    }
    assert!(found > 10, "the seal is right, so what changes no structure loads: {found}");
}

#[test]
fn files_of_other_caches_are_left_alone_and_counted() {
    let (layout, folder) = (usual(), TempDir::new().unwrap());
    let tokens = prompt(&[(1, SINKS + 3 * PAGE)]);
    save(&open(&folder), &layout, &tokens);
    // Neither a note, nor a folder, nor a file that is called like one of ours.
    fs::write(folder.path().join("notes.kvant"), "mine").unwrap();
    fs::create_dir(folder.path().join("more")).unwrap();
    let other = DiskTier::open(folder.path(), PLENTY, layout.clone(), [1; 32], NUMERICS, "test").unwrap();
    let said = other.unusable_files().unwrap();
    assert!(said.contains("3 files") && said.contains("another model"), "{said}");
    assert_eq!((other.longest(&tokens), other.usage().files), (0, 3));
    save(&other, &layout, &tokens);
    assert_eq!(other.usage().files, 6);
    drop(other);
    // A file under another's name is no better than a damaged one.
    let ours = files(folder.path()).into_iter().map(|(_, path)| path).collect::<Vec<_>>();
    fs::copy(&ours[1], &ours[2]).unwrap();
    let tier = open(&folder);
    assert!(tier.unusable_files().is_some());
    let found = load(&tier, &layout, &tokens);
    assert!(
        found.sequence.is_none_or(|sequence| same(&sequence, &fresh(&layout, &tokens[..sequence.len()])))
    );
    assert_eq!(fs::read(folder.path().join("notes.kvant")).unwrap(), b"mine");
}

#[test]
fn the_limit_is_held_and_the_oldest_go() {
    let (layout, folder) = (usual(), TempDir::new().unwrap());
    let talks: Vec<Vec<u32>> = (0..8).map(|i| prompt(&[(9, SINKS + PAGE), (i, 2 * PAGE)])).collect();
    save(&open(&folder), &layout, &talks[0]);
    // Room for the beginning that all have in common, and three ends.
    let sizes: Vec<u64> = files(folder.path()).into_iter().map(|(bytes, _)| bytes).collect();
    let limit = sizes.iter().sum::<u64>() + 4 * sizes[0];
    {
        let tier = open_with(folder.path(), limit, &layout);
        for talk in &talks[1..5] {
            assert_eq!(save(&tier, &layout, talk), talk.len());
            assert!(total(folder.path()) <= limit);
        }
        let found: Vec<usize> = talks.iter().map(|talk| tier.longest(talk)).collect();
        let (start, end) = (SINKS + PAGE, SINKS + 3 * PAGE);
        assert_eq!(found, [start, start, end, end, end, start, start, start]);
        // A use in memory counts, and is known after a restart.
        tier.touch(&talks[2]);
        tier.flush();
    }
    let tier = open_with(folder.path(), limit, &layout);
    save(&tier, &layout, &talks[6]);
    assert_eq!(tier.longest(&talks[2]), talks[2].len());
    assert_eq!(tier.longest(&talks[3]), SINKS + PAGE);
    drop(tier);
    // A smaller limit is held from the start, and one too small for anything writes nothing.
    let tier = open_with(folder.path(), 2 * sizes[2], &layout);
    assert!(total(folder.path()) <= 2 * sizes[2] && tier.longest(&talks[6]) >= SINKS + PAGE);
    drop(tier);
    let tier = open_with(folder.path(), 10, &layout);
    assert_eq!((total(folder.path()), save(&tier, &layout, &talks[0])), (0, 0));
    assert_eq!(tier.usage().files, 0);
}

#[test]
fn loads_stay_within_the_cap_on_memory() {
    let (layout, folder) = (usual(), TempDir::new().unwrap());
    let tokens = prompt(&[(1, SINKS + 6 * PAGE)]);
    let tier = open(&folder);
    save(&tier, &layout, &tokens);
    let needed = fresh(&layout, &tokens).footprint().bytes();
    let arena = Arena::with_cap(needed / 2);
    let loaded = tier.load(&tokens, Sequence::new(layout.clone(), arena.clone()));
    let sequence = loaded.sequence.unwrap();
    assert!(loaded.refused.is_none(), "no file is to blame");
    assert!((SINKS + PAGE..tokens.len()).contains(&sequence.len()));
    assert!(same(&sequence, &fresh(&layout, &tokens[..sequence.len()])));
    assert!(arena.usage().used > 0 && arena.usage().mapped == 0);
    drop(sequence);
    assert_eq!((arena.usage().used, tier.longest(&tokens)), (0, tokens.len()));
}

#[test]
fn what_cannot_be_used_is_refused_at_the_start() {
    let (layout, folder) = (usual(), TempDir::new().unwrap());
    let refused = |path: &Path| {
        let error = DiskTier::open(path, PLENTY, layout.clone(), SIGNATURE, NUMERICS, "test").err().unwrap();
        assert!(error.to_string().starts_with(&path.display().to_string()), "{error}");
        error
    };
    assert!(matches!(refused(&folder.path().join("nowhere")), DiskError::Folder { .. }));
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(refused(&file), DiskError::Folder { .. }));
    #[cfg(target_os = "linux")]
    assert!(matches!(refused(Path::new("/proc")), DiskError::Folder { .. }));
}

#[test]
fn servers_share_a_folder() {
    let (layout, folder) = (usual(), TempDir::new().unwrap());
    let (first, second) = (open(&folder), open(&folder));
    let tokens = prompt(&[(1, SINKS + 4 * PAGE)]);
    assert_eq!(second.longest(&tokens), 0);
    save(&first, &layout, &tokens);
    assert_eq!(second.longest(&tokens), tokens.len());
    assert!(same(&load(&second, &layout, &tokens).sequence.unwrap(), &fresh(&layout, &tokens)));
    // What is there is not written again.
    assert_eq!((save(&second, &layout, &tokens), second.usage().written), (tokens.len(), 0));
    // What another has removed was never there, and nobody is to blame.
    files(folder.path()).iter().for_each(|(_, path)| fs::remove_file(path).unwrap());
    let loaded = second.load(&tokens, empty(&layout));
    assert!(loaded.sequence.is_none() && loaded.refused.is_none());
    assert_eq!((second.longest(&tokens), second.usage().refused), (0, 0));
    assert_eq!((save(&second, &layout, &tokens[..SINKS + PAGE]), second.usage().written), (SINKS + PAGE, 1));
    // What a living server may be writing is left alone; what the dead have left is swept.
    let name = files(folder.path())[0].1.file_name().unwrap().to_str().unwrap().to_owned();
    let part = folder.path().join(format!(".{name}.1-0.part"));
    fs::write(&part, "half").unwrap();
    drop((first, open(&folder)));
    assert!(part.exists());
    drop(second);
    open(&folder);
    assert!(!part.exists());
}

#[test]
fn servers_that_write_at_once_leave_whole_files() {
    let (layout, folder) = (usual(), TempDir::new().unwrap());
    let prompts: Vec<Vec<u32>> =
        (0..6).map(|n| prompt(&[(1, SINKS + 2 * PAGE), (10 + n, 2 * PAGE)])).collect();
    std::thread::scope(|scope| {
        for server in 0..3 {
            let (layout, prompts, folder) = (&layout, &prompts, &folder);
            scope.spawn(move || {
                let tier = open(folder);
                for turn in 0..prompts.len() {
                    let tokens = &prompts[(turn + 2 * server) % prompts.len()];
                    save(&tier, layout, tokens);
                    let loaded = load(&tier, layout, tokens);
                    assert!(loaded.refused.is_none());
                    assert!(same(&loaded.sequence.unwrap(), &fresh(layout, tokens)));
                }
            });
        }
    });
    let tier = open(&folder);
    assert!(tier.unusable_files().is_none());
    for tokens in &prompts {
        assert!(same(&load(&tier, &layout, tokens).sequence.unwrap(), &fresh(&layout, tokens)));
    }
    assert_eq!(files(folder.path()).len(), steps(&prompts).len());
}

#[test]
fn saving_can_be_broken_off_and_taken_up_again() {
    let (layout, folder) = (usual(), TempDir::new().unwrap());
    let tokens = prompt(&[(1, SINKS + 4 * PAGE)]);
    let sequence = fresh(&layout, &tokens);
    let tier = open(&folder);
    let mut left = 2;
    let some = tier.save(&tokens, &sequence, || {
        left -= 1;
        left >= 0
    });
    assert_eq!((some.unwrap(), tier.longest(&tokens)), (SINKS + 2 * PAGE, SINKS + 2 * PAGE));
    assert_eq!(tier.save(&tokens, &sequence, || true).unwrap(), tokens.len());
    assert_eq!(tier.usage().written, 4);
    assert_eq!(tier.save(&tokens, &sequence, || panic!("everything is there")).unwrap(), tokens.len());
    // What a killed writer has left goes, and what only looks like it stays.
    drop(tier);
    let name = files(folder.path())[0].1.file_name().unwrap().to_str().unwrap().to_owned();
    fs::write(folder.path().join(format!(".{name}.1-0.part")), "half").unwrap();
    fs::write(folder.path().join(".mine.1-0.part"), "mine").unwrap();
    let tier = open(&folder);
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|item| item.unwrap().file_name()).collect();
    let parts: Vec<_> = names.iter().filter(|name| name.to_string_lossy().ends_with(".part")).collect();
    assert_eq!(parts, [".mine.1-0.part"]);
    // A folder that is gone is an error, and nothing else.
    drop(folder);
    let longer = [tokens, vec![7; PAGE]].concat();
    let error = tier.save(&longer, &fresh(&layout, &longer), || true).unwrap_err();
    assert!(error.to_string().starts_with("cannot make a file in this folder"), "{error}");
    // What another server may have removed is not there, and that is all.
    let gone = load(&tier, &layout, &longer);
    assert!(gone.refused.is_none() && gone.sequence.is_none());
}

/// Files of every version that was ever written must keep loading.
#[test]
fn version_2_loads() {
    let (layout, folder) = (usual(), TempDir::new().unwrap());
    let tokens: Vec<u32> = (0..(SINKS + 2 * PAGE) as u32).collect();
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/version-2");
    for (_, path) in files(&kept) {
        fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let tier = open(&folder);
    assert_eq!((tier.longest(&tokens), tier.unusable_files()), (tokens.len(), None));
    let loaded = load(&tier, &layout, &tokens).sequence.unwrap();
    assert_eq!(tier.other_numerics(), 2, "they do not say how their numbers were computed");
    // Every page is the bytes of a file.
    let bytes: Vec<u8> = files(&kept).into_iter().flat_map(|(_, path)| fs::read(path).unwrap()).collect();
    let is_there = |page: &[u8]| bytes.windows(page.len()).any(|window| window == page);
    for (slot, head, side, _) in layout.sides() {
        let store = loaded.side(layout.slot_list().kv(slot).unwrap(), head, side).unwrap();
        assert!(is_there(store.sinks().unwrap()) && store.pages().len() == 2);
        assert!(store.pages().all(|page| is_there(&page.canonical())));
    }
    // Written again, it is found as it was.
    let again = TempDir::new().unwrap();
    open(&again).save(&tokens, &loaded, || true).unwrap();
    let tier = open(&again);
    assert!(same(&load(&tier, &layout, &tokens).sequence.unwrap(), &loaded));
    assert_eq!((tier.other_numerics(), tier.usage().files), (0, 2));
}

/// A change of rounding does not make files useless.
#[test]
fn files_of_other_numerics_are_used_and_counted() {
    let (layout, folder) = (usual(), TempDir::new().unwrap());
    let tokens = prompt(&[(1, SINKS + 3 * PAGE)]);
    save(&open(&folder), &layout, &tokens);
    let other = DiskTier::open(folder.path(), PLENTY, layout.clone(), SIGNATURE, [9; 32], "test").unwrap();
    assert_eq!((other.other_numerics(), other.unusable_files()), (3, None));
    assert_eq!(load(&other, &layout, &tokens).sequence.unwrap().len(), tokens.len());
}

/// Something small lies beside the prefixes, whole or not at all.
#[test]
fn what_lies_beside_is_of_one_signature_and_checked() {
    let (layout, folder) = (usual(), TempDir::new().unwrap());
    let tier = open(&folder);
    assert_eq!(tier.beside("answers", 100), None);
    tier.put_beside("answers", b"earlier").unwrap();
    tier.put_beside("answers", b"later").unwrap();
    assert_eq!(tier.beside("answers", 100).as_deref(), Some(&b"later"[..]));
    assert_eq!((tier.beside("answers", 4), tier.beside("others", 100)), (None, None));
    let foreign = DiskTier::open(folder.path(), PLENTY, layout, [1; 32], NUMERICS, "test").unwrap();
    assert_eq!(foreign.beside("answers", 100), None);
    // It is no prefix.
    let path = fs::read_dir(folder.path()).unwrap().map(|item| item.unwrap().path());
    let path = path.into_iter().find(|path| path.extension().is_some_and(|end| end == "answers")).unwrap();
    assert_eq!((open(&folder).usage().files, files(folder.path()).len()), (0, 0));
    let bytes = fs::read(&path).unwrap();
    for (at, mask) in [(0, 1), (bytes.len() - 1, 0x80)] {
        let mut damaged = bytes.clone();
        damaged[at] ^= mask;
        fs::write(&path, damaged).unwrap();
        assert_eq!(tier.beside("answers", 100), None);
    }
    for cut in 0..bytes.len() {
        fs::write(&path, &bytes[..cut]).unwrap();
        assert_eq!(tier.beside("answers", 100), None);
    }
    drop((tier, foreign));
    // What a killed writer has left goes.
    let name = path.file_name().unwrap().to_str().unwrap();
    let left = folder.path().join(format!(".{name}.7-1.part"));
    fs::write(&left, b"half").unwrap();
    open(&folder);
    assert!(!left.exists() && path.exists());
}
