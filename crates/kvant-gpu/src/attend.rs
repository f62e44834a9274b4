//! Keys and values of a pass into pages, and attention over pages: planned for all layers before the first runs, then recorded.

use crate::buffer::Buffer;
use crate::layout::{LayoutKernels, SlotKernels};
use crate::network::GpuNetwork;
use crate::plan::{Class, PassParams, Round, Writes};
use crate::program::Attention;
use crate::recorder::Grid;
use crate::run::Run;
use crate::side_kernels::{EncodeCall, SideKernels};
use crate::tables::Tables;
use crate::weights::Place;
use kvant_cache::{CacheLayout, ExactWindow, KvSlot, Mode, Sequence, StateError, StateErrorKind};
use kvant_codec::Side;
use kvant_device::{HeadPlace, Span};
use std::collections::{BTreeMap, HashMap};

/// What a pass does with pages.
#[derive(Default)]
pub(crate) struct PassPlan {
    classes: HashMap<Class, Vec<Round>>,
    /// By slot: where its table is, and its records.
    slots: HashMap<usize, SlotPlan>,
    /// Pages that are encoded when all layers are done.
    later: Vec<LaterPages>,
    /// Where the sines and cosines of each rope are.
    pub rotations: HashMap<usize, usize>,
    /// The same as queries meet the sinks of a streaming window; none where there is no such window.
    pub at_sinks: HashMap<usize, usize>,
    /// By slot: where the multipliers of queries that grow with their position are.
    pub gains: HashMap<usize, usize>,
    rule: ExactWindow,
    /// Tokens of the longest chunk.
    most_tokens: usize,
    pub partial_words: usize,
    pub prepared_width: usize,
}

#[derive(Default)]
struct SlotPlan {
    /// Where entries of coded pages, and of the others, are counted from.
    coded_at: usize,
    table_at: usize,
    /// Place and number of records, by side.
    rows: [(usize, usize); 2],
    encodes: [(usize, usize); 2],
}

/// Pages of any layers that one kernel encodes: whose kernel, where the records are, and how many.
struct LaterPages {
    slot: KvSlot,
    side: usize,
    at: usize,
    records: usize,
}

/// The same while it is collected, by [`SideKernels::encode_group`].
type Later = BTreeMap<usize, (KvSlot, usize, Vec<u32>)>;

/// Whether no query of a pass reads as bytes what the pass encodes, of a side with pages of `tokens` and so many kv heads: what came due is
/// exactly the pages that the pass's own tokens end.
fn is_read_later(
    rule: &ExactWindow,
    spans: &[Span],
    (tokens, kv_heads): (usize, usize),
    records: usize,
) -> bool {
    let before = |span: &Span| rule.encoded_at(span.start, tokens);
    let ended =
        spans.iter().map(|span| rule.encoded_at(span.last() + 1, tokens) - before(span)).sum::<usize>();
    rule.mode == Mode::Deployed
        && records == kv_heads * ended
        && spans.iter().all(|span| rule.encoded_for(span.last(), tokens) == before(span))
}

const SIDES: [Side; 2] = [Side::Key, Side::Value];

fn missing(slot: usize) -> StateError {
    StateError::new(0, StateErrorKind::Slot { slot, found: "nothing", wanted: "keys and values" })
}

impl PassPlan {
    /// Where the records of keys and of values are, if each of them is one token's: `count` in all.
    pub(crate) fn one_token_rows(&self, slot: KvSlot, count: usize) -> Option<[usize; 2]> {
        let rows = self.slots.get(&slot.index())?.rows;
        (self.most_tokens == 1 && rows.iter().all(|(_, records)| *records == count))
            .then(|| rows.map(|(at, _)| at))
    }

    /// Whether queries meet sinks of a streaming window, rotated on their own.
    pub(crate) fn is_streaming(&self) -> bool {
        self.rule.streaming.is_some()
    }

    /// Whether pages of a slot are encoded before its queries attend.
    pub(crate) fn encodes(&self, slot: KvSlot) -> bool {
        self.slots.get(&slot.index()).is_some_and(|slot| slot.encodes.iter().any(|(_, pages)| *pages > 0))
    }
}

impl GpuNetwork {
    fn attentions(&self) -> impl Iterator<Item = &Attention> {
        let branches =
            self.program.layers.iter().flat_map(|layer| &layer.residuals).flat_map(|r| &r.branches);
        branches.filter_map(|branch| branch.mixer.attention())
    }

