//! The page store of a card: half pages in the page memory, in the device's order.
//!
//! A page is taken as what it will hold ([`PageStore::kind`]): its kind says how its bytes lie on the card, and is part of its number.
//!
//! **Invariant:** a page has one kind from when it is taken until it is given back, and its zeros are zeros in every order.

use crate::buffer::{Buffer, download, upload};
use crate::cache::swizzled_codec;
use crate::device::{CudaGpu, Launch, OpenError};
use crate::layout::{PageSwizzle, UNIT, Unsupported, is_planned};
use crate::mapping::Mapping;
use crate::memory::PageMemory;
use crate::params::{Address, ClearParams};
use crate::recorder::Recorder;
use crate::staging::Staging;
use cudarc::driver::result;
use kvant_cache::{ArenaError, PageId, PageKind, PageStore, PageUse, RowsCopy, Usage};
use kvant_codec::PageCodec;
use kvant_codec::format::{Linear, PageFormat, Rotation};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Units that a CTA clears.
const CLEARED: u32 = 512;

/// Where a page lies, in units of the page memory.
pub(crate) fn unit_of(page: PageId) -> u32 {
    page.0 as u32
}

/// What a page was taken as.
fn kind_of(page: PageId) -> PageKind {
    PageKind((page.0 >> 32) as u16)
}

/// Where a page of this kind lies.
pub(crate) fn unit_as(page: PageId, kind: PageKind) -> Result<u32, String> {
    match kind_of(page) == kind {
        true => Ok(unit_of(page)),
        false => Err(format!("page {} is read as another kind of page than it was taken as", unit_of(page))),
    }
}

/// How the bytes of a format lie on the card.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Dealt,
    /// As exact pages have it, of the fewer tokens of the sinks' page.
    Sinks,
    /// As the format says.
    Canonical,
}

/// A format by the places of its bytes: heads of a plan have bases of their own, and mostly widths in common.
fn bytes_alone(format: &PageFormat) -> PageFormat {
    match format {
        PageFormat::Packed(packed) if is_planned(packed) => {
            let mut packed = (**packed).clone();
            packed.basis.linear = Linear::Rotation { kind: Rotation::Identity, seed: 0 };
            packed.basis.mean.clear();
            PageFormat::Packed(Arc::new(packed))
        }
        other => other.clone(),
    }
}

/// Pages that lie on a card.
pub struct CudaPages {
    card: Arc<CudaGpu>,
    label: String,
    cap: Option<usize>,
    state: Mutex<State>,
}

struct State {
    memory: PageMemory,
    mapping: Mapping,
    pages: usize,
    /// The kind of pages with the number after a place in this list.
    swizzles: Vec<(PageFormat, Order, PageSwizzle)>,
    /// Pages that are to be zero before anything is done with them: unit and units.
    stale: HashMap<u32, u32, BuildHasherDefault<UnitHasher>>,
    list: Option<Buffer>,
    staging: Staging,
    /// What went wrong where nothing could be said; the next pass says it.
    fault: Option<String>,
}

/// Spreads units: a chunk of a prompt takes thousands of pages, and nobody chooses where they lie.
#[derive(Default)]
struct UnitHasher(u64);

impl Hasher for UnitHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, unit: u32) {
        // 2⁶⁴ over the golden ratio; tables read the highest and the lowest bits.
        self.0 = (self.0 ^ u64::from(unit)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }
}

