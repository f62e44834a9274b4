//! Which device and which cache a model gets.

use super::{Device, DeviceChoice, DeviceError, first_layers, hardware, open};
use crate::estimate::MemoryEstimate;
use crate::open::{
    ChosenPolicy, KvChoice, OpenError, OpenNote, OpenOptions, Plans, SHORTEST, default_context,
};
use kvant_attention::KvUnsupported;
use kvant_cache::{CacheLayout, Policy};
use kvant_model::{Checkpoint, Description, LoadError};
use std::sync::Arc;

/// Caches that take the place of a family's own where a device does not run that, the smallest first. None is coarser than any
/// family's.
const IN_PLACE: [&str; 3] = ["k8v4", "int8", "f16"];

/// Where a model is to run.
pub(crate) struct Selection {
    /// The device, and how keys and values are kept there; `None` for the processor.
    pub device: Option<(Arc<dyn Device>, ChosenPolicy)>,
    /// How they are kept on the processor.
    pub chosen: ChosenPolicy,
    /// Why it is not the device that was looked at.
    pub notes: Vec<OpenNote>,
}

/// Chooses by what is asked for and by what devices run; where nobody names one, the first that runs the model with its cache.
///
/// # Errors
/// If a plan cannot be used, or what was asked for by name does not run.
pub(crate) fn select(
    options: &OpenOptions,
    checkpoint: &Checkpoint,
    description: &Description,
) -> Result<Selection, OpenError> {
    let chosen = Plans::new(checkpoint).choose(options.kv.as_ref(), description)?;
    let mut notes = Vec::new();
    let is_encoder = description.encoder.is_some() && options.device == DeviceChoice::Auto;
    if options.gpu_layers == Some(0) || is_encoder {
        return Ok(Selection { device: None, chosen, notes });
    }
    if options.device != DeviceChoice::Auto {
        return match open(options.device)? {
            Some(device) => select_on(device, options, chosen, checkpoint, description),
            None => {
                notes.extend(options.gpu_layers.map(|_| OpenNote::NoDevice { is_chosen: true }));
                Ok(Selection { device: None, chosen, notes })
            }
        };
    }
    for device in hardware() {
        let selection = select_on(device, options, chosen.clone(), checkpoint, description)?;
        if selection.device.is_some() {
            return Ok(selection);
        }
        notes.extend(selection.notes);
    }
    if options.gpu_layers.is_some() && notes.is_empty() {
        notes.push(OpenNote::NoDevice { is_chosen: false });
    }
    Ok(Selection { device: None, chosen, notes })
}

/// The device with as many layers as were asked for, or as its memory holds; the others run on the processor.
fn with_layers(
    device: Arc<dyn Device>,
    options: &OpenOptions,
    chosen: &ChosenPolicy,
    checkpoint: &Checkpoint,
    description: &Description,
) -> Result<Arc<dyn Device>, OpenError> {
    let all = description.layers.len();
    let layers = match (options.gpu_layers, device.memory()) {
        (Some(layers), _) => layers,
        (None, Some(memory)) => {
            let policy = options.complete(chosen.policy.clone());
            layers_within(memory, options, &policy, checkpoint, description)?
        }
        (None, None) => all,
    };
    Ok(if layers >= all { device } else { first_layers(device, layers, options.load_options()) })
}

