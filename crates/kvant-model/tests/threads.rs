use kvant_attention::KvCache;
use kvant_cpu::LoadOptions;
use kvant_model::{Checkpoint, Chunk, DType, Model, Pass};
use kvant_threads::Pool;
use std::path::Path;

/// Bits of the logits of all tokens, read in chunks of these sizes.
fn in_chunks(model: &Model, tokens: &[u32], sizes: &[usize]) -> Vec<u32> {
    let mut cache = KvCache::reference(model.slots(), tokens.len()).unwrap();
    let mut found = Vec::new();
    let mut rest = tokens;
    for &size in sizes.iter().cycle() {
        let (chunk, after) = rest.split_at(size.min(rest.len()));
        let chunk = Chunk::new(chunk, 0..chunk.len());
        found.extend(
            model
                .forward(Pass::new(&[chunk]), &mut [cache.sequence_mut()])
                .unwrap()
                .into_logits()
                .data()
                .iter()
                .map(|z| z.to_bits()),
        );
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    found
}

/// The same in one pass among other sequences.
fn among_others(model: &Model, tokens: &[u32], others: &[&[u32]]) -> Vec<u32> {
    let mut caches: Vec<_> =
        (0..=others.len()).map(|_| KvCache::reference(model.slots(), tokens.len()).unwrap()).collect();
    let chunks = others.iter().copied().chain([tokens]);
    let chunks: Vec<Chunk<'_>> = chunks.map(|tokens| Chunk::new(tokens, 0..tokens.len())).collect();
    let mut sequences: Vec<_> = caches.iter_mut().map(KvCache::sequence_mut).collect();
    let logits = model.forward(Pass::new(&chunks), &mut sequences).unwrap().into_logits();
    let own = logits.tokens() - tokens.len()..logits.tokens();
    own.flat_map(|row| logits.row(row).iter().map(|z| z.to_bits()).collect::<Vec<_>>()).collect()
}

#[test]
fn logits_have_the_same_bits_in_any_chunks_any_batch_and_on_any_number_of_threads() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    for name in ["gemma3", "gpt_neox", "qwen2_moe", "smollm2"] {
        for weights in [None, Some(DType::Int8G32), Some(DType::Int4G32)] {
            let options = LoadOptions { weights, ..LoadOptions::default() };
            let model = kvant_cpu::load(&Checkpoint::open(root.join(name)).unwrap(), options).unwrap();
            let tokens: Vec<u32> = (0..40).map(|i| (i * 37 + 5) % model.vocabulary() as u32).collect();
            let whole = in_chunks(&model, &tokens, &[40]);
            for threads in [1, 2, 5, 16] {
                let case = format!("{name} {weights:?} with {threads} threads");
                Pool::new(threads).install(|| {
                    for sizes in [&[40][..], &[1], &[16], &[7, 30, 2]] {
                        assert!(in_chunks(&model, &tokens, sizes) == whole, "{case} in chunks of {sizes:?}");
                    }
                    let others = [&tokens[3..20], &tokens[..1], &tokens[5..]];
                    assert!(among_others(&model, &tokens, &others) == whole, "{case} among others");
                });
            }
        }
    }
}
