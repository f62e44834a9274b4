//! The table of caches.

use crate::table::Column::{Left, Right};
use crate::table::Table;
use kvant_engine::memory::bytes;
use kvant_eval::Setting;
use kvant_eval::divergence::DivergenceRow;
use std::io::{self, Write};

/// Writes the rows, and below them what was measured.
pub fn write(out: &mut dyn Write, rows: &[DivergenceRow]) -> io::Result<()> {
    let (has_fast, has_speed) =
        (rows.iter().any(|row| row.fast.is_some()), rows.iter().any(|row| row.decode.is_some()));
    let mut columns = vec![
        Left("kv"),
        Right("bits"),
        Right("total"),
        Right("KV"),
        Right("mean KL ± s.e."),
        Right("median"),
        Right("99.9 %"),
        Right("worst"),
        Right("top-1 %"),
        Right("ΔPPL % ± s.e."),
    ];
    if has_fast {
        columns.push(Right("fast KL"));
    }
    if has_speed {
        columns.push(Right("× f16"));
    }
    let mut table = Table::new(&columns);
    for row in rows {
        let mut cells = vec![
            row.spec.clone(),
            row.bits_per_value.map_or("-".to_owned(), |bits| format!("{bits:.2}")),
            format!("{:.2}", row.bits_total),
            bytes(row.kv_bytes as u64),
            format!("{} ± {}", nats(row.kl_mean), nats(row.kl_stderr)),
            nats(row.kl_median),
            nats(row.kl_p999),
            nats(row.kl_max),
            format!("{:.2}", 100.0 * row.top1),
            format!("{:+.2} ± {:.2}", row.dppl_percent, row.dppl_stderr_percent),
        ];
        if has_fast {
            cells.push(row.fast.map_or_else(String::new, |fast| nats(fast.fast_kl_mean)));
        }
        if has_speed {
            cells.push(row.decode.map_or_else(String::new, |speed| format!("{:.2}", speed.decode_vs_f16)));
        }
        table.row(cells);
    }
    table.write(out, 0)?;
    rows.first().map_or(Ok(()), |row| write_setting(out, row))
}

fn write_setting(out: &mut dyn Write, row: &DivergenceRow) -> io::Result<()> {
    let setting = &row.setting;
    writeln!(
        out,
        "\n{} ({}), {}, {} × {} tokens, {} compared with {} ({}, {}, activations {})",
        setting.model,
        setting.architecture,
        setting.text,
        row.chunks,
        row.ctx,
        row.tokens,
        row.against.unwrap_or("an f32 cache"),
        row.mode,
        row.score,
        setting.activations
    )?;
    let of = if row.against.is_some() { "its" } else { "exact" };
    writeln!(out, "{of} perplexity {:.4}", row.ppl_reference)?;
    if let Some(fast) = row.fast {
        writeln!(
            out,
            "fast KL is with int8 activations, which alone (with an exact cache) cost {}",
            nats(fast.fast_floor_kl_mean)
        )?;
    }
    if let Some(speed) = row.decode {
        writeln!(
            out,
            "× f16 is the speed of decoding after {} tokens, int8 activations",
            speed.decode_depth
        )?;
    }
    write_machine(out, setting)
}

/// Writes where and with what.
pub fn write_machine(out: &mut dyn Write, setting: &Setting) -> io::Result<()> {
    let machine = &setting.machine;
    writeln!(
        out,
        "{} with {} cores, threads: {}, kvant {}",
        machine.cpu, machine.cores, setting.threads, setting.version
    )
}

/// A divergence with the digits that count: they span from that of f16 to that of two bits.
pub fn nats(nats: f64) -> String {
    match nats.abs() {
        0.0 => "0".to_owned(),
        size if size >= 1e-3 => format!("{nats:.4}"),
        _ => format!("{nats:.1e}"),
    }
}
