//! `--task`: does a model still find, choose and write what it did with an exact cache?

use super::{EXACT, Eval, table};
use crate::failure::Failure;
use crate::progress;
use crate::table::Column::{Left, Right};
use crate::table::Table;
use clap::ValueEnum;
use indicatif::ProgressBar;
use kvant_engine::device::{self, BackendOptions};
use kvant_engine::{Engine, LoadOptions, Policy};
use kvant_eval::divergence::{Mode, mode_name};
use kvant_eval::html::TaskPage;
use kvant_eval::tasks::calls::{self, Transcript};
use kvant_eval::tasks::lines::{self, Record};
use kvant_eval::tasks::{
    Paired, Score, Step, TaskRow, choice, code, json, needle, trajectory, variables, words,
};
use kvant_eval::{Score as Scored, Setting, Windows, check_context, text};
use kvant_model::Checkpoint;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

/// The cache that others are paired with.
const USUAL: &str = "f16";
/// Cases when nothing else is said.
const CASES: usize = 16;
/// What the cases of retrieval are made from.
const SEED: u64 = 1;

/// Tasks there are.
#[derive(Clone, Copy, ValueEnum)]
pub enum Task {
    /// Find the number of a line in a long record of lines, at a quarter, half and all of --ctx
    Lines,
    /// Find a sentence hidden in the text, at the same contexts
    Needle,
    /// Find ten sentences hidden in one text, at the same contexts
    Needles,
    /// Name the variables that have a value, where most are assigned from one another, at the
    /// same contexts
    Variables,
    /// Name the most frequent words of a long list, at the same contexts
    Words,
    /// Choose the right ending of questions from --data
    Choice,
    /// Continue windows of the text by --steps tokens, and count how far they agree with the
    /// exact cache (with int8 activations, rounding alone makes texts diverge)
    Trajectory,
    /// Answer with JSON objects, tool calls among them
    Json,
    /// Call tools as an agent would after a long transcript, at the same contexts
    Calls,
    /// Complete functions from --data (HumanEval), and run their unit tests in a sandbox
    /// (Linux on x86-64 with python3)
    Code,
}

impl Task {
    fn name(self) -> &'static str {
        match self {
            Self::Lines => "lines",
            Self::Needle => "needle",
            Self::Needles => "needles",
            Self::Variables => "variables",
            Self::Words => "words",
            Self::Choice => "choice",
            Self::Trajectory => "trajectory",
            Self::Json => "json",
            Self::Calls => "calls",
            Self::Code => "code",
        }
    }
}

/// Scores of the exact cache and of all others, at one context if the task has contexts.
type Scores = (Option<usize>, Vec<Score>);

impl Eval {
    pub(super) fn run_task(
        &self,
        task: Task,
        checkpoint: &Checkpoint,
        text: &str,
        setting: impl Fn(&Engine) -> Setting,
    ) -> Result<(), Failure> {
        let options = LoadOptions { activations: self.activations.kind(), ..LoadOptions::default() };
        let device = device::open(self.device).map_err(Failure::new)?;
        let engine = Arc::new(match &device {
            None => Engine::load_on(self.threads.pool(), checkpoint, options)?,
            Some(device) => {
                let backend = device.backend(BackendOptions::default());
                Engine::load_with(self.threads.pool(), checkpoint, &*backend)?
            }
        });
        check_context(engine.model(), self.ctx)?;
        let caches = self.caches(checkpoint, engine.model())?;
        let mode = match task {
            // What is generated is not there yet when its page would have to be encoded.
            Task::Trajectory | Task::Json | Task::Calls | Task::Code if self.strict => {
                return Err(Failure::Usage(format!(
                    "--task {} generates, which --strict cannot",
                    task.name()
                )));
            }
            _ => self.mode(),
        };
        let bar = progress::bar("{bar:30} {pos}/{len}  {eta} left");
        let found = self.scores(task, &engine, text, &caches, mode, &bar);
        bar.finish_and_clear();
        let exact = [EXACT.parse::<Policy>().expect("a spec of the grammar")];
        let names: Vec<String> = exact.iter().chain(&caches).map(Policy::to_string).collect();
        let setting = Setting { text: self.asked(task, setting(&engine).text), ..setting(&engine) };
        let mut rows = Vec::new();
        for (context, scores) in found? {
            // What everybody uses where it was asked for, else the exact cache.
            let usual = names.iter().position(|name| name == USUAL).unwrap_or(0);
            let paired = |place: usize| {
                let other = (place != usual).then(|| (names[usual].clone(), &scores[usual]));
                other.map(|(name, other)| Paired::new(&scores[place], name, other))
            };
            rows.extend(names.iter().zip(&scores).enumerate().map(|(place, (name, score))| {
                let of = (score, paired(place));
                TaskRow::new(task.name(), (name.clone(), mode_name(mode)), context, of, setting.clone())
            }));
        }
        if let Some(path) = &self.html {
            std::fs::write(path, TaskPage { rows: &rows }.to_html())
                .map_err(|e| Failure::new(format!("{}: cannot write the report: {e}", path.display())))?;
        }
        let mut out = crate::shown::stdout();
        if self.json {
            for row in &rows {
                serde_json::to_writer(&mut out, row).map_err(io::Error::from)?;
                writeln!(out)?;
            }
            return Ok(());
        }
        Ok(write(&mut out, &rows)?)
    }

