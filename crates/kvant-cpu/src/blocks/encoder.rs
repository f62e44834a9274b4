//! Encoders: every token of a text meets every other, in f32, and nothing is kept.

use super::{
    Activations, AdaptedRows, Block, Classifier, Embedding, Encoder, EncoderLayer, RopeTable, SelfAttention,
    TokenInput, dot_block, for_each_row, function, softmax::softmax,
};
use kvant_cache::{KvSlot, Sequence, StateError, StateErrorKind};
use kvant_model::description::{Projection, Rope, RopeId};
use kvant_model::{EncoderText, Network, Outputs, Pass, Rows};
use std::ops::Range;

/// Queries that meet keys together: their scores stay in the nearest cache where texts are short.
const QUERIES: usize = 16;

/// A compiled encoder.
pub struct EncoderNetwork {
    /// Of tokens and positions.
    pub embedding: Embedding,
    /// What follows.
    pub encoder: Encoder,
    /// The rotary embeddings that layers refer to.
    pub ropes: Vec<Rope>,
}

impl Network for EncoderNetwork {
    fn forward(&self, _: Pass<'_>, _: &mut [&mut Sequence]) -> Result<Outputs, StateError> {
        Err(StateError::new(
            0,
            StateErrorKind::Pass { what: "an encoder keeps no state and makes no passes" },
        ))
    }

    fn output_weights(&self, _: KvSlot) -> Vec<Rows> {
        Vec::new()
    }

    fn encode(&self, texts: &[EncoderText<'_>]) -> Option<Rows> {
        let mut x = self.embedded(texts);
        let texts = spans(texts);
        let tables: Vec<RopeTable> = self
            .ropes
            .iter()
            .map(|rope| RopeTable::new(rope, texts.iter().map(|of| (0..of.len(), of.len()))))
            .collect();
        for layer in &self.encoder.layers {
            Block(layer).forward(&mut x, &texts, &tables);
        }
        self.encoder.norm.iter().for_each(|norm| norm.in_place(&mut x));
        Some(x.into_rows())
    }

    fn classify(&self, texts: &[EncoderText<'_>], rows: &Rows) -> Option<Rows> {
        let classifier = self.encoder.classifier.as_deref()?;
        Some(Block(classifier).forward(&spans(texts), rows).into_rows())
    }
}

/// Which rows the tokens of each text are.
fn spans(texts: &[EncoderText<'_>]) -> Vec<Range<usize>> {
    let mut end = 0;
    let span = |text: &EncoderText<'_>| {
        let start = end;
        end += text.ids.len();
        start..end
    };
    texts.iter().map(span).collect()
}

impl EncoderNetwork {
    /// Tokens, positions and segments added up, `(tokens, hidden)`.
    fn embedded(&self, texts: &[EncoderText<'_>]) -> Activations {
        let first = self.encoder.first_position;
        let tokens = || texts.iter().flat_map(|text| text.ids.iter().enumerate());
        let mut x = self.embedding.forward(tokens().map(|(at, &id)| (TokenInput::Id(id), first + at)));
        if let Some(table) = &self.encoder.segments {
            let mut segments = vec![vec![0.0; table.columns()]; table.rows().min(2)];
            for (index, row) in segments.iter_mut().enumerate() {
                table.row_f32(index, row).expect("the type was tried when it was compiled");
            }
            let last = segments.len() - 1;
            let of_token = texts
                .iter()
                .flat_map(|text| (0..text.ids.len()).map(|at| usize::from(at >= text.second).min(last)));
            let of_token: Vec<usize> = of_token.collect();
            let width = x.width();
            for_each_row(x.data_mut(), width, |token, row| {
                row.iter_mut().zip(&segments[of_token[token]]).for_each(|(x, s)| *x += s);
            });
        }
        self.encoder.embedding_norm.iter().for_each(|norm| norm.in_place(&mut x));
        x
    }
}

impl Block<'_, EncoderLayer> {
    fn forward(&self, x: &mut Activations, texts: &[Range<usize>], ropes: &[RopeTable]) {
        let normed = self.attention_norm.as_ref().map(|norm| norm.forward(x));
        let attended = Block(&self.attention).forward(normed.as_ref().unwrap_or(x), texts, ropes);
        x.add_scaled(&attended, 1.0);
        self.after_attention.iter().for_each(|norm| norm.in_place(x));
        let normed = self.mlp_norm.as_ref().map(|norm| norm.forward(x));
        let inner = Block(&self.mlp).forward(normed.as_ref().unwrap_or(x), &AdaptedRows::none());
        x.add_scaled(&inner, 1.0);
        self.after_mlp.iter().for_each(|norm| norm.in_place(x));
    }
}

/// Queries of one text that are next to each other, and the rows that they write to.
struct Queries<'a> {
    text: Range<usize>,
    /// Rows of the pass.
    rows: Range<usize>,
    /// (rows, heads · head_dim)
    out: &'a mut [f32],
}

impl Block<'_, SelfAttention> {
    fn forward(&self, x: &Activations, texts: &[Range<usize>], ropes: &[RopeTable]) -> Activations {
        let width = self.heads * self.head_dim;
        let [mut q, mut k, v] = match &self.projection {
            Projection::Apart { q, k, v } => super::Linear::forward_all([q, k, v], x, &AdaptedRows::none()),
            Projection::Fused(all) => {
                let all = all.forward(x);
                [0, 1, 2].map(|part| all.columns(part * width..(part + 1) * width))
            }
            Projection::FusedByHead(_) | Projection::Shared { .. } | Projection::Equal { .. } => {
                unreachable!("refused when the model was compiled")
            }
        };
        if let Some(RopeId(rope)) = self.rope {
            ropes[rope].rotate(&mut q, self.head_dim);
            ropes[rope].rotate(&mut k, self.head_dim);
        }
        let scale = 1.0 / (self.head_dim as f32).sqrt();
        q.data_mut().iter_mut().for_each(|x| *x *= scale);
        let mut out = Activations::unset(x.tokens(), width);
        let mut blocks = Vec::new();
        let mut left = out.data_mut();
        for text in texts {
            for first in text.clone().step_by(QUERIES) {
                let rows = first..text.end.min(first + QUERIES);
                let (out, rest) = left.split_at_mut(rows.len() * width);
                blocks.push(Queries { text: text.clone(), rows, out });
                left = rest;
            }
        }
        kvant_threads::for_each_chunk(&mut blocks, 1, |_, blocks| {
            blocks.iter_mut().for_each(|block| self.attend(block, [&q, &k, &v]));
        });
        drop(blocks);
        self.output.forward(&out)
    }

