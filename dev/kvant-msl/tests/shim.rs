//! Kernels of a few lines on MSL of the host: what is right gives the right numbers, and what is wrong is found.
//!
//! They need a C++ compiler, and run where `KVANT_GPU=msl` says that there is one.
#![cfg(target_os = "linux")]

use kvant_msl::Metal;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

fn is_wanted() -> bool {
    let is_wanted = std::env::var("KVANT_GPU").is_ok_and(|name| name == "msl");
    if !is_wanted {
        eprintln!("skipped: `cargo xtask test msl` runs it");
    }
    is_wanted
}

fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the host's futures are ready"),
    }
}

/// Runs a kernel of the bindings `x` (read) and `y` (written): y afterwards, or what was wrong.
fn run(metal: Metal, wgsl: &str, x: &[f32], outputs: usize, groups: u32) -> Result<Vec<f32>, String> {
    let adapter = metal.adapter();
    let (device, queue) = now(adapter.request_device(&wgpu::DeviceDescriptor::default())).unwrap();
    let wrong = Arc::new(Mutex::new(None));
    let noted = Arc::clone(&wrong);
    device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
        noted.lock().unwrap().get_or_insert(error.to_string());
    }));
    let buffer = |numbers: usize| {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ;
        let size = 4 * numbers as u64;
        device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
    };
    let (from, to) = (buffer(x.len()), buffer(outputs));
    let bytes: Vec<u8> = x.iter().flat_map(|number| number.to_le_bytes()).collect();
    queue.write_buffer(&from, 0, &bytes);
    let layout =
        device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &[] });
    let entries = [&from, &to]
        .into_iter()
        .zip(0..)
        .map(|(buffer, binding)| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() });
    let entries: Vec<_> = entries.collect();
    let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &layout,
        entries: &entries,
    });
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: None,
        source: wgpu::ShaderSource::Wgsl(wgsl.into()),
    });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some("test"),
        layout: None,
        module: &module,
        entry_point: None,
        compilation_options: wgpu::PipelineCompilationOptions::default(),
        cache: None,
    });
    let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(groups, 1, 1);
    }
    queue.submit([encoder.finish()]);
    if let Some(wrong) = wrong.lock().unwrap().take() {
        return Err(wrong);
    }
    to.slice(..).map_async(wgpu::MapMode::Read, |_| {});
    let view = to.slice(..).get_mapped_range().unwrap();
    Ok(view.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect())
}

const BINDINGS: &str = "
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
";

/// Sums of 96 numbers by halving, in workgroup memory.
const SUM: &str = "
var<workgroup> sums: array<f32, 96>;
@compute @workgroup_size(96)
fn main(@builtin(local_invocation_index) thread: u32, @builtin(workgroup_id) id: vec3<u32>) {
    sums[thread] = x[96u * id.x + thread];
    for (var step = 48u; step > 2u; step /= 2u) {
        workgroupBarrier();
        if thread < step {
            sums[thread] += sums[thread + step];
        }
    }
    workgroupBarrier();
    if thread == 0u {
        y[id.x] = sums[0] + sums[1] + sums[2];
    }
}
";

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|n| ((n * 7919) % 1009) as f32 - 500.0).collect()
}

#[test]
fn a_missing_barrier_is_found() {
    if !is_wanted() {
        return;
    }
    let x = numbers(5 * 96);
    let kernel = format!("{BINDINGS}{SUM}");
    let sums: Vec<f32> = x.chunks(96).map(|chunk| chunk.iter().sum()).collect();
    assert_eq!(run(Metal::default(), &kernel, &x, 5, 5), Ok(sums));
    for barrier in 0..2 {
        let at = SUM.match_indices("workgroupBarrier();").nth(barrier).unwrap().0;
        let without = format!("{BINDINGS}{}{}", &SUM[..at], &SUM[at + "workgroupBarrier();".len()..]);
        let found = run(Metal::default(), &without, &x, 5, 5).unwrap_err();
        assert!(found.contains("is a barrier missing?"), "{barrier}: {found}");
    }
}