/// As many layers as a memory holds with their part of a context; all where even one is too many or the model cannot be cut, so that the
/// refusal names the whole.
fn layers_within(
    memory: u64,
    options: &OpenOptions,
    policy: &Policy,
    checkpoint: &Checkpoint,
    description: &Description,
) -> Result<usize, OpenError> {
    let context = options.context.unwrap_or_else(|| default_context(description).min(SHORTEST));
    let run = options.run_config(policy, context, true);
    let fits = |description: &Description| -> Result<bool, OpenError> {
        Ok(MemoryEstimate::new(checkpoint, description, &run)?.peak() <= memory)
    };
    let all = description.layers.len();
    if fits(description)? {
        return Ok(all);
    }
    let (mut low, mut high) = (0, all);
    while high - low > 1 {
        let middle = usize::midpoint(low, high);
        let Ok((first, _)) = description.halves(middle) else { return Ok(all) };
        let first = Description { slots: first.slots.before(middle), ..first };
        if fits(&first)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(if low == 0 { all } else { low })
}

/// The same for one device.
fn select_on(
    device: Arc<dyn Device>,
    options: &OpenOptions,
    chosen: ChosenPolicy,
    checkpoint: &Checkpoint,
    description: &Description,
) -> Result<Selection, OpenError> {
    let is_asked = options.device != DeviceChoice::Auto;
    let on_cpu = |chosen: ChosenPolicy, reason: String| {
        let notes = vec![OpenNote::OnCpu { device: device.name().to_owned(), reason }];
        Ok(Selection { device: None, chosen, notes })
    };
    if !options.lora.is_empty() {
        let reason = "LoRA adapters run on CPUs alone";
        return match is_asked {
            true => {
                let refused = format!("{reason}: use --device cpu in place of {}", device.name());
                Err(LoadError::unsupported(refused).into())
            }
            false => on_cpu(chosen, reason.to_owned()),
        };
    }
    let device = with_layers(device, options, &chosen, checkpoint, description)?;
    let on_cpu = |chosen: ChosenPolicy, reason: String| {
        let notes = vec![OpenNote::OnCpu { device: device.name().to_owned(), reason }];
        Ok(Selection { device: None, chosen, notes })
    };
    if let Err(refused) = device.check_model(description, checkpoint) {
        return if is_asked { Err(refused.into()) } else { on_cpu(chosen, refused.to_string()) };
    }
    let on_device = |there: ChosenPolicy, chosen: ChosenPolicy| Selection {
        device: Some((Arc::clone(&device), there)),
        chosen,
        notes: Vec::new(),
    };
    let Err(reason) = check(&*device, options, &chosen.policy, description)? else {
        return Ok(on_device(chosen.clone(), chosen));
    };
    if chosen.plan.is_some() {
        return on_cpu(chosen, format!("the plan's cache does not run there: {reason}"));
    }
    if !matches!(options.kv, Some(KvChoice::Policy(_))) {
        for spec in IN_PLACE {
            let policy: Policy = spec.parse().expect("a spec of the grammar");
            if check(&*device, options, &policy, description)?.is_ok() {
                let own = &chosen.policy;
                let reason = format!("the family's own, {own}, does not run on {}", device.name());
                return Ok(on_device(ChosenPolicy { policy, reason, plan: None }, chosen));
            }
        }
    }
    if is_asked {
        check_policy(&*device, options, &chosen.policy, description)?;
    }
    on_cpu(chosen, reason)
}

/// Whether a device keeps what a policy says, with what is asked for besides; why not.
fn check(
    device: &dyn Device,
    options: &OpenOptions,
    policy: &Policy,
    description: &Description,
) -> Result<Result<(), String>, KvUnsupported> {
    refusal(device, &options.complete(policy.clone()), description)
}

fn refusal(
    device: &dyn Device,
    policy: &Policy,
    description: &Description,
) -> Result<Result<(), String>, KvUnsupported> {
    let layout = CacheLayout::new(policy, &description.slots).map_err(|e| KvUnsupported::new(policy, &e))?;
    Ok(device.check_cache(&layout))
}

/// The same as an error.
///
/// # Errors
/// If it does not.
pub(crate) fn check_policy(
    device: &dyn Device,
    options: &OpenOptions,
    policy: &Policy,
    description: &Description,
) -> Result<(), OpenError> {
    check_kept(device, &options.complete(policy.clone()), description)
}

/// The same of a policy that is complete.
///
/// # Errors
/// As there.
pub(super) fn check_kept(
    device: &dyn Device,
    policy: &Policy,
    description: &Description,
) -> Result<(), OpenError> {
    let refused = |reason| {
        let (device, policy) = (device.name().to_owned(), policy.to_string());
        DeviceError::Cache { device, policy, reason }.into()
    };
    refusal(device, policy, description)?.map_err(refused)
}
