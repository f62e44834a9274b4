//! A compiled model: embedding before the layers, norm and logits after them.

use crate::blocks::{
    Activations, AdaptedRows, Block, Embedding, Folded, Head, Layer, Mtp, PerLayerEmbedding, Streams,
};
use crate::drivers::Drivers;
use crate::pass::CpuPass;
use kvant_attention::Attention;
use kvant_cache::{AttentionObserver, KvSlot, Sequence, Slots, StateError, StateErrorKind};
use kvant_model::description::Rope;
use kvant_model::{Abilities, Chunk, Guesses, Network, Observer, Outputs, Pass, Rows};
use kvant_simd::Tier;
use tracing::trace_span;

/// A model's blocks.
pub struct CpuNetwork {
    /// Before the first layer.
    pub embedding: Embedding,
    /// Inputs of each layer's own.
    pub per_layer: Option<PerLayerEmbedding>,
    /// Further residual streams; none in most models.
    pub streams: Option<Streams>,
    /// The layers.
    pub layers: Vec<Layer>,
    /// After the last.
    pub head: Head,
    /// What guesses further tokens; none where it is not there, or not asked for.
    pub mtp: Option<Mtp>,
    /// The rotary embeddings that layers refer to.
    pub ropes: Vec<Rope>,
    /// How queries and keys meet slots of latents, by slot.
    pub folded: Vec<Option<Folded>>,
    /// What sequences keep.
    pub slots: Slots,
    /// What attends.
    pub drivers: Drivers,
    /// The instructions that adapters are multiplied with.
    pub tier: Tier,
}

impl CpuNetwork {
    /// The logits of these rows.
    fn logits(&self, x: &Activations, rows: &[usize]) -> Rows {
        match rows.len() {
            0 => Rows::from_vec(Vec::new(), self.head.output.outputs()),
            n if n == x.tokens() => Block(&self.head).forward(x).into_rows(),
            _ => Block(&self.head).forward(&x.gather(rows)).into_rows(),
        }
    }
}

impl Network for CpuNetwork {
    fn forward(&self, pass: Pass<'_>, sequences: &mut [&mut Sequence]) -> Result<Outputs, StateError> {
        self.drivers.with(|attention| self.run(pass, sequences, attention))
    }

    fn guess(
        &self,
        chunks: &[Chunk<'_>],
        hidden: &Rows,
        sequences: &mut [&mut Sequence],
    ) -> Result<Guesses, StateError> {
        let Some(mtp) = &self.mtp else {
            let what = "a head that guesses further tokens (MTP)";
            return Err(StateError::new(0, StateErrorKind::Pass { what }));
        };
        let folded: Vec<Option<Folded>> = mtp.slots.iter().map(|_| None).collect();
        let left = Activations::from_vec(hidden.data().to_vec(), hidden.width());
        self.drivers.with(|attention| {
            let mut cpu = CpuPass::new(chunks, sequences, attention, &self.ropes, &folded)?;
            let (normed, handed_on) = Block(mtp).forward(left, &mut cpu)?;
            let wanted = Pass::new(chunks).wanted();
            let logits = match wanted.scored.is_empty() {
                true => Rows::from_vec(Vec::new(), self.head.output.outputs()),
                false => Block(mtp).logits(&normed.gather(&wanted.scored), &self.head).into_rows(),
            };
            Ok(Guesses { logits, hidden: handed_on.gather(&wanted.scored).into_rows() })
        })
    }

    fn abilities(&self) -> Abilities {
        // Layers with inputs of their own look ids up; what else they read is not shown to observers.
        let one_stream = self.per_layer.is_none() && self.layers.iter().all(|layer| layer.altup.is_none());
        let embeddings = self.per_layer.is_none();
        Abilities {
            embeddings,
            positions: true,
            three_positions: false,
            first_layer: one_stream,
            attention_observer: true,
            stream_observer: true,
            adapters: true,
            any_rows: true,
            mtp: self.mtp.is_some(),
        }
    }

    fn output_weights(&self, slot: KvSlot) -> Vec<Rows> {
        let owner = self.slots.owner(slot);
        let reads = |slot| self.slots.owner(slot) == owner;
        self.layers
            .iter()
            .flat_map(|layer| Block(layer).output_weights(reads))
            .map(Activations::into_rows)
            .collect()
    }
}

impl CpuNetwork {
    fn run(
        &self,
        mut pass: Pass<'_>,
        sequences: &mut [&mut Sequence],
        attention: &mut Attention,
    ) -> Result<Outputs, StateError> {
        let wanted = pass.wanted();
        let Observer { layers: mut observer, attention: watching, stream } =
            std::mem::take(&mut pass.observer);
        let watching = watching.map(|watching| watching as &mut dyn AttentionObserver);
        let adapted = AdaptedRows::new(pass.chunks, self.tier);
        let mut cpu = CpuPass::new(pass.chunks, sequences, attention, &self.ropes, &self.folded)?
            .adapted(adapted)
            .observed(watching);
        let (first, mut streams) = match pass.first {
            Some((layer, input)) => {
                (layer, vec![Activations::from_vec(input.data().to_vec(), input.width())])
            }
            None => {
                let _group = trace_span!("embedding").entered();
                let x = self.embedding.forward(cpu.inputs().zip(cpu.positions())); // (tokens, hidden)
                cpu.per_layer = self.per_layer.as_ref().map(|of| Block(of).forward(&x, pass.ids()));
                let streams = match &self.streams {
                    Some(of) => Block(of).opened(x),
                    None => vec![x],
                };
                (0, streams)
            }
        };
        let mut observe = |layer: usize, x: &Activations| {
            if let Some(observer) = &mut observer {
                observer(layer, x.rows());
            }
        };
        for (index, layer) in self.layers.iter().enumerate().skip(first) {
            observe(index, &streams[0]);
            let layer_span = trace_span!("layer", index);
            layer_span.in_scope(|| Block(layer).forward(&mut streams, &mut cpu))?;
        }
        let _group = trace_span!("head", rows = wanted.scored.len()).entered();
        let mut x = match &self.streams {
            Some(of) => Block(of).joined(streams),
            None => streams.swap_remove(0),
        };
        if let Some(stream) = stream {
            stream(x.rows().clone());
        }
        self.head.norm.in_place(&mut x);
        observe(self.layers.len(), &x);
        let outputs = Outputs::from(self.logits(&x, &wanted.scored));
        Ok(match wanted.hidden.is_empty() {
            true => outputs,
            false => outputs.with_hidden(&wanted, wanted.hidden_of(x.rows())),
        })
    }
}
