//! What the host sends to the card without waiting for it: bytes are put into pinned memory, from where the card copies them when its stream
//! has come so far. Memory that is not pinned would be copied from only after all that is on the stream.

use crate::buffer::Pinned;
use crate::device::{CudaGpu, OpenError, failed};
use crate::params::Address;
use cudarc::driver::{result, sys};
use std::sync::Arc;

/// An event of the card's stream.
pub(crate) struct Event {
    card: Arc<CudaGpu>,
    event: sys::CUevent,
}

// SAFETY: a handle of the driver's, which any thread may use that has made the context current.
unsafe impl Send for Event {}

impl Event {
    /// After all that was put on the stream.
    pub(crate) fn record(card: &Arc<CudaGpu>) -> Result<Event, OpenError> {
        card.bind()?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
            .map_err(failed("making an event"))?;
        let own = Event { card: Arc::clone(card), event };
        // SAFETY: the event was made above, and the stream is of the card's context.
        unsafe { result::event::record(event, card.stream()) }.map_err(failed("noting an event"))?;
        Ok(own)
    }

    /// Waits until the stream has come there.
    pub(crate) fn wait(&self) -> Result<(), OpenError> {
        self.card.bind()?;
        // SAFETY: the event is ours.
        unsafe { result::event::synchronize(self.event) }.map_err(failed("waiting for the card"))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.card.bind().is_ok() {
            // SAFETY: the event is ours.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}

/// Pinned memory for what is sent, and when the card has copied it.
#[derive(Default)]
struct Turn {
    memory: Option<Pinned>,
    copied: Option<Event>,
}

impl Turn {
    /// Its memory, of so many bytes at least, once the card no longer reads it.
    fn ready(&mut self, card: &Arc<CudaGpu>, bytes: usize) -> Result<&mut Pinned, OpenError> {
        if let Some(copied) = self.copied.take() {
            copied.wait()?;
        }
        if self.memory.as_ref().is_none_or(|memory| memory.bytes() < bytes) {
            self.memory = None; // before the larger one is taken
        }
        match &mut self.memory {
            Some(memory) => Ok(memory),
            none => Ok(none.insert(Pinned::new(card, bytes.next_power_of_two())?)),
        }
    }
}

/// Two of them in turns.
pub(crate) struct Staging {
    card: Arc<CudaGpu>,
    turns: [Turn; 2],
    next: usize,
}

impl Staging {
    pub(crate) fn new(card: &Arc<CudaGpu>) -> Staging {
        Staging { card: Arc::clone(card), turns: Default::default(), next: 0 }
    }

    /// Writes bytes to where they belong, after all that was put on the stream. They may change once this returns.
    ///
    /// # Safety
    /// The ranges are memory of the card.
    pub(crate) unsafe fn send(&mut self, pieces: &[(Address, &[u8])]) -> Result<(), OpenError> {
        let bytes = pieces.iter().map(|(_, bytes)| bytes.len()).sum();
        if bytes == 0 {
            return Ok(());
        }
        let turn = &mut self.turns[self.next];
        self.next ^= 1;
        let memory = turn.ready(&self.card, bytes)?;
        let mut at = 0;
        for (to, bytes) in pieces.iter().filter(|(_, bytes)| !bytes.is_empty()) {
            // SAFETY: the range is the caller's, and the event below is waited for before the memory is written again or given back.
            unsafe { memory.send(at, *to, bytes)? };
            at += bytes.len();
        }
        turn.copied = Some(Event::record(&self.card)?);
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let _ = self.card.synchronize(); // a lost card copies nothing
    }
}
