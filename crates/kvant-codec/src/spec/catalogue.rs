//! Everything there is to compare, for tables and help texts.

use super::{CodecSpec, KvSpec, PRESETS};
use crate::codec::FAMILIES;

/// A spec that comparisons show.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    /// What is typed, in the canonical form.
    pub name: String,
    /// One line on what it is.
    pub about: &'static str,
    /// Where it comes from; empty for presets, whose codecs have sources of their own.
    pub source: &'static str,
    /// The codecs it stands for.
    pub spec: KvSpec,
}

/// Every preset, then every family on both sides at the widths it is known for: all that needs no plan.
pub fn catalogue() -> Vec<Shown> {
    let presets = PRESETS.iter().map(|preset| (preset.spec(), preset.about, ""));
    let families = FAMILIES.iter().flat_map(|family| {
        family.shown.iter().map(move |bits| {
            let codec = CodecSpec { family, bits: *bits, options: family.defaults };
            (KvSpec::both(codec), family.formula, family.source)
        })
    });
    let shown = |(spec, about, source): (KvSpec, _, _)| Shown { name: spec.to_string(), about, source, spec };
    presets.chain(families).map(shown).collect()
}
