//! Attention over latents: one stored vector serves scores and sums, beside a rotated part that scores alone read.
//!
//! MLA keeps a compressed latent for all heads: queries have W_uk absorbed and meet latents themselves, and what attention sums up goes through
//! W_uv. Every head has matrices of its own, which are multiplied as those of experts are: a row is a visit of a token to a head. Gemma 4's
//! global layers keep the value and the channels of a key that turn; the others of a key are the value times the norm's weights, which the
//! query takes over.

use crate::buffer::Buffer;
use crate::compile::Compiler;
use crate::device::Gpu;
use crate::gates::scale_rows;
use crate::ops::{Norm, NormShape, RopeRows, rotate};
use crate::product::{Epilogue, Fused, Target, Visits};
use crate::program::{Attention, Linear, LinearPart, Widths};
use crate::recorder::{Grid, Recorder};
use crate::run::Run;
use crate::weights::{Matrix, Place};
use kvant_device::{HeadPlace, packed};
use kvant_model::description::{self, Description, LatentQuery, Pairing, Precision, Projection, RopeId};
use kvant_model::error::{LoadError, Result};
use kvant_model::{Rows, Tensor};

/// How queries come to meet latents.
pub(crate) enum Latent {
    /// Keys are values but for the channels that turn.
    Folded(Folded),
    /// MLA.
    Absorbed(Box<Absorbed>),
}

/// Channels of queries and of keys, with their factors, as the slot wants them.
pub(crate) struct Folded {
    queries: (Buffer, usize),
    keys: (Buffer, usize),
}

/// Queries with W_uk absorbed, and sums that go through W_uv.
pub(crate) struct Absorbed {
    /// Into a narrow space where there is one, with its norm, then to `(heads, nope_dim + rope_dim)`.
    narrow: Option<(Linear, Norm)>,
    query: Linear,
    nope: usize,
    rope: usize,
    latent: usize,
    value: usize,
    /// W_ukᵀ and W_uv of every head, one after another.
    to_latent: Linear,
    to_value: Linear,
    /// W_uv as stored, for whoever calibrates.
    value_weights: Vec<Tensor>,
}

/// Visits of one dispatch at most.
const VISITS: usize = 32_768;

impl Folded {
    fn new(gpu: &Gpu, turning: &[usize], by: &[f32]) -> Folded {
        let pairs = |list: &mut dyn Iterator<Item = (usize, f32)>| -> (Buffer, usize) {
            let words: Vec<u32> = list.flat_map(|(channel, by)| [channel as u32, by.to_bits()]).collect();
            (Buffer::of_words(gpu, "channels", &words), words.len() / 2)
        };
        let turned = turning.iter().map(|channel| (*channel, 1.0));
        let plain = by.iter().copied().enumerate();
        Folded { queries: pairs(&mut turned.clone().chain(plain)), keys: pairs(&mut turned.clone()) }
    }
}

fn fold(
    recorder: &mut Recorder<'_>,
    (channels, width): (&Buffer, usize),
    (rows, heads): (usize, usize),
    (x, x_head): (Place<'_>, usize),
    y: Place<'_>,
) {
    let kernel =
        recorder.gpu().kernel_of("fold", "fold".to_owned(), || include_str!("wgsl/fold.wgsl").to_owned());
    let arguments = [rows, heads, width, x.stride, x.at, x_head, y.stride, y.at].map(|n| n as u32);
    let grid = Grid::rows((rows * heads * width).div_ceil(64), 1);
    recorder.dispatch(&kernel, &[channels, x.buffer, y.buffer], &arguments, grid);
}

/// Whether attention over latents runs.
pub(crate) fn check_latent(of: &description::LatentAttention) -> Result<(), &'static str> {
    if of.latent_dim > 512 {
        return Err("latents of more than 512 channels");
    }
    let fours = [of.nope_dim + of.rope_dim, of.latent_dim, of.heads * of.value_dim];
    if fours.iter().any(|width| width % 4 != 0) {
        return Err("latents or queries that are not whole fours");
    }
    Ok(())
}

