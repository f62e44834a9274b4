//! One sequence: what every slot of every layer holds, and how it grows, forks and goes back.

mod contents;
mod cut;
mod footprint;
mod pass;
mod repeat;

pub(crate) use contents::each_side;
pub use footprint::Footprint;
pub(crate) use pass::NOT_BEGUN;

use crate::arena::ArenaError;
use crate::checkpoint::{Checkpoint, Checkpoints};
use crate::error::CacheError;
use crate::exact_window::Mode;
use crate::layout::CacheLayout;
use crate::lineage::Lineage;
use crate::mapped::is_any_damaged;
use crate::page::{Page, PageMut};
use crate::recurrent::{RecurrentState, StateAt};
use crate::side::{Noted, PageWork, Rows, SideContents, SideStore};
use crate::slot::{KvSlot, StateSlot};
use crate::steps::Steps;
use crate::store::Store;
use contents::{Contents, Paged};
use kvant_codec::Side;
use std::sync::Arc;

/// Tokens of a chunk from which on its heads are worth sharing between threads.
const WORTH_SHARING: usize = 16;

/// Tokens of a chunk from which on its memory is asked for as a whole, before the first page is taken.
const WORTH_ASKING: usize = 4096;

/// The cache of one sequence.
///
/// A pass over a chunk of n tokens is: [`begin`](Sequence::begin); for every slot that holds keys and values one [`append`](Sequence::append) and any
/// number of attentions, for every recurrent one [its rows](Sequence::recurrent); then [`end`](Sequence::end). Who binds layers and not
/// passes leaves `begin` out and calls [`advance`](Sequence::advance).
/// Exact rows of the chunk are kept until then, because its own queries read them.
pub struct Sequence {
    layout: Arc<CacheLayout>,
    memory: Store,
    len: usize,
    /// The most tokens it may ever hold.
    capacity: usize,
    /// Tokens of the pass that has begun.
    under_way: Option<usize>,
    /// In the order of the layout's slots.
    slots: Vec<Contents>,
    checkpoints: Checkpoints,
    lineage: Lineage,
}

impl Sequence {
    /// An empty sequence whose pages come from this store.
    pub fn new(layout: Arc<CacheLayout>, store: impl Into<Store>) -> Sequence {
        let memory = store.into();
        let slack = layout.slack().chunks;
        let state = layout.state_type();
        let slots = layout.slots().iter().map(|slot| Contents::new(slot, state, slack, &memory)).collect();
        let (checkpoints, lineage) = (Checkpoints::default(), Lineage::new());
        let (capacity, under_way) = (usize::MAX, None);
        Sequence { layout, memory, len: 0, capacity, under_way, slots, checkpoints, lineage }
    }

    /// Its layout.
    pub fn layout(&self) -> &Arc<CacheLayout> {
        &self.layout
    }

    /// Where its pages come from.
    pub fn store(&self) -> &Store {
        &self.memory
    }

    /// A number that stays while the sequence grows and goes back: a page that was held as bytes is the same page, has left the window, or
    /// was given up by a [cut](Sequence::cuts). Restoring gives it another one, and no two sequences ever have the same.
    pub fn lineage(&self) -> u64 {
        self.lineage.id()
    }

    /// How often it went back so far.
    pub fn cuts(&self) -> u64 {
        self.lineage.cuts()
    }

    /// Pages of `page_tokens` tokens, held as bytes, that are still those they were when it had gone back `cuts` times; `None` for all
    /// of them.
    pub fn kept_pages(&self, cuts: u64, page_tokens: usize) -> Option<usize> {
        let len = self.lineage.kept_since(cuts)?;
        Some(match self.layout.exact_window().mode {
            Mode::Deployed => self.layout.exact_window().encoded_at(len, page_tokens),
            Mode::Strict => len.saturating_sub(self.layout.exact_window().sinks) / page_tokens,
        })
    }

    /// Tokens held; those of an unfinished pass do not count.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True before the first token.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Tokens of a slot, or of the one it is a view of, those of an unfinished pass included.
    pub fn slot_len(&self, slot: KvSlot) -> usize {
        self.owner(slot).and_then(Contents::len).unwrap_or(0)
    }