    /// Takes pages for the pass in every slot and sets out what kernels do with them.
    pub(crate) fn plan(
        &self,
        words: &mut PassParams,
        kernels: &LayoutKernels,
        layout: &CacheLayout,
        spans: &[Span],
        sequences: &mut [&mut Sequence],
        tables: &mut Tables,
    ) -> Result<PassPlan, StateError> {
        let most_tokens = spans.iter().map(|span| span.tokens).max().unwrap_or(0);
        let rule = *layout.exact_window();
        let mut plan = PassPlan { most_tokens, rule, ..PassPlan::default() };
        let mut later = Later::new();
        for of in self.attentions() {
            if let Some(rope) = of.rope {
                let mut turns = |at_sinks| words.rotations(&self.ropes[rope.0], spans, at_sinks);
                plan.rotations.entry(rope.0).or_insert_with(|| turns(false));
                if rule.streaming.is_some() {
                    plan.at_sinks.entry(rope.0).or_insert_with(|| turns(true));
                }
            }
            if let Some(gain) = &of.query_gain {
                plan.gains.insert(of.slot.index(), words.gains(gain, spans));
            }
            if of.kv.is_some() {
                let slot = of.slot;
                let own =
                    kernels.slots.get(slot.index()).and_then(Option::as_ref).ok_or(missing(slot.index()))?;
                let own = self.writes(words, (slot, own), &rule, spans, sequences, &mut later)?;
                plan.slots.insert(slot.index(), own);
            }
        }
        plan.later = later
            .into_values()
            .map(|(slot, side, list)| {
                let records = list.len() / Writes::ENCODES;
                LaterPages { slot, side, at: words.add(list), records }
            })
            .collect();
        for of in self.attentions() {
            let owner = self.slots.owner(of.slot);
            let slot =
                kernels.slots.get(owner.index()).and_then(Option::as_ref).ok_or(missing(owner.index()))?;
            let class = Class::new(slot, &rule, of.heads, most_tokens);
            let entry = plan.slots.get_mut(&owner.index()).ok_or(missing(owner.index()))?;
            if entry.table_at == 0 {
                entry.table_at = words.end();
                entry.coded_at = tables.slot_at(owner).unwrap_or(entry.table_at);
                for (index, (span, sequence)) in spans.iter().zip(&*sequences).enumerate() {
                    let coded = class.coded(&rule, span);
                    tables
                        .enter(span.seat, owner, slot, sequence, coded)
                        .and_then(|()| class.table(words, owner, sequence, span))
                        .map_err(|what| StateError::new(index, StateErrorKind::Device(what)))?;
                }
            }
            let cut = || class.rounds(words, &rule, spans, of.value_dim, tables);
            let rounds = plan.classes.entry(class).or_insert_with(cut);
            let tasks = rounds.iter().map(|round| round.tasks).max().unwrap_or(0);
            plan.partial_words = plan.partial_words.max(tasks * class.columns * (of.value_dim + 2));
            plan.prepared_width = plan.prepared_width.max(slot.prepared_width(of.heads));
        }
        Ok(plan)
    }

    /// Takes the pages of a slot, and notes what is written to them.
    fn writes(
        &self,
        words: &mut PassParams,
        (slot, kernels): (KvSlot, &SlotKernels),
        rule: &ExactWindow,
        spans: &[Span],
        sequences: &mut [&mut Sequence],
        later: &mut Later,
    ) -> Result<SlotPlan, StateError> {
        let mut writes = Writes { mark: kernels.layer as u32 + 1, ..Writes::default() };
        for (index, (span, sequence)) in spans.iter().zip(sequences).enumerate() {
            let note = &mut |head, side, work| writes.note(span.row, head, side, &work);
            sequence
                .append_on_device(slot, span.tokens, note)
                .map_err(|error| StateError::new(index, error))?;
        }
        let mut plan = SlotPlan::default();
        for (side, of) in [&kernels.key, &kernels.value].into_iter().enumerate() {
            let (rows, encodes) = (&writes.rows[side], &writes.encodes[side]);
            plan.rows[side] = (words.add(rows.iter().copied()), rows.len() / Writes::ROWS);
            let records = encodes.len() / Writes::ENCODES;
            let can_wait =
                || records > 0 && is_read_later(rule, spans, (of.tokens(), kernels.kv_heads), records);
            match of.encode_group.filter(|_| can_wait()) {
                Some(group) => {
                    later.entry(group).or_insert((slot, side, Vec::new())).2.extend(encodes);
                }
                None => plan.encodes[side] = (words.add(encodes.iter().copied()), records),
            }
        }
        Ok(plan)
    }
}

