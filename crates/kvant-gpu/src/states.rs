//! Recurrent state on the device: what a pass does with it, planned before the first layer runs, and the kernels that mixers share.
//!
//! The state at a chunk's start and the rows of the open chunk lie in pages of the store. A pass is cut into *pieces*, each in one chunk of one
//! sequence ([`Sequence::advance_on_device`]); a *round* has the next piece of every sequence, so chunks of one sequence follow each other and
//! sequences go side by side. Pieces whose rows or states nobody keeps have them in a buffer of the pass.
//!
//! **Invariant:** a token is computed from the state at its chunk's start, as it is stored, and the chunk's rows, added in their order: its bits
//! do not depend on how a pass was cut.

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::kernel::Kernel;
use crate::network::GpuNetwork;
use crate::ops::{ACT, activation_number};
use crate::page_text::buffers;
use crate::plan::PassParams;
use crate::program::Mixer;
use crate::recorder::Grid;
use crate::run::Run;
use crate::weights::Place;
use kvant_cache::{
    RecurrentShape, RowsCopy, STATE_CHUNK, Sequence, StateError, StatePiece, StateSlot, StateType,
};
use kvant_device::Span;
use kvant_model::Checkpoint;
use kvant_model::description::Convolution;
use kvant_model::error::{LoadError, Result};
use std::collections::HashMap;
use std::sync::Arc;

/// Buffers of the kernels beside those of pages.
const OTHERS: usize = 6;

/// The number of a page that is not there, and what numbers of pages of the pass's own buffer begin with.
const NOTHING: u32 = u32::MAX;
const OWN_PAGES: u32 = 31 << 27;

/// What kernels of a recurrent mixer know beside activations.
pub(crate) struct StateKernels {
    pub slot: StateSlot,
    shape: RecurrentShape,
    /// Taps `(kernel, channels)`, biases of the convolution, and what else the mixer has.
    params: Buffer,
    constants: String,
    kernel: usize,
}

/// What a pass does with recurrent state.
#[derive(Default)]
pub(crate) struct StatePlan {
    slots: HashMap<usize, Vec<StateRound>>,
    /// What checkpoints keep, copied after the pass.
    pub copies: Vec<RowsCopy>,
    /// Words of pages that nobody keeps, and of states before they are stored.
    pub own_words: usize,
    pub fresh_words: usize,
    state_type: StateType,
}

/// The next piece of every sequence that has one.
#[derive(Clone, Copy)]
pub(crate) struct StateRound {
    pieces_at: usize,
    pub pieces: usize,
    /// Tokens of the longest.
    pub tokens: usize,
    /// Whether a chunk ends.
    closes: bool,
}

/// Words of a page.
fn page_words(bytes: usize) -> usize {
    bytes.div_ceil(16) * 4
}

impl GpuNetwork {
    /// The recurrent mixers.
    fn recurrent(&self) -> impl Iterator<Item = &StateKernels> {
        let branches =
            self.program.layers.iter().flat_map(|layer| &layer.residuals).flat_map(|r| &r.branches);
        branches.filter_map(|branch| branch.mixer.state())
    }

    /// Takes pages for the pass in every recurrent slot and sets out what kernels do with them.
    pub(crate) fn plan_states(
        &self,
        words: &mut PassParams,
        spans: &[Span],
        sequences: &mut [&mut Sequence],
    ) -> Result<StatePlan, StateError> {
        let mut plan = StatePlan::default();
        for of in self.recurrent() {
            let mut pieces = Vec::new();
            for (index, (span, sequence)) in spans.iter().zip(&mut *sequences).enumerate() {
                let state_type = sequence.recurrent(of.slot).map(|state| state.state_type());
                plan.state_type = state_type.unwrap_or_default();
                let work = sequence
                    .advance_on_device(of.slot, span.tokens)
                    .map_err(|error| StateError::new(index, error))?;
                plan.copies.extend(work.copies);
                pieces.push(work.pieces);
            }
            let rounds = plan.rounds(words, of.shape, spans, &pieces);
            plan.slots.insert(of.slot.index(), rounds);
        }
        Ok(plan)
    }
}

