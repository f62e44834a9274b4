//! A compute pipeline made of a WGSL text, and what it is bound to.
//!
//! Kernels are texts with a few constants before them: sizes of a format, numbers of columns. A text declares its storage
//! buffers as bindings 0, 1, … of group 0, which is where their access is read from, and its arguments as one
//! `var<immediate>` of at most 64 bytes.

/// A kernel, built.
pub(crate) struct Kernel {
    pub label: &'static str,
    pub pipeline: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
    pub bindings: usize,
}

impl Kernel {
    pub(crate) fn build(
        device: &wgpu::Device,
        label: &'static str,
        source: &str,
        is_checked: bool,
    ) -> Kernel {
        let entries: Vec<_> = accesses(source)
            .enumerate()
            .map(|(binding, read_only)| wgpu::BindGroupLayoutEntry {
                binding: binding as u32,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Storage { read_only },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            })
            .collect();
        let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some(label),
            entries: &entries,
        });
        let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(label),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: crate::device::IMMEDIATE_BYTES,
        });
        let text = wgpu::ShaderModuleDescriptor {
            label: Some(label),
            source: wgpu::ShaderSource::Wgsl(source.into()),
        };
        // Bounds stay checked where indices are data: a wrong table of pages must not reach beyond a buffer.
        let checks = wgpu::ShaderRuntimeChecks {
            force_loop_bounding: false,
            bounds_checks: is_checked,
            int_div_checks: is_checked,
            ..wgpu::ShaderRuntimeChecks::checked()
        };
        // SAFETY: what is not checked is that loops end: every loop of the kernels counts up to a bound that does not change in it.
        // Bounds and divisors are not checked in products, whose indices are below the sizes that their dispatch was made with, and in
        // attention of few tokens, where places in workgroup memory come from numbers of threads and those in pages from a page whose
        // place was held to its buffer; divisors are sizes above zero.
        let module = unsafe { device.create_shader_module_trusted(text, checks) };
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(label),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: None,
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..wgpu::PipelineCompilationOptions::default()
            },
            cache: None,
        });
        Kernel { label, pipeline, layout, bindings: entries.len() }
    }
}

/// Whether each storage buffer of a source is only read, in the order of its bindings.
fn accesses(source: &str) -> impl Iterator<Item = bool> {
    source
        .lines()
        .filter(|line| line.starts_with("@group(0)"))
        .map(|line| line.contains("var<storage, read>"))
}
