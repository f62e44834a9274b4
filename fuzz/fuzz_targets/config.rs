//! Any JSON as a `config.json`: a description of a model or an error. What is described can be shown and its memory computed.
#![no_main]

use kvant_cache::{CacheLayout, Policy};
use kvant_model::{Checkpoint, DType, Description};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(config) = serde_json::from_str(text) else { return };
    let Ok(checkpoint) = Checkpoint::from_config(config, DType::Q4_0) else { return };
    let Ok(description) = Description::of(&checkpoint) else { return };
    let layers = description.layer_summaries();
    assert!(layers.iter().all(|layer| !layer.to_string().is_empty()));
    let policy: Policy = "int4".parse().expect("a policy");
    // Whether there is such a cache is the file's luck; that nothing worse happens is not.
    drop(CacheLayout::new(&policy, &description.slots));
});
