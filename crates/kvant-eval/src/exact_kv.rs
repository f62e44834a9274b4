//! The caches that keep what they are given.

use half::f16;
use kvant_model::Model;
use kvant_model::cache::{Cache, ExactCache};
use std::fmt;
use std::str::FromStr;

/// Number type of an exact cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExactKv {
    /// As the model made them: the reference.
    #[default]
    F32,
    /// Rounded to f16, as most engines keep them.
    F16,
}

impl ExactKv {
    /// An empty cache for a sequence of at most `capacity` tokens.
    pub fn cache(self, model: &Model, capacity: usize) -> Box<dyn Cache> {
        match self {
            Self::F32 => Box::new(ExactCache::<f32>::new(model.states(), capacity)),
            Self::F16 => Box::new(ExactCache::<f16>::new(model.states(), capacity)),
        }
    }
}

impl fmt::Display for ExactKv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
        })
    }
}

impl FromStr for ExactKv {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        [Self::F32, Self::F16]
            .into_iter()
            .find(|kv| kv.to_string() == name)
            .ok_or_else(|| format!("{name:?} is no exact cache; there are f32 and f16"))
    }
}
