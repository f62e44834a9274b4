//! What a pass may bring and ask for: ids or embeddings, positions, logits or hidden states.

use kvant_attention::KvCache;
use kvant_cpu::LoadOptions;
use kvant_model::{Checkpoint, Chunk, Form, ForwardError, Model, Output, Outputs, Pass, Positions, Rows};
use std::path::Path;

const IDS: [u32; 9] = [5, 1, 40, 7, 7, 23, 2, 60, 11];

fn folder(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn load(name: &str) -> Model {
    kvant_cpu::load(&Checkpoint::open(folder(name)).unwrap(), LoadOptions::default()).unwrap()
}

/// One pass of an empty sequence.
fn read(model: &Model, pass: Pass<'_>) -> Result<Outputs, ForwardError> {
    model.forward(pass, &mut [KvCache::reference(model.slots(), 64).unwrap().sequence_mut()])
}

fn bits(outputs: Outputs) -> Vec<u32> {
    outputs.into_logits().data().iter().map(|z| z.to_bits()).collect()
}

/// What the first layer gets of ids.
fn first_rows(model: &Model, ids: &[u32]) -> Rows {
    let mut first = None;
    let mut keep = |layer: usize, rows: &Rows| {
        if layer == 0 {
            first = Some(rows.clone());
        }
    };
    read(model, Pass::new(&[Chunk::new(ids, 0..0)]).observed(&mut keep)).unwrap();
    first.unwrap()
}

#[test]
fn embeddings_give_the_bits_of_the_ids_they_are_of() {
    // Gemma's rows are scaled, Granite's by a number of its own.
    for name in ["llama", "gemma3", "granite", "qwen3_next", "deepseek_v2"] {
        let model = load(name);
        let rows = first_rows(&model, &IDS);
        let expected = bits(read(&model, Pass::new(&[Chunk::new(&IDS, 0..9)])).unwrap());
        let found = bits(read(&model, Pass::new(&[Chunk::of_embeddings(&rows, 0..9)])).unwrap());
        assert!(found == expected, "{name}");

        // Embeddings first, then ids of the same sequence.
        let mut cache = KvCache::reference(model.slots(), 64).unwrap();
        let start = Rows::from_vec(rows.data()[..4 * rows.width()].to_vec(), rows.width());
        model.forward(Pass::new(&[Chunk::of_embeddings(&start, 0..0)]), &mut [cache.sequence_mut()]).unwrap();
        let rest = bits(
            model.forward(Pass::new(&[Chunk::new(&IDS[4..], 0..5)]), &mut [cache.sequence_mut()]).unwrap(),
        );
        assert!(rest == expected[expected.len() / 9 * 4..], "{name}: ids after embeddings");
    }
}

#[test]
fn learned_positions_are_added_to_embeddings() {
    let checkpoint = Checkpoint::open(folder("gpt2")).unwrap();
    let table = checkpoint.tensor("transformer.wte.weight").unwrap();
    let width = table.columns();
    let mut rows = vec![0.0; IDS.len() * width];
    for (row, id) in rows.chunks_exact_mut(width).zip(IDS) {
        table.row_f32(id as usize, row).unwrap();
    }
    let (model, rows) = (load("gpt2"), Rows::from_vec(rows, width));
    let expected = bits(read(&model, Pass::new(&[Chunk::new(&IDS, 0..9)])).unwrap());
    assert!(bits(read(&model, Pass::new(&[Chunk::of_embeddings(&rows, 0..9)])).unwrap()) == expected);
}

#[test]
fn hidden_states_are_what_observers_see_last_and_stand_beside_logits() {
    let model = load("llama");
    let mut last = None;
    let mut keep = |_: usize, rows: &Rows| last = Some(rows.clone());
    let logits =
        read(&model, Pass::new(&[Chunk::new(&IDS, 0..9)]).observed(&mut keep)).unwrap().into_logits();
    let last = last.unwrap();
    let hidden = read(&model, Pass::new(&[Chunk::new(&IDS, 2..9).form(Form::Hidden)])).unwrap();
    assert_eq!(hidden.rows(), 7);
    assert!((0..7).all(|row| hidden.row(row) == Output::Hidden(last.row(row + 2))));
    assert_eq!(hidden.into_logits().tokens(), 0);
    assert_eq!(logits.tokens(), 9);
}

#[test]
fn positions_may_be_given_and_their_own_change_nothing() {
    for name in ["llama", "gpt2", "deepseek_v2"] {
        let model = load(name);
        let expected = bits(read(&model, Pass::new(&[Chunk::new(&IDS, 0..9)])).unwrap());
        let own: Vec<usize> = (0..9).collect();
        let each = [Chunk::new(&IDS, 0..9).at(Positions::Each(&own))];
        assert!(bits(read(&model, Pass::new(&each)).unwrap()) == expected, "{name}");
        // Rotations know distances alone, learned positions do not.
        let later: Vec<usize> = own.iter().map(|at| at + 7).collect();
        let each = [Chunk::new(&IDS, 0..9).at(Positions::Each(&later))];
        let moved = read(&model, Pass::new(&each)).unwrap().into_logits();
        let expected: Vec<f32> = expected.into_iter().map(f32::from_bits).collect();
        let far = moved.data().iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert_eq!(far < 1e-3, name != "gpt2", "{name}: {far}");
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let model = load("llama");
    let refused = |pass: Pass<'_>| read(&model, pass).unwrap_err().to_string();
    let narrow = Rows::from_vec(vec![0.0; 6], 3);
    let said = refused(Pass::new(&[Chunk::of_embeddings(&narrow, 0..1)]));
    assert!(said.starts_with("2 rows of 3 numbers for 2 tokens of "), "{said}");
    let three = [Chunk::new(&IDS[..1], 0..1).at(Positions::Three(&[[0, 0, 0]]))];
    let said = refused(Pass::new(&three));
    assert_eq!(said, "cpu cannot run this model with three positions a token (M-RoPE)");
    let said = refused(Pass::new(&[Chunk::new(&IDS, 0..0).at(Positions::Each(&[1, 2]))]));
    assert_eq!(said, "2 positions for 9 rows: give one for each");
    let said = refused(Pass::new(&[Chunk::new(&IDS, 0..9).form(Form::Top(&[None]))]));
    assert_eq!(said, "1 lists for 9 rows: give one for each");
    // Every layer of Gemma 3n looks ids up.
    let model = load("gemma3n");
    let rows = first_rows(&model, &IDS);
    let said = read(&model, Pass::new(&[Chunk::of_embeddings(&rows, 0..1)])).unwrap_err().to_string();
    assert_eq!(said, "cpu cannot run this model with rows of embeddings as input");
}
