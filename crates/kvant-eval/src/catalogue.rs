//! Every cache there is a name for.

use kvant_cache::Slots;
use kvant_codec::{KvSpec, catalogue};
use kvant_engine::{KvCache, Policy};

/// What the codecs' catalogue shows, as far as a model with these slots can be kept that way. The reference itself
/// is left out.
pub fn every_cache(slots: &Slots) -> Vec<Policy> {
    let exact: KvSpec = "f32".parse().expect("a spec of the grammar");
    let specs = catalogue().into_iter().map(|shown| shown.spec).filter(|spec| *spec != exact);
    let mut found: Vec<Policy> = Vec::new();
    for policy in specs.map(Policy::from) {
        if !found.contains(&policy) && KvCache::new(&policy, slots, 1).is_ok() {
            found.push(policy);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_cache::KvShape;

    #[test]
    fn presets_and_families_are_listed_once_and_all_can_be_built() {
        let shape = KvShape { kv_heads: 2, key_dim: 64, value_dim: 64, window: None };
        let found = every_cache(&Slots::uniform(1, shape));
        let names: Vec<String> = found.iter().map(Policy::to_string).collect();
        for name in ["int4", "int8", "q4_0", "f16", "tq3", "srft4g32"] {
            assert_eq!(names.iter().filter(|known| *known == name).count(), 1, "{name} in {names:?}");
        }
        assert!(!names.iter().any(|name| name == "f32" || name.starts_with("klt")), "{names:?}");
    }
}