    /// What one side of one kv head holds.
    pub fn side(&self, slot: KvSlot, head: usize, side: Side) -> Option<&SideStore> {
        let per_head = self.layout.held(slot)?.sides_per_head();
        let index = match side {
            Side::Key if per_head < 2 => return None,
            Side::Key => 2 * head,
            Side::Value => per_head * (head + 1) - 1,
        };
        self.owner(slot)?.sides().get(index)
    }

    fn owner(&self, slot: KvSlot) -> Option<&Contents> {
        self.slots.get(self.layout.owner(slot)?.index())
    }

    /// The state of a recurrent slot.
    pub fn recurrent(&self, slot: StateSlot) -> Option<&RecurrentState> {
        self.slots.get(slot.index())?.state()
    }

    /// The same, to be advanced by a mixer.
    pub fn recurrent_mut(&mut self, slot: StateSlot) -> Option<&mut RecurrentState> {
        self.slots.get_mut(slot.index())?.state_mut()
    }

    /// Takes the memory that `tokens` more will need, so that appending them cannot fail for lack of it.
    ///
    /// # Errors
    /// When the store has no more memory.
    pub fn reserve(&mut self, tokens: usize) -> Result<(), ArenaError> {
        if tokens >= WORTH_ASKING {
            self.check_room(tokens)?;
        }
        let wanted = self.plan_checkpoints(tokens);
        for (slot, layout) in self.slots.iter_mut().zip(self.layout.slots()) {
            match slot {
                Contents::Pages(paged) => {
                    let memory = self.memory.of_layer(layout.layer());
                    for side in &mut paged.sides {
                        side.reserve(self.layout.exact_window(), self.len, tokens, memory)?;
                    }
                }
                Contents::View => {}
                Contents::Recurrent(state) => state.reserve(tokens, &wanted)?,
            }
        }
        Ok(())
    }

    /// Takes a chunk's keys, (tokens, kv heads, key_dim), and values, (tokens, kv heads, value_dim), and encodes every
    /// page that is due. Of latents, the rotated parts are the keys.
    ///
    /// # Errors
    /// When sizes do not fit, a number cannot be stored or memory is full. The chunk is then in part appended:
    /// [`abandon`](Sequence::abandon) undoes it.
    pub fn append(&mut self, slot: KvSlot, keys: &[f32], values: &[f32]) -> Result<(), CacheError> {
        let index = slot.index();
        let layout = self.layout.slots().get(index);
        let found = layout.map_or("nothing", |layout| layout.kind().name());
        let (Some(Contents::Pages(held)), Some(layout)) = (self.slots.get_mut(index), layout) else {
            return Err(CacheError::Slot { slot: index, found });
        };
        let Some(shape) = layout.stored() else { return Err(CacheError::Slot { slot: index, found }) };
        let (key_width, value_width) = (shape.kv_heads * shape.key_dim, shape.kv_heads * shape.value_dim);
        let tokens = values.len().checked_div(value_width).unwrap_or(0);
        if tokens * value_width != values.len() {
            return Err(CacheError::Size { what: "values", got: values.len(), width: value_width });
        }
        if tokens * key_width != keys.len() {
            return Err(CacheError::Size { what: "keys", got: keys.len(), width: key_width });
        }
        let at = held.len;
        held.len += tokens;
        let (rule, memory) = (self.layout.exact_window(), self.memory.of_layer(layout.layer()));
        let per_head = layout.sides_per_head();
        each_side(layout, at, &mut held.sides, tokens >= WORTH_SHARING, |index, store| {
            let head = index / per_head;
            let (numbers, stride) = match store.codecs().codec().side() {
                Side::Key => (&keys[(head * shape.key_dim).min(keys.len())..], key_width),
                Side::Value => (&values[(head * shape.value_dim).min(values.len())..], value_width),
            };
            store.append(rule, at, tokens, &mut Rows { numbers, stride, count: tokens }, memory)
        })
    }

