//! A pass as a list of launches. A list that comes again becomes a CUDA graph.

use crate::device::{CudaGpu, Kernel, Launch, OpenError, failed};
use crate::product_params::LinearParams;
use crate::profile::run_timed;
use crate::step::StepKey;
use crate::tensor_map::{WideMaps, wide_maps};
use crate::weights::WeightType;
use cudarc::driver::result::stream::StreamKind;
use cudarc::driver::{result, sys};
use std::collections::VecDeque;
use std::sync::Arc;

/// Words that the largest struct of parameters takes.
const PARAM_WORDS: usize = 24;

/// Graphs that are kept.
const GRAPHS: usize = 8;

/// Launches from which on a graph is worth making.
const WORTH_A_GRAPH: usize = 16;

/// One launch with a copy of its parameters.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Recorded {
    kernel: Kernel,
    launch: Launch,
    params: [u64; PARAM_WORDS],
    /// Of a wide product, before the parameters.
    maps: Option<Box<WideMaps>>,
}

/// Launches in order.
pub(crate) struct Recorder<'a> {
    card: &'a CudaGpu,
    launches: Vec<Recorded>,
    /// The first kernel that there is not.
    missing: Option<String>,
    /// The first tensor map that the driver refused.
    refused: Option<OpenError>,
}

impl<'a> Recorder<'a> {
    pub(crate) fn new(card: &'a CudaGpu) -> Recorder<'a> {
        Recorder { card, launches: Vec::new(), missing: None, refused: None }
    }

    pub(crate) fn card(&self) -> &'a CudaGpu {
        self.card
    }

    /// Notes a launch of the kernel of this name.
    pub(crate) fn launch<P: Copy>(&mut self, name: &str, launch: Launch, params: P) {
        self.note(name, launch, params, None);
    }

    /// The same of a product of `kernels/wide.cuh` with all of these weights and activations, which are copied in boxes of so many tokens.
    pub(crate) fn launch_wide<P: Copy>(
        &mut self,
        name: &str,
        launch: Launch,
        params: P,
        (all, kind, box_tokens): (&LinearParams, WeightType, usize),
    ) {
        match wide_maps(all, kind, box_tokens) {
            Ok(maps) => self.note(name, launch, params, Some(Box::new(maps))),
            Err(error) => _ = self.refused.get_or_insert(error),
        }
    }

    fn note<P: Copy>(&mut self, name: &str, launch: Launch, params: P, maps: Option<Box<WideMaps>>) {
        const { assert!(size_of::<P>() <= 8 * PARAM_WORDS && align_of::<P>() <= 8) };
        let Some(kernel) = self.card.kernel(name) else {
            self.missing.get_or_insert_with(|| name.to_owned());
            return;
        };
        let mut words = [0; PARAM_WORDS];
        // SAFETY: the words have room for the struct and are aligned for it, as is asserted above.
        unsafe { words.as_mut_ptr().cast::<P>().write(params) };
        self.launches.push(Recorded { kernel, launch, params: words, maps });
    }

    pub(crate) fn len(&self) -> usize {
        self.launches.len()
    }

    /// Puts what was noted since the last time on the card's stream.
    ///
    /// # Safety
    /// The parameters of every launch are those of its kernel, and their addresses are of memory of the card.
    pub(crate) unsafe fn submit(&mut self, graphs: Option<&mut Graphs>) -> Result<(), OpenError> {
        if let Some(name) = self.missing.take() {
            return Err(OpenError::Driver {
                what: format!("finding the kernel {name}"),
                code: "none".into(),
            });
        }
        if let Some(refused) = self.refused.take() {
            return Err(refused);
        }
        self.card.bind()?;
        let launches = std::mem::take(&mut self.launches);
        if self.card.profile.is_on() {
            let (card, stream) = (self.card, self.card.stream());
            let kernels = launches.iter().map(|launch| launch.kernel);
            // SAFETY: the caller's contract.
            return run_timed(card, kernels, |at| unsafe { run(card, stream, &launches[at..=at]) });
        }
        match graphs {
            // SAFETY: the caller's contract.
            Some(graphs) if launches.len() >= WORTH_A_GRAPH => unsafe { graphs.run(self.card, launches) },
            // SAFETY: as above.
            _ => unsafe { run(self.card, self.card.stream(), &launches) },
        }
    }
}

/// # Safety
/// As [`Recorder::submit`].
unsafe fn run(card: &CudaGpu, stream: sys::CUstream, launches: &[Recorded]) -> Result<(), OpenError> {
    launches.iter().try_for_each(|Recorded { kernel, launch, params, maps }| {
        // SAFETY: the caller's contract.
        unsafe { card.launch(stream, *kernel, *launch, maps.as_deref(), params.as_ptr().cast()) }
    })
}

/// A list of launches that came before.
struct Known {
    launches: Vec<Recorded>,
    /// From the second time on.
    graph: Option<sys::CUgraphExec>,
    /// What it was made of.
    key: Option<StepKey>,
}

