//! The second form of `kvant eval`: caches against the exact one.

use super::{Eval, load};
use crate::failure::Failure;
use crate::progress;
use crate::table::Column::{Left, Right};
use crate::table::Table;
use kvant_engine::Policy;
use kvant_eval::divergence::{Divergence, DivergenceRow, Headway, Mode, Models, divergence};
use kvant_eval::{EvalError, PassLimits, Setting, Windows};
use kvant_model::arch::ActivationType;
use kvant_model::{Checkpoint, Model};
use std::io::{self, Write};

impl Eval {
    pub(super) fn compare(
        &self,
        checkpoint: &Checkpoint,
        model: &Model,
        windows: &Windows,
        setting: Setting,
    ) -> Result<(), Failure> {
        let caches: Vec<Policy> = self.kv.iter().flat_map(|list| list.policies(self.sparse_v)).collect();
        let mode = if self.strict { Mode::Strict } else { Mode::Deployed };
        let exact = match self.activations.kind() {
            ActivationType::F32 => None,
            _ => Some(load(checkpoint, ActivationType::F32)?),
        };
        let models = Models { reference: exact.as_ref().unwrap_or(model), subject: model };
        let found = measure(models, windows, &caches, mode)?;
        let rows: Vec<DivergenceRow> = caches
            .iter()
            .zip(&found)
            .map(|(cache, found)| {
                DivergenceRow::new(cache.to_string(), mode, found, windows, setting.clone())
            })
            .collect();
        let mut out = io::stdout().lock();
        if self.json {
            for row in &rows {
                serde_json::to_writer(&mut out, row).map_err(io::Error::from)?;
                writeln!(out)?;
            }
            return Ok(());
        }
        write_table(&mut out, &rows)?;
        let (Some(row), Setting { machine, threads, .. }) = (rows.first(), &setting) else { return Ok(()) };
        writeln!(
            out,
            "\n{} ({}), {}, {} × {} tokens, {} compared with an f32 cache ({}, {}, activations {})",
            setting.model,
            setting.architecture,
            setting.text,
            row.chunks,
            row.ctx,
            row.tokens,
            row.mode,
            row.score,
            setting.activations
        )?;
        writeln!(out, "exact perplexity {:.4}", row.ppl_reference)?;
        writeln!(
            out,
            "{} with {} cores, threads: {threads}, kvant {}",
            machine.cpu, machine.cores, setting.version
        )?;
        Ok(())
    }
}

fn measure(
    models: Models<'_>,
    windows: &Windows,
    caches: &[Policy],
    mode: Mode,
) -> Result<Vec<Divergence>, EvalError> {
    let bar = progress::bar("{bar:30} {percent} %  {msg}  {eta} left");
    let found =
        divergence(models, windows, caches, mode, PassLimits::default(), &mut |headway: Headway<'_>| {
            bar.set_length(headway.total as u64);
            bar.set_position(headway.done as u64);
            let so_far = caches
                .iter()
                .zip(headway.so_far)
                .map(|(cache, found)| format!("{cache} {}", divergence_text(found.kl().0)));
            bar.set_message(format!("KL {}", so_far.collect::<Vec<_>>().join(", ")));
        });
    bar.finish_and_clear();
    found
}

fn write_table(out: &mut dyn Write, rows: &[DivergenceRow]) -> io::Result<()> {
    let mut table = Table::new(&[
        Left("kv"),
        Right("bits/value"),
        Right("total"),
        Right("mean KL"),
        Right("± s.e."),
        Right("99.9 % KL"),
        Right("top-1 %"),
        Right("ΔPPL %"),
        Right("± s.e."),
    ]);
    for row in rows {
        table.row([
            row.spec.clone(),
            row.bits_per_value.map_or("-".to_owned(), |bits| format!("{bits:.3}")),
            format!("{:.3}", row.bits_total),
            divergence_text(row.kl_mean),
            divergence_text(row.kl_stderr),
            divergence_text(row.kl_p999),
            format!("{:.2}", 100.0 * row.top1),
            format!("{:+.3}", row.dppl_percent),
            format!("{:.3}", row.dppl_stderr_percent),
        ]);
    }
    table.write(out, 0)
}

/// A divergence with the digits that count: they span from that of f16 to that of two bits.
fn divergence_text(nats: f64) -> String {
    if nats == 0.0 || nats.abs() >= 1e-4 { format!("{nats:.5}") } else { format!("{nats:.1e}") }
}