impl CudaPages {
    /// A store whose pages may take `cap` bytes, or the whole card.
    ///
    /// # Errors
    /// When the driver gives no addresses.
    pub fn new(card: &Arc<CudaGpu>, cap: Option<usize>) -> Result<Arc<CudaPages>, OpenError> {
        let most = card.memory()?;
        // Whole granules of every size of page: a cap of less than a few would hold nothing.
        let bytes = cap.map_or(most, |cap| cap.saturating_add(16 << 20)).min(most);
        let state = State {
            memory: PageMemory::new(bytes),
            mapping: Mapping::new(card, bytes)?,
            pages: 0,
            swizzles: Vec::new(),
            stale: HashMap::default(),
            list: None,
            staging: Staging::new(card),
            fault: None,
        };
        let label = card.label();
        Ok(Arc::new(CudaPages { card: Arc::clone(card), label, cap, state: Mutex::new(state) }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the page memory begins.
    pub(crate) fn base(&self) -> Address {
        self.lock().mapping.base()
    }

    /// The kind of such pages; canonical where they hold latents.
    pub(crate) fn dealt_kind(&self, of: &PageUse) -> Result<PageKind, Unsupported> {
        let (format, order) = match *of {
            PageUse { ref format, latent: true, .. } => (format, Order::Canonical),
            PageUse { ref format, sinks: true, .. } => (format, Order::Sinks),
            PageUse { ref format, .. } => (format, Order::Dealt),
        };
        let mut state = self.lock();
        let bytes = bytes_alone(format);
        if let Some(known) = state.swizzles.iter().position(|(own, of, _)| *own == bytes && *of == order) {
            return Ok(PageKind(known as u16 + 1));
        }
        let swizzle = match (format, order) {
            (format, Order::Canonical) => PageSwizzle::canonical(format.bytes()),
            (PageFormat::Exact(format), Order::Sinks) => PageSwizzle::of_sinks(format)?,
            (format, _) => PageSwizzle::of(format)?,
        };
        let Ok(kind) = u16::try_from(state.swizzles.len() + 1) else {
            return Err(Unsupported { what: "more than 65536 formats of pages at once".into() });
        };
        state.swizzles.push((bytes, order, swizzle));
        Ok(PageKind(kind))
    }

    /// Copies the first bytes of pages, after all that was put on the stream.
    pub(crate) fn copy_rows(&self, copies: &[RowsCopy]) -> Result<(), OpenError> {
        let mut state = self.lock();
        self.card.bind()?;
        for copy in copies {
            state.stale.remove(&unit_of(copy.to));
            let (source, target) = (state.address(unit_of(copy.from)), state.address(unit_of(copy.to)));
            // SAFETY: both pages were taken and have as many bytes, so they lie in what is mapped, and do not overlap.
            unsafe { result::memcpy_dtod_async(target, source, copy.bytes, self.card.stream()) }
                .map_err(crate::device::failed("copying rows of a checkpoint"))?;
        }
        Ok(())
    }

    /// Clears what has to be clear before a pass that writes every byte of the pages `overwritten`, and says what went wrong since the last.
    pub(crate) fn prepare(&self, overwritten: impl Iterator<Item = PageId>) -> Result<(), String> {
        let mut state = self.lock();
        for page in overwritten {
            state.stale.remove(&unit_of(page));
        }
        match state.fault.take() {
            Some(fault) => Err(fault),
            None => state.clear_stale(&self.card).map_err(|e| e.to_string()),
        }
    }
}

impl State {
    fn address(&self, unit: u32) -> Address {
        self.mapping.base() + u64::from(unit) * UNIT as u64
    }

    /// How the bytes of a kind lie on the card; `None` where as they come.
    fn swizzle(&self, kind: PageKind) -> Option<&PageSwizzle> {
        self.swizzles.get(usize::from(kind.0).checked_sub(1)?).map(|(.., swizzle)| swizzle)
    }

    fn clear_stale(&mut self, card: &Arc<CudaGpu>) -> Result<(), OpenError> {
        if self.stale.is_empty() {
            return Ok(());
        }
        // A CTA clears a part of a large page.
        let parts = |(unit, units): (u32, u32)| {
            let part = move |first: u32| [unit + first, CLEARED.min(units - first)];
            (0..units).step_by(CLEARED as usize).flat_map(part)
        };
        let words = self.stale.drain().flat_map(parts);
        let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        let list = match self.list.take().filter(|list| list.bytes() >= bytes.len()) {
            Some(list) => list,
            None => Buffer::new(card, bytes.len().next_power_of_two())?,
        };
        // SAFETY: the list is at least that long.
        unsafe { self.staging.send(&[(list.address(), &bytes)])? };
        let mut recorder = Recorder::new(card);
        let launch = Launch { grid: ((bytes.len() / 8) as u32, 1), threads: 128, shared: 0, early: false };
        recorder.launch(
            "clear_pages",
            launch,
            ClearParams { pages: self.mapping.base(), list: list.address() },
        );
        // SAFETY: the list is as long as the grid, and its pages lie in what is mapped.
        unsafe { recorder.submit(None)? };
        self.list = Some(list);
        Ok(())
    }

    fn note<T>(&mut self, result: Result<T, OpenError>) -> Option<T> {
        result.map_err(|error| self.fault.get_or_insert_with(|| error.to_string()).len()).ok()
    }
}

impl PageStore for CudaPages {
    fn name(&self) -> &str {
        &self.label
    }

    fn cap(&self) -> Option<usize> {
        self.cap
    }

    fn usage(&self) -> Usage {
        let state = self.lock();
        let (used, reserved) = (state.memory.live(), state.mapping.mapped());
        Usage { pages: state.pages, used, reserved, mapped: 0 }
    }

    fn kind(&self, of: &PageUse) -> PageKind {
        // A pass over a layout with pages that kernels do not read is refused.
        self.dealt_kind(of).unwrap_or(PageKind::BYTES)
    }

    fn swizzles(&self, heads: &[[Option<&dyn PageCodec>; 2]]) -> bool {
        swizzled_codec(heads).is_some()
    }

    fn kind_of(&self, page: PageId) -> PageKind {
        kind_of(page)
    }

    fn take(&self, kind: PageKind, len: usize) -> Result<PageId, ArenaError> {
        let mut state = self.lock();
        let used = state.memory.live();
        let full = |cap| ArenaError::Full { asked: len, used, cap };
        if let Some(cap) = self.cap.filter(|cap| used + len > *cap) {
            return Err(full(cap));
        }
        let unit = state.memory.take(len).ok_or_else(|| full(state.memory.mapped()))?;
        let wanted = state.memory.mapped();
        if state.mapping.extend(wanted).is_err() {
            state.memory.give_back(unit, len);
            return Err(full(state.mapping.mapped()));
        }
        state.pages += 1;
        state.stale.insert(unit, len.div_ceil(UNIT) as u32);
        Ok(PageId(u64::from(kind.0) << 32 | u64::from(unit)))
    }

    fn give_back(&self, page: PageId, len: usize) {
        let (mut state, unit) = (self.lock(), unit_of(page));
        state.pages -= 1;
        state.stale.remove(&unit);
        state.memory.give_back(unit, len);
    }

    fn read(&self, page: PageId, bytes: &mut [u8]) {
        let mut state = self.lock();
        let cleared = state.clear_stale(&self.card);
        let mut device = vec![0; bytes.len()];
        let address = state.address(unit_of(page));
        // SAFETY: the page was taken, so it lies in what is mapped.
        let read = cleared.and_then(|()| unsafe { download(&self.card, address, &mut device) });
        // A page of a card that is lost is lost: what is read then is zeros, and the next pass says why.
        match (state.note(read), state.swizzle(kind_of(page))) {
            (Some(()), Some(swizzle)) => swizzle.to_canonical(&device, bytes),
            (Some(()), None) => bytes.copy_from_slice(&device),
            (None, _) => bytes.fill(0),
        }
    }

    fn write(&self, page: PageId, bytes: &[u8]) {
        let (mut state, unit) = (self.lock(), unit_of(page));
        state.stale.remove(&unit);
        let mut device = bytes.to_vec();
        if let Some(swizzle) = state.swizzle(kind_of(page)) {
            swizzle.to_device(bytes, &mut device);
        }
        // SAFETY: the page was taken, so it lies in what is mapped.
        let sent = unsafe { upload(&self.card, state.address(unit), &device) };
        state.note(sent);
    }

    fn fault(&self) -> Option<String> {
        self.lock().fault.clone()
    }

    fn copy(&self, from: PageId, to: PageId, len: usize) {
        let (mut state, from, to) = (self.lock(), unit_of(from), unit_of(to));
        state.stale.remove(&to);
        let cleared = state.clear_stale(&self.card);
        let (source, target) = (state.address(from), state.address(to));
        let bound = cleared.and_then(|()| self.card.bind());
        let copied = bound.and_then(|()| {
            // SAFETY: both pages were taken, so they lie in what is mapped, and do not overlap.
            unsafe { result::memcpy_dtod_async(target, source, len, self.card.stream()) }
                .map_err(crate::device::failed("copying a page"))
        });
        state.note(copied);
    }
}
