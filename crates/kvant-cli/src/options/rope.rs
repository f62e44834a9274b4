//! Flags of the rotary embedding, for commands that open a model's file themselves.

use crate::failure::Failure;
use crate::options::model::flag;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use kvant_engine::OpenOptions;
use kvant_engine::open::{OPENING, OpenSetting};
use kvant_model::{Checkpoint, LoadError};
use std::path::Path;

/// Rotary settings in place of the file's.
#[derive(Clone, Default)]
pub struct RopeFlags(OpenOptions);

/// The heading they stand under.
pub const HEADING: &str = "RoPE and YaRN, named as in llama.cpp";

fn settings() -> impl Iterator<Item = &'static OpenSetting> {
    OPENING.iter().filter(|setting| setting.is_rope)
}

impl Args for RopeFlags {
    fn augment_args(command: Command) -> Command {
        // `kvant run --help` explains them; here they would outnumber a command's own.
        settings().fold(command, |command, setting| command.arg(flag(setting).hide(true)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for RopeFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in settings() {
            if let Some(text) = matches.get_one::<String>(setting.name) {
                let wrong =
                    |why| clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{why}\n"));
                setting.set(&mut self.0, text).map_err(wrong)?;
            }
        }
        Ok(())
    }
}

impl RopeFlags {
    /// A model's file, with these settings.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Checkpoint, Failure> {
        Ok(self.on(Checkpoint::open(path))?)
    }

    /// The same of a file that is open.
    pub fn on(&self, checkpoint: Result<Checkpoint, LoadError>) -> Result<Checkpoint, LoadError> {
        checkpoint.map(|checkpoint| self.0.with_rope(checkpoint))
    }
}
