//! The `kvant` command.
//!
//! Flags are parsed in [`cli`]; every subcommand is a file in [`command`] with its own arguments and an
//! `execute`. To add one: write the file, add its line to [`cli::Command`]. Flags that several commands share are
//! in [`options`]; what people type who come from other programs is in [`typed`].

#[macro_use]
mod shown;

mod cli;
mod command;
mod config;
mod failure;
mod interrupt;
mod keyboard;
mod log;
mod named;
mod open;
mod options;
mod output;
mod progress;
mod report;
mod saved;
mod screen;
mod shapes;
mod table;
mod typed;

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(all(target_os = "linux", feature = "gpu"))]
    without_desktop();
    let cli = cli::Cli::of_arguments(typed::rewritten(std::env::args_os()));
    cli.log.begin(cli.command.log_level());
    match cli.command.execute() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Mesa's layer that chooses a Vulkan device asks the desktop for its own, and complains on stderr where there is no desktop. Without one there
/// is nobody to ask: the layer is left out, unless its variable names a device.
#[cfg(all(target_os = "linux", feature = "gpu"))]
fn without_desktop() {
    const LEFT_OUT: &str = "NODEVICE_SELECT";
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if !["XDG_RUNTIME_DIR", "MESA_VK_DEVICE_SELECT", LEFT_OUT].into_iter().any(is_set) {
        // SAFETY: the program has one thread so far, so that nobody reads the environment meanwhile.
        unsafe { std::env::set_var(LEFT_OUT, "1") };
    }
}