/// A round of a block's attention, and where its sums go.
#[derive(Clone, Copy)]
pub(crate) struct Attending<'a> {
    pub of: &'a Attention,
    pub slot: &'a SlotKernels,
    pub class: Class,
    pub round: Round,
    pub attended: Place<'a>,
}

/// Keys or values of a pass: rows of heads.
#[derive(Clone, Copy)]
pub(crate) struct HeadRows<'a> {
    pub place: Place<'a>,
    pub head: HeadPlace,
}

impl<'a> Run<'a> {
    /// Writes keys and values of the pass into the pages of a slot, and encodes those that are due.
    pub(crate) fn append(&mut self, slot: KvSlot, keys: HeadRows<'_>, values: HeadRows<'_>) {
        let Some(kernels) = self.kernels.slots.get(slot.index()).and_then(Option::as_ref) else { return };
        let plan = &self.plan.slots[&slot.index()];
        let blocks = self.pages.len();
        let mark = kernels.layer as u32 + 1;
        for (index, side) in SIDES.into_iter().enumerate() {
            let (rows, of): (_, &SideKernels) = match side {
                Side::Key => (keys, &kernels.key),
                Side::Value => (values, &kernels.value),
            };
            let (at, records) = plan.rows[index];
            let arguments = [
                at as u32,
                records as u32,
                rows.place.stride as u32,
                (rows.place.at + rows.head.at) as u32,
                rows.head.step as u32,
                mark,
                of.exact.element.largest().to_bits(),
            ];
            let kernel = of.append_kernel(&self.network.gpu, blocks);
            let mut bound = vec![&self.buffers.plan, rows.place.buffer, &self.buffers.status];
            bound.extend(self.pages.iter().map(|buffer| &**buffer));
            self.recorder.dispatch(
                &kernel,
                &bound,
                &arguments,
                Grid::rows(records, u32::from(records > 0) as usize),
            );
        }
        self.encode(slot);
    }

    /// Encodes the pages of a slot that its queries read in this pass.
    pub(crate) fn encode(&mut self, slot: KvSlot) {
        let encodes = self.plan.slots[&slot.index()].encodes;
        for (side, (at, records)) in encodes.into_iter().enumerate() {
            self.encode_pages(&LaterPages { slot, side, at, records });
        }
    }

    /// Encodes the pages that the pass has ended and does not read as bytes: those of all layers together, once every layer is done.
    pub(crate) fn encode_later(&mut self) {
        let plan = self.plan;
        plan.later.iter().for_each(|pages| self.encode_pages(pages));
    }

    fn encode_pages(&mut self, of: &LaterPages) {
        let &LaterPages { slot, side, at, records } = of;
        let Some(kernels) = self.kernels.slots.get(slot.index()).and_then(Option::as_ref) else { return };
        let of = [&kernels.key, &kernels.value][side];
        if records == 0 {
            return;
        }
        let (gpu, kept) = (&self.network.gpu, (&self.buffers.plan, &self.buffers.status));
        for EncodeCall { kernel, mut bound, grid } in of.encode_calls(gpu, kept, (records, self.pages.len()))
        {
            bound.extend(self.pages.iter().map(|buffer| &**buffer));
            self.recorder.dispatch(&kernel, &bound, &[at as u32, records as u32], grid);
        }
    }

    /// How the attention of a block is cut.
    pub(crate) fn rounds(&self, of: &Attention, slot: &SlotKernels) -> (Class, &'a [Round]) {
        let class = Class::new(slot, &self.plan.rule, of.heads, self.plan.most_tokens);
        (class, &self.plan.classes[&class])
    }

