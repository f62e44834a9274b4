//! The page store of a card: half pages in the page memory, in the device's order.
//!
//! A store is asked for pages by their size alone, and keys and values have the same. So a page gets its order from whoever first
//! knows it: a pass says of every page that it writes or reads which [`Kind`] it is. What the host writes to a page before that (a
//! session that is resumed) waits here in the canonical layout, and goes to the card when a pass reads it.
//!
//! **Invariant:** a page has one kind from the first pass that meets it until it is given back, and its zeros are zeros in every order.

use crate::buffer::{Buffer, download, upload};
use crate::device::{Card, Launch, OpenError};
use crate::layout::{Deal, UNIT, Unsupported, is_planned};
use crate::mapping::Mapping;
use crate::memory::PageMemory;
use crate::params::{Address, ClearParams};
use crate::recorder::Recorder;
use cudarc::driver::result;
use kvant_cache::{ArenaError, PageId, PageStore, Usage};
use kvant_codec::format::{Linear, PageFormat, Rotation};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where a page lies, in units of the page memory.
pub(crate) fn unit_of(page: PageId) -> u32 {
    page.0 as u32
}

/// An order of pages, by its place in the store's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind(u16);

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
    card: Arc<Card>,
    label: String,
    cap: Option<usize>,
    state: Mutex<State>,
}

struct State {
    memory: PageMemory,
    mapping: Mapping,
    pages: usize,
    deals: Vec<(PageFormat, Order, Arc<Deal>)>,
    kinds: HashMap<u32, Kind>,
    /// Canonical bytes of pages without a kind.
    waiting: HashMap<u32, Vec<u8>>,
    /// Pages that are to be zero before anything is done with them: unit and units.
    stale: HashMap<u32, u32>,
    list: Option<Buffer>,
    /// What went wrong where nothing could be said; the next pass says it.
    fault: Option<String>,
    /// Pages taken so far: the upper half of a page's number, so that no page has the number of one that was given back.
    taken: u32,
}

impl CudaPages {
    /// A store whose pages may take `cap` bytes, or the whole card.
    ///
    /// # Errors
    /// When the driver gives no addresses.
    pub fn new(card: &Arc<Card>, cap: Option<usize>) -> Result<Arc<CudaPages>, OpenError> {
        let most = card.memory()?;
        // Whole granules of every size of page: a cap of less than a few would hold nothing.
        let bytes = cap.map_or(most, |cap| cap.saturating_add(16 << 20)).min(most);
        let state = State {
            memory: PageMemory::new(bytes),
            mapping: Mapping::new(card, bytes)?,
            pages: 0,
            deals: Vec::new(),
            kinds: HashMap::new(),
            waiting: HashMap::new(),
            stale: HashMap::new(),
            list: None,
            fault: None,
            taken: 0,
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

    /// The kind of pages of a format; of the page of the sinks, which has fewer tokens.
    pub(crate) fn kind(&self, format: &PageFormat, sinks: bool) -> Result<Kind, Unsupported> {
        self.kind_in(format, if sinks { Order::Sinks } else { Order::Dealt })
    }

    /// The kind of pages of a format that lie on the card as the format says.
    pub(crate) fn canonical(&self, format: &PageFormat) -> Result<Kind, Unsupported> {
        self.kind_in(format, Order::Canonical)
    }

    fn kind_in(&self, format: &PageFormat, order: Order) -> Result<Kind, Unsupported> {
        let mut state = self.lock();
        let bytes = bytes_alone(format);
        if let Some(known) = state.deals.iter().position(|(own, of, _)| *own == bytes && *of == order) {
            return Ok(Kind(known as u16));
        }
        let deal = match (format, order) {
            (format, Order::Canonical) => Deal::canonical(format.bytes()),
            (PageFormat::Exact(format), Order::Sinks) => Deal::of_sinks(format)?,
            (format, _) => Deal::of(format)?,
        };
        let Ok(place) = u16::try_from(state.deals.len()) else {
            return Err(Unsupported { what: "more than 65536 formats of pages at once".into() });
        };
        state.deals.push((bytes, order, Arc::new(deal)));
        Ok(Kind(place))
    }

    /// The store's book, for a pass.
    pub(crate) fn book(&self) -> Book<'_> {
        Book { card: &self.card, state: self.lock() }
    }
}

/// The book of a store while a pass is set out.
pub(crate) struct Book<'a> {
    card: &'a Arc<Card>,
    state: MutexGuard<'a, State>,
}

