//! Passes that want no row: nobody waits for them, and what went wrong in one is said by the next pass of its sequence.

use super::*;
use half::f16;
use kvant_conformance::wide::tiny;
use kvant_model::ForwardError;
use kvant_model::gguf::Gguf;

/// Reads tokens and wants the logits of the last, or nothing.
fn pass(model: &Model, cache: &mut KvCache, ids: &[u32], wants: bool) -> Result<Vec<u32>, ForwardError> {
    let wanted = if wants { ids.len() - 1..ids.len() } else { 0..0 };
    let outputs = model.forward(Pass::new(&[Chunk::new(ids, wanted)]), &mut [cache.sequence_mut()])?;
    Ok(outputs.into_logits().data().iter().map(|logit| logit.to_bits()).collect())
}

#[test]
fn a_prompt_in_chunks_that_want_nothing_has_the_same_bits() {
    let checkpoint = llama(&tiny(), synth::WeightType::F16);
    let Loaded { backend, model } = load(&card(), &checkpoint);
    let ids = tokens(200, model.vocabulary());
    let mut whole = cache(&model, "int4", Some(backend.store()), 256);
    let truth = pass(&model, &mut whole, &ids, true).unwrap();
    let mut pieces = cache(&model, "int4", Some(backend.store()), 256);
    for piece in ids[..190].chunks(70) {
        assert!(pass(&model, &mut pieces, piece, false).unwrap().is_empty());
    }
    assert_eq!(pass(&model, &mut pieces, &ids[190..], true).unwrap(), truth);
}

#[test]
fn a_fault_nobody_waited_for_is_said_to_its_own_sequence() {
    const BAD: u32 = 7;
    let shape = tiny();
    let mut bytes = synth::model(&shape, synth::WeightType::F16, 5).unwrap().to_bytes().unwrap();
    let gguf = Gguf::from_bytes(bytes.clone()).unwrap();
    let table = gguf.tensor("token_embd.weight").unwrap().bytes().to_vec();
    let at = bytes.windows(64).position(|own| own == &table[..64]).unwrap();
    let row = at + 2 * shape.hidden * BAD as usize;
    bytes[row..row + 2 * shape.hidden].as_chunks_mut().0.fill(f16::INFINITY.to_le_bytes());
    let checkpoint = Checkpoint::from_gguf(Gguf::from_bytes(bytes).unwrap());
    let Loaded { backend, model } = load(&card(), &checkpoint);
    let open = || cache(&model, "int4", Some(backend.store()), 256);
    let (mut bad, mut good) = (open(), open());
    let ids: Vec<u32> = (10..90).collect();
    pass(&model, &mut bad, &[&ids[..], &[BAD]].concat(), false).unwrap();
    let alone = pass(&model, &mut good, &ids, true).unwrap();
    assert_eq!(pass(&model, &mut open(), &ids, true).unwrap(), alone);
    for _ in 0..2 {
        let said = pass(&model, &mut bad, &ids, true).unwrap_err().to_string();
        assert!(said.contains("keys or values of layer 0 cannot be stored"), "{said}");
    }
    // Without the tokens of the fault nothing is wrong with it.
    bad.sequence_mut().truncate(0).unwrap();
    assert_eq!(pass(&model, &mut bad, &ids, true).unwrap(), alone);
    pass(&model, &mut good, &ids, true).unwrap();
}

/// Long contexts to measure speed on are copies of pages, made on the card.
#[test]
fn a_context_is_filled_with_copies_of_its_pages() {
    let checkpoint = llama(&tiny(), synth::WeightType::F16);
    let Loaded { backend, model } = load(&card(), &checkpoint);
    let ids = tokens(141, model.vocabulary());
    for policy in ["int4", "f16;sinks=0", "k8v4;recent=70"] {
        let mut filled = cache(&model, policy, Some(backend.store()), 2048);
        pass(&model, &mut filled, &ids[..140], true).unwrap();
        let slot = model.slots().kv_slots().next().unwrap();
        let held = |cache: &KvCache, side: Side| -> Vec<Vec<u8>> {
            let pages = cache.sequence().side(slot, 0, side).unwrap();
            pages.pages().map(|page| page.canonical().into_owned()).collect()
        };
        let before = [Side::Key, Side::Value].map(|side| held(&filled, side));
        filled.fill(1300).unwrap();
        assert_eq!(filled.len(), 1300, "{policy}");
        for (side, before) in [Side::Key, Side::Value].into_iter().zip(before) {
            let after = held(&filled, side);
            assert!(after.len() > 15 && !before.is_empty(), "{policy} {side:?}: {} pages", after.len());
            let copies = after[before.len()..].iter().zip(before.iter().cycle());
            // Where codes are kept, the last pages are still exact.
            let same = copies.filter(|(page, from)| page == from).count();
            assert!(same + 2 >= after.len() - before.len(), "{policy} {side:?}: {same} copies");
        }
        let next = pass(&model, &mut filled, &ids[140..], true).unwrap();
        assert!(next.iter().all(|logit| f32::from_bits(*logit).is_finite()), "{policy}");
    }
}
