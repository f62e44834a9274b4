//! The MSL that `kvant.mlx` and `kvant.hf` launch on Macs, `python/kvant/metal`: it is what our own kernels become, to the byte.
//!
//! `KVANT_WRITE_METAL=1 cargo test -p kvant-gpu metal_texts` writes it anew.

use crate::device::Gpu;
use crate::layout::LayoutKernels;
use crate::quads::Queries;
use crate::slot_kernels::NO_ROWS;
use kvant_cache::{CacheLayout, KvShape, Policy, Slots};
use kvant_msl::{Metal, standalone};
use std::path::Path;
use std::{env, fs};

/// The environment variable that has the files written.
const WRITE_VARIABLE: &str = "KVANT_WRITE_METAL";

/// Where the Python package has them, from this crate.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/kvant/metal");

/// Queries of a kv head that share a reading of a page.
const COLUMNS: usize = 4;

/// Buffers of pages: encoded ones, which stay, and those that a pass brings.
const PAGE_BUFFERS: usize = 2;

/// The texts of `int4` for heads of so many channels, by the names of their kernels.
fn texts(dim: usize) -> [(String, String); 2] {
    let policy: Policy = "int4".parse().unwrap();
    let mut slots = Slots::new();
    slots.keys_values(0, KvShape { kv_heads: 1, key_dim: dim, value_dim: dim, window: None });
    let layout = CacheLayout::new(&policy, &slots).unwrap();
    // A device that needs nothing: its texts are not compiled.
    let gpu = Gpu::on_adapter(&Metal::default().adapter()).unwrap();
    let kernels = LayoutKernels::new(&gpu, &layout).unwrap();
    let slot = kernels.slots[0].as_ref().unwrap();
    let queries = Queries { text: include_str!("../wgsl/queries.wgsl"), own: false };
    [
        ("attend", slot.attend_text((None, true), COLUMNS, (4, PAGE_BUFFERS), queries)),
        ("merge", slot.merge_text(true, COLUMNS, false, NO_ROWS)),
    ]
    .map(|(verb, wgsl)| {
        let name = format!("{verb}_int4_{dim}");
        let text = standalone(&name, &wgsl).unwrap_or_else(|e| panic!("{name}: {e}"));
        let about = format!(
            "// {verb}.wgsl of kvant-gpu for int4 pages, heads of {dim} channels and {COLUMNS} queries that share a reading, as naga translates it.\n\
             // Not edited: `{WRITE_VARIABLE}=1 cargo test -p kvant-gpu metal_texts` writes it.\n"
        );
        (name, about + &text)
    })
}

#[test]
fn metal_texts_are_what_the_kernels_become() {
    for (name, text) in [64, 128].into_iter().flat_map(texts) {
        let path = Path::new(FOLDER).join(format!("{name}.metal"));
        if env::var_os(WRITE_VARIABLE).is_some() {
            fs::write(&path, &text).unwrap();
        }
        let held = fs::read_to_string(&path).unwrap_or_default();
        assert!(held == text, "{name}.metal is not what its kernel becomes: {WRITE_VARIABLE}=1 writes it");
    }
}
