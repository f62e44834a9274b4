//! The head for further tokens of `--speculate mtp`.

use super::OpenOptions;
use super::context::default_context;
use super::error::OpenError;
use crate::engine::Engine;
use crate::kv;
use crate::speculation::Speculate;
use kvant_attention::KvCache;
use kvant_cache::{Arena, ArenaOptions, Policy};
use kvant_model::description::Mtp;
use kvant_model::{Description, LoadError};

/// How the head keeps keys and values: the first of these that there is a cache of.
const POLICIES: [&str; 2] = ["int4", "f16"];

/// Why a model that was asked for its head cannot be.
pub(super) fn check(engine: &Engine) -> Result<(), LoadError> {
    let why = match &engine.model().description().mtp {
        _ if engine.model().device_store().is_some() => format!(
            "multi-token prediction (MTP) on {}: such heads run on CPUs alone; use --speculate suffix, or --device cpu",
            engine.device()
        ),
        Some(Ok(_)) => return Ok(()),
        Some(Err(why)) => format!("this file's head for further tokens (MTP): {why}"),
        None => "multi-token prediction (MTP) with this file: it has no head for further tokens; use --speculate suffix, or a file that \
                 kept the `nextn` or `mtp` tensors"
            .to_owned(),
    };
    Err(LoadError::unsupported(why))
}

impl OpenOptions {
    /// How the head's cache is kept, for how many tokens, and in how many bytes: those of one text as long as the context, whatever the
    /// number of texts.
    fn mtp_cache(&self, mtp: &Mtp, description: &Description) -> Result<(Policy, usize, usize), OpenError> {
        let context = self.context.unwrap_or_else(|| default_context(description));
        let policies = POLICIES.map(|policy| policy.parse::<Policy>());
        let policies = policies.into_iter().filter_map(Result::ok);
        let mut kept = policies.filter(|policy| KvCache::new(policy, &mtp.slots, 1).is_ok());
        let policy = kept.next().ok_or_else(|| {
            LoadError::unsupported(
                "no cache keeps the keys and values of this file's head for further tokens (MTP)",
            )
        })?;
        let bytes = kv::memory(&policy, &mtp.slots, context)?;
        Ok((policy, context, bytes))
    }

    /// Bytes that the head's cache takes, where the head is loaded. Its weights count as the file's.
    pub(super) fn mtp_bytes(&self, description: &Description) -> Result<u64, OpenError> {
        match &description.mtp {
            Some(Ok(mtp)) if matches!(self.speculate, None | Some(Speculate::Mtp)) => {
                self.mtp_cache(mtp, description).map(|(_, _, bytes)| bytes as u64)
            }
            _ => Ok(0),
        }
    }

    /// A model that asks its head.
    pub(super) fn with_mtp(&self, engine: Engine) -> Result<Engine, OpenError> {
        let model = engine.model();
        let Some(mtp) = model.mtp() else { return Ok(engine) };
        let (policy, context, bytes) = self.mtp_cache(mtp, model.description())?;
        let store = Arena::with(ArenaOptions { cap: Some(bytes), pinned: self.pinned }).into();
        Ok(engine.with_mtp((policy, context, store))?)
    }
}
