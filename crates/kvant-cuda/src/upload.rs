//! Weights from a file to the card.
//!
//! Blocks go as the file has them: threads copy pieces of the mapped file into pinned memory, the card copies each piece while the next
//! one is filled, and kernels (`kernels/relay.cu`) lay the blocks anew where products look for them. The host never touches a code of the
//! types that have such a kernel; rows of all others are decoded by all its threads, and rounded to f16 once.
//!
//! Products take weights as f16 numbers. A kernel notes on its way how large the numbers of a matrix may be: where that is beyond f16, the
//! matrix is laid once more under a power of two. f32 and bf16 are measured first, and refused where f16 does not hold them.

use crate::buffer::{Buffer, Pinned, upload};
use crate::device::{CudaGpu, Launch, OpenError, failed};
use crate::matrix::{Matrix, on_card};
use crate::mixer_params::RelayParams;
use crate::recorder::Recorder;
use crate::weights::{TILE_ROWS, WeightType};
use cudarc::driver::{result, sys};
use half::f16;
use kvant_device::LoadProgress;
use kvant_model::error::{LoadError, Result};
use kvant_model::{DType, Tensor};
use kvant_threads::for_each_chunk;
use std::sync::{Arc, Mutex, PoisonError};

/// Pieces that are under way at once.
const SLOTS: usize = 4;

/// Bytes of a piece, at most, where rows are not longer.
const PIECE: usize = 16 << 20;

/// Bytes that a thread copies at a time.
const SHARE: usize = 512 << 10;

/// Rows of gates, and of ups, that follow each other in a tile.
const PAIRED: usize = TILE_ROWS / 2;

/// The most tiles of a launch.
const TILES: usize = 65_535;

/// The largest number of f16: weights are f16 numbers in products.
const LARGEST: f32 = 65504.0;

/// How the numbers of a tensor come to the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// What they are there.
    pub kind: WeightType,
    /// The kernel that lays blocks of the file anew: `relay_{from}`.
    from: &'static str,
    numbers: Numbers,
}

/// What is done about numbers that f16 does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbers {
    /// Nothing: they are f16 numbers.
    Half,
    /// Codes under scales, which a power of two can make smaller.
    Blocks,
    /// Wide numbers, rounded to f16 once under a power of two: bf16 loses none of its bits.
    Wide,
    /// Decoded by the host and rounded to f16 once.
    Decoded,
}

impl Route {
    /// `None` for tables of integers.
    fn of(tensor: &Tensor) -> Option<Route> {
        use WeightType as To;
        let route = |kind, from, numbers| Some(Route { kind, from, numbers });
        let decoded = route(To::F16, "f32", Numbers::Decoded);
        if tensor.scales().is_some() {
            return decoded;
        }
        match tensor.dtype() {
            // kvant's own types have the bytes of their ggml twins.
            DType::Q4_0 | DType::Int4G32 => route(To::Q4_0, "q4_0", Numbers::Blocks),
            DType::Q8_0 | DType::Int8G32 => route(To::Q8_0, "q8_0", Numbers::Blocks),
            // Codes of 5 bits, and levels of a table, are bytes under the same scales.
            DType::Q5_0 => route(To::Q8_0, "q5_0", Numbers::Blocks),
            DType::IQ4_NL => route(To::Q8_0, "iq4_nl", Numbers::Blocks),
            DType::IQ4_XS => route(To::Q8_0, "iq4_xs", Numbers::Blocks),
            DType::Q4_K => route(To::Q4K, "q4_k", Numbers::Blocks),
            DType::Q5_K => route(To::Q5K, "q5_k", Numbers::Blocks),
            DType::Q6_K => route(To::Q6K, "q6_k", Numbers::Blocks),
            // Codes of 3 bits are codes of 6 under the same scales.
            DType::Q3_K => route(To::Q6K, "q3_k", Numbers::Blocks),
            DType::Q4_1 => route(To::Q4_1, "q4_1", Numbers::Blocks),
            DType::MXFP4 => route(To::Mxfp4, "mxfp4", Numbers::Blocks),
            DType::F16 => route(To::F16, "f16", Numbers::Half),
            DType::BF16 => route(To::F16, "bf16", Numbers::Wide),
            DType::F32 => route(To::F16, "f32", Numbers::Wide),
            DType::U8 | DType::I32 | DType::I64 => None,
            DType::Q5_1
            | DType::Q2_K
            | DType::Q8_K
            | DType::IQ3_S
            | DType::IQ3_XXS
            | DType::IQ2_S
            | DType::IQ2_XS
            | DType::IQ2_XXS
            | DType::NVFP4
            | DType::F8_E4M3
            | DType::F4_E2M1
            | DType::Int8G16
            | DType::Int8G64
            | DType::Int4G16
            | DType::Int4G64 => decoded,
        }
    }