impl StatePlan {
    fn rounds(
        &mut self,
        words: &mut PassParams,
        shape: RecurrentShape,
        spans: &[Span],
        pieces: &[Vec<StatePiece>],
    ) -> Vec<StateRound> {
        let row_words = page_words(STATE_CHUNK * shape.row * 4);
        let state_words = page_words(self.state_type.bytes(shape.state));
        let each = row_words + 2 * state_words;
        let most = pieces.iter().map(Vec::len).max().unwrap_or(0);
        let mut rounds = Vec::new();
        // The next row of each sequence, and the state it has reached.
        let mut at: Vec<usize> = spans.iter().map(|span| span.row).collect();
        let mut states = vec![None; spans.len()];
        for round in 0..most {
            let (mut list, mut tokens, mut closes) = (Vec::new(), 0, false);
            for (index, own) in pieces.iter().enumerate() {
                let Some(piece) = own.get(round) else { continue };
                let mut own_page = |place: usize| {
                    self.own_words = self.own_words.max((index + 1) * each);
                    OWN_PAGES | ((index * each + place) / 4) as u32
                };
                let number = |page: kvant_cache::PageId| page.0 as u32;
                let state = states[index].or(piece.state.map(number)).unwrap_or(NOTHING);
                let rows = piece.rows.map_or_else(|| own_page(0), number);
                let is_full = piece.before + piece.tokens == STATE_CHUNK;
                let next = is_full.then(|| {
                    piece.next.map_or_else(|| own_page(row_words + round % 2 * state_words), number)
                });
                let record = [at[index] as u32, piece.tokens as u32, piece.before as u32, state, rows];
                list.extend(record.into_iter().chain([next.unwrap_or(NOTHING)]));
                at[index] += piece.tokens;
                (tokens, closes) = (tokens.max(piece.tokens), closes | is_full);
                states[index] = next;
            }
            let pieces = list.len() / 6;
            if closes {
                self.fresh_words = self.fresh_words.max(pieces * shape.state);
            }
            rounds.push(StateRound { pieces_at: words.add(list), pieces, tokens, closes });
        }
        rounds
    }
}

impl StateKernels {
    /// Of a mixer with this convolution; `others` follow its taps and biases, and `constants` are the mixer's own.
    pub(crate) fn new(
        gpu: &Gpu,
        checkpoint: &Checkpoint,
        (slot, shape): (StateSlot, RecurrentShape),
        conv: &Convolution,
        (others, constants): (&[f32], String),
    ) -> Result<StateKernels> {
        let Convolution { channels, kernel, .. } = *conv;
        let taps = conv.weight.read(checkpoint)?;
        let bias = conv.bias.as_ref().map(|bias| bias.read(checkpoint)).transpose()?;
        let has_bias = bias.is_some();
        if taps.len() != channels * kernel || bias.as_ref().is_some_and(|bias| bias.len() != channels) {
            return Err(LoadError::mismatch(format!(
                "a convolution of {channels} channels has other weights"
            )));
        }
        let mut numbers: Vec<f32> =
            (0..kernel).flat_map(|tap| taps.iter().skip(tap).step_by(kernel).copied()).collect();
        numbers.extend(bias.unwrap_or_else(|| vec![0.0; channels]));
        numbers.extend(others);
        let constants = format!(
            "const CHANNELS = {channels}u;\nconst KERNEL = {kernel}u;\nconst TAIL = {}u;\nconst COUNT = {}u;\nconst ROW = {}u;\n\
             const BIAS = {has_bias};\nconst OTHERS_AT = {}u;\nconst ACTIVATED = {};\nconst ACTIVATION = {}u;\n{constants}",
            channels * (kernel - 1),
            shape.state,
            shape.row,
            (kernel + 1) * channels,
            conv.activation.is_some(),
            conv.activation.map_or(0, activation_number),
        );
        let params = Buffer::of_floats(gpu, "convolution", &numbers);
        Ok(StateKernels { slot, shape, params, constants, kernel })
    }