    /// Takes the pages of a chunk whose rows are on the device that owns them, and tells what the device has to do, by kv head and
    /// side: write rows, encode pages. It is as if it had been done; the device does it before anything reads the pages.
    ///
    /// # Errors
    /// When the slot holds no keys and values, memory is full, or pages lie in host memory. The chunk is then in part appended:
    /// [`abandon`](Sequence::abandon) undoes it.
    pub fn append_on_device(
        &mut self,
        slot: KvSlot,
        tokens: usize,
        work: &mut dyn FnMut(usize, Side, PageWork),
    ) -> Result<(), CacheError> {
        let index = slot.index();
        let layout = self.layout.slots().get(index);
        let found = layout.map_or("nothing", |layout| layout.kind().name());
        let (Some(Contents::Pages(held)), Some(layout)) = (self.slots.get_mut(index), layout) else {
            return Err(CacheError::Slot { slot: index, found });
        };
        let at = held.len;
        held.len += tokens;
        let memory = self.memory.of_layer(layout.layer());
        let (rule, per_head) = (self.layout.exact_window(), layout.sides_per_head());
        let sinks = rule.sinks.saturating_sub(at);
        for (index, store) in held.sides.iter_mut().enumerate() {
            let (head, side) = (index / per_head, store.codecs().codec().side());
            let mut noted = Noted { sinks, note: &mut |done| work(head, side, done) };
            let taken = store.append(rule, at, tokens, &mut noted, memory);
            taken.map_err(|fault| fault.at(layout.layer(), (head, side), at))?;
        }
        Ok(())
    }

    /// Ends a pass: its tokens now count as held, and what no later query reads is forgotten.
    ///
    /// # Errors
    /// When a slot has got more or fewer tokens than these in this pass, or a file that the sequence lies in has shrunk. Nothing has changed then.
    pub fn advance(&mut self, tokens: usize) -> Result<(), CacheError> {
        self.check_advance(tokens)?;
        self.len += tokens;
        self.settle();
        Ok(())
    }

    /// Whether [`advance`](Sequence::advance) would end a pass of this many tokens.
    ///
    /// # Errors
    /// As [`advance`](Sequence::advance).
    pub fn check_advance(&self, tokens: usize) -> Result<(), CacheError> {
        for (slot, layout) in self.slots.iter().zip(self.layout.slots()) {
            if let Some(len) = slot.len().filter(|len| *len != self.len + tokens) {
                let (appended, layer) = (len.saturating_sub(self.len), layout.layer());
                return Err(CacheError::Pass { tokens, appended, layer });
            }
        }
        self.check_files()
    }

    /// Refuses what was read of a file that has shrunk: what is gone of it reads as zeros.
    pub(crate) fn check_files(&self) -> Result<(), CacheError> {
        if !is_any_damaged() {
            return Ok(());
        }
        let damaged = self.pages().find_map(Page::damaged_file);
        damaged.map_or(Ok(()), |path| Err(CacheError::FileDamaged { path: path.to_owned() }))
    }

    /// Says that a conversation will be gone on from `position`, as from the end of a request or of a turn: the page step
    /// before it is worth a checkpoint of recurrent state. Positions ahead can be marked too.
    pub fn mark(&mut self, position: usize) {
        let steps = Steps::of(&self.layout);
        let step = steps.whole(position);
        if step == 0 || !self.has_states() {
            return;
        }
        if step > self.len {
            self.checkpoints.mark(step);
        } else if !self.checkpoints.keep(step) {
            let states = self.states_at(step).and_then(Result::ok);
            self.checkpoints.mark(step);
            self.checkpoints.add(steps, states.unwrap_or_default());
            self.settle_checkpoints();
        }
    }

    /// The most bytes that checkpoints of recurrent state may take; `None` for as many as keys and values do.
    pub fn set_checkpoint_budget(&mut self, bytes: Option<usize>) {
        self.checkpoints.budget = bytes;
        self.settle_checkpoints();
    }

    /// Positions of checkpoints, in order.
    pub fn checkpoints(&self) -> impl Iterator<Item = usize> {
        self.checkpoints.iter().map(|checkpoint| checkpoint.position)
    }

    /// Whether any of its slots is recurrent.
    pub(crate) fn has_states(&self) -> bool {
        self.states().next().is_some()
    }

    /// The states of its recurrent slots, in order.
    pub(crate) fn states(&self) -> impl Iterator<Item = &RecurrentState> {
        self.slots.iter().filter_map(Contents::state)
    }

    pub(crate) fn states_mut(&mut self) -> impl Iterator<Item = &mut RecurrentState> {
        self.slots.iter_mut().filter_map(Contents::state_mut)
    }

    pub(crate) fn checkpoint_list(&self) -> impl Iterator<Item = &Checkpoint> {
        self.checkpoints.iter()
    }

    /// Has these checkpoints, as far as the budget goes.
    pub(crate) fn load_checkpoints(&mut self, checkpoints: Vec<Checkpoint>) {
        self.checkpoints.load(checkpoints);
        self.settle_checkpoints();
    }

