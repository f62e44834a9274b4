//! Where the time of passes goes: every launch between two events, and what the host does in between.

use crate::device::{CudaGpu, Kernel, OpenError, failed};
use cudarc::driver::{result, sys};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use tracing::span::EnteredSpan;

/// What a kernel, or a stage of the host, took since [`CudaGpu::profile`] was last read.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileRow {
    /// The kernel's name, or `host: ` and the stage.
    pub name: String,
    /// How often it ran.
    pub count: usize,
    /// Milliseconds of all of them.
    pub milliseconds: f64,
}

/// Sums by name, where somebody asked for them.
#[derive(Default)]
pub(crate) struct Profile {
    is_on: AtomicBool,
    sums: Mutex<BTreeMap<String, (usize, f64)>>,
}

impl Profile {
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    fn add(&self, name: String, milliseconds: f64) {
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = sums.entry(name).or_default();
        *sum = (sum.0 + 1, sum.1 + milliseconds);
    }
}

impl CudaGpu {
    /// Times every launch from now on, or no longer. Kernels that are timed run one after another and in no graph.
    pub fn set_profiling(&self, is_on: bool) {
        self.profile.is_on.store(is_on, Ordering::Relaxed);
    }

    /// What was timed since the last call, the longest first.
    pub fn profile(&self) -> Vec<ProfileRow> {
        let mut sums = self.profile.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let row = |(name, (count, milliseconds))| ProfileRow { name, count, milliseconds };
        let mut rows: Vec<ProfileRow> = std::mem::take(&mut *sums).into_iter().map(row).collect();
        rows.sort_by(|a, b| b.milliseconds.total_cmp(&a.milliseconds));
        rows
    }
}

/// A stage of the host: a span of the log, and a row of the profile.
pub(crate) struct Stage<'a> {
    card: &'a CudaGpu,
    name: &'static str,
    started: Instant,
    _span: EnteredSpan,
}

impl<'a> Stage<'a> {
    pub(crate) fn new(card: &'a CudaGpu, name: &'static str, span: EnteredSpan) -> Stage<'a> {
        Stage { card, name, started: Instant::now(), _span: span }
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        if self.card.profile.is_on() {
            self.card.profile.add(format!("host: {}", self.name), 1e3 * self.started.elapsed().as_secs_f64());
        }
    }
}

/// Events of a stream, destroyed with this.
struct Events(Vec<sys::CUevent>);

impl Events {
    fn record(&mut self, stream: sys::CUstream) -> Result<(), OpenError> {
        let event =
            result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(failed("timing kernels"))?;
        self.0.push(event);
        // SAFETY: the event was made above, and the stream is of the context that is current.
        unsafe { result::event::record(event, stream) }.map_err(failed("timing kernels"))
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        for event in self.0.drain(..) {
            // SAFETY: the event is ours.
            let _ = unsafe { result::event::destroy(event) };
        }
    }
}

/// Launches up to which the stream is held until all are there: more would not fit into the driver's queue with their events.
const HELD: usize = 400;

/// Holds a stream until it is dropped, so that what is put there runs without waiting for the host.
struct Hold(*mut u32);

impl Hold {
    fn new(stream: sys::CUstream) -> Result<Hold, OpenError> {
        let what = || failed("holding a stream");
        // SAFETY: the context is current.
        let word = unsafe { result::malloc_host(4, 0) }.map_err(what())?.cast::<u32>();
        // SAFETY: the word is ours.
        unsafe { word.write_volatile(0) };
        let hold = Hold(word);
        let equal = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_EQ as u32;
        // SAFETY: the word stays until the stream has been waited for; pinned memory has one address for the host and the card.
        unsafe { sys::cuStreamWaitValue32_v2(stream, word as u64, 1, equal) }.result().map_err(what())?;
        Ok(hold)
    }

    fn release(&self) {
        // SAFETY: the word is ours.
        unsafe { self.0.write_volatile(1) };
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.release();
        // SAFETY: it is ours. The driver waits for what still reads it.
        let _ = unsafe { result::free_host(self.0.cast()) };
    }
}

/// Puts launches on the card's stream one by one with an event after each, waits for them, and adds up their times by kernel.
pub(crate) fn run_timed(
    card: &CudaGpu,
    kernels: impl Iterator<Item = Kernel>,
    mut launch: impl FnMut(usize) -> Result<(), OpenError>,
) -> Result<(), OpenError> {
    let kernels: Vec<Kernel> = kernels.collect();
    let stream = card.stream();
    let mut events = Events(Vec::new());
    let hold = (kernels.len() <= HELD).then(|| Hold::new(stream)).transpose()?;
    events.record(stream)?;
    for index in 0..kernels.len() {
        launch(index)?;
        events.record(stream)?;
    }
    hold.iter().for_each(Hold::release);
    card.synchronize()?;
    for (kernel, pair) in kernels.iter().zip(events.0.windows(2)) {
        // SAFETY: both events are of one stream, were recorded and waited for.
        let time = unsafe { result::event::elapsed(pair[0], pair[1]) }.map_err(failed("timing kernels"))?;
        let name = card.kernel_name(*kernel).unwrap_or("a kernel");
        card.profile.add(name.to_owned(), f64::from(time));
    }
    Ok(())
}