    /// A kernel of the mixer: `text`, and what it ends with.
    fn kernel(
        &self,
        gpu: &Gpu,
        (label, text): (&'static str, &str),
        state_type: StateType,
        blocks: usize,
    ) -> Arc<Kernel> {
        let number = match state_type {
            StateType::F32 => 0,
            StateType::Bf16 => 1,
            StateType::Int8 => 2,
        };
        let constants = format!("const STATE_TYPE = {number}u;\n{}", self.constants);
        gpu.kernel_of(label, format!("{label} {blocks} {constants}"), || {
            let shift: String = (1..self.kernel)
                .map(|tap| match tap + 1 == self.kernel {
                    true => format!("input{} = own;\n", tap - 1),
                    false => format!("input{} = input{tap};\n", tap - 1),
                })
                .collect();
            let text = crate::unroll::unrolled(text, &[("TAPS", self.kernel)]).replace("//SHIFT", &shift);
            let parts = [
                constants.as_str(),
                &text,
                include_str!("wgsl/states.wgsl"),
                "const CLAMPED = false;\n",
                ACT,
                crate::ops::ROW_SUM,
                &buffers(OTHERS, blocks, true),
            ];
            parts.concat()
        })
    }
}

impl Run<'_> {
    /// The rounds of a recurrent slot.
    pub(crate) fn state_rounds(&self, of: &StateKernels) -> Vec<StateRound> {
        self.states.slots.get(&of.slot.index()).cloned().unwrap_or_default()
    }

    /// A kernel over the pieces of a round: `x` is what it reads, and `y` what it writes.
    pub(crate) fn state_kernel(
        &mut self,
        of: &StateKernels,
        text: (&'static str, &str),
        round: StateRound,
        (x, y): (Place<'_>, Place<'_>),
        workgroups: usize,
    ) {
        let kernel = of.kernel(&self.network.gpu, text, self.states.state_type, self.pages.len());
        let layer = self.network.slots.get(of.slot.index()).map_or(0, |slot| slot.layer);
        let arguments =
            [round.pieces_at, round.pieces, layer + 1, x.stride, y.stride, round.tokens].map(|n| n as u32);
        let buffers = self.buffers;
        let mut bound = vec![&buffers.plan, &of.params, x.buffer, y.buffer, &buffers.status, &buffers.states];
        bound.extend(self.pages.iter().map(|buffer| &**buffer));
        self.recorder.dispatch(&kernel, &bound, &arguments, Grid::rows(workgroups, 1));
    }

    /// Stores the states of a round's chunks that are full. `matrix` computes what follows the convolution's last inputs, and its workgroups to a
    /// piece.
    pub(crate) fn close_chunks(
        &mut self,
        of: &StateKernels,
        round: StateRound,
        x: Place<'_>,
        matrix: Option<((&'static str, &str), usize)>,
    ) {
        if !round.closes {
            return;
        }
        let fresh = Place { buffer: &self.buffers.fresh, stride: 0, at: 0 };
        if let Some((text, units)) = matrix {
            self.state_kernel(of, text, round, (x, fresh), round.pieces * units);
        }
        let units = of.shape.state.div_ceil(64);
        let store = ("store_state", include_str!("wgsl/store_state.wgsl"));
        self.state_kernel(of, store, round, (fresh, x), round.pieces * units);
    }
}

impl Mixer {
    /// Its recurrent state.
    pub(crate) fn state(&self) -> Option<&StateKernels> {
        match self {
            Mixer::ShortConv(of) => Some(&of.state),
            Mixer::DeltaNet(of) => Some(&of.state),
            Mixer::Mamba2(of) => Some(&of.state),
            Mixer::Attention(_)
            | Mixer::Mlp(_)
            | Mixer::Moe(_)
            | Mixer::PerLayerInput(_)
            | Mixer::Laurel(_) => None,
        }
    }
}
