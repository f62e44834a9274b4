//! States that are stored narrower: their bytes, and how far they lead from f32.

use crate::hybrid::{Hybrid, MIXERS, WIDTH, bits, tokens};
use crate::mixer::Mixer;
use kvant_cache::snapshot::{Record, write};
use kvant_cache::{
    Arena, CacheError, CacheLayout, Policy, RecurrentState, STATE_CHUNK, Sequence, Slots, Snapshot, StateType,
};
use std::sync::Arc;

/// A policy with this type of state.
fn policy(state: StateType) -> String {
    format!("int4;state={state}")
}

/// Rounding by half a step at every chunk's start, which decays as the state does; nothing is rounded twice.
#[test]
fn a_narrower_state_is_near_and_rounded_once_for_every_chunk() {
    let all = tokens(700);
    let out = |state| {
        let hybrid = Hybrid::new(&policy(state), None, true);
        hybrid.read(&mut hybrid.begin(), &all, all.len(), &[512])
    };
    let exact = out(StateType::F32);
    let size = exact.iter().fold(0.0f32, |top, x| top.max(x.abs()));
    // The queries have at most 5 channels of at most 1, and gates are below 1.
    for (state, bound) in [(StateType::Bf16, 5.0 / 256.0), (StateType::Int8, 5.0 / 127.0)] {
        let narrow = out(state);
        // Up to the first chunk's end nothing is stored that could be rounded.
        let (first, later) = (STATE_CHUNK * WIDTH, &narrow[STATE_CHUNK * WIDTH..]);
        assert_eq!(bits(&narrow[..first]), bits(&exact[..first]), "{state}");
        let far = later.iter().zip(&exact[first..]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(far > 0.0 && far < bound * size, "{state}: {far} of {size}");
    }
}

/// By hand: the state at every chunk's start is what its type makes of the f32 state that follows from the one before.
#[test]
fn the_state_that_is_read_is_the_one_that_is_stored() {
    let mixer = Mixer { key: 9, value: 20 };
    let layout = |state: StateType| {
        let mut slots = Slots::new();
        let slot = slots.recurrent(0, mixer.shape());
        let policy: Policy = policy(state).parse().unwrap();
        (Arc::new(CacheLayout::new(&policy, &slots).unwrap()), slot)
    };
    for state in StateType::ALL {
        let (layout, slot) = layout(state);
        let mut sequence = Sequence::new(layout, Arena::new());
        // What the mixer makes of a chunk, and what was stored before.
        let mut before = vec![0.0f32; mixer.shape().state];
        for chunk in 0..4 {
            let rows: Vec<f32> = (chunk * STATE_CHUNK..(chunk + 1) * STATE_CHUNK)
                .flat_map(|position| mixer.row(0, position as u32 % 17, position))
                .collect();
            sequence.reserve(STATE_CHUNK).unwrap();
            let slot = sequence.recurrent_mut(slot).unwrap();
            assert_eq!(slot.state_type(), state);
            slot.push(&rows).unwrap();
            let mut made = Vec::new();
            slot.close(|state, rows| {
                assert_eq!(bits(state), bits(&before), "it goes on from what is stored");
                state.iter_mut().enumerate().for_each(|(i, x)| *x = 0.5 * *x + rows[i % rows.len()]);
                made = state.to_vec();
            })
            .unwrap();
            let (stored, shape) = (slot.state().to_vec(), slot.shape());
            let near = |(x, y): (&f32, &f32)| (x - y).abs() <= 2.0 / 127.0;
            assert!(made.iter().zip(&stored).all(near), "{state}");
            assert_eq!(state == StateType::F32, stored == made, "{state}");
            assert_eq!(slot.part(7..shape.state - 3)[..], stored[7..shape.state - 3]);
            before = stored;
            sequence.advance(STATE_CHUNK).unwrap();
        }
    }
}

/// Bytes are counted: of what is held, of what was estimated, and of a file.
#[test]
fn a_narrower_state_takes_the_bytes_that_its_type_says() {
    let mixer = Mixer { key: 64, value: 128 };
    let mut slots = Slots::new();
    slots.recurrent(0, mixer.shape());
    slots.recurrent(3, mixer.shape());
    let numbers = 64 * 128;
    let of = |state: StateType| {
        let policy: Policy = policy(state).parse().unwrap();
        let layout = Arc::new(CacheLayout::new(&policy, &slots).unwrap());
        let estimate = layout.arena_bytes(200, 50);
        let arena = Arena::with_cap(estimate);
        let mut sequence = Sequence::new(layout, arena.clone());
        for _ in 0..4 {
            sequence.reserve(50).unwrap();
            for (layer, slot) in slots.state_slots().enumerate() {
                let at = sequence.len();
                let rows: Vec<f32> = (at..at + 50).flat_map(|p| mixer.row(layer, p as u32 % 7, p)).collect();
                mixer.read(layer, sequence.recurrent_mut(slot).unwrap(), &rows);
            }
            sequence.advance(50).unwrap();
        }
        let ids: Vec<u32> = (0..200).collect();
        let record = Record { signature: [3; 32], numerics: [4; 32], policy: "", tokens: &ids, note: b"" };
        let mut file = Vec::new();
        write(&sequence, &record, &mut file).unwrap();
        assert!(arena.usage().used <= estimate);
        let footprint = sequence.footprint();
        (footprint.recurrent + footprint.checkpoints, estimate, file.len())
    };
    let [f32, bf16, int8] = StateType::ALL.map(of);
    assert_eq!(
        [StateType::Bf16, StateType::Int8].map(|s| s.bytes(numbers)),
        [2 * numbers, numbers + numbers / 16]
    );
    // How many states are held follows from the f32 and bf16 figures; int8 must agree with that.
    for (name, f32, bf16, int8) in [
        ("held", f32.0, bf16.0, int8.0),
        ("estimated", f32.1, bf16.1, int8.1),
        ("saved", f32.2, bf16.2, int8.2),
    ] {
        let saved = f32 - bf16;
        assert!(saved > 0 && saved.is_multiple_of(2 * numbers), "{name}: {saved} bytes less");
        let states = saved / (2 * numbers);
        assert_eq!(f32 - int8, states * (3 * numbers - numbers / 16), "{name}: {states} states");
    }
}

/// A file says how its states are stored, and is not read as if they were stored otherwise.
#[test]
fn files_of_another_type_are_refused_by_name() {
    let hybrids = StateType::ALL.map(|state| Hybrid::new(&policy(state), None, true));
    let all = tokens(400);
    let ids: Vec<u32> = (0..300).collect();
    let files = hybrids.each_ref().map(|hybrid| {
        let mut sequence = hybrid.begin();
        hybrid.read(&mut sequence, &all, 300, &[77]);
        let record = Record { signature: [3; 32], numerics: [4; 32], policy: "", tokens: &ids, note: b"" };
        let mut file = Vec::new();
        write(&sequence, &record, &mut file).unwrap();
        Snapshot::from_bytes(file).unwrap()
    });
    for (saved, file) in files.iter().enumerate() {
        assert_eq!(file.version(), 3);
        for (own, hybrid) in hybrids.iter().enumerate() {
            let loaded = file.sequence(&[3; 32], hybrid.layout.clone(), Arena::new());
            if own == saved {
                let mut loaded = loaded.unwrap();
                let rest = hybrid.read(&mut loaded, &all, 400, &[9]);
                let fresh = hybrid.read(&mut hybrid.begin(), &all, 400, &[400]);
                assert_eq!(bits(&rest), bits(&fresh[300 * WIDTH..]));
                let other = &hybrids[(own + 1) % 3];
                let refused = loaded.convert(other.layout.clone(), Arena::new()).err();
                assert!(matches!(refused, Some(CacheError::Shape { .. })), "{refused:?}");
            } else {
                let error = loaded.err().unwrap().to_string();
                assert!(error.contains("recurrent state is stored in"), "{error}");
            }
        }
    }
}

/// What bfloat16 would make infinite is refused, as what is infinite already.
#[test]
fn a_state_that_its_type_cannot_hold_is_refused_and_the_chunk_stays_open() {
    let mut slots = Slots::new();
    let slot = slots.recurrent(2, MIXERS[0].shape());
    let layout = Arc::new(CacheLayout::new(&"f16;state=bf16".parse().unwrap(), &slots).unwrap());
    let mut sequence = Sequence::new(layout, Arena::new());
    let state: &mut RecurrentState = sequence.recurrent_mut(slot).unwrap();
    state.push(&vec![0.5; STATE_CHUNK * MIXERS[0].shape().row]).unwrap();
    for odd in [f32::MAX, f32::NAN] {
        let error = state.close(|state, _| state[5] = odd).unwrap_err();
        assert!(matches!(error, CacheError::Row { layer: 2, .. }), "{error}");
    }
    assert_eq!(state.open_tokens(), STATE_CHUNK);
    state.close(|state, _| state[5] = 1.0).unwrap();
    assert_eq!((state.state()[5], state.open_tokens()), (1.0, 0));
}
