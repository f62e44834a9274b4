//! Embeddings through their C function, held against the model's hidden states.

use crate::engine::Home;
use crate::support::{fails, ok};
use kvant::*;
use kvant_model::{Chunk, Form, Pass};
use std::ptr::null_mut;

#[test]
fn a_text_becomes_a_vector_of_length_one() {
    let home = Home::new();
    let own = home.own();
    let ids = own.engine().text_prompt("hello there").unwrap();
    let mut kv = own.session().unwrap().into_kv();
    let chunk = [Chunk::new(&ids, 0..ids.len()).form(Form::Hidden)];
    let outputs = own.engine().forward(Pass::new(&chunk), &mut [kv.sequence_mut()]).unwrap();
    let rows: Vec<&[f32]> = (0..ids.len()).map(|row| outputs.row(row).hidden()).collect();
    let hidden = rows[0].len();
    let column = |channel: usize| rows.iter().map(|row| f64::from(row[channel])).sum::<f64>();
    let sums = [
        (0..hidden).map(column).collect::<Vec<f64>>(),
        rows[ids.len() - 1].iter().map(|&x| f64::from(x)).collect(),
    ];
    // SAFETY: everything lives.
    unsafe {
        let (mut vector, mut length) = (vec![0.0_f32; hidden], 0);
        let mut embed = |ids: &[u32], pooling, room| {
            let place = if room == 0 { null_mut() } else { vector.as_mut_ptr() };
            let status =
                kvant_engine_embed(home.engine, ids.as_ptr(), ids.len(), pooling, place, room, &mut length);
            (status, length, vector.clone())
        };
        for (pooling, sum) in [KvantPooling::Mean, KvantPooling::Last].into_iter().zip(&sums) {
            let (status, length, vector) = embed(&ids, pooling as i32, hidden);
            ok(status);
            assert_eq!(length, hidden);
            let scale = sum.iter().map(|x| x * x).sum::<f64>().sqrt();
            let expected: Vec<f32> = sum.iter().map(|x| (x * (1.0 / scale)) as f32).collect();
            assert_eq!(vector, expected, "{pooling:?}");
            assert!((vector.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5);
        }
        let (status, length, _) = embed(&ids, 0, 0);
        ok(status);
        assert_eq!(length, hidden);
        fails(embed(&ids, 0, 1).0, KvantStatus::BufferTooSmall, &["vector"]);
        fails(embed(&ids, 7, hidden).0, KvantStatus::InvalidArgument, &["pooling is 7"]);
        fails(embed(&[], 0, hidden).0, KvantStatus::InvalidArgument, &["empty"]);
        fails(embed(&[9999], 0, hidden).0, KvantStatus::InvalidArgument, &["9999"]);
        fails(embed(&[5; 401], 0, hidden).0, KvantStatus::ContextFull, &["401", "400"]);
    }
    home.free(&[]);
}

/// An encoder is opened as every model is; its vectors are pooled as its files say.
#[test]
fn encoders_give_vectors_too() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../kvant-engine/tests/fixtures/encoders/bert");
    let path = std::ffi::CString::new(folder).unwrap();
    let mut engine = null_mut();
    // SAFETY: everything lives.
    unsafe {
        ok(kvant_engine_open(path.as_ptr(), std::ptr::null(), &mut engine));
        let ids = [2_u32, 5, 9, 3];
        let (mut length, mut vectors) = (0, [[0.0_f32; 16]; 3]);
        let poolings = [KvantPooling::Model, KvantPooling::First, KvantPooling::Mean];
        for (vector, pooling) in vectors.iter_mut().zip(poolings) {
            let room = (vector.as_mut_ptr(), vector.len());
            ok(kvant_engine_embed(engine, ids.as_ptr(), 4, pooling as i32, room.0, room.1, &mut length));
            assert!((vector.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5);
        }
        assert_eq!((length, vectors[0]), (16, vectors[1]), "cls, as 1_Pooling/config.json says");
        assert_ne!(vectors[1], vectors[2]);
        kvant_engine_free(engine);
    }
}
