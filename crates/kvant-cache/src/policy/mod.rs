//! Which codec every head gets: one grammar for the command line, files, servers and bindings.
//!
//! ```text
//! policy    = SPEC { ";" clause }
//! clause    = "sinks=" N | "recent=" N | "sparse-v=" P | "state=" TYPE | selection ":" codecs
//! selection = "layers" ranges [ "heads" ranges ] | "heads" ranges
//! ranges    = N [ "-" N ] { "," N [ "-" N ] }
//! codecs    = "k=" CODEC | "v=" CODEC | SPEC
//! ```
//!
//! A SPEC is one of [`kvant_codec::spec`], a TYPE one of [`StateType`]. Layers are the model's, counted from 0. Where several clauses name a head, the last one counts.
//!
//! ```
//! use kvant_cache::Policy;
//! use kvant_codec::Side;
//!
//! let policy: Policy = "int4; layers 0-1: k=f16; recent=64".parse()?;
//! assert_eq!(policy.spec(1, 0, Side::Key).to_string(), "f16");
//! assert_eq!(policy.spec(1, 0, Side::Value).to_string(), "rot4g32");
//! assert_eq!(policy.rule.recent, 64);
//! assert_eq!(policy.to_string(), "int4;recent=64;layers 0-1:k=f16");
//!
//! let error = "int4;layers 0-: k=f16".parse::<Policy>().unwrap_err();
//! assert_eq!(error.position(), 14);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod parse;
mod print;
mod sparse;

pub use parse::PolicyError;
pub use sparse::{SparseV, SparseVError};

use crate::error::LayoutError;
use crate::exact_window::ExactWindow;
use crate::plan::Plan;
use crate::recurrent::StateType;
use crate::slot::Slots;
use kvant_codec::{CodecSpec, KvSpec, Side};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Codecs for a whole model, the exact window, and what may be left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What holds where no clause says otherwise.
    pub base: KvSpec,
    /// Sinks and recent tokens; the mode and the streaming window are not part of the text.
    pub rule: ExactWindow,
    /// Leaves out values that hardly count; without it, only those that cannot change the result.
    pub sparse_v: Option<SparseV>,
    /// The numbers that recurrent state is stored in.
    pub state: StateType,
    /// Exceptions, of which the last that applies counts.
    pub clauses: Vec<Clause>,
    /// Numbers for codecs that need calibration; not part of the text.
    pub plan: Option<Arc<Plan>>,
}

/// An exception for some layers and heads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clause {
    /// Layers it names; empty for all.
    pub layers: Vec<RangeInclusive<usize>>,
    /// kv heads it names; empty for all.
    pub heads: Vec<RangeInclusive<usize>>,
    /// The codec of their keys, if it says one.
    pub key: Option<CodecSpec>,
    /// The codec of their values, if it says one.
    pub value: Option<CodecSpec>,
}

impl Policy {
    /// f32 without sinks: see [`CacheLayout::reference`](crate::CacheLayout::reference).
    pub fn reference() -> Policy {
        "f32;sinks=0".parse().expect("a policy of the grammar")
    }
}

impl From<KvSpec> for Policy {
    fn from(base: KvSpec) -> Policy {
        let (rule, state) = (ExactWindow::default(), StateType::default());
        Policy { base, rule, sparse_v: None, state, clauses: Vec::new(), plan: None }
    }
}

impl From<&KvSpec> for Policy {
    fn from(base: &KvSpec) -> Policy {
        Policy::from(base.clone())
    }
}

impl From<&Policy> for Policy {
    fn from(policy: &Policy) -> Policy {
        policy.clone()
    }
}

impl Policy {
    /// Whether one of its codecs takes numbers that calibration finds.
    pub fn needs_plan(&self) -> bool {
        let exceptions = self.clauses.iter().flat_map(|clause| clause.key.iter().chain(&clause.value));
        [&self.base.key, &self.base.value].into_iter().chain(exceptions).any(CodecSpec::needs_plan)
    }

    /// The codec of one side of one kv head.
    pub fn spec(&self, layer: usize, head: usize, side: Side) -> &CodecSpec {
        let names = |ranges: &[RangeInclusive<usize>], index: usize| {
            ranges.is_empty() || ranges.iter().any(|range| range.contains(&index))
        };
        self.clauses
            .iter()
            .rev()
            .filter(|clause| names(&clause.layers, layer) && names(&clause.heads, head))
            .find_map(|clause| match side {
                Side::Key => clause.key.as_ref(),
                Side::Value => clause.value.as_ref(),
            })
            .unwrap_or_else(|| self.base.side(side))
    }

    /// Refuses clauses for layers or heads that are not there: a typing mistake would pass unnoticed.
    pub(crate) fn check(&self, slots: &Slots) -> Result<(), LayoutError> {
        let shapes = slots.iter().filter_map(|(_, slot)| slot.kind.stored());
        let heads = shapes.map(|shape| shape.kv_heads).max().unwrap_or(0);
        for clause in &self.clauses {
            for (what, ranges, count) in
                [("layer", &clause.layers, slots.layers()), ("head", &clause.heads, heads)]
            {
                if let Some(range) = ranges.iter().find(|range| *range.end() >= count) {
                    let (rule, index) = (clause.to_string(), *range.end());
                    return Err(LayoutError::NoSuch { rule, what, index, count });
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