    /// Where the cases come from.
    fn asked(&self, task: Task, text: String) -> String {
        match (task, &self.data) {
            (Task::Choice | Task::Code, Some(path)) => path.display().to_string(),
            (Task::Lines | Task::Words | Task::Calls, _) => format!("{} made for it", task.name()),
            (Task::Json, _) => "built-in requests".to_owned(),
            _ => text,
        }
    }

    /// The file of questions, and what is in it.
    fn questions(&self, task: Task) -> Result<(&Path, String), Failure> {
        match &self.data {
            Some(path) => Ok((path, text::read(path)?)),
            None => {
                let message = format!("--task {} needs questions: give them with --data FILE", task.name());
                Err(Failure::Usage(message))
            }
        }
    }

    fn scores(
        &self,
        task: Task,
        engine: &Arc<Engine>,
        text: &str,
        caches: &[Policy],
        mode: Mode,
        bar: &ProgressBar,
    ) -> Result<Vec<Scores>, Failure> {
        let (model, tokenizer) = (engine.model(), engine.tokenizer());
        let cases = self.cases.unwrap_or(CASES);
        let mut show = |step: Step| {
            bar.set_length(step.total as u64);
            bar.set_position(step.done as u64);
        };
        let contexts = [self.ctx / 4, self.ctx / 2, self.ctx];
        Ok(match task {
            Task::Lines => {
                let at = |&context: &usize| -> Result<Scores, Failure> {
                    let record = Record::new(tokenizer, context, cases, SEED)?;
                    Ok((Some(context), record.scores(model, caches, mode, &mut show)?))
                };
                contexts.iter().map(at).collect::<Result<_, _>>()?
            }
            Task::Needle => {
                let at = |&context: &usize| -> Result<Scores, Failure> {
                    let mut sums: Vec<Score> = vec![Score::default(); caches.len() + 1];
                    for record in needle::records(tokenizer, text, context, cases, SEED)? {
                        let scores = record.scores(model, caches, mode, &mut show)?;
                        sums.iter_mut().zip(scores).for_each(|(sum, score)| sum.add(&score));
                    }
                    Ok((Some(context), sums))
                };
                contexts.iter().map(at).collect::<Result<_, _>>()?
            }
            Task::Needles | Task::Variables | Task::Words => {
                let at = |&context: &usize| -> Result<Scores, Failure> {
                    let records = match task {
                        Task::Needles => {
                            let count = cases.div_ceil(needle::NEEDLES);
                            needle::documents(tokenizer, text, context, count, SEED)?
                        }
                        Task::Variables => {
                            let count = cases.div_ceil(variables::CHAINS);
                            variables::documents(tokenizer, text, context, count, SEED)?
                        }
                        _ => words::documents(tokenizer, context, cases.div_ceil(words::ASKED), SEED)?,
                    };
                    Ok((Some(context), lines::scores(&records, model, caches, mode, &mut show)?))
                };
                contexts.iter().map(at).collect::<Result<_, _>>()?
            }
            Task::Choice => {
                let (path, text) = self.questions(task)?;
                let questions = choice::questions(&text, cases)
                    .map_err(|e| Failure::new(format!("{}: {e}", path.display())))?;
                vec![(None, choice::scores(model, tokenizer, &questions, caches, mode, &mut show)?)]
            }
            Task::Code => {
                let (path, text) = self.questions(task)?;
                let problems = code::problems(&text, cases)
                    .map_err(|e| Failure::new(format!("{}: {e}", path.display())))?;
                vec![(None, code::scores(engine, &problems, caches, &mut show)?)]
            }
            Task::Calls => {
                let at = |&context: &usize| -> Result<Scores, Failure> {
                    let transcripts = (0..cases.div_ceil(calls::CALLS))
                        .map(|number| Transcript::new(engine, context, SEED + number as u64))
                        .collect::<Result<Vec<_>, _>>()?;
                    Ok((Some(context), calls::scores(engine, &transcripts, caches, &mut show)?))
                };
                contexts.iter().map(at).collect::<Result<_, _>>()?
            }
            Task::Trajectory => {
                let count = self.cases.unwrap_or(self.chunks);
                let windows = Windows::of_text(tokenizer, text, self.ctx, count, Scored::All)?;
                vec![(Some(self.ctx), trajectory::scores(model, &windows, self.steps, caches, &mut show)?)]
            }
            Task::Json => {
                let mut prompts = json::prompts();
                prompts.truncate(cases);
                vec![(None, json::scores(engine, &prompts, caches, &mut show)?)]
            }
        })
    }
}

