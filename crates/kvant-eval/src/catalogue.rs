//! Every cache there is a name for.

use kvant_codec::{FAMILIES, KvSpec, PRESETS};
use kvant_engine::{KvCache, Policy};
use kvant_model::cache::LayerState;

/// Widths that are compared where a family has a choice; the others differ little or are presets.
const WIDTHS: [u8; 3] = [2, 3, 4];

/// All presets, then every family on both sides at 2, 3 and 4 bits, as far as a model whose layers keep `states` can be kept
/// that way without a plan. The reference itself is left out.
pub fn every_cache(states: &[LayerState]) -> Vec<Policy> {
    let presets = PRESETS.iter().map(|preset| preset.spec());
    let families = FAMILIES.iter().filter(|family| family.name != "f32").flat_map(|family| {
        let names: Vec<String> = match &family.bits {
            None => vec![family.name.to_owned()],
            Some(range) if !WIDTHS.iter().any(|width| range.contains(width)) => {
                vec![format!("{}{}", family.name, range.start())]
            }
            Some(range) => {
                let widths = WIDTHS.iter().filter(|width| range.contains(width));
                widths.map(|width| format!("{}{width}", family.name)).collect()
            }
        };
        names.into_iter().filter_map(|name| name.parse::<KvSpec>().ok())
    });
    let mut found: Vec<Policy> = Vec::new();
    for policy in presets.chain(families).map(Policy::from) {
        if !found.contains(&policy) && KvCache::new(&policy, states, 1).is_ok() {
            found.push(policy);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_model::cache::KvShape;

    #[test]
    fn presets_and_families_are_listed_once_and_all_can_be_built() {
        let shape = KvShape { heads: 2, key_dim: 64, value_dim: 64, window: None };
        let found = every_cache(&[LayerState::KeysValues(shape)]);
        let names: Vec<String> = found.iter().map(Policy::to_string).collect();
        for name in ["int4", "int8", "q4_0", "f16", "tq3", "srft4g32"] {
            assert_eq!(names.iter().filter(|known| *known == name).count(), 1, "{name} in {names:?}");
        }
        assert!(!names.iter().any(|name| name == "f32" || name.starts_with("klt")), "{names:?}");
    }
}