    /// The same, or why there is none for this tensor.
    fn checked(tensor: &Tensor, label: &str) -> Result<Route> {
        let refuse = |what: String| {
            LoadError::unsupported(format!(
                "tensor {:?} {what}, which {label} does not multiply; it does every type of weights in rows of whole blocks of 64 numbers. Run it with `--device cpu`, or convert the weights",
                tensor.name()
            ))
        };
        let route = Route::of(tensor).ok_or_else(|| refuse(format!("is {}", tensor.dtype())))?;
        let (block, _) = route.kind.device_block();
        if tensor.is_empty() || !tensor.columns().is_multiple_of(block) {
            return Err(refuse(format!("has rows of {} numbers, not of whole {block}", tensor.columns())));
        }
        Ok(route)
    }

    /// Bytes of a row on its way.
    fn row_bytes(self, tensor: &Tensor) -> usize {
        match self.numbers {
            Numbers::Decoded => 4 * tensor.columns(),
            Numbers::Half | Numbers::Blocks | Numbers::Wide => tensor.row_bytes(),
        }
    }
}

/// How the rows of a matrix lie on the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// As they are stored.
    Stored,
    /// Of every run of so many rows, whole tiles, eight of the first half and eight of the second in every tile: gates and ups.
    Paired(usize),
}

impl RowOrder {
    /// The stored row that lies at a place.
    fn stored(self, place: usize) -> usize {
        match self {
            RowOrder::Stored => place,
            RowOrder::Paired(run) => {
                let within = place % run;
                let (tile, half) = (within / TILE_ROWS, within % TILE_ROWS / PAIRED);
                place - within + half * run / 2 + tile * PAIRED + within % PAIRED
            }
        }
    }
}

/// What weights pass through on their way.
pub(crate) struct Uploader {
    card: Arc<CudaGpu>,
    slots: Vec<Slot>,
    next: usize,
    /// What kernels found: the largest number, and whether one is none of f16's.
    found: Buffer,
    seen: Pinned,
    heard: Option<LoadProgress>,
    done: u64,
    total: u64,
}

/// A piece: memory of the card, and pinned memory. The first waits for the stream when it goes, so that no copy reads the second after it.
struct Slot {
    device: Buffer,
    host: Pinned,
    copied: Event,
}

impl Slot {
    fn new(card: &Arc<CudaGpu>, bytes: usize) -> Result<Slot, OpenError> {
        let (device, host) = (Buffer::new(card, bytes)?, Pinned::new(card, bytes)?);
        Ok(Slot { device, host, copied: Event::new(card)? })
    }
}

/// A place in the card's stream.
struct Event {
    card: Arc<CudaGpu>,
    event: sys::CUevent,
}

impl Event {
    fn new(card: &Arc<CudaGpu>) -> Result<Event, OpenError> {
        card.bind()?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
            .map_err(failed("making an event"))?;
        Ok(Event { card: Arc::clone(card), event })
    }

    /// It is where the stream ends now.
    fn record(&self) -> Result<(), OpenError> {
        // SAFETY: the event is ours, and the stream is of its card.
        unsafe { result::event::record(self.event, self.card.stream()) }.map_err(failed("marking a copy"))
    }