#[test]
fn threads_that_never_come_to_a_barrier_are_found() {
    if !is_wanted() {
        return;
    }
    let kernel = format!(
        "{BINDINGS}{}",
        SUM.replace("sums[thread] = x", "if thread == 7u { return; }\n    sums[thread] = x")
    );
    // What naga itself refuses, or else what the host notices.
    let found = run(Metal::default(), &kernel, &numbers(96), 1, 1).unwrap_err();
    assert!(found.contains("returned while others wait") || found.contains("uniform"), "{found}");
}

/// Sums over a subgroup of 32, by exchanging numbers.
const EXCHANGE: &str = "
@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) thread: u32, @builtin(subgroup_invocation_id) lane: u32) {
    var sum = x[thread];
    for (var step = 1u; step < 32u; step *= 2u) {
        sum += subgroupShuffleXor(sum, step);
    }
    y[thread] = sum + f32(lane) + subgroupMax(x[thread]);
}
";

#[test]
fn a_wrong_shuffle_is_found() {
    if !is_wanted() {
        return;
    }
    let x = numbers(64);
    let wanted: Vec<f32> = (0..64)
        .map(|n| {
            let group = &x[n / 32 * 32..n / 32 * 32 + 32];
            group.iter().sum::<f32>() + (n % 32) as f32 + group.iter().copied().fold(f32::MIN, f32::max)
        })
        .collect();
    assert_eq!(run(Metal::default(), &format!("{BINDINGS}{EXCHANGE}"), &x, 64, 1), Ok(wanted.clone()));
    for wrong in [
        "subgroupShuffleDown(sum, step)",
        "subgroupShuffleXor(sum, step ^ 1u)",
        "subgroupShuffle(sum, lane + step)",
        "subgroupBroadcast(sum, 1u)",
    ] {
        let kernel = format!("{BINDINGS}{}", EXCHANGE.replace("subgroupShuffleXor(sum, step)", wrong));
        let found = run(Metal::default(), &kernel, &x, 64, 1).unwrap();
        // Lanes that are not there give NaN, which is not equal to itself.
        assert_ne!(found, wanted, "{wrong}");
    }
}

#[test]
fn lanes_that_part_are_found() {
    if !is_wanted() {
        return;
    }
    let kernel = format!(
        "{BINDINGS}
@compute @workgroup_size(32)
fn main(@builtin(local_invocation_index) thread: u32) {{
    var v = x[thread];
    if thread < 9u {{ v = subgroupAdd(v); }} else {{ v = subgroupMax(v); }}
    y[thread] = v;
}}"
    );
    let found = run(Metal::default(), &kernel, &numbers(32), 32, 1).unwrap_err();
    assert!(found.contains("at different places") || found.contains("uniform"), "{found}");
}

#[test]
fn matrices_of_a_simdgroup_multiply() {
    if !is_wanted() {
        return;
    }
    let kernel = format!(
        "enable wgpu_cooperative_matrix;{BINDINGS}
var<workgroup> c: array<f32, 64>;
@compute @workgroup_size(32)
fn main(@builtin(local_invocation_index) thread: u32) {{
    let a = coopLoadT<coop_mat8x8<f32, A>>(&x[0], 8u);
    let b = coopLoadT<coop_mat8x8<f32, B>>(&x[64], 8u);
    let d = coopLoadT<coop_mat8x8<f32, C>>(&x[128], 8u);
    let e = coopMultiplyAdd(a, b, d);
    coopStoreT(e, &c[0], 8u);
    workgroupBarrier();
    y[thread] = c[thread];
    y[thread + 32u] = c[thread + 32u];
}}"
    );
    let x: Vec<f32> = numbers(192).iter().map(|x| x / 64.0).collect();
    let found = run(Metal::default(), &kernel, &x, 64, 1).unwrap();
    for (at, found) in found.iter().enumerate() {
        let (m, n) = (at / 8, at % 8);
        let sum: f32 = (0..8).map(|k| x[8 * m + k] * x[64 + 8 * k + n]).sum();
        assert!((found - (sum + x[128 + at])).abs() < 1e-3, "{m} {n}: {found}");
    }
}

#[test]
fn memory_that_nobody_has_written_is_no_number() {
    if !is_wanted() {
        return;
    }
    let kernel = format!("{BINDINGS}{}", SUM.replace("sums[thread] = x", "sums[min(thread, 94u)] = x"));
    let found = run(Metal::default(), &kernel, &numbers(96), 1, 1);
    assert!(found.is_err() || found.unwrap()[0].is_nan());
}