/// Lists of launches that came before, with their graphs.
pub(crate) struct Graphs {
    card: Arc<CudaGpu>,
    known: VecDeque<Known>,
}

// SAFETY: handles of the driver's, which any thread may use that has made the context current.
unsafe impl Send for Graphs {}

impl Graphs {
    pub(crate) fn new(card: &Arc<CudaGpu>) -> Graphs {
        Graphs { card: Arc::clone(card), known: VecDeque::new() }
    }

    /// The list that was made of this, if it has a graph.
    pub(crate) fn find(&self, key: &StepKey) -> Option<usize> {
        self.known.iter().position(|known| known.graph.is_some() && known.key.as_ref() == Some(key))
    }

    /// Runs a list that was found, and says how many launches it has.
    ///
    /// # Safety
    /// As [`Recorder::submit`] of the same launches: their memory has the numbers that they were found by.
    pub(crate) unsafe fn again(&mut self, index: usize) -> Result<usize, OpenError> {
        let Some(known) = self.known.remove(index) else { return Ok(0) };
        let (graph, count) = (known.graph, known.launches.len());
        self.known.push_front(known);
        let Some(graph) = graph else { return Ok(0) };
        self.card.bind()?;
        // SAFETY: the caller's contract.
        unsafe { result::graph::launch(graph, self.card.stream()) }.map_err(failed("launching a graph"))?;
        Ok(count)
    }

    /// Notes what the list of so many launches that was run last was made of.
    pub(crate) fn note(&mut self, key: StepKey, launches: usize) {
        if let Some(known) = self.known.front_mut().filter(|known| known.launches.len() == launches) {
            known.key = Some(key);
        }
    }

    /// # Safety
    /// As [`Recorder::submit`].
    unsafe fn run(&mut self, card: &CudaGpu, launches: Vec<Recorded>) -> Result<(), OpenError> {
        let Some(index) = self.known.iter().position(|known| known.launches == launches) else {
            // SAFETY: the caller's contract.
            unsafe { run(card, card.stream(), &launches)? };
            if self.known.len() == GRAPHS
                && let Some(Known { graph: Some(graph), .. }) = self.known.pop_back()
            {
                card.synchronize()?;
                // SAFETY: the graph is ours and has run.
                let _ = unsafe { result::graph::exec_destroy(graph) };
            }
            self.known.push_front(Known { launches, graph: None, key: None });
            return Ok(());
        };
        let Some(mut known) = self.known.remove(index) else { return Ok(()) };
        if known.graph.is_none() {
            // SAFETY: the caller's contract.
            known.graph = Some(unsafe { capture(card, &launches)? });
        }
        let graph = known.graph;
        self.known.push_front(known);
        let Some(graph) = graph else { return Ok(()) };
        // SAFETY: the graph has the launches of the caller's contract.
        unsafe { result::graph::launch(graph, card.stream()) }.map_err(failed("launching a graph"))
    }
}

impl Drop for Graphs {
    fn drop(&mut self) {
        if self.card.synchronize().is_ok() {
            for graph in self.known.drain(..).filter_map(|known| known.graph) {
                // SAFETY: the graph is ours and nothing on the stream uses it any more.
                let _ = unsafe { result::graph::exec_destroy(graph) };
            }
        }
    }
}

/// Makes a graph of launches, on a stream of its own: another network of the card may launch on the card's stream meanwhile, and would find its
/// kernels in this graph.
///
/// # Safety
/// As [`Recorder::submit`].
unsafe fn capture(card: &CudaGpu, launches: &[Recorded]) -> Result<sys::CUgraphExec, OpenError> {
    let stream = result::stream::create(StreamKind::NonBlocking).map_err(failed("making a stream"))?;
    // SAFETY: the stream is of the card's context, and the rest is the caller's contract.
    let captured = unsafe { capture_on(card, stream, launches) };
    // SAFETY: it was made above, and nothing has run on it.
    let _ = unsafe { result::stream::destroy(stream) };
    captured
}

/// # Safety
/// As [`capture`]; nothing else uses the stream.
unsafe fn capture_on(
    card: &CudaGpu,
    stream: sys::CUstream,
    launches: &[Recorded],
) -> Result<sys::CUgraphExec, OpenError> {
    // SAFETY: the caller's contract.
    unsafe {
        result::stream::begin_capture(stream, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
    }
    .map_err(failed("beginning a graph"))?;
    // SAFETY: the caller's contract.
    let noted = unsafe { run(card, stream, launches) };
    // SAFETY: the capture was begun above, and is ended whatever came of it.
    let graph = unsafe { result::stream::end_capture(stream) }.map_err(failed("ending a graph"));
    noted?;
    let graph = graph?;
    // SAFETY: the graph was made above.
    let ready = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) }
        .map_err(failed("making a graph ready"));
    // SAFETY: it is ours; what was made of it does not need it.
    let _ = unsafe { result::graph::destroy(graph) };
    ready
}
