//! A toy model: two attention layers and a third that reads the second's keys and values.

use kvant_attention::{KvCache, PassState, Queries, Scoring, StateError};
use kvant_cache::{KvShape, KvSlot, Policy, Slots};

pub const KV_HEADS: usize = 2;
pub const HEADS: usize = 4;
pub const DIM: usize = 16;
/// Numbers of one row of output of all layers.
pub const WIDTH: usize = 3 * HEADS * DIM;

pub struct Toy {
    pub slots: Slots,
    layers: [KvSlot; 2],
    view: KvSlot,
}

impl Toy {
    pub fn new(window: Option<usize>) -> Toy {
        let shape = |window| KvShape { kv_heads: KV_HEADS, key_dim: DIM, value_dim: DIM, window };
        let mut slots = Slots::new();
        let layers = [slots.keys_values(0, shape(None)), slots.keys_values(1, shape(window))];
        let view = slots.view(2, layers[1]);
        Toy { slots, layers, view }
    }

    pub fn cache(&self, policy: &str, streaming: Option<usize>) -> KvCache {
        let mut policy: Policy = policy.parse().unwrap();
        policy.rule.streaming = streaming;
        KvCache::new(policy, &self.slots, 4096).unwrap()
    }

    /// Projections of tokens that depend on salt, position and layer.
    fn rows(rows: &[(u64, usize)], layer: usize, kind: usize, heads: usize) -> Vec<f32> {
        let number = |(salt, position): (u64, usize), i: usize| {
            let seed = salt * 7919 + (position * 97 + layer * 31 + kind * 17) as u64;
            ((seed as f32 * 0.61).sin() * (i as f32 + 1.3) * 1.7).sin()
        };
        rows.iter().flat_map(|row| (0..heads * DIM).map(move |i| number(*row, i))).collect()
    }

    /// A pass over `tokens` of each sequence, whose tokens differ by `salts`; `change` spoils the values of a layer. Returns
    /// (rows, layers, heads, dim).
    pub fn pass(
        &self,
        state: &mut dyn PassState,
        salts: &[u64],
        tokens: &[usize],
        change: impl Fn(usize, &mut [f32]),
    ) -> Result<Vec<f32>, StateError> {
        state.begin(tokens)?;
        let sequences = state.sequences().to_vec();
        let rows: Vec<(u64, usize)> = sequences
            .iter()
            .zip(salts)
            .flat_map(|(pass, salt)| (0..pass.tokens).map(|token| (*salt, pass.start + token)))
            .collect();
        let is_streaming = sequences.iter().any(|pass| pass.streaming.is_some());
        let logits = [0.3, -0.2, 1.0, 0.0];
        let mut all = vec![0.0; rows.len() * WIDTH];
        for layer in 0..3 {
            let slot = if layer < 2 { self.layers[layer] } else { self.view };
            if layer < 2 {
                let keys = Toy::rows(&rows, layer, 0, KV_HEADS);
                let mut values = Toy::rows(&rows, layer, 1, KV_HEADS);
                change(layer, &mut values);
                state.append(slot, &keys, &values)?;
            }
            let own = Toy::rows(&rows, layer, 2, HEADS);
            let turned = is_streaming.then(|| Toy::rows(&rows, layer, 3, HEADS));
            let queries = Queries { own: &own, at_sinks: turned.as_deref() };
            let scoring = Scoring { sink_logits: (layer == 1).then_some(&logits), ..Scoring::new(0.5) };
            let mut out = vec![f32::NAN; rows.len() * HEADS * DIM];
            state.attend(slot, queries, &scoring, &mut out)?;
            for (row, out) in out.chunks_exact(HEADS * DIM).enumerate() {
                all[row * WIDTH + layer * HEADS * DIM..][..HEADS * DIM].copy_from_slice(out);
            }
        }
        state.end()?;
        Ok(all)
    }

    /// The same of one sequence.
    pub fn read(&self, cache: &mut KvCache, salt: u64, tokens: usize) -> Vec<f32> {
        self.pass(cache, &[salt], &[tokens], |_, _| {}).unwrap()
    }
}

pub fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}