impl Compiler<'_> {
    /// How keys that are their values meet a slot of latents; `None` where the slot holds keys and values.
    pub(crate) fn folded(
        &self,
        of: &description::Attention,
        in_model: &Description,
    ) -> Result<Option<Latent>> {
        let owner = in_model.slots.owner(of.slot);
        let kind = in_model.slots.get(owner.index()).map(|slot| slot.kind);
        let Some(kvant_cache::SlotKind::Latent(shape)) = kind else { return Ok(None) };
        let (Some(norm), Some(RopeId(rope)), true) = (&of.k_norm, of.rope, owner == of.slot) else {
            let what = "attention over latents needs keys of its own, normed and rotated";
            return Err(LoadError::mismatch(what));
        };
        let turning = in_model.ropes[rope].turning_channels();
        let weights = norm.weight.as_ref().map(|weight| weight.read(self.checkpoint)).transpose()?;
        let mut by = weights.unwrap_or_else(|| vec![1.0; norm.width]);
        if (shape.latent_dim, shape.rope_dim) != (by.len(), turning.len()) || by.len() != of.value_dim {
            let what = "attention over latents: keys, values and slot are of different widths";
            return Err(LoadError::mismatch(what));
        }
        turning.iter().for_each(|&channel| by[channel] = 0.0);
        Ok(Some(Latent::Folded(Folded::new(self.gpu, &turning, &by))))
    }

    /// MLA, as attention whose keys and values are those of the slot.
    pub(crate) fn latent_attention(
        &self,
        of: &description::LatentAttention,
        widths: &mut Widths,
    ) -> Result<Attention> {
        let (heads, nope, rope) = (of.heads, of.nope_dim, of.rope_dim);
        let (latent, value) = (of.latent_dim, of.value_dim);
        let projection = self.linear(&[&of.latent])?;
        let (narrow, query) = match &of.query {
            LatentQuery::Direct(query) => (None, self.linear(&[query])?),
            LatentQuery::LowRank { down, norm, up } => {
                let down = self.linear(&[down])?;
                widths.narrow = widths.narrow.max(down.outputs());
                (Some((down, self.norm(norm)?)), self.linear(&[up])?)
            }
        };
        let is_wide = projection.outputs() == latent + rope && query.outputs() == heads * (nope + rope);
        if !is_wide || of.up.key.len() != heads || of.up.value.len() != heads {
            return Err(LoadError::mismatch("attention over latents: layers are of other widths"));
        }
        let turned = of.up.key.iter().map(|matrix| self.turned(matrix)).collect::<Result<Vec<_>>>()?;
        let read = |matrix: &description::Matrix| matrix.read(self.checkpoint);
        let value_weights = of.up.value.iter().map(read).collect::<Result<Vec<Tensor>>>()?;
        let pack = |tensor: &Tensor| packed(tensor.clone(), Precision::Packed, self.weights);
        let values = value_weights.iter().map(pack).collect::<Result<Vec<_>>>()?;
        widths.projected = widths.projected.max(projection.outputs());
        widths.queries = widths.queries.max(heads * (nope + rope));
        widths.folded = widths.folded.max(heads * (rope + latent));
        widths.keys = widths.keys.max(rope);
        widths.values = widths.values.max(latent);
        widths.attended = widths.attended.max(heads * latent);
        widths.head_values = widths.head_values.max(heads * value);
        if widths.latent_heads != 0 && widths.latent_heads != heads {
            return Err(LoadError::unsupported("attention over latents with heads of different numbers"));
        }
        widths.latent_heads = heads;
        let absorbed = Absorbed {
            narrow,
            query,
            nope,
            rope,
            latent,
            value,
            to_latent: self.stacked_tensors(&turned)?,
            to_value: self.stacked_tensors(&values)?,
            value_weights,
        };
        let fused = Projection::Fused(of.latent.clone());
        let plain =
            description::Attention::plain(of.slot, (heads, 1), (rope, latent), fused, of.output.clone());
        let described = description::Attention {
            window: of.window,
            v_norm: Some(of.latent_norm.clone()),
            rope: of.rope,
            query_gain: of.query_gain,
            scale: of.scale,
            ..plain
        };
        Ok(Attention {
            described,
            projection,
            q: HeadPlace { at: 0, step: nope + rope },
            kv: Some((HeadPlace { at: latent, step: rope }, HeadPlace { at: 0, step: latent })),
            q_norm: None,
            k_norm: None,
            v_norm: Some(self.norm(&of.latent_norm)?),
            sink_logits: None,
            latent: Some(Latent::Absorbed(Box::new(absorbed))),
            output: self.linear(&[&of.output])?,
            output_weights: of.output.weight.read(self.checkpoint)?,
        })
    }

    /// The transpose of a matrix.
    fn turned(&self, matrix: &description::Matrix) -> Result<Tensor> {
        let stored = matrix.read(self.checkpoint)?;
        let (rows, columns) = (stored.rows(), stored.columns());
        let values = stored.to_f32()?;
        let turned: Vec<f32> =
            (0..columns).flat_map(|column| values[column..].iter().step_by(columns).copied()).collect();
        let tensor = Tensor::from_f32(stored.name(), vec![columns, rows], &turned)?;
        packed(tensor, Precision::Packed, self.weights)
    }

    /// Matrices of all heads as one, which a kernel has to see at once.
    fn stacked_tensors(&self, tensors: &[Tensor]) -> Result<Linear> {
        let matrix = Matrix::upload(self.gpu, tensors)?;
        if matrix.parts().len() != 1 {
            return Err(LoadError::unsupported(format!(
                "the heads of a layer have more weights than {} binds at once; run the model with `--device cpu`",
                self.gpu.name()
            )));
        }
        Ok(Linear { parts: vec![LinearPart { matrix, bias: None, column: 0 }] })
    }
}