    /// Whether every recurrent slot has its state at `position`.
    pub(crate) fn has_states_at(&self, position: usize) -> bool {
        self.states().all(|state| state.covers(position)) || self.checkpoints.at(position).is_some()
    }

    /// The states of all recurrent slots at a position; `None` where there are none.
    pub(crate) fn states_at(&self, position: usize) -> Option<Result<Vec<StateAt>, ArenaError>> {
        match self.checkpoints.at(position) {
            Some(checkpoint) => Some(Ok(checkpoint.states.clone())),
            None => self.states().map(|state| state.at(position)).collect(),
        }
    }

    /// Where the next tokens are worth checkpoints.
    fn plan_checkpoints(&mut self, tokens: usize) -> Vec<usize> {
        if !self.has_states() {
            return Vec::new();
        }
        let steps = Steps::of(&self.layout);
        let wanted = self.checkpoints.worth(steps, &(self.len..self.len + tokens));
        if wanted.is_empty() {
            return wanted;
        }
        let bytes = self.layout.checkpoint_bytes(steps);
        let coming = (self.layout.bytes_per_token() * tokens as f64) as usize;
        let budget = self.checkpoint_budget() + if self.checkpoints.budget.is_none() { coming } else { 0 };
        self.checkpoints.make_room(wanted, bytes, budget)
    }

    fn settle_checkpoints(&mut self) {
        self.checkpoints.settle(Steps::of(&self.layout), self.len, self.checkpoint_budget());
    }

    fn checkpoint_budget(&self) -> usize {
        let default = || self.layout.checkpoint_budget(self.kv_bytes());
        self.checkpoints.budget.unwrap_or_else(default)
    }

    /// Pages that other sequences may share.
    pub(crate) fn pages(&self) -> impl Iterator<Item = &Page> {
        self.slots.iter().flat_map(Contents::shared).chain(self.checkpoints.pages())
    }

    /// Pages that no other sequence shares: tails, and rows of open chunks.
    pub(crate) fn own_pages(&self) -> impl Iterator<Item = &PageMut> {
        self.slots.iter().flat_map(Contents::own)
    }

    /// The same tokens under another layout, page by page: from f16 to any spec, and between specs. What an encoded page
    /// has lost stays lost; from f16 the result is what that spec would have kept from the start.
    ///
    /// # Errors
    /// When the layouts differ in shape, memory is full or a number cannot be stored.
    pub fn convert(&self, layout: Arc<CacheLayout>, store: impl Into<Store>) -> Result<Sequence, CacheError> {
        crate::convert::convert(self, layout, store.into())
    }

    /// Takes out what the sides of a slot hold.
    pub(crate) fn take_sides(&mut self, slot: usize) -> Vec<SideContents> {
        self.lineage = Lineage::new();
        self.slots[slot].sides_mut().iter_mut().map(SideStore::take).collect()
    }

    pub(crate) fn sides_mut(&mut self, slot: usize) -> &mut [SideStore] {
        self.lineage = Lineage::new();
        self.slots[slot].sides_mut()
    }

    pub(crate) fn sides(&self, slot: usize) -> &[SideStore] {
        self.slots[slot].sides()
    }

    /// Holds the recurrent states of another sequence with the same slots.
    pub(crate) fn take_states(&mut self, from: &Sequence) -> Result<(), ArenaError> {
        for ((slot, source), layout) in self.slots.iter_mut().zip(&from.slots).zip(self.layout.slots()) {
            if let Contents::Recurrent(state) = source {
                let memory = self.memory.of_layer(layout.layer()).clone();
                *slot = Contents::Recurrent(Box::new(state.copy(memory)?));
            }
        }
        Ok(())
    }

    /// All sides, in the order of the layout's.
    pub(crate) fn stores(&self) -> impl Iterator<Item = &SideStore> {
        self.slots.iter().flat_map(Contents::sides)
    }

    /// Whether every slot holds as many tokens as the sequence: no pass is under way.
    pub(crate) fn is_settled(&self) -> bool {
        self.slots.iter().all(|slot| slot.len().is_none_or(|len| len == self.len))
    }

    pub(crate) fn set_len(&mut self, len: usize) {
        self.len = len;
        for slot in &mut self.slots {
            if let Contents::Pages(paged) = slot {
                paged.len = len;
            }
        }
    }
}
