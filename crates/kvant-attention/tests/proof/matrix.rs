//! Every spec through everything that may happen to a cache, at every shape of heads: the bits stay those of one quiet
//! reading on one thread.

use crate::codecs::{DIMS, GROUPS, POLICIES, layout};
use crate::model::{Activations, Run, bits, taken};
use kvant_attention::Scoring;
use kvant_cache::snapshot::{Record, write};
use kvant_cache::{Arena, Sequence, Snapshot};
use kvant_codec::Tier;
use kvant_threads::Pool;

/// What happens half-way.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// Other chunks.
    Chunks,
    /// Goes on in a fork, while the first goes another way.
    Fork,
    /// Reads more, and goes back.
    Rollback,
    /// Is saved, and goes on from the file.
    Resume,
}

const EVENTS: [Event; 4] = [Event::Chunks, Event::Fork, Event::Rollback, Event::Resume];
const THREAD_COUNTS: [usize; 7] = [1, 2, 3, 5, 8, 13, 16];
const SIGNATURE: [u8; 32] = [3; 32];

fn resumed(sequence: &Sequence) -> Sequence {
    let tokens: Vec<u32> = (0..sequence.len() as u32).collect();
    let record = Record { signature: SIGNATURE, numerics: [4; 32], policy: "", tokens: &tokens, note: b"" };
    let mut file = Vec::new();
    write(sequence, &record, &mut file).unwrap();
    let saved = Snapshot::from_bytes(file).unwrap();
    saved.sequence(&SIGNATURE, sequence.layout().clone(), Arena::new()).unwrap()
}

/// Takes `run`, which holds `at` tokens, through the event; returns how many it holds then.
fn happen(event: Event, run: &mut Run<'_>, other: &mut Run<'_>, at: usize) -> usize {
    match event {
        Event::Chunks => {}
        Event::Fork => {
            other.sequence = run.sequence.fork().unwrap();
            other.read(at + 70, &[35]);
        }
        Event::Rollback => {
            run.read(at + 70, &[23]);
            return run.sequence.truncate(at).unwrap();
        }
        Event::Resume => run.sequence = resumed(&run.sequence),
    }
    at
}

#[test]
fn nothing_that_happens_to_a_cache_changes_a_bit() {
    let tier = Tier::available().last().unwrap();
    let mut turn = 0;
    for (number, (policy, _)) in POLICIES.into_iter().enumerate() {
        for (column, dim) in DIMS.into_iter().enumerate() {
            turn += 1;
            if !taken(turn) {
                continue;
            }
            // Each list at its own pace, so that over the policies every pair of them meets.
            let group = GROUPS[(number + column) % GROUPS.len()];
            let window = [None, None, Some(150)][(number + 2 * column) % 3];
            let tokens = if dim <= 64 { 610 } else { 250 };
            let at = 100 + 17 * (turn % 5);
            let a = Activations::new(tokens, 1 + turn % 2, group, dim, dim, turn as u64);
            let stray = Activations::new(tokens, 1 + turn % 2, group, dim, dim, 1000 + turn as u64);
            let layout = layout(policy, &a, window, tier);
            let scoring = Scoring::new(0.8);
            let quiet = Run::new(&layout, tier, &a, scoring).read(tokens, &[tokens]);
            for (row, event) in EVENTS.into_iter().enumerate() {
                let threads = THREAD_COUNTS[(turn + row) % THREAD_COUNTS.len()];
                let (from, rest) = Pool::new(threads).install(|| {
                    let mut run = Run::new(&layout, tier, &a, scoring);
                    run.read(at, &[at - 30, 19]);
                    let mut other = Run::new(&layout, tier, &stray, scoring);
                    let from = happen(event, &mut run, &mut other, at);
                    (from, run.read(tokens, &[50, 1, 120]))
                });
                assert_eq!(
                    bits(&rest),
                    bits(&quiet[from * a.heads() * dim..]),
                    "{policy}, d={dim}, group {group}, window {window:?}, {event:?}, {threads} threads"
                );
            }
        }
    }
}

/// Long enough that decoding shares segments between threads.
#[test]
fn any_number_of_threads_decodes_the_same_bits() {
    let tier = Tier::available().last().unwrap();
    for (_, (policy, _)) in POLICIES.into_iter().enumerate().filter(|(turn, _)| taken(*turn)) {
        let a = Activations::new(1700, 1, 3, 64, 64, 11);
        let layout = layout(policy, &a, None, tier);
        let mut steps = Vec::new();
        // In haste only the ends.
        let counts: &[usize] = if taken(1) { &[1, 2, 3, 5, 7, 8, 13, 16] } else { &[1, 2, 16] };
        for &threads in counts {
            steps.push(Pool::new(threads).install(|| {
                let mut run = Run::new(&layout, tier, &a, Scoring::new(0.8));
                let read: Vec<f32> = run.read(1696, &[848]);
                (bits(&read[read.len() - 3 * 64..]), bits(&run.read(1700, &[1])))
            }));
        }
        assert!(steps.iter().all(|step| *step == steps[0]), "{policy}");
    }
}
