//! Which adapters a sequence runs with, and how strongly.

use super::Adapter;
use sha2::{Digest, Sha256};
use std::fmt;
use std::sync::Arc;

/// An adapter and the multiplier of what it adds.
#[derive(Debug, Clone)]
pub struct AppliedAdapter {
    /// The adapter.
    pub adapter: Arc<Adapter>,
    /// 1 for the adapter as it was trained.
    pub scale: f32,
}

impl PartialEq for AppliedAdapter {
    fn eq(&self, other: &Self) -> bool {
        self.scale.to_bits() == other.scale.to_bits() && self.adapter.digest() == other.adapter.digest()
    }
}

/// The adapters of a sequence, in the order in which what they compute is added; none in most.
///
/// Two mixes are equal when they compute the same, whatever the adapters are called.
#[derive(Clone, Default, PartialEq)]
pub struct AdapterMix(Arc<[AppliedAdapter]>);

impl AdapterMix {
    /// These adapters. Those of scale 0 add nothing and are left out.
    pub fn new(applied: impl IntoIterator<Item = AppliedAdapter>) -> Self {
        Self(applied.into_iter().filter(|applied| applied.scale != 0.0).collect())
    }

    /// True for a sequence that runs as the model is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The adapters.
    pub fn iter(&self) -> impl Iterator<Item = &AppliedAdapter> {
        self.0.iter()
    }

    /// SHA-256 over what they compute; `None` without any. What was read with one mix is worth nothing to another: prefixes and saved
    /// sequences are told apart by this.
    pub fn digest(&self) -> Option<[u8; 32]> {
        if self.is_empty() {
            return None;
        }
        let mut hash = Sha256::new();
        hash.update(b"kvant adapters 1\0");
        for AppliedAdapter { adapter, scale } in self.iter() {
            hash.update(adapter.digest());
            hash.update(scale.to_le_bytes());
        }
        Some(hash.finalize().into())
    }
}

/// Names and scales, for people: `french:0.5, polite`.
impl fmt::Display for AdapterMix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, AppliedAdapter { adapter, scale }) in self.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { ", " })?;
            f.write_str(adapter.name())?;
            if *scale != 1.0 {
                write!(f, ":{scale}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for AdapterMix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AdapterMix({self})")
    }
}
