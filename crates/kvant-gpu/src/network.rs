//! The compiled model, and a pass through it.

use crate::buffer::Buffer;
use crate::compile::Program;
use crate::device::Gpu;
use crate::latent::Latent;
use crate::layout::LayoutKernels;
use crate::pages::GpuPages;
use crate::pass_buffers::{PassBuffers, enlarge};
use crate::plan::PassParams;
use crate::program::Attention;
use crate::recorder::{BindGroups, Recorder};
use crate::run::Run;
use crate::tables::Tables;
use crate::top::Ranking;
use kvant_cache::{
    CacheError, CacheLayout, KvSlot, PageStore, Sequence, Slots, StateError, StateErrorKind, Store,
};
use kvant_device::Batch;
use kvant_model::description::Rope;
use kvant_model::top::{MOST, TopK, TopTokens};
use kvant_model::{Abilities, AcceptTopK, Network, Outputs, Pass, Rows, Wanted};
use std::sync::{Arc, Mutex, PoisonError};
use tracing::trace_span;

/// Layers after which what is recorded is handed over: the device begins with it while the host records the others.
const EARLY: [usize; 3] = [1, 4, 12];

/// A model on a device. All its passes go one after another.
pub struct GpuNetwork {
    pub(crate) gpu: Gpu,
    pub(crate) pages: Arc<GpuPages>,
    pub(crate) program: Program,
    pub(crate) ropes: Vec<Rope>,
    pub(crate) slots: Slots,
    work: Mutex<Work>,
}

/// What passes use again.
#[derive(Default)]
struct Work {
    buffers: Option<PassBuffers>,
    binds: BindGroups,
    /// Numbers of the buffers of pages that bind groups were made for.
    bound: Vec<u64>,
    layout: Option<(Arc<CacheLayout>, Arc<LayoutKernels>)>,
    tables: Tables,
    ranking: Option<Ranking>,
}

impl GpuNetwork {
    pub(crate) fn new(
        gpu: &Gpu,
        pages: Arc<GpuPages>,
        program: Program,
        ropes: Vec<Rope>,
        slots: Slots,
    ) -> GpuNetwork {
        GpuNetwork { gpu: gpu.clone(), pages, program, ropes, slots, work: Mutex::default() }
    }
}

/// What came back from a pass.
enum Found {
    Logits(Vec<f32>),
    Lists(Vec<Option<TopTokens>>),
}

fn device_error(what: impl Into<String>) -> StateError {
    StateError::new(0, StateErrorKind::Device(what.into()))
}

/// Tokens that the device lists of every row; `None` where rows come as logits: one wants all of them, or a mass.
fn list_count(top: &[Option<TopK>]) -> Option<usize> {
    let count = |top: &Option<TopK>| top.filter(|top| top.temperature.is_none()).map(|top| top.count);
    let counts: Option<Vec<usize>> = top.iter().map(count).collect();
    // Few kernels for all counts.
    Some(counts?.into_iter().max()?.clamp(1, MOST).next_power_of_two())
}

/// The lists that settle their rows, of those that came.
fn accepted(
    wanted: &Wanted,
    lists: Vec<Option<TopTokens>>,
    accept: &AcceptTopK<'_>,
) -> Vec<Option<TopTokens>> {
    let rows = wanted.numbers.iter().zip(&wanted.top).zip(lists);
    let settles = |((number, top), list): ((&usize, &Option<TopK>), Option<TopTokens>)| {
        let mut list = list?;
        list.tokens.truncate(top.map_or(0, |top| top.count));
        accept(*number, &list).then_some(list)
    };
    rows.map(settles).collect()
}