fn write(out: &mut dyn Write, rows: &[TaskRow]) -> io::Result<()> {
    let mut heads = vec![
        Left("kv"),
        Right("context"),
        Right("cases"),
        Right("right % ± s.e."),
        Right("paired ± s.e."),
        Right("95 % interval"),
        Right("p"),
        Right("gained"),
        Right("lost"),
        Right("as exact %"),
    ];
    let has_nll = rows.iter().any(|row| row.nll.is_some());
    if has_nll {
        heads.push(Right("nats/token"));
    }
    let has_form = rows.iter().any(|row| row.valid.is_some());
    if has_form {
        heads.push(Right("valid %"));
    }
    let mut table = Table::new(&heads);
    for row in rows {
        let mut cells = vec![
            row.spec.clone(),
            row.context.map_or("-".to_owned(), |context| context.to_string()),
            row.cases.to_string(),
            format!("{:.1} ± {:.1}", 100.0 * row.right, 100.0 * row.right_stderr),
        ];
        cells.extend(match &row.paired {
            Some(paired) => [
                format!("{:+.1} ± {:.1}", 100.0 * paired.difference, 100.0 * paired.difference_stderr),
                format!("{:+.1} to {:+.1}", 100.0 * paired.difference_low, 100.0 * paired.difference_high),
                format!("{:.2}", paired.p_value),
                paired.gained.to_string(),
                paired.lost.to_string(),
            ],
            None => ["-"; 5].map(str::to_owned),
        });
        cells.push(format!("{:.1}", 100.0 * row.same));
        if has_nll {
            cells.push(row.nll.map_or("-".to_owned(), |nats| format!("{nats:.4}")));
        }
        if has_form {
            cells.push(row.valid.map_or("-".to_owned(), |share| format!("{:.1}", 100.0 * share)));
        }
        table.row(cells);
    }
    table.write(out, 0)?;
    let Some(row) = rows.first() else { return Ok(()) };
    let setting = &row.setting;
    writeln!(
        out,
        "\n{}, {}, {} ({}, activations {})",
        row.task, setting.model, setting.text, row.mode, setting.activations
    )?;
    if let Some(Paired { against, .. }) = rows.iter().find_map(|row| row.paired.as_ref()) {
        writeln!(
            out,
            "paired is the share of right cases less that with {against}, case by case: gained are right here and not there"
        )?;
    }
    table::write_machine(out, setting)
}