    /// Attends with the queries `(rows, heads, key_dim)` of the pass into `attended`.
    pub(crate) fn attend(&mut self, of: &Attention, queries: Place<'_>, attended: Place<'_>) {
        let owner = self.network.slots.owner(of.slot);
        let Some(slot) = self.kernels.slots.get(owner.index()).and_then(Option::as_ref) else { return };
        let (class, rounds) = self.rounds(of, slot);
        let prepared = match slot.prepared_width(of.heads) {
            0 => queries,
            _ => self.buffers.place("prepared"),
        };
        let key_dim = slot.key.dim();
        // Behind the parts of all heads that meet keys are those that meet latents.
        let parts = [(false, &slot.key, 0, 0), (true, &slot.value, key_dim, of.heads * (key_dim + 1))];
        for (latents, side, q_at, y_at) in parts.into_iter().take(1 + usize::from(slot.is_latent)) {
            let Some(moves) = &side.moves else { continue };
            let arguments = [
                self.rows,
                of.heads,
                queries.stride,
                prepared.stride,
                side.dim() + 1,
                class.group,
                q_at,
                slot.query_dim(),
                y_at,
            ];
            let kernel = slot.prepare_kernel(&self.network.gpu, latents);
            let bound = [queries.buffer, &moves.attend, prepared.buffer];
            let grid = Grid::rows(self.rows * of.heads, 1);
            self.recorder.dispatch(&kernel, &bound, &arguments.map(|n| n as u32), grid);
        }
        for &round in rounds {
            let attending = Attending { of, slot, class, round, attended };
            self.attend_round(attending, queries, prepared);
            self.merge(attending);
        }
    }

    /// What kernels that attend are told first.
    pub(crate) fn attend_arguments(
        &self,
        of: &Attention,
        slot: &SlotKernels,
        class: Class,
        round: Round,
    ) -> [u32; 10] {
        let (owner, rule) = (self.network.slots.owner(of.slot), &self.plan.rule);
        let window =
            rule.window(slot.window).map_or(u32::MAX, |window| u32::try_from(window).unwrap_or(u32::MAX));
        let SlotPlan { coded_at, table_at, .. } = self.plan.slots[&owner.index()];
        [
            round.tasks_at as u32,
            round.tasks as u32,
            coded_at as u32,
            table_at as u32,
            class.group as u32,
            window,
            if rule.keeps_sinks(slot.window) { u32::MAX } else { window },
            of.scale.to_bits(),
            of.soft_cap.unwrap_or(0.0).to_bits(),
            rule.sinks as u32,
        ]
    }

    fn attend_round(&mut self, attending: Attending<'_>, queries: Place<'_>, prepared: Place<'_>) {
        let Attending { of, slot, class, round, .. } = attending;
        let (gpu, buffers) = (&self.network.gpu, self.buffers);
        let sinks_row = if self.plan.is_streaming() { self.rows } else { 0 };
        let places = [queries.stride, slot.query_dim(), prepared.stride, slot.key.dim() + 1, sinks_row]
            .map(|n| n as u32);
        let shared = self.attend_arguments(of, slot, class, round);
        let arguments: Vec<u32> = shared.into_iter().chain(places).collect();
        let kernel = slot.attend_kernel(gpu, class.columns, self.pages.len());
        let mut bound = vec![&buffers.plan, queries.buffer, prepared.buffer, &buffers.partials];
        bound.extend(slot.maps());
        bound.extend(self.pages.iter().map(|buffer| &**buffer));
        self.recorder.dispatch(&kernel, &bound, &arguments, Grid::rows(round.tasks, 1));
    }

    /// Puts the splits of a round together.
    fn merge(&mut self, attending: Attending<'_>) {
        let Attending { of, slot, class, round, .. } = attending;
        let (bound, arguments) = self.merge_call(attending);
        let kernel = slot.merge_kernel(&self.network.gpu, class.columns, of.sink_logits.is_some());
        let grid = slot.merge_grid(class.columns, round.rows * of.heads);
        self.recorder.dispatch(&kernel, &bound, &arguments, grid);
    }

    /// What kernels that put splits together are bound to first, and told first.
    pub(crate) fn merge_call<'b>(&self, attending: Attending<'b>) -> (Vec<&'b Buffer>, Vec<u32>)
    where
        'a: 'b,
    {
        let Attending { of, slot, class, round, attended } = attending;
        let buffers = self.buffers;
        let arguments = [
            round.rows_at,
            round.rows,
            round.tasks_at,
            of.heads,
            class.group,
            attended.stride,
            attended.at + round.row * attended.stride,
        ];
        let finish = slot.value.moves.as_ref().map_or(&buffers.plan, |moves| &*moves.attend);
        let logits = of.sink_logits.as_ref().unwrap_or(&buffers.plan);
        let bound = vec![&buffers.plan, &buffers.partials, finish, logits, attended.buffer];
        (bound, arguments.map(|n| n as u32).to_vec())
    }
}