impl Network for GpuNetwork {
    fn forward(&self, pass: Pass<'_>, sequences: &mut [&mut Sequence]) -> Result<Outputs, StateError> {
        let (gpu, stage) = (&self.gpu, trace_span!("plan").entered());
        let mut batch = Batch::of(sequences, &*self.pages)?;
        let layout = Arc::clone(&batch.layout);
        let rows: usize = batch.spans.iter().map(|span| span.tokens).sum();
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let Work { buffers, binds, bound, layout: known, tables, ranking } = &mut *work;
        let kernels = match known {
            Some((same, kernels)) if Arc::ptr_eq(same, &layout) => Arc::clone(kernels),
            _ => {
                let made = LayoutKernels::new(gpu, &layout).map_err(|e| device_error(e.to_string()))?;
                let kernels = Arc::new(made);
                *tables = Tables::new(&kernels, layout.exact_window());
                *known = Some((Arc::clone(&layout), Arc::clone(&kernels)));
                kernels
            }
        };
        if buffers.as_ref().is_none_or(|buffers| buffers.rows < rows) {
            *buffers = Some(PassBuffers::new(gpu, &self.program.widths, rows.next_power_of_two()));
            binds.clear();
        }
        let Some(buffers) = buffers else { return Err(device_error("no buffers")) };
        let most = batch.spans.iter().map(|span| span.positions().end).max().unwrap_or(0);
        batch.sit(tables.seats(&batch.lineages, kernels.kept_pages(layout.exact_window(), most)));
        let spans = batch.spans;
        let mut words = PassParams { first: tables.len(), list: Vec::new() };
        let ids_at = words.add(pass.ids());
        let positions = spans.iter().flat_map(|span| span.positions());
        let positions_at = words.add(positions.map(|position| position as u32));
        let asked = pass.wanted();
        let wanted = &asked.scored;
        let wanted_at = words.add(wanted.iter().map(|row| *row as u32));
        let plan = self.plan(&mut words, &kernels, &layout, &spans, sequences, tables)?;
        let states = self.plan_states(&mut words, &spans, sequences)?;
        let layer_inputs = self.program.embedding.layer_inputs.as_ref();
        let rows_at = layer_inputs.map(|of| (of, words.add(pass.ids().map(|id| of.row_of(id)))));
        drop(stage);
        let stage = trace_span!("write").entered();
        let widths = self.program.widths;
        let mut renewed = enlarge(gpu, "plan", &mut buffers.plan, 4 * words.end());
        renewed |= enlarge(gpu, "partials", &mut buffers.partials, 4 * plan.partial_words);
        renewed |= enlarge(gpu, "states", &mut buffers.states, 4 * states.own_words);
        renewed |= enlarge(gpu, "fresh", &mut buffers.fresh, 4 * states.fresh_words);
        renewed |= buffers.fit(gpu, "prepared", rows, plan.prepared_width);
        if plan.is_streaming() {
            renewed |= buffers.fit(gpu, "queries", 2 * rows, widths.queries);
            renewed |= buffers.fit(gpu, "folded", 2 * rows, widths.folded);
        }
        renewed |= buffers.fit(gpu, "wanted", wanted.len().max(1), widths.hidden);
        renewed |= buffers.fit(gpu, "logits", wanted.len().max(1), widths.vocabulary);
        let count = list_count(&asked.top);
        if let Some(count) =
            count.filter(|count| ranking.as_ref().is_none_or(|r| !r.fits(wanted.len(), *count)))
        {
            let rows = wanted.len().next_power_of_two();
            *ranking = Some(Ranking::new(gpu, rows, widths.vocabulary, count));
            renewed = true;
        }
        let ranking = ranking.as_ref().filter(|_| count.is_some());
        let pages = self.pages.buffers();
        let numbers: Vec<u64> = pages.iter().map(|buffer| buffer.number()).collect();
        if renewed || *bound != numbers {
            binds.clear();
            *bound = numbers;
        }
        tables.upload(gpu, &buffers.plan);
        buffers.plan.write(gpu, 4 * words.first, &words.list);
        buffers.status.write(gpu, 0, &[0]);
        let (x_stride, logits_stride) = (buffers.place("x").stride, buffers.place("logits").stride);
        let list_bytes = ranking.map_or(0, |ranking| ranking.bytes(wanted.len()));
        let read_bytes = (4 * rows * x_stride).max(4 * wanted.len() * logits_stride).max(list_bytes) + 16;
        if buffers.staging.bytes() < read_bytes {
            buffers.staging = Buffer::staging(gpu, read_bytes.next_power_of_two());
        }
        let buffers = &*buffers;
        let logits = buffers.place("logits");
        let recorder = Recorder::new(gpu, binds);
        let mut run = Run {
            network: self,
            buffers,
            kernels: &kernels,
            pages: &pages,
            plan: &plan,
            states: &states,
            rows,
            recorder,
        };
        let mut observer = pass.observer.layers;
        let show = |run: &mut Run<'_>, name: &'static str| {
            let (place, width) = (buffers.place(name), widths.hidden);
            run.recorder.copy(place.buffer, 0, &buffers.staging, 0, 4 * rows * place.stride);
            run.recorder.submit();
            let numbers = read(gpu, &buffers.staging, rows, place.stride, width)?;
            Ok::<Rows, StateError>(Rows::from_vec(numbers, width))
        };
        drop(stage);
        let stage = trace_span!("record").entered();
        run.embed(ids_at, positions_at);
        if let Some((of, rows_at)) = rows_at {
            run.layer_inputs(of, rows_at);
        }
        let streams = self.program.embedding.streams.as_ref();
        if let Some(streams) = streams {
            run.open_streams(streams);
        }
        for (index, layer) in self.program.layers.iter().enumerate() {
            if let Some(observer) = &mut observer {
                observer(index, &show(&mut run, "x")?);
            }
            run.layer(layer);
            if EARLY.contains(&(index + 1)) && !gpu.is_timed() {
                run.recorder.submit();
            }
        }
        if let Some(streams) = streams {
            run.join_streams(streams);
        }
        if let Some(stream) = pass.observer.stream {
            stream(show(&mut run, "x")?);
        }
        let mut hidden = None;
        if observer.is_some() || !asked.hidden.is_empty() {
            run.final_norm(None, rows, "normed");
            let normed = show(&mut run, "normed")?;
            if let Some(observer) = observer {
                observer(self.program.layers.len(), &normed);
            }
            hidden = (!asked.hidden.is_empty()).then(|| asked.hidden_of(&normed));
        }
        if !wanted.is_empty() {
            run.final_norm(Some(wanted_at), wanted.len(), "wanted");
            run.logits(wanted.len());
        }
        run.encode_later();
        let all_bytes = 4 * wanted.len() * logits.stride;
        run.recorder.copy(&buffers.status, 0, &buffers.staging, 0, 16);
        let (from, bytes) = match ranking {
            Some(ranking) => {
                ranking.run(&mut run.recorder, logits, wanted.len(), widths.vocabulary);
                (&ranking.lists, list_bytes)
            }
            None => (logits.buffer, all_bytes),
        };
        if bytes > 0 {
            run.recorder.copy(from, 0, &buffers.staging, 16, bytes);
        }
        drop(stage);
        let stage = trace_span!("submit and wait").entered();
        run.recorder.submit();
        let (mark, found) = buffers
            .staging
            .view(gpu, 16 + bytes, |all| {
                let mark = u32::from_le_bytes([all[0], all[1], all[2], all[3]]);
                let found = match ranking {
                    Some(ranking) => Found::Lists(ranking.read(&all[16..])),
                    None => Found::Logits(unpadded(&all[16..], logits.stride, widths.vocabulary)),
                };
                (mark, found)
            })
            .map_err(device_error)?;
        drop(stage);
        if let Some(fault) = gpu.fault() {
            return Err(device_error(format!("{}: {fault}", gpu.name())));
        }
        if mark > 0 {
            return Err(StateError::new(0, CacheError::OnDevice { layer: mark as usize - 1 }));
        }
        for copy in &states.copies {
            self.pages.copy(copy.from, copy.to, copy.bytes);
        }
        let all = |numbers| Rows::from_vec(numbers, widths.vocabulary);
        let outputs = match found {
            Found::Lists(found) => {
                let settled = accepted(&asked, found, pass.accept);
                let mut logits_of = Vec::new();
                if settled.iter().any(Option::is_none) {
                    run.recorder.copy(logits.buffer, 0, &buffers.staging, 0, all_bytes);
                    run.recorder.submit();
                    let numbers =
                        read(gpu, &buffers.staging, wanted.len(), logits.stride, widths.vocabulary)?;
                    let rows = numbers.chunks(widths.vocabulary).zip(&settled);
                    logits_of =
                        rows.filter(|(_, list)| list.is_none()).flat_map(|(row, _)| row).copied().collect();
                }
                Outputs::new(all(logits_of), settled)
            }
            Found::Logits(numbers) => all(numbers).into(),
        };
        Ok(match hidden {
            Some(hidden) => outputs.with_hidden(&asked, hidden),
            None => outputs,
        })
    }

