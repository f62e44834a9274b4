//! How far does a cache part from itself when numbers differ in their last bits?
//!
//!     cargo run --release -p kvant-eval --example last_bits -- MODEL.gguf [SPEC,… [PART,…]]
//!
//! The gains of every layer's first norm are multiplied by 1 + PART or 1 − PART, by a coin, and the model so changed is compared with the
//! model itself: the same cache, the same kernels, all of it on the CPU with f32 activations, 511 positions of the built-in text. What two
//! orders of the same sums do to activations is of such a size. Printed is the mean KL by cache and part. Beside it, at *decoded*, is the
//! unchanged model whose pages are decoded to f32 where the CPU's kernels round queries and weights to bytes: two readings of the same
//! cache, both of them right. What a device is held to against the CPU cannot be below either.

use kvant_cpu::LoadOptions;
use kvant_eval::divergence::{Mode, Models, Request, Same, device_divergence};
use kvant_eval::{PassLimits, Score, Windows, text};
use kvant_model::gguf::Gguf;
use kvant_model::{Checkpoint, Model};
use kvant_text::tokenizer::Tokenizer;
use std::error::Error;

const CONTEXT: usize = 512;

/// The file with gains that are a little larger or smaller.
fn changed(file: &[u8], part: f32) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut file = file.to_vec();
    let gguf = Gguf::from_bytes(file.clone())?;
    let mut coin = 0x9E37_79B9_7F4A_7C15_u64;
    for norm in gguf.tensors().filter(|tensor| tensor.name.ends_with("attn_norm.weight")) {
        for gain in file[norm.range.clone()].chunks_exact_mut(4) {
            coin = coin.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let factor = if coin >> 63 == 0 { 1.0 + part } else { 1.0 - part };
            let value = f32::from_le_bytes([gain[0], gain[1], gain[2], gain[3]]);
            gain.copy_from_slice(&(value * factor).to_le_bytes());
        }
    }
    Ok(file)
}

fn load(file: Vec<u8>) -> Result<Model, Box<dyn Error>> {
    Ok(kvant_cpu::load(&Checkpoint::from_gguf(Gguf::from_bytes(file)?), LoadOptions::AS_STORED)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut given = std::env::args().skip(1);
    let path = given.next().ok_or("last_bits MODEL.gguf [SPEC,… [PART,…]]")?;
    let specs = given.next().unwrap_or_else(|| "f16,int8,k8v4,int4".to_owned());
    let parts = given.next().unwrap_or_else(|| "1.2e-7,1e-6,1e-5,1e-4".to_owned());
    let file = std::fs::read(&path)?;
    let checkpoint = Checkpoint::from_gguf(Gguf::from_bytes(file.clone())?);
    let tokenizer = Tokenizer::of(&checkpoint)?;
    let windows = Windows::of_text(&tokenizer, text::test(), CONTEXT, 1, Score::All)?;
    let reference = load(file.clone())?;
    let caches = specs.split(',').map(str::parse).collect::<Result<Vec<_>, _>>()?;
    let measure = |subject: &Model, same: Same, mode: Mode, name: &str| -> Result<(), Box<dyn Error>> {
        let models = Models { reference: &reference, subject, arithmetic: "f32" };
        let request =
            Request { models, windows: &windows, caches: &caches, mode, limits: PassLimits::default() };
        let found = device_divergence(&request, same, &mut |_| {})?;
        let cells: Vec<String> = (specs.split(',').zip(&found))
            .map(|(spec, found)| format!("{spec} {:.1e} ± {:.0e}", found.kl().0, found.kl().1))
            .collect();
        println!("{mode:?}, {name}: {}", cells.join(", "));
        Ok(())
    };
    for mode in [Mode::Deployed, Mode::Strict] {
        for part in parts.split(',') {
            let model = load(changed(&file, part.parse()?)?)?;
            measure(&model, Same::Kernels, mode, part)?;
        }
        measure(&reference, Same::Decoded, mode, "decoded")?;
    }
    Ok(())
}