    /// Waits until all before it is done; at once where it was never recorded.
    fn wait(&self) -> Result<(), OpenError> {
        self.card.bind()?;
        // SAFETY: the event is ours.
        unsafe { result::event::synchronize(self.event) }.map_err(failed("waiting for a copy"))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.card.bind().is_ok() {
            // SAFETY: the event is ours, and one that is not reached yet may go.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}

/// A matrix on its way, or what is measured of it.
#[derive(Clone, Copy)]
enum Purpose {
    Measure,
    /// To this address, over a power of two.
    Relay(u64, f32),
}

impl Uploader {
    /// For weights of so many bytes.
    pub(crate) fn new(card: &Arc<CudaGpu>, total: u64, heard: Option<LoadProgress>) -> Result<Uploader> {
        let found = Buffer::new(card, 8).map_err(on_card)?;
        let seen = Pinned::new(card, 8).map_err(on_card)?;
        Ok(Uploader {
            card: Arc::clone(card),
            slots: Vec::new(),
            next: 0,
            found,
            seen,
            heard,
            done: 0,
            total,
        })
    }

    /// Uploads matrices of one type and width as one, rows of the first stored before those of the next.
    pub(crate) fn matrix(&mut self, tensors: &[Tensor], order: RowOrder) -> Result<Matrix> {
        let [first, ..] = tensors else { return Err(LoadError::mismatch("a matrix of no tensors")) };
        let routes = tensors.iter().map(|tensor| Route::checked(tensor, &self.card.label()));
        let routes = routes.collect::<Result<Vec<_>>>()?;
        let (route, channels) = (routes[0], first.columns());
        if routes.iter().any(|other| *other != route) {
            return Err(LoadError::mismatch(format!(
                "tensor {:?} has neighbours of other types",
                first.name()
            )));
        }
        let rows = tensors.iter().map(Tensor::rows).sum();
        let buffer = Matrix::room(&self.card, route.kind.packed_bytes(rows, channels))?;
        let mut scale = match route.numbers {
            Numbers::Wide | Numbers::Decoded => {
                self.stream(tensors, (route, order), Purpose::Measure)?;
                power_of_two(self.found()?.0)
            }
            Numbers::Half | Numbers::Blocks => 1.0,
        };
        self.stream(tensors, (route, order), Purpose::Relay(buffer.address(), scale))?;
        if route.numbers != Numbers::Half {
            let (largest, is_off) = self.found()?;
            if is_off {
                return Err(not_finite(tensors, scale));
            }
            if route.numbers == Numbers::Blocks && largest > LARGEST {
                scale = (largest / 32768.0).log2().ceil().exp2();
                self.stream(tensors, (route, order), Purpose::Relay(buffer.address(), scale))?;
            }
        }
        for tensor in tensors {
            tensor.bytes().release();
            self.done += tensor.bytes().len() as u64;
        }
        self.say(0);
        Ok(Matrix { kind: route.kind, rows, channels, scale, buffer })
    }

    fn say(&self, more: u64) {
        if let Some(heard) = self.heard {
            heard((self.done + more).min(self.total), self.total);
        }
    }

    /// What the kernels of the last matrix found.
    fn found(&mut self) -> Result<(f32, bool)> {
        let bytes = self.seen.read(&self.found, 0..8).map_err(on_card)?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Ok((f32::from_bits(word(0)), word(4) != 0))
    }

    /// Sends all rows through the pieces, each to its kernel.
    fn stream(
        &mut self,
        tensors: &[Tensor],
        (route, order): (Route, RowOrder),
        purpose: Purpose,
    ) -> Result<()> {
        let (channels, row_bytes) = (tensors[0].columns(), route.row_bytes(&tensors[0]));
        let rows: usize = tensors.iter().map(Tensor::rows).sum();
        let least = TILE_ROWS * row_bytes;
        let step = (PIECE / least).clamp(1, TILES) * TILE_ROWS; // rows of a piece
        self.make_room((step.min(rows.next_multiple_of(TILE_ROWS)) * row_bytes).max(least))
            .map_err(on_card)?;
        self.found.clear(0..8).map_err(on_card)?;
        for first in (0..rows).step_by(step) {
            let count = step.min(rows - first);
            let slot = &mut self.slots[self.next];
            self.next = (self.next + 1) % SLOTS;
            slot.copied.wait().map_err(on_card)?;
            let bytes = &mut slot.host.own()[..count * row_bytes];
            match route.numbers {
                Numbers::Decoded => {
                    decode(tensors, channels, bytes, |row| order.stored(first + row))?;
                }
                Numbers::Half | Numbers::Blocks | Numbers::Wide => match order {
                    RowOrder::Stored => for_each_chunk(bytes, SHARE, |share, out| {
                        copy(tensors, first * row_bytes + share * SHARE, out);
                    }),
                    RowOrder::Paired(_) => for_each_chunk(bytes, PAIRED * row_bytes, |part, out| {
                        copy(tensors, order.stored(first + part * PAIRED) * row_bytes, out);
                    }),
                },
            }
            // SAFETY: the memory is of the slot and that long, and the host does not write to it again before the event.
            unsafe { upload(&self.card, slot.device.address(), bytes) }.map_err(on_card)?;
            slot.copied.record().map_err(on_card)?;
            let (out, over) = match purpose {
                Purpose::Measure => (0, 1.0),
                Purpose::Relay(to, over) => (to + route.kind.packed_bytes(first, channels) as u64, over),
            };
            let params = RelayParams {
                raw: slot.device.address(),
                out,
                found: self.found.address(),
                row_bytes: row_bytes as u64,
                rows: count as i32,
                channels: channels as i32,
                over,
            };
            launch(&self.card, route, purpose, params).map_err(on_card)?;
            if let Purpose::Relay(..) = purpose {
                self.say(((first + count) * tensors[0].row_bytes()) as u64);
            }
        }
        Ok(())
    }

    /// Sees to it that pieces have this many bytes.
    fn make_room(&mut self, bytes: usize) -> Result<(), OpenError> {
        if self.slots.first().is_some_and(|slot| slot.host.bytes() >= bytes) {
            return Ok(());
        }
        self.card.synchronize()?;
        self.slots.clear();
        self.next = 0;
        // A model of small matrices needs no large pieces, and one with large matrices has them from its first on.
        let bytes = bytes.next_power_of_two();
        self.slots = (0..SLOTS).map(|_| Slot::new(&self.card, bytes)).collect::<Result<_, _>>()?;
        Ok(())
    }
}

fn launch(card: &CudaGpu, route: Route, purpose: Purpose, params: RelayParams) -> Result<(), OpenError> {
    let (rows, channels) = (params.rows as usize, params.channels as usize);
    let (name, grid, threads) = match purpose {
        Purpose::Measure => {
            let grid = (rows * channels).div_ceil(4096).clamp(1, 16 * card.limits().processors);
            (format!("measure_{}", route.from), (grid as u32, 1), 256)
        }
        Purpose::Relay(..) => {
            let (block, _) = route.kind.device_block();
            let grid = ((channels / block) as u32, rows.div_ceil(TILE_ROWS) as u32);
            (format!("relay_{}", route.from), grid, 64)
        }
    };
    let mut recorder = Recorder::new(card);
    recorder.launch(&name, Launch { grid, threads, shared: 0, early: false }, params);
    // SAFETY: the parameters are those of these kernels; the piece has that many rows, and the matrix room for their tiles.
    unsafe { recorder.submit(None) }
}

/// Bytes of matrices that follow each other, from `at` on.
fn copy(tensors: &[Tensor], mut at: usize, mut out: &mut [u8]) {
    for tensor in tensors {
        let bytes = tensor.bytes();
        if at >= bytes.len() {
            at -= bytes.len();
            continue;
        }
        let count = out.len().min(bytes.len() - at);
        let (now, rest) = out.split_at_mut(count);
        now.copy_from_slice(&bytes[at..at + count]);
        (out, at) = (rest, 0);
        if out.is_empty() {
            return;
        }
    }
}

/// The tensor that has a row of all, and which of its rows it is.
fn place(tensors: &[Tensor], mut row: usize) -> (&Tensor, usize) {
    for tensor in tensors {
        if row < tensor.rows() {
            return (tensor, row);
        }
        row -= tensor.rows();
    }
    (&tensors[tensors.len() - 1], row)
}

/// Rows as f32: which one is stored for each.
fn decode(
    tensors: &[Tensor],
    channels: usize,
    bytes: &mut [u8],
    stored: impl Fn(usize) -> usize + Sync,
) -> Result<()> {
    let failure = Mutex::new(None);
    for_each_chunk(bytes, 4 * channels, |row, out| {
        let (tensor, row) = place(tensors, stored(row));
        let mut numbers = vec![0.0; channels];
        match tensor.row_f32(row, &mut numbers) {
            Ok(()) => {
                let out = out.as_chunks_mut().0.iter_mut();
                out.zip(&numbers).for_each(|(out, x)| *out = x.to_le_bytes());
            }
            Err(error) => _ = failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error),
        }
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// The power of two that brings the largest of wide numbers just below 2¹⁵, and by which products are multiplied in the end.
fn power_of_two(largest: f32) -> f32 {
    if !(f32::MIN_POSITIVE..1e30).contains(&largest) {
        return 1.0;
    }
    let exponent = largest.log2().floor() as i32 - 14;
    (exponent as f32).exp2()
}

/// Names the first number that is none, or too large for any power of two.
fn not_finite(tensors: &[Tensor], scale: f32) -> LoadError {
    let is_off = |x: &&f32| !f16::from_f32(**x / scale).is_finite();
    for tensor in tensors {
        let mut numbers = vec![0.0; tensor.columns()];
        for row in 0..tensor.rows() {
            if let Err(error) = tensor.row_f32(row, &mut numbers) {
                return error;
            }
            if let Some(number) = numbers.iter().find(is_off) {
                return LoadError::malformed(format!(
                    "tensor {:?} holds {number:e} in row {row}: the file is damaged, or was converted wrongly",
                    tensor.name()
                ));
            }
        }
    }
    LoadError::malformed(format!("tensor {:?} holds numbers that are not finite", tensors[0].name()))
}