    /// What the queries of a block make of the values that they see.
    fn attend(&self, block: &mut Queries<'_>, [q, k, v]: [&Activations; 3]) {
        let (dim, count) = (self.head_dim, block.rows.len());
        // Keys that some query of the block sees.
        let reach = self.reach.unwrap_or(usize::MAX);
        let first = block.rows.start.saturating_sub(reach).max(block.text.start);
        let end = block.rows.end.saturating_add(reach).min(block.text.end);
        let keys = end - first;
        let gather = |of: &Activations, rows: Range<usize>, head: usize| -> Vec<f32> {
            rows.flat_map(|row| of.row(row)[head * dim..][..dim].iter().copied()).collect()
        };
        let mut scores = vec![0.0; count * keys]; // (queries, keys)
        let mut values = vec![0.0; dim * keys]; // (head_dim, keys)
        let mut sums = vec![0.0; count * dim]; // (queries, head_dim)
        for head in 0..self.heads {
            let queries = gather(q, block.rows.clone(), head);
            dot_block(&queries, &gather(k, first..end, head), dim, &mut scores);
            for (row, scores) in block.rows.clone().zip(scores.chunks_exact_mut(keys)) {
                let from = row.saturating_sub(reach).max(first);
                let to = row.saturating_add(reach).saturating_add(1).min(end);
                let (before, rest) = scores.split_at_mut(from - first);
                let (seen, after) = rest.split_at_mut(to - from);
                before.fill(0.0);
                softmax(seen);
                after.fill(0.0);
            }
            for (key, row) in (first..end).enumerate() {
                let value = &v.row(row)[head * dim..][..dim];
                value.iter().enumerate().for_each(|(channel, x)| values[channel * keys + key] = *x);
            }
            dot_block(&scores, &values, keys, &mut sums);
            for (sums, out) in sums.chunks_exact(dim).zip(block.out.chunks_exact_mut(self.heads * dim)) {
                out[head * dim..][..dim].copy_from_slice(sums);
            }
        }
    }
}

impl Block<'_, Classifier> {
    /// `(texts, classes)` of `(tokens, hidden)`.
    fn forward(&self, texts: &[Range<usize>], rows: &Rows) -> Activations {
        let mut pooled = Activations::zeros(texts.len(), rows.width());
        for (index, text) in texts.iter().enumerate() {
            let read = if self.of_mean { text.clone() } else { text.start..text.start + 1 };
            let share = 1.0 / read.len() as f32;
            for row in read {
                pooled.row_mut(index).iter_mut().zip(rows.row(row)).for_each(|(sum, x)| *sum += x * share);
            }
        }
        let mut x = self.dense.forward(&pooled);
        let width = x.width();
        match self.activation {
            Some(activation) => function::in_place(activation, x.data_mut(), width),
            None => x.data_mut().iter_mut().for_each(|x| *x = x.tanh()),
        }
        self.norm.iter().for_each(|norm| norm.in_place(&mut x));
        self.output.forward(&x)
    }
}
