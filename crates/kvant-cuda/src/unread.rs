//! Passes that give nothing back, such as all chunks of a prompt but the last: nobody waits for them, so the host plans the next pass
//! and puts it on the stream while the card computes.
//!
//! What such a pass could not store is said by the next pass of the sequence, which then stores nothing either.

use crate::buffer::Pinned;
use crate::device::{CudaGpu, OpenError};
use crate::run::PassBuffers;
use crate::staging::Event;
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
    /// Where its marks come to.
    marks: Option<Pinned>,
    /// The latest first.
    faults: VecDeque<Fault>,
}

struct UnreadPass {
    /// The end of the pass, and bytes of its marks.
    end: Event,
    marks: usize,
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
    /// Notes a pass that nobody waits for. The one before it is settled.
    pub(crate) fn add(
        &mut self,
        card: &Arc<CudaGpu>,
        buffers: &PassBuffers,
        (spans, lineages): (Vec<Span>, Lineages),
        layout: &Arc<CacheLayout>,
    ) -> Result<(), OpenError> {
        let range = buffers.layout.marks..buffers.layout.headers;
        let bytes = range.len();
        let marks = match &mut self.marks {
            Some(marks) if marks.bytes() >= bytes => marks,
            small => small.insert(Pinned::new(card, bytes)?),
        };
        // SAFETY: they are read once the event has come, and given back after the stream was waited for.
        unsafe { marks.begin_read(&buffers.out, range)? };
        let end = Event::record(card)?;
        self.pass = Some(UnreadPass { end, marks: bytes, spans, lineages, layout: Arc::clone(layout) });
        Ok(())
    }

    /// Waits for the noted pass and reads what it could not store.
    pub(crate) fn settle(&mut self) -> Result<(), OpenError> {
        let (Some(pass), Some(marks)) = (self.pass.take(), &self.marks) else { return Ok(()) };
        pass.end.wait()?;
        // SAFETY: the card has written them.
        let marks = unsafe { marks.bytes_at_start(pass.marks) };
        if let Some((sequence, layer)) = refused(marks, &pass.layout, &pass.spans) {
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

impl Drop for Unread {
    fn drop(&mut self) {
        if let Some(pass) = &self.pass {
            let _ = pass.end.wait(); // a lost card copies nothing
        }
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
