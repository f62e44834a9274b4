//! WGSL to MSL, with the options of wgpu's Metal backend.

use naga::back::msl;
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, ResourceBinding, ShaderStage, StorageAccess};

/// The version of the language that wgpu asks macOS 14 for.
const LANGUAGE: (u8, u8) = (3, 1);

/// Where wgpu puts arguments that are not buffers of the caller.
pub(crate) const IMMEDIATES_SLOT: usize = 0;

/// Buffers that Metal has for one kernel.
const MOST_SLOTS: usize = 31;

/// A kernel as Metal would get it.
#[derive(Debug)]
pub(crate) struct Translated {
    /// The text that was translated.
    pub wgsl: String,
    /// The text.
    pub msl: String,
    /// The function in it that is started.
    pub entry: String,
    /// Threads of a workgroup.
    pub threads: [u32; 3],
    /// Whether the kernel writes to each storage buffer, by binding.
    pub writes: Vec<bool>,
    /// Bindings whose sizes in bytes the kernel is told, in that order.
    pub sized: Vec<usize>,
}

impl Translated {
    /// The slot of a binding: after the immediates.
    pub(crate) fn slot(binding: usize) -> usize {
        IMMEDIATES_SLOT + 1 + binding
    }

    /// The slot of the sizes.
    pub(crate) fn sizes_slot(&self) -> usize {
        Translated::slot(self.writes.len())
    }
}

/// A kernel as naga understands it on an adapter that can do everything.
pub(crate) fn validated(wgsl: &str) -> Result<(naga::Module, ModuleInfo), String> {
    let module = naga::front::wgsl::parse_str(wgsl).map_err(|e| e.emit_to_string(wgsl))?;
    let info = Validator::new(ValidationFlags::all(), Capabilities::all())
        .validate(&module)
        .map_err(|e| e.emit_to_string(wgsl))?;
    Ok((module, info))
}

/// What Metal would get for a kernel that is bound to storage buffers 0, 1, … of group 0.
pub(crate) fn translate(wgsl: &str, checks: wgpu::ShaderRuntimeChecks) -> Result<Translated, String> {
    let (module, info) = validated(wgsl)?;
    let [entry] = &module.entry_points[..] else { return Err("a kernel has one entry point".to_owned()) };
    let mut buffers: Vec<(u32, bool, bool)> = Vec::new();
    for (_, variable) in module.global_variables.iter() {
        if let (AddressSpace::Storage { access }, Some(at)) = (variable.space, variable.binding) {
            let is_sized = module.types[variable.ty].inner.needs_host_buffer_byte_size(&module.types);
            buffers.push((at.binding, access.contains(StorageAccess::STORE), is_sized));
        }
    }
    let sized = buffers.iter().filter(|(_, _, sized)| *sized).map(|(at, ..)| *at as usize).collect();
    buffers.sort_unstable();
    let writes: Vec<bool> = buffers.iter().map(|(_, writes, _)| *writes).collect();
    if Translated::slot(writes.len()) >= MOST_SLOTS {
        return Err(format!("{} buffers: Metal has {MOST_SLOTS} for all arguments", writes.len()));
    }
    let target = |binding: usize, mutable: bool| {
        let slot = Some(Translated::slot(binding) as msl::Slot);
        let at = ResourceBinding { group: 0, binding: binding as u32 };
        (at, msl::BindTarget { buffer: slot, mutable, ..msl::BindTarget::default() })
    };
    let resources = msl::EntryPointResources {
        resources: writes.iter().enumerate().map(|(binding, mutable)| target(binding, *mutable)).collect(),
        immediates_buffer: Some(IMMEDIATES_SLOT as msl::Slot),
        sizes_buffer: Some(Translated::slot(writes.len()) as msl::Slot),
    };
    let policy =
        if checks.bounds_checks { BoundsCheckPolicy::Restrict } else { BoundsCheckPolicy::Unchecked };
    let options = msl::Options {
        lang_version: LANGUAGE,
        per_entry_point_map: [(entry.name.clone(), resources)].into_iter().collect(),
        inline_samplers: Vec::new(),
        spirv_cross_compatibility: false,
        fake_missing_bindings: false,
        bounds_check_policies: BoundsCheckPolicies {
            index: policy,
            buffer: policy,
            image_load: policy,
            binding_array: BoundsCheckPolicy::Unchecked,
        },
        // As `Kernel::build` asks for.
        zero_initialize_workgroup_memory: false,
        force_loop_bounding: checks.force_loop_bounding,
        task_dispatch_limits: None,
        mesh_shader_primitive_indices_clamp: checks.mesh_shader_primitive_indices_clamp,
        emit_int_div_checks: checks.int_div_checks,
        ray_query_initialization_tracking: checks.ray_query_initialization_tracking,
    };
    let of_pipeline = msl::PipelineOptions {
        entry_point: Some((ShaderStage::Compute, entry.name.clone())),
        allow_and_force_point_size: false,
        vertex_pulling_transform: true,
        vertex_buffer_mappings: Vec::new(),
        binding_array_length_map: Default::default(),
    };
    let (text, names) =
        msl::write_string(&module, &info, &options, &of_pipeline).map_err(|e| format!("MSL: {e}"))?;
    let name = names.entry_point_names.first().ok_or("a text without an entry point")?;
    let name = name.as_ref().map_err(|e| format!("MSL: {e}"))?;
    Ok(Translated {
        wgsl: wgsl.to_owned(),
        msl: text,
        entry: name.clone(),
        threads: entry.workgroup_size,
        writes,
        sized,
    })
}
