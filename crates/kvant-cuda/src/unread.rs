//! Passes that give nothing back, such as all chunks of a prompt but the last: nobody waits for them, so the host plans the next pass
//! while the card computes.
//!
//! What such a pass could not store is said by the next pass of the sequence, before it computes anything.

use crate::buffer::Pinned;
use crate::device::{CudaGpu, OpenError};
use crate::outputs::{Found, Head, Slice};
use crate::run::PassBuffers;
use kvant_cache::{CacheError, CacheLayout, StateError};
use kvant_device::Span;
use std::collections::VecDeque;
use std::sync::Arc;

/// [`kvant_cache::Sequence::lineage`] of the sequences of a pass.
pub(crate) type Lineages = Vec<u64>;

/// Faults that are kept: more than sequences that run at once.
const FAULTS: usize = 1024;

/// The last pass, where nobody has waited for it, and what those before it could not store.
#[derive(Default)]
pub(crate) struct Unread {
    pass: Option<UnreadPass>,
    /// The latest first.
    faults: VecDeque<Fault>,
}

struct UnreadPass {
    spans: Vec<Span>,
    lineages: Lineages,
    layout: Arc<CacheLayout>,
}

/// Numbers of a sequence that could not be stored.
struct Fault {
    lineage: u64,
    /// Where the pass began: without the tokens from here on nothing is wrong with the sequence.
    start: usize,
    layer: usize,
}

impl Unread {
    /// Notes a pass that nobody waits for.
    pub(crate) fn add(&mut self, spans: Vec<Span>, lineages: Lineages, layout: &Arc<CacheLayout>) {
        self.pass = Some(UnreadPass { spans, lineages, layout: Arc::clone(layout) });
    }

    /// Waits for the noted pass and reads what it could not store. The buffers must still be those of that pass.
    pub(crate) fn settle(
        &mut self,
        card: &Arc<CudaGpu>,
        buffers: Option<&PassBuffers>,
        out: &mut Option<Pinned>,
        width: usize,
    ) -> Result<(), OpenError> {
        let (Some(pass), Some(buffers)) = (self.pass.take(), buffers) else { return Ok(()) };
        let slice = Slice { buffers, first: 0, rows: 0, width, top: None };
        let head = Head { scale: 1.0, cap: None };
        let marks = Found::default().read(out, card, &slice, &head, &|_, _| false)?;
        if let Some((sequence, layer)) = refused(&marks, &pass.layout, &pass.spans) {
            let (lineage, start) = (pass.lineages[sequence], pass.spans[sequence].start);
            self.faults.truncate(FAULTS - 1);
            self.faults.push_front(Fault { lineage, start, layer });
        }
        Ok(())
    }

    /// Refuses a pass over tokens that could not be stored.
    pub(crate) fn check(&mut self, lineages: &[u64], spans: &[Span]) -> Result<(), StateError> {
        for (sequence, (lineage, span)) in lineages.iter().zip(spans).enumerate() {
            self.faults.retain(|fault| fault.lineage != *lineage || fault.start < span.start);
            if let Some(Fault { layer, .. }) = self.faults.iter().find(|fault| fault.lineage == *lineage) {
                return Err(StateError::new(sequence, CacheError::OnDevice { layer: *layer }));
            }
        }
        Ok(())
    }
}

/// Refuses what a pass could not store.
pub(crate) fn check_marks(marks: &[u8], layout: &CacheLayout, spans: &[Span]) -> Result<(), StateError> {
    match refused(marks, layout, spans) {
        Some((sequence, layer)) => Err(StateError::new(sequence, CacheError::OnDevice { layer })),
        None => Ok(()),
    }
}

/// The sequence and the layer of what could not be stored, by the marks of all slots.
fn refused(marks: &[u8], layout: &CacheLayout, spans: &[Span]) -> Option<(usize, usize)> {
    let (marks, _) = marks.as_chunks();
    layout.slots().iter().enumerate().find_map(|(index, slot)| {
        let mark = |what: usize| marks.get(2 * index + what).map_or(0, |mark| i32::from_le_bytes(*mark));
        let (appended, encoded) = (mark(0), mark(1));
        let row = usize::try_from(appended).unwrap_or(0).saturating_sub(1);
        let sequence = spans.iter().rposition(|span| span.row <= row).unwrap_or(0);
        (appended != 0 || encoded != 0).then_some((sequence, slot.layer()))
    })
}
