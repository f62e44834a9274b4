#![doc = include_str!("../../docs/plan.md")]
//!
//! # Example
//!
//! ```
//! use kvant_cache::plan::{SideCalibration, Plan, PlannedSlot, PlannedHead};
//! use kvant_cache::{CacheLayout, KvShape, Slots};
//! use std::sync::Arc;
//!
//! let key = SideCalibration { mean: Some(vec![0.25; 64]), ..SideCalibration::default() };
//! let head = PlannedHead { key, value: SideCalibration::default() };
//! let slot = PlannedSlot { key_dim: 64, value_dim: 64, heads: vec![head; 2] };
//! let plan = Plan::new([7; 32], "k=ch4:mean,v=rot4g32".parse()?, "by hand", vec![slot])?;
//!
//! let plan = Arc::new(Plan::from_bytes(&plan.to_bytes())?);
//! assert_eq!(plan.made(), "by hand");
//! let shape = KvShape { kv_heads: 2, key_dim: 64, value_dim: 64, window: None };
//! assert!(CacheLayout::new(&plan.with(plan.policy()), &Slots::uniform(1, shape)).is_ok());
//! assert!(plan.check(&[8; 32]).is_err(), "another model");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod calibration;
mod error;
mod format;

pub use calibration::{Cost, ENDS_ROTATION, Klt, LearnedTransform, SideCalibration};
pub use error::PlanError;

use crate::policy::Policy;
use crate::snapshot::{Signature, replace_bytes};
use kvant_codec::Side;
use sha2::{Digest, Sha256};
use std::fmt;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// The version of the format that is written.
pub const VERSION: u32 = 1;

/// No plan is larger: that of a model with 128 layers of 16 heads of 256 channels has a gigabyte.
const MOST_BYTES: u64 = 2 << 30;

/// What calibration found for a model. Plans are equal when their files are.
#[derive(Clone)]
pub struct Plan {
    model: Signature,
    policy: Policy,
    made: String,
    slots: Vec<PlannedSlot>,
    digest: [u8; 32],
}

/// What was found for one slot of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedSlot {
    /// Channels of a key.
    pub key_dim: usize,
    /// Channels of a value.
    pub value_dim: usize,
    /// Its kv heads.
    pub heads: Vec<PlannedHead>,
}

/// What was found for one kv head.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlannedHead {
    /// Its keys.
    pub key: SideCalibration,
    /// Its values.
    pub value: SideCalibration,
}

impl Plan {
    /// A plan for the model with this signature; `made` says in a line how it was made.
    ///
    /// # Errors
    /// When it could not be written to a file: more than one line on how it was made, vectors of another dimension than their
    /// slot, numbers that are not finite.
    pub fn new(
        model: Signature,
        policy: Policy,
        made: &str,
        slots: Vec<PlannedSlot>,
    ) -> Result<Self, PlanError> {
        let plan = Self { model, policy, made: made.to_owned(), slots, digest: [0; 32] };
        let fits = |side: &SideCalibration, dim| {
            side.sizes().all(|(numbers, needed)| numbers == usize::pow(dim, needed))
        };
        let heads = |slot: &PlannedSlot| {
            let (key, value) = (slot.key_dim, slot.value_dim);
            slot.heads.iter().all(|head| fits(&head.key, key) && fits(&head.value, value))
        };
        if !plan.slots.iter().all(heads) {
            return Err(PlanError::absurd("vectors are of another dimension than their slot"));
        }
        // What can be read back is what can be written.
        Self::from_bytes(&plan.to_bytes())
    }

    /// Reads and checks a file.
    ///
    /// # Errors
    /// When it cannot be read, or is no plan, or is damaged.
    pub fn open(path: &Path) -> Result<Self, PlanError> {
        let file = std::fs::File::open(path).map_err(PlanError::io("open the file"))?;
        let mut bytes = Vec::new();
        file.take(MOST_BYTES).read_to_end(&mut bytes).map_err(PlanError::io("read the file"))?;
        Self::from_bytes(&bytes)
    }

    /// The same of bytes in memory.
    ///
    /// # Errors
    /// When they are not what [`Plan::to_bytes`] has made.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, PlanError> {
        let plan = format::parse(bytes)?;
        Ok(Self { digest: Sha256::digest(bytes).into(), ..plan })
    }

    /// The bytes of its file.
    pub fn to_bytes(&self) -> Vec<u8> {
        format::write(self)
    }

    /// Writes it to a file, as a whole or not at all.
    ///
    /// # Errors
    /// When the system refuses; a file that was there is then as before.
    pub fn save(&self, path: &Path) -> Result<(), PlanError> {
        Ok(replace_bytes(path, &self.to_bytes())?)
    }

    /// Refuses every model but the one it was made for.
    ///
    /// # Errors
    /// When it was made for another model.
    pub fn check(&self, model: &Signature) -> Result<(), PlanError> {
        if self.model == *model { Ok(()) } else { Err(PlanError::Model { made: self.made.clone() }) }
    }

    /// A policy, its own or another, whose codecs take their numbers from this plan.
    pub fn with(self: &Arc<Self>, policy: &Policy) -> Policy {
        Policy { plan: Some(Arc::clone(self)), ..policy.clone() }
    }

    /// Bytes of its numbers in memory. The bases of `klt` codecs are these; balanced and learned ones are copies, and not counted.
    pub fn memory(&self) -> usize {
        let sides = |head: &PlannedHead| {
            let [key, value] = [&head.key, &head.value].map(|side| {
                let inverse = side.klt.as_ref().map_or(0, |klt| klt.basis.inverse_matrix().len());
                side.sizes().map(|(numbers, _)| numbers).sum::<usize>() + inverse
            });
            key + value
        };
        let heads = self.slots.iter().flat_map(|slot| &slot.heads);
        heads.map(sides).sum::<usize>() * size_of::<f32>()
    }

    /// The model it was made for.
    pub fn model(&self) -> &Signature {
        &self.model
    }

    /// How keys and values are kept; without the plan itself, see [`Plan::with`].
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// How it was made.
    pub fn made(&self) -> &str {
        &self.made
    }

    /// What was found, slot by slot.
    pub fn slots(&self) -> &[PlannedSlot] {
        &self.slots
    }

    /// What was found for one side of one kv head.
    pub fn findings(&self, slot: usize, head: usize, side: Side) -> Option<&SideCalibration> {
        let head = self.slots.get(slot)?.heads.get(head)?;
        Some(match side {
            Side::Key => &head.key,
            Side::Value => &head.value,
        })
    }

    /// SHA-256 of its file.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

impl PartialEq for Plan {
    fn eq(&self, other: &Plan) -> bool {
        self.digest == other.digest
    }
}

impl Eq for Plan {}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").field("policy", &self.policy).field("made", &self.made).finish_non_exhaustive()
    }
}
