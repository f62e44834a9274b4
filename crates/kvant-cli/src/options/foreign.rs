//! Flags of llama.cpp and Ollama that kvant has no need of, or does not have: each is accepted, and one line says what holds here.
//!
//! Flags that mean something here are aliases of kvant's own; these are what is left.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

/// A flag of another program.
struct Foreign {
    flag: &'static str,
    short: Option<char>,
    aliases: &'static [&'static str],
    /// It takes a value.
    has_value: bool,
    /// What holds here; nothing where that is what the flag asks for.
    remark: &'static str,
}

const fn switch(flag: &'static str, aliases: &'static [&'static str], remark: &'static str) -> Foreign {
    Foreign { flag, short: None, aliases, has_value: false, remark }
}

const fn value(flag: &'static str, aliases: &'static [&'static str], remark: &'static str) -> Foreign {
    Foreign { flag, short: None, aliases, has_value: true, remark }
}

/// The table.
const FOREIGN: &[Foreign] = &[
    Foreign {
        short: Some('b'),
        ..value(
            "batch-size",
            &[],
            "ignored: kvant reads prompts in chunks of a fixed size; answers do not depend on it",
        )
    },
    value(
        "ubatch-size",
        &[],
        "ignored: kvant reads prompts in chunks of a fixed size; answers do not depend on it",
    ),
    switch("no-mmap", &["mmap"], "ignored: kvant always maps model files; --mlock keeps weights in memory"),
    switch("color", &[], "ignored: output is coloured on terminals; NO_COLOR turns that off"),
    value("keep", &[], "ignored: a context keeps all its tokens; --window keeps the first and the last ones"),
    switch("no-warmup", &["warmup"], ""),
    switch("context-shift", &[], "ignored: use --window TOKENS to continue beyond a full context"),
    switch("no-context-shift", &[], ""),
    value("n-cpu-moe", &[], "ignored: all layers run on one device; --device says which"),
    value("override-tensor", &[], "ignored: all tensors are on one device; --device says which"),
    value(
        "main-gpu",
        &["split-mode", "tensor-split"],
        "ignored: a model runs on one device; --device cuda:N says which",
    ),
    value("control-vector", &[], "ignored: kvant does not support control vectors; --lora applies adapters"),
    value(
        "draft-max",
        &["draft-n"],
        "ignored: --speculate proposes tokens without a draft model (docs/speculation.md)",
    ),
    value(
        "draft-min",
        &["draft-n-min"],
        "ignored: --speculate proposes tokens without a draft model (docs/speculation.md)",
    ),
    value(
        "draft-p-min",
        &[],
        "ignored: --speculate proposes tokens without a draft model (docs/speculation.md)",
    ),
    switch("nowordwrap", &[], "ignored: lines are wrapped on terminals only"),
    value(
        "keepalive",
        &[],
        "ignored: a command ends with its answer; `kvant serve --idle` keeps models loaded",
    ),
    value("poll", &["prio"], "ignored: threads run at the priority of the program"),
    value("numa", &[], "ignored: the system chooses where threads run"),
    switch("simple-io", &["no-display-prompt", "display-prompt", "special"], ""),
    switch("no-perf", &["perf"], "ignored: -q hides the closing line"),
];

/// Those that were given, with their values.
#[derive(Clone, Default)]
pub struct ForeignFlags(Vec<(&'static str, String, &'static str)>);

impl ForeignFlags {
    /// A line for each.
    pub fn remarks(&self) -> impl Iterator<Item = String> + '_ {
        let told = self.0.iter().filter(|(_, _, remark)| !remark.is_empty());
        told.map(|(flag, value, remark)| format!("--{flag}{value}: {remark}"))
    }
}

impl Args for ForeignFlags {
    fn augment_args(command: Command) -> Command {
        FOREIGN.iter().fold(command, |command, foreign| {
            let arg = Arg::new(foreign.flag).long(foreign.flag).hide(true);
            let arg = foreign.short.into_iter().fold(arg, Arg::short);
            let arg = foreign.aliases.iter().fold(arg, |arg, alias| arg.alias(*alias));
            command.arg(match foreign.has_value {
                true => arg.value_name("VALUE").allow_hyphen_values(true).action(ArgAction::Append),
                false => arg.action(ArgAction::Count),
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ForeignFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for foreign in FOREIGN {
            let given = match foreign.has_value {
                true => matches.get_one::<String>(foreign.flag).map(|value| format!(" {value}")),
                false => (matches.get_count(foreign.flag) > 0).then(String::new),
            };
            self.0.extend(given.map(|value| (foreign.flag, value, foreign.remark)));
        }
        Ok(())
    }
}
