//! How queries, keys and values lie in what a projection gives.

use kvant_model::description::{Attention, Linear, Projection};

/// Where queries, keys or values of a row lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadPlace {
    /// The first channel of the first head.
    pub at: usize,
    /// From one head to the next.
    pub step: usize,
}

/// The heads of an attention in a row that was projected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadPlaces {
    /// Queries; with a gate, every head of them has its gates behind it.
    pub queries: HeadPlace,
    /// Keys and values; `None` where they are another layer's.
    pub keys_values: Option<[HeadPlace; 2]>,
}

impl HeadPlaces {
    /// Of an attention whose layers are projected together.
    pub fn of(attention: &Attention) -> HeadPlaces {
        let (dim, value) = (attention.key_dim, attention.value_dim);
        let place = |at, step| HeadPlace { at, step };
        let q_step = if attention.gate.is_some() { 2 * dim } else { dim };
        let (queries, at) = (place(0, q_step), attention.heads * q_step);
        let keys = place(at, dim);
        match &attention.projection {
            Projection::Apart { .. } | Projection::Fused(_) => {
                let values = place(at + attention.kv_heads * dim, value);
                HeadPlaces { queries, keys_values: Some([keys, values]) }
            }
            Projection::FusedByHead(_) => {
                let step = 2 * dim + value;
                let keys_values = Some([place(dim, step), place(2 * dim, step)]);
                HeadPlaces { queries: place(0, step), keys_values }
            }
            Projection::Shared { .. } => HeadPlaces { queries, keys_values: None },
            Projection::Equal { .. } => HeadPlaces { queries, keys_values: Some([keys, keys]) },
        }
    }
}

/// The layers of a projection, in the order of their columns.
pub fn projected_layers(projection: &Projection) -> Vec<&Linear> {
    match projection {
        Projection::Apart { q, k, v } => vec![q, k, v],
        Projection::Fused(qkv) | Projection::FusedByHead(qkv) => vec![qkv],
        Projection::Shared { q } => vec![q],
        Projection::Equal { q, kv } => vec![q, kv],
    }
}
