//! The canonical form.

use super::{CodecSpec, KvSpec, Preset};
use crate::codec::option::difference;
use crate::codec::{FAMILIES, GroupSize};
use std::fmt;
use std::mem::discriminant;

impl CodecSpec {
    /// The same codec under the family that needs the fewest options; among equals the one that names the rule, then
    /// the one that shares scales in the same way, then the first in the families' order.
    pub(super) fn canonical(self) -> CodecSpec {
        let best = FAMILIES
            .iter()
            .filter(|family| {
                // Families are interchangeable when the same constructor reads the same options at this width.
                family.name == self.family.name
                    || (std::ptr::fn_addr_eq(family.build, self.family.build)
                        && family.accepts == self.family.accepts
                        && family.bits.as_ref().is_some_and(|bits| bits.contains(&self.bits)))
            })
            .filter_map(|family| {
                let words = difference(family.defaults, &self.options)?.len();
                let rule = family.defaults.rule != self.options.rule;
                let kind = discriminant(&family.defaults.scaling) != discriminant(&self.options.scaling);
                Some(((words, rule, kind), family))
            })
            .min_by_key(|(cost, _)| *cost);
        CodecSpec { family: best.map_or(self.family, |(_, family)| family), ..self }
    }
}

impl fmt::Display for KvSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(preset) = Preset::of(self) {
            f.write_str(preset.name)
        } else if self.key == self.value {
            write!(f, "{}", self.key)
        } else {
            write!(f, "k={},v={}", self.key, self.value)
        }
    }
}

/// The suffix that names a group: `g16`, `g32`, `g64`, `g128`.
pub(super) fn group_suffix(text: &str) -> Option<GroupSize> {
    match text {
        "g16" => Some(GroupSize::G16),
        "g32" => Some(GroupSize::G32),
        "g64" => Some(GroupSize::G64),
        "g128" => Some(GroupSize::G128),
        _ => None,
    }
}
