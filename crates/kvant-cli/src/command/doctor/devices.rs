//! Devices beside the processor, and what a model would run on.

use crate::failure::Failure;
use crate::table::Table;
use kvant_engine::device::{self, DeviceError, DeviceReport, IS_BUILT, Measurements};
use kvant_engine::memory::bytes;
use kvant_engine::{DeviceChoice, KvChoice, OpenOptions};
use kvant_model::{Checkpoint, Description};
use std::io::Write;

/// All of this machine.
pub fn list(out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "\nGPUs (--device gpu, --device cuda)")?;
    let mut table = Table::plain();
    let found = device::devices();
    let kept = kvant_hub::cache_folder().ok().map(|folder| Measurements::in_folder(&folder));
    for DeviceReport { name, about, memory, choice, unfit, .. } in &found {
        let fastest = choice.as_ref().map(|key| kept.as_ref().and_then(|kept| kept.choice(key)));
        let fastest = fastest.map_or_else(String::new, |found| match found {
            Some(found) => format!("; measured to be the fastest: {found}"),
            None => "; the first run measures which kernels are the fastest".to_owned(),
        });
        let memory = memory.map(|memory| format!(", {} of memory", bytes(memory))).unwrap_or_default();
        let unfit = unfit.as_ref().map(|what| format!("; cannot run kvant: {what}")).unwrap_or_default();
        table.row([name.clone(), format!("{about}{memory}{fastest}{unfit}")]);
    }
    match (found.is_empty(), IS_BUILT) {
        (true, false) => table.row([DeviceError::NotBuilt.to_string()]),
        (true, true) => table.row(["none: no adapter was found".to_owned()]),
        (false, _) => {}
    }
    table.write(out, 2)?;
    let runs = || found.iter().filter(|of| of.unfit.is_none());
    let others: Vec<&str> = runs().filter(|of| !of.one_order).map(|of| of.name.as_str()).collect();
    if others.len() < runs().count() {
        let which = if others.is_empty() { "" } else { "other " };
        writeln!(
            out,
            "  {which}kernels for one token and for blocks of tokens sum in the same order: a token's logits do not depend on its batch"
        )?;
    }
    if !others.is_empty() {
        writeln!(
            out,
            "  {}: kernels for one token and for blocks of tokens round differently, so a token's logits depend on its batch, by \
             rounding errors of f16; KVANT_GPU_ARITHMETIC=plain gives the same bits, slower",
            others.join(", ")
        )?;
    }
    Ok(())
}

/// What a model would run on, or why not.
pub fn write(
    out: &mut dyn Write,
    checkpoint: &Checkpoint,
    choice: DeviceChoice,
    kv: Option<&KvChoice>,
) -> Result<(), Failure> {
    if Description::of(checkpoint)?.encoder.is_some() {
        // The processor's, whatever there is.
        return Ok(());
    }
    let Some(device) = device::open(choice).map_err(Failure::new)? else { return Ok(()) };
    let options = OpenOptions { device: choice, kv: kv.cloned(), ..OpenOptions::default() };
    let name = device.name();
    let words = match options.device_policy(checkpoint, &Description::of(checkpoint)?) {
        Ok(Some((name, policy))) if choice == DeviceChoice::Auto => {
            format!("{name} runs it with {policy}; `auto` takes it if a short text is faster there")
        }
        Ok(Some((name, policy))) => {
            format!("{name} runs it with {policy}: packed weights, attention on the pages' bytes")
        }
        Ok(None) => format!("{name} does not run it with that cache: it stays on the CPU"),
        Err(error) => format!("{name} does not run it: {error}"),
    };
    writeln!(out, "\n{words}")?;
    Ok(())
}
