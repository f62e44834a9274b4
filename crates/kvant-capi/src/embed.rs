//! Texts as vectors.

use crate::engine::KvantEngine;
use crate::memory::{borrow, fill, list, out};
use crate::status::{Failure, KvantStatus, guard};
use kvant_engine::scheduler::Pooling;
use kvant_engine::{GenerateError, LoadedModel, PREFILL_CHUNK};
use kvant_model::{Chunk, Form, Pass};

/// How the vectors of tokens become that of a text.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvantPooling {
    /// Their mean.
    Mean = 0,
    /// That of the last token, which has seen all others.
    Last = 1,
    /// That of the first token (cls), which encoders teach to stand for the text.
    First = 2,
    /// As the model's files say; the mean where they do not.
    Model = 3,
}

/// Makes a vector of length 1 of a text's tokens: what the last layer makes of them, in one. `pooling` is of kvant_pooling. `length` gets
/// the numbers of a vector, also where the buffer is too small; without a buffer (NULL and 0) that is all. Sessions of the engine are
/// not touched, and any number of threads may call this at once.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_engine_embed(
    engine: *const KvantEngine,
    tokens: *const u32,
    count: usize,
    pooling: i32,
    vector: *mut f32,
    capacity: usize,
    length: *mut usize,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (opened, ids) = unsafe { (&borrow(engine, "engine")?.0.opened, list(tokens, count, "tokens")?) };
        let pooling = match pooling {
            0 => KvantPooling::Mean,
            1 => KvantPooling::Last,
            2 => KvantPooling::First,
            3 => KvantPooling::Model,
            other => {
                return Err(Failure::argument(format!("pooling is {other}, and not one of kvant_pooling")));
            }
        };
        let hidden = opened.engine().model().description().hidden;
        if capacity < hidden {
            // SAFETY: the caller's contract.
            unsafe { out(length, "length") }?.set(hidden);
            if vector.is_null() && capacity == 0 {
                return Ok(());
            }
            let message = format!("vector: there is room for {capacity}, and {hidden} are needed");
            return Err(Failure::new(KvantStatus::BufferTooSmall, message));
        }
        let found = embed(opened, ids, pooling)?;
        // SAFETY: the caller's contract.
        unsafe { fill(&found, (vector, capacity), length, "vector") }
    })
}

fn embed(opened: &LoadedModel, ids: &[u32], pooling: KvantPooling) -> Result<Vec<f32>, Failure> {
    if ids.is_empty() {
        return Err(GenerateError::EmptyPrompt.into());
    }
    let engine = opened.engine();
    let pooling = match pooling {
        KvantPooling::Mean => Pooling::Mean,
        KvantPooling::First => Pooling::First,
        KvantPooling::Last => Pooling::Last,
        KvantPooling::Model => engine.pooling().map_err(|why| Failure::new(KvantStatus::Unsupported, why))?,
    };
    if engine.model().is_encoder() {
        return Ok(engine.embed_text(ids, pooling)?);
    }
    let mut kv = opened.session()?.into_kv();
    if ids.len() > kv.capacity() {
        let message = format!("the text has {} tokens, but the context holds {}", ids.len(), kv.capacity());
        return Err(Failure::new(KvantStatus::ContextFull, message));
    }
    let mut sum = vec![0.0; opened.engine().model().description().hidden]; // (hidden)
    let mut left = ids.len();
    for tokens in ids.chunks(PREFILL_CHUNK) {
        left -= tokens.len();
        let wanted = match pooling {
            Pooling::Mean => 0..tokens.len(),
            Pooling::First if left + tokens.len() == ids.len() => 0..1,
            Pooling::Last if left == 0 => tokens.len() - 1..tokens.len(),
            Pooling::First | Pooling::Last => 0..0,
        };
        let chunk = [Chunk::new(tokens, wanted).form(Form::Hidden)];
        let outputs = opened.engine().forward(Pass::new(&chunk), &mut [kv.sequence_mut()]);
        let outputs = outputs.map_err(GenerateError::Forward)?;
        for row in 0..outputs.rows() {
            for (sum, &x) in sum.iter_mut().zip(outputs.row(row).hidden()) {
                *sum += f64::from(x);
            }
        }
    }
    let length = sum.iter().map(|x| x * x).sum::<f64>().sqrt();
    let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
    Ok(sum.iter().map(|x| (x * scale) as f32).collect())
}
