//! The cache as it is between two passes, for people to look at.

use crate::kv::ContextCost;
use kvant_cache::{DiskUsage, Footprint, PrefixUsage, Usage};

/// Everything that is held.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct View {
    /// The sequences in work, the oldest first.
    pub sequences: Vec<SequenceView>,
    /// All pages.
    pub arena: Usage,
    /// The most bytes that pages may take.
    pub cap: Option<usize>,
    /// What is kept for prompts to come.
    pub prefixes: PrefixUsage,
    /// The same in files, where they are kept.
    pub disk: Option<DiskUsage>,
    /// First tokens of a sequence that stay exact.
    pub sinks: usize,
    /// Tokens of the largest page.
    pub page: usize,
    /// What long contexts come to store.
    pub costs: Vec<ContextCost>,
}

/// One sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct SequenceView {
    /// By order of arrival.
    pub id: u64,
    /// Tokens of its prompt.
    pub prompt: usize,
    /// Tokens of the prompt that were found in the cache.
    pub cached: usize,
    /// Tokens held.
    pub held: usize,
    /// Tokens chosen.
    pub generated: usize,
    /// Bytes and bits of what is held, shared pages included.
    pub footprint: Footprint,
    /// Bytes that 16 bits a number would take.
    pub f16: u64,
}
