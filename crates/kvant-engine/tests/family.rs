//! Families are recognised by what a checkpoint says, not by its name.

use kvant_cpu::LoadOptions;
use kvant_engine::family::{Basis, Family};
use kvant_engine::{FamilyDefault, KvCache};
use kvant_model::{Checkpoint, Model};
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures").join(name)
}

fn load(folder: &Path) -> Model {
    kvant_cpu::load(&Checkpoint::open(folder).unwrap(), LoadOptions::default()).unwrap()
}

/// The default of a fixture whose configuration says something else in one place.
fn default_of_changed(name: &str, old: &str, new: &str) -> &'static FamilyDefault {
    let folder = tempfile::tempdir().unwrap();
    let config = std::fs::read_to_string(fixture(name).join("config.json")).unwrap();
    assert!(config.contains(old), "{name} has no {old}");
    std::fs::write(folder.path().join("config.json"), config.replace(old, new)).unwrap();
    std::fs::copy(fixture(name).join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    FamilyDefault::of(load(folder.path()).description())
}

#[test]
fn fixtures_get_the_default_of_their_family() {
    for (name, family, kv) in [
        ("llama", Family::Usual, "int4"),
        ("qwen2", Family::Usual, "int4"),
        ("gemma2", Family::Usual, "int4"),
        ("gpt2", Family::Usual, "int4"),
        ("qwen3", Family::NormedKeys, "int4"),
        ("qwen3_moe", Family::NormedKeys, "int4"),
        ("gemma3", Family::NormedKeys, "int4"),
        ("olmo2", Family::NormedKeys, "int4"),
        ("granite", Family::SmallScale, "int4"),
    ] {
        let model = load(&fixture(name));
        let default = FamilyDefault::of(model.description());
        assert_eq!((default.family, default.kv), (family, kv), "{name}");
        KvCache::new(default.policy(), model.slots(), 8).unwrap();
    }
}

#[test]
fn structures_that_nobody_measured_get_careful_defaults_and_say_so() {
    for (name, family, kv) in [
        ("deepseek_v2", Family::Latents, "int8"),
        ("glm4_moe_lite", Family::Latents, "int8"),
        ("gemma4_dense", Family::Latents, "int8"),
        ("qwen3_5", Family::Hybrid, "k8v4"),
        ("lfm2", Family::Hybrid, "k8v4"),
        ("nemotron_h", Family::Hybrid, "k8v4"),
        ("gpt_oss", Family::SinkLogits, "k8v4"),
    ] {
        let model = load(&fixture(name));
        let default = FamilyDefault::of(model.description());
        assert_eq!((default.family, default.kv), (family, kv), "{name}");
        assert!(default.basis.to_string().starts_with("not measured"), "{name}");
        KvCache::new(default.policy(), model.slots(), 8).unwrap();
    }
    let scaled = load(&fixture("gemma4_e"));
    assert_eq!(FamilyDefault::of(scaled.description()).family, Family::LargeScale);
}

#[test]
fn a_scale_of_one_gets_careful_keys_by_prediction() {
    for (name, old, new) in [
        ("granite", "\"attention_multiplier\": 0.11", "\"attention_multiplier\": 1.0"),
        ("gpt2", "\"scale_attn_weights\": true", "\"scale_attn_weights\": false"),
        ("gemma3", "\"query_pre_attn_scalar\": 48", "\"query_pre_attn_scalar\": 1"),
    ] {
        let default = default_of_changed(name, old, new);
        assert_eq!((default.family, default.kv), (Family::LargeScale, "k8v4"), "{name}");
        assert!(matches!(default.basis, Basis::Predicted(_)), "{name}");
    }
    let beyond =
        default_of_changed("granite", "\"attention_multiplier\": 0.11", "\"attention_multiplier\": 8.0");
    assert_eq!((beyond.family, beyond.kv), (Family::HugeScale, "k=f16,v=rot4g32"));
}
