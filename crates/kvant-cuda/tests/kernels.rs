//! The compiled kernels are of these sources, and keep their bounds. No card and no CUDA is needed.

use kvant_cuda::kernels::{MANIFEST, MODULES};
use sha2::{Digest, Sha256};
use std::path::Path;

/// Kernels that may use more than 128 registers, and how many; what is not listed may not. None may spill.
const REGISTERS: [(&str, u64); 4] =
    [("attend_f16_d", 208), ("attend_", 255), ("linear_", 255), ("scan_chunks_", 255)];

/// Bytes of PTX and cubins together, packed.
const SIZE: usize = 22 << 18;

fn hex(data: impl AsRef<[u8]>) -> String {
    Sha256::digest(data).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn manifest() -> serde_json::Value {
    serde_json::from_str(MANIFEST).unwrap()
}

#[test]
fn kernels_are_compiled_from_these_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let is_source = |name: &str| name.ends_with(".cu") || name.ends_with(".cuh");
    let names =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| is_source(name)).collect();
    names.sort();
    let mut all = Vec::new();
    for name in names {
        all.extend_from_slice(name.as_bytes());
        all.push(0);
        all.extend(std::fs::read(folder.join(&name)).unwrap());
        all.push(0);
    }
    assert_eq!(manifest()["sources"], hex(all), "run crates/kvant-cuda/build_kernels.py");
}

#[test]
fn files_are_those_of_the_manifest() {
    let manifest = manifest();
    let mut size = 0;
    for module in &MODULES {
        for (end, data) in [("ptx", module.ptx().into_bytes()), ("cubin", module.cubin())] {
            let file = &manifest["files"][format!("{}.{end}", module.name)];
            assert_eq!(file["sha256"], hex(&data), "{}.{end}", module.name);
            assert_eq!(file["bytes"], data.len(), "{}.{end}", module.name);
        }
        size += module.packed_bytes();
    }
    assert!(size <= SIZE, "{size} bytes");
    assert!(manifest["compiler"].as_str().unwrap().starts_with("nvrtc 12."));
}

#[test]
fn no_kernel_spills_and_registers_keep_their_bounds() {
    for (name, kernel) in manifest()["kernels"].as_object().unwrap() {
        let bound =
            REGISTERS.iter().find(|(start, _)| name.starts_with(start)).map_or(128, |(_, bound)| *bound);
        // Kernels of wide.cu are for Hopper alone.
        for arch in ["sm_80", "sm_90a"].into_iter().filter(|arch| kernel.get(arch).is_some()) {
            let report = &kernel[arch];
            for field in ["spill_stores", "spill_loads", "stack"] {
                assert_eq!(report[field], 0, "{name} on {arch}: {field}");
            }
            let registers = report["registers"].as_u64().unwrap();
            assert!(registers <= bound, "{name} on {arch}: {registers} registers, {bound} allowed");
        }
        // A CTA may take 227 KB; of decode attention over 4-bit values two fit into an SM, 1 KB of each being the system's.
        let two = ["attend_int4_", "attend_k8v4_", "attend_f16_"].iter().any(|start| name.starts_with(start));
        let most = if two { 113 } else { 227 };
        assert!(kernel["dynamic_shared"].as_u64().unwrap() <= most * 1024, "{name}");
    }
}