    fn abilities(&self) -> Abilities {
        Abilities { stream_observer: true, ..Abilities::default() }
    }

    fn output_weights(&self, slot: KvSlot) -> Vec<Rows> {
        let owner = self.slots.owner(slot);
        let branches =
            self.program.layers.iter().flat_map(|layer| &layer.residuals).flat_map(|r| &r.branches);
        let readers = branches.filter_map(|branch| branch.mixer.attention());
        let readers = readers.filter(|of| self.slots.owner(of.slot) == owner);
        // The same tensors were read when the model was compiled.
        let weights = |of: &Attention| match (&of.latent, &of.output_weights) {
            (Some(Latent::Absorbed(own)), tensor) => own.output_weights(tensor),
            (_, tensor) => Some(Rows::from_vec(tensor.to_f32().ok()?, tensor.columns())),
        };
        readers.filter_map(weights).collect()
    }

    fn store(&self) -> Option<Store> {
        let pages: Arc<dyn PageStore> = Arc::clone(&self.pages) as _;
        Some(pages.into())
    }
}

/// Rows of a staging buffer without their padding.
fn read(
    gpu: &Gpu,
    staging: &Buffer,
    rows: usize,
    stride: usize,
    width: usize,
) -> Result<Vec<f32>, StateError> {
    staging.view(gpu, 4 * rows * stride, |bytes| unpadded(bytes, stride, width)).map_err(device_error)
}

fn unpadded(bytes: &[u8], stride: usize, width: usize) -> Vec<f32> {
    let mut numbers = Vec::with_capacity(bytes.len() / (4 * stride) * width);
    for row in bytes.chunks_exact(4 * stride) {
        numbers.extend(row[..4 * width].as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)));
    }
    numbers
}
