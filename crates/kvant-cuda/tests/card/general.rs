//! Pages of every codec: what the card writes is what the CPU's codec makes of the same rows, and what it reads of them is what the CPU reads.

use crate::{Loaded, cache, card, count, load, on_cpu};
use kvant_cache::snapshot::{self, Record};
use kvant_cache::{KvSlot, PageStore, Sequence, Snapshot};
use kvant_codec::{Element, PageCodec, PageFormat, Side};
use kvant_conformance::reading::{distance, read, tokens};
use kvant_conformance::wide::{llama, shape};
use kvant_model::synth::{self, Shape};

/// Every family and rule, in pages of every size; then how many bytes of a hundred may differ: a Fourier basis is a matrix on the card, whose sums have
/// another order.
const CODECS: [(&str, usize); 18] = [
    ("trellis3", 0),
    ("k=trellis4.5,v=trellis2", 0),
    ("delta4", 0),
    ("k=delta3:token,p32,v=delta5:srht", 0),
    ("turbo3", 0),
    ("polar4", 0),
    ("k=polar3:p32,v=polar5", 0),
    ("iq4_nl", 0),
    ("kivi2", 0),
    ("k=sym5g32:p32,v=ch6:p128", 0),
    ("k=chg4,v=nf4", 0),
    ("k=uniform4,v=qjl1", 0),
    ("k=max5g32,v=srht4g32", 0),
    ("k=ch3,v=rot3g32", 0),
    ("k=klt3:p32,v=klt4", 0),
    ("k=tq4,v=tq3", 0),
    ("k=klt3.2:trellis,v=trellis3", 0),
    ("k=srft4g32,v=asym4g32", 1),
];

/// The first page of a side of a head, in the canonical layout.
fn page(
    sequence: &Sequence,
    store: &dyn PageStore,
    slot: KvSlot,
    head: usize,
    side: Side,
    is_exact: bool,
) -> Vec<u8> {
    let of = sequence.layout().slots()[slot.index()].heads()[head].side(side).unwrap();
    let pages = sequence.side(slot, head, side).unwrap();
    let (id, bytes) = match is_exact {
        true => (pages.exact_id(0), of.exact().page_bytes()),
        false => (pages.encoded_id(0), of.codec().page_bytes()),
    };
    let mut found = vec![0; bytes];
    store.read(id.unwrap(), &mut found);
    found
}

#[test]
fn pages_of_every_codec_are_the_cpus_bytes() {
    let card = card();
    // 80 channels first: no power of two, nor whole groups.
    for dim in [80, 64, 128].into_iter().take(count(3, 1)) {
        let one = Shape { layers: 1, ..shape(4, 1, dim) };
        let checkpoint = llama(&one, synth::WeightType::F16);
        let Loaded { backend, model } = load(&card, &checkpoint);
        // A page of 128 tokens after the sinks.
        let n = count(300, 136);
        let ids = tokens(n, model.vocabulary());
        let slot = model.slots().kv_slots().next().unwrap();
        let host = on_cpu(&checkpoint);
        for (codec, most) in CODECS.into_iter().step_by(count(1, 3)) {
            let open = |text: &str| cache(&model, text, Some(backend.store()), 320);
            let mut coded = open(codec);
            read(&model, &mut coded, &ids, &[n]);
            // Its keys and values do not depend on the cache in the first layer.
            let mut kept = open(&format!("{codec};recent=160"));
            read(&model, &mut kept, &ids[..136], &[136]);
            for side in [Side::Key, Side::Value] {
                let store = &**backend.pages();
                let rows_kept = page(kept.sequence(), store, slot, 0, side, true);
                let found = page(coded.sequence(), store, slot, 0, side, false);
                let layout = coded.sequence().layout();
                let codecs = layout.slots()[slot.index()].heads()[0].side(side).unwrap();
                let tokens = codecs.page_tokens();
                assert!(
                    matches!(codecs.exact().format(), Some(PageFormat::Exact(format)) if format.element == Element::F16)
                );
                let number =
                    |i: usize| half::f16::from_le_bytes([rows_kept[2 * i], rows_kept[2 * i + 1]]).to_f32();
                let at = |n: usize| match side {
                    Side::Key => n % dim * tokens + n / dim,
                    Side::Value => n,
                };
                let rows: Vec<f32> = (0..tokens * dim).map(|n| number(at(n))).collect();
                let mut want = vec![0; found.len()];
                codecs.codec().encode(&rows, &mut want).unwrap();
                let off = found.iter().zip(&want).filter(|(found, want)| found != want).count();
                let first = found.iter().zip(&want).position(|(found, want)| found != want);
                println!(
                    "{codec} d{dim} {side:?}: {off} of {} bytes differ, the first {first:?}",
                    found.len()
                );
                assert!(100 * off <= most * found.len(), "{codec} d{dim} {side:?}: not the CPU's bytes");
            }
            // The CPU goes on over the same pages, and rounds queries and weights to bytes.
            let (mut file, mut there) = (Vec::new(), cache(&host, codec, None, 320));
            let record =
                Record { signature: [1; 32], numerics: [2; 32], policy: codec, tokens: &ids, note: b"" };
            snapshot::write(coded.sequence(), &record, &mut file).unwrap();
            there.restore(&Snapshot::from_bytes(file).unwrap(), &[1; 32]).unwrap();
            let more = [5, 17, 3];
            let found = read(&model, &mut coded, &more, &[2, 1]);
            let off = distance(&found, &read(&host, &mut there, &more, &[3]));
            println!("{codec} d{dim}: off by {off:.1e} over the same pages");
            assert!(off <= 4e-2, "{codec} d{dim}: {off:.1e}");
        }
    }
}
