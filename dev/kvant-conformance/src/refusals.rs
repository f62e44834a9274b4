//! What does not run is declared, and refused by name; nothing else is.

use crate::fixture::Fixture;
use crate::policies::{CACHES, policy};
use crate::subject::Subject;
use kvant_attention::KvCache;
use kvant_cache::{Arena, CacheLayout, Slots};
use kvant_codec::{FAMILIES, Side};
use kvant_model::{Chunk, Pass};

pub(crate) fn are_declared(subject: &Subject) {
    every_family_is_there();
    let mut wrong = Vec::new();
    let mut hold = |name: &str, found: Option<String>| match (found, subject.refusal(name)) {
        (None, None) => {}
        (None, Some(because)) => wrong.push(format!("{name} runs, and is declared to be refused: {because}")),
        (Some(found), None) => wrong.push(format!("{name} is refused, which is not declared: {found}")),
        (Some(found), Some(because)) if !found.contains(because) => {
            wrong.push(format!("{name} is refused for another reason than {because}: {found}"));
        }
        (Some(_), Some(_)) => {}
    };
    let fixtures = Fixture::all();
    for fixture in &fixtures {
        let checkpoint = fixture.checkpoint("config.json").unwrap();
        let found = subject.model_refused(&checkpoint);
        if let Some(found) = &found {
            assert!(found.contains("--device cpu"), "{}: {found}", fixture.name);
        }
        hold(&fixture.name, found);
    }
    let on = subject.load(&subject.plain().checkpoint);
    for text in CACHES {
        hold(text, subject.cache_refused(&policy(text, on.model.slots()), &on.model));
    }
    let known = |name: &str| CACHES.contains(&name) || fixtures.iter().any(|fixture| fixture.name == name);
    for name in subject.refuses.iter().flat_map(|refused| refused.names).filter(|name| !known(name)) {
        wrong.push(format!("{name} is declared to be refused, and there is no such model or cache"));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    if !subject.is_host() {
        let kept = policy("f16", on.model.slots());
        let mut host = KvCache::in_arena(kept, on.model.slots(), 16, Arena::new()).unwrap();
        let pass = [Chunk::new(&[1], 0..1)];
        let refused = on.model.forward(Pass::new(&pass), &mut [host.sequence_mut()]).unwrap_err();
        assert!(refused.to_string().contains("host memory"), "{refused}");
    }
}

/// Nobody forgets a family of codecs.
fn every_family_is_there() {
    let slots =
        Slots::uniform(1, kvant_cache::KvShape { kv_heads: 1, key_dim: 64, value_dim: 64, window: None });
    let policies: Vec<_> = CACHES.iter().map(|text| policy(text, &slots)).collect();
    for policy in &policies {
        CacheLayout::new(policy, &slots).unwrap_or_else(|e| panic!("{policy}: {e}"));
    }
    for family in FAMILIES {
        let has = |side| policies.iter().any(|policy| policy.spec(0, 0, side).family.name == family.name);
        assert!(has(Side::Key) || has(Side::Value), "no cache of the kit has the codec {}", family.name);
    }
}
