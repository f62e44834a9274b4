//! The cache as it is between two passes, for people to look at.

use crate::kv::ContextCost;
use kvant_cache::{DiskUsage, Footprint, PrefixUsage, Tenant, Usage};

/// Somebody who sees what is their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Viewer {
    /// Whose sequences they see.
    pub owner: u64,
    /// Whose prefixes they see counted.
    pub tenant: Tenant,
}

/// Everything that is held, or what of it a [`Viewer`] sees.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct View {
    /// The sequences in work, the oldest first.
    pub sequences: Vec<SequenceView>,
    /// All pages.
    pub arena: Usage,
    /// The most bytes that pages may take.
    pub cap: Option<usize>,
    /// What is kept for prompts to come, of all tenants or of the one that was asked for.
    pub prefixes: PrefixUsage,
    /// The same in files, where they are kept; not for a viewer, since files do not say whose they are.
    pub disk: Option<DiskUsage>,
    /// Jobs that wait, those preempted included.
    pub waiting: usize,
    /// Tokens chosen since the start.
    pub generated_tokens: u64,
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
    /// Whose it is.
    pub owner: u64,
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
