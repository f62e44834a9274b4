//! What a model leaves of the tokens of a pass, for its head for further tokens.

use crate::engine::Engine;
use kvant_cache::Sequence;
use kvant_model::{AcceptTopK, Chunk, ForwardError, Outputs, Pass, Rows};

/// Runs a pass over these chunks, and where somebody `watches` gives what the last layer left of their tokens, `(tokens, hidden)`: before
/// or after the final norm, as the model's head wants it.
///
/// # Errors
/// As [`Engine::forward`].
pub(crate) fn forward_watched(
    engine: &Engine,
    chunks: &[Chunk<'_>],
    accept: &AcceptTopK<'_>,
    sequences: &mut [&mut Sequence],
    watches: bool,
) -> Result<(Outputs, Option<Rows>), ForwardError> {
    let (mut normed, mut stream) = (None, None);
    let (model, last) = (engine.model(), engine.model().description().layers.len());
    let mut observe = |layer: usize, rows: &Rows| {
        if layer == last {
            normed = Some(rows.clone());
        }
    };
    let mut keep = |rows: Rows| stream = Some(rows);
    let pass = Pass::new(chunks).accept(accept);
    let pass = match model.mtp() {
        Some(mtp) if watches && !mtp.layer.sees_normed => pass.streamed(&mut keep),
        _ if watches => pass.observed(&mut observe),
        _ => pass,
    };
    let outputs = engine.forward(pass, sequences)?;
    Ok((outputs, stream.or(normed)))
}
