//! The flag that names the caches to compare.

use kvant_codec::KvSpec;
use kvant_engine::{Policy, SparseV};
use std::str::FromStr;

/// Caches by their specs: a list, some of whose members have commas of their own, or one with exceptions for layers and
/// heads.
#[derive(Clone)]
pub struct Caches(Vec<Policy>);

impl Caches {
    /// The caches, each with this threshold for values where one is given.
    pub fn policies(&self, sparse_v: Option<SparseV>) -> impl Iterator<Item = Policy> {
        self.0.iter().map(move |policy| Policy { sparse_v: sparse_v.or(policy.sparse_v), ..policy.clone() })
    }
}

impl FromStr for Caches {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Exceptions have commas that mean something else, so what has them stands alone.
        if text.contains(';') {
            return text.parse().map(|policy| Self(vec![policy])).map_err(|e| format!("{e}"));
        }
        let specs = KvSpec::parse_list(text).map_err(|e| e.to_string())?;
        Ok(Self(specs.into_iter().map(Policy::from).collect()))
    }
}