impl Book<'_> {
    /// The place of a page that is of this kind.
    pub(crate) fn place(&mut self, page: PageId, kind: Kind) -> Result<u32, String> {
        let (unit, state) = (unit_of(page), &mut *self.state);
        match state.kinds.insert(unit, kind) {
            Some(known) if known != kind => {
                return Err(format!("page {unit} is read as another kind of page than it was written as"));
            }
            Some(_) => {}
            None => {
                if let Some(canonical) = state.waiting.remove(&unit) {
                    state.send(self.card, unit, kind, &canonical).map_err(|e| e.to_string())?;
                }
            }
        }
        Ok(unit)
    }

    /// Every byte of this page is about to be written.
    pub(crate) fn overwrites(&mut self, page: PageId) {
        self.state.stale.remove(&unit_of(page));
    }

    /// Clears what has to be clear, and says what went wrong since the last time.
    pub(crate) fn close(mut self) -> Result<(), String> {
        match self.state.fault.take() {
            Some(fault) => Err(fault),
            None => self.state.clear_stale(self.card).map_err(|e| e.to_string()),
        }
    }
}

impl State {
    fn address(&self, unit: u32) -> Address {
        self.mapping.base() + u64::from(unit) * UNIT as u64
    }

    /// Writes a canonical page to the card.
    fn send(&mut self, card: &Arc<Card>, unit: u32, kind: Kind, canonical: &[u8]) -> Result<(), OpenError> {
        self.stale.remove(&unit);
        let mut bytes = vec![0; canonical.len()];
        self.deals[kind.0 as usize].2.to_device(canonical, &mut bytes);
        // SAFETY: the page was taken, so it lies in what is mapped.
        unsafe { upload(card, self.address(unit), &bytes) }
    }

    fn clear_stale(&mut self, card: &Arc<Card>) -> Result<(), OpenError> {
        if self.stale.is_empty() {
            return Ok(());
        }
        let words = self.stale.drain().flat_map(|(unit, units)| [unit, units]);
        let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        let list = match self.list.take().filter(|list| list.bytes() >= bytes.len()) {
            Some(list) => list,
            None => Buffer::new(card, bytes.len().next_power_of_two())?,
        };
        list.upload(0, &bytes)?;
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

    fn take(&self, len: usize) -> Result<PageId, ArenaError> {
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
        state.taken = state.taken.wrapping_add(1);
        Ok(PageId(u64::from(state.taken) << 32 | u64::from(unit)))
    }

    fn give_back(&self, page: PageId, len: usize) {
        let (mut state, unit) = (self.lock(), unit_of(page));
        state.pages -= 1;
        state.kinds.remove(&unit);
        state.waiting.remove(&unit);
        state.stale.remove(&unit);
        state.memory.give_back(unit, len);
    }

    fn read(&self, page: PageId, bytes: &mut [u8]) {
        let (mut state, unit) = (self.lock(), unit_of(page));
        if let Some(waiting) = state.waiting.get(&unit) {
            return bytes.copy_from_slice(waiting);
        }
        let Some(kind) = state.kinds.get(&unit).copied() else { return bytes.fill(0) };
        let cleared = state.clear_stale(&self.card);
        let mut device = vec![0; bytes.len()];
        // SAFETY: the page was taken, so it lies in what is mapped.
        let read = cleared.and_then(|()| unsafe { download(&self.card, state.address(unit), &mut device) });
        // A page of a card that is lost is lost: what is read then is zeros, and the next pass says why.
        match state.note(read) {
            Some(()) => state.deals[kind.0 as usize].2.to_canonical(&device, bytes),
            None => bytes.fill(0),
        }
    }

    fn write(&self, page: PageId, bytes: &[u8]) {
        let (mut state, unit) = (self.lock(), unit_of(page));
        match state.kinds.get(&unit).copied() {
            Some(kind) => {
                let sent = state.send(&self.card, unit, kind, bytes);
                state.note(sent);
            }
            None => {
                state.waiting.insert(unit, bytes.to_vec());
            }
        }
    }

    fn fault(&self) -> Option<String> {
        self.lock().fault.clone()
    }

    fn copy(&self, from: PageId, to: PageId, len: usize) {
        let (mut state, from, to) = (self.lock(), unit_of(from), unit_of(to));
        if let Some(waiting) = state.waiting.get(&from).cloned() {
            state.waiting.insert(to, waiting);
            return;
        }
        let Some(kind) = state.kinds.get(&from).copied() else { return };
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
        state.kinds.insert(to, kind);
    }
}