impl Absorbed {
    /// What the residual stream gets of a sum of latents, `(hidden, heads · latent)`: the output layer times W_uv.
    pub(crate) fn output_weights(&self, output: &Tensor) -> Option<Rows> {
        let rows = output.to_f32().ok()?;
        let (heads, hidden) = (self.value_weights.len(), output.rows());
        let mut weights = vec![0.0; hidden * heads * self.latent];
        for (head, up) in self.value_weights.iter().enumerate() {
            let up = up.to_f32().ok()?; // (value, latent)
            for row in 0..hidden {
                let by = &rows[(row * heads + head) * self.value..][..self.value];
                let to = &mut weights[(row * heads + head) * self.latent..][..self.latent];
                for (by, up) in by.iter().zip(up.chunks_exact(self.latent)) {
                    to.iter_mut().zip(up).for_each(|(to, up)| *to += by * up);
                }
            }
        }
        Some(Rows::from_vec(weights, heads * self.latent))
    }
}

impl<'a> Run<'a> {
    /// Queries as a folded slot wants them; `behind` the same as they meet the sinks of a streaming window.
    pub(crate) fn folded_queries(
        &mut self,
        of: &Attention,
        folded: &Folded,
        queries: Place<'a>,
    ) -> Place<'a> {
        let width = of.heads * folded.queries.1;
        let to = Place { stride: width, ..self.buffers.place("folded") };
        let rows = if self.plan.is_streaming() { 2 * self.rows } else { self.rows };
        let channels = (&folded.queries.0, folded.queries.1);
        fold(&mut self.recorder, channels, (rows, of.heads), (queries, of.key_dim), to);
        to
    }

    /// The channels of keys that turn, and from one head to the next.
    pub(crate) fn folded_keys(
        &mut self,
        of: &Attention,
        folded: &Folded,
        keys: Place<'a>,
    ) -> (Place<'a>, usize) {
        let to = self.buffers.place("between");
        let channels = (&folded.keys.0, folded.keys.1);
        fold(&mut self.recorder, channels, (self.rows, of.kv_heads), (keys, of.key_dim), to);
        (to, folded.keys.1)
    }

    /// MLA's queries with W_uk absorbed, `(rows, heads, rope + latent)`.
    pub(crate) fn absorbed_queries(&mut self, of: &Attention, own: &Absorbed, x: Place<'a>) -> Place<'a> {
        let (buffers, heads) = (self.buffers, of.heads);
        let (both, width) = (own.nope + own.rope, own.rope + own.latent);
        let raw = Place { stride: heads * both, ..buffers.place("queries") };
        match &own.narrow {
            None => self.linear(&own.query, self.rows, x, raw, Epilogue::STORE),
            Some((down, norm)) => {
                let (narrow, normed) = (buffers.place("narrow"), buffers.place("narrow normed"));
                self.linear(down, self.rows, x, narrow, Epilogue::STORE);
                self.norm(norm, narrow, normed, NormShape::rows(self.rows));
                self.linear(&own.query, self.rows, normed, raw, Epilogue::STORE);
            }
        }
        if let Some(&gains_at) = self.plan.gains.get(&of.slot.index()) {
            let plan = (&buffers.plan, gains_at);
            scale_rows(&mut self.recorder, plan, (self.rows, heads * both), raw);
        }
        let queries = Place { stride: heads * width, ..buffers.place("folded") };
        let times = if self.plan.is_streaming() { 2 } else { 1 };
        for at_sinks in [false, true].into_iter().take(times) {
            let first = usize::from(at_sinks) * self.rows * heads * width;
            let to = Place { at: first, ..queries };
            self.rotated(of, own, raw, to, at_sinks);
            let to = Place { stride: width, at: first + own.rope, ..queries };
            self.visit_heads(&own.to_latent, heads, Place { stride: both, ..raw }, to);
        }
        queries
    }

    fn rotated(&mut self, of: &Attention, own: &Absorbed, raw: Place<'_>, to: Place<'_>, at_sinks: bool) {
        let rotations = if at_sinks { &self.plan.at_sinks } else { &self.plan.rotations };
        let rope = of.rope.map(|id| (&self.network.ropes[id.0], rotations[&id.0]));
        let turn = RopeRows {
            rows: self.rows,
            heads: of.heads,
            dim: own.rope,
            pairs: rope.map_or(0, |(rope, _)| rope.dims() / 2),
            turns_at: rope.map_or(0, |(_, at)| at),
            pairing: rope.map_or(Pairing::Halves, |(rope, _)| rope.pairing()),
            amplitude: rope.map_or(1.0, |(rope, _)| rope.amplitude()),
            scale: 1.0,
            x_head: own.nope + own.rope,
            y_head: own.rope + own.latent,
        };
        let from = Place { at: raw.at + own.nope, ..raw };
        rotate(&mut self.recorder, &self.buffers.plan, from, to, turn);
    }

    /// Sums of latents, `(rows, heads, latent)`, to values.
    pub(crate) fn absorbed_values(&mut self, of: &Attention, own: &Absorbed, summed: Place<'a>) -> Place<'a> {
        let values = Place { stride: of.heads * own.value, ..self.buffers.place("head values") };
        let (from, to) = (Place { stride: own.latent, ..summed }, Place { stride: own.value, ..values });
        self.visit_heads(&own.to_value, of.heads, from, to);
        values
    }

    /// Every row of `x` times the matrix of its head.
    fn visit_heads(&mut self, of: &Linear, heads: usize, x: Place<'_>, y: Place<'_>) {
        let routes = &self.buffers.head_routes;
        let tiles = self.tiles_visits().then(|| self.head_visits(heads));
        let visits = Visits { routes, of_input: 1, experts: heads, tiles };
        let fused = Fused { norm: None, activate: None, visits: Some(visits) };
        let all = self.rows * heads;
        let step = if tiles.is_some() { all } else { (VISITS / heads).max(1) * heads };
        for first in (0..all).step_by(step) {
            let [from, to] = [x, y].map(|place| Place { at: place.at + first * place.stride, ..place });
            for part in &of.parts {
                let target = Target { bias: None, y: to, epilogue: Epilogue::STORE };
                part.matrix.multiply_fused(&mut self.recorder, step.min(all - first), from, target, fused);
            }
        }
    }
}
