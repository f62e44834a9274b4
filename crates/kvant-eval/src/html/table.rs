//! All figures in a table.

use super::escaped;
use crate::divergence::DivergenceRow;
use std::fmt::Write;

/// The table; none without rows.
pub fn html(rows: &[DivergenceRow]) -> Option<String> {
    if rows.is_empty() {
        return None;
    }
    let (fast, speed) =
        (rows.iter().any(|row| row.fast.is_some()), rows.iter().any(|row| row.decode.is_some()));
    let mut heads = vec![
        "cache",
        "bits/value",
        "total",
        "KV MiB",
        "mean KL",
        "± s.e.",
        "median KL",
        "99.9 % KL",
        "worst KL",
        "top-1 %",
        "ΔPPL %",
    ];
    if fast {
        heads.push("fast KL");
    }
    if speed {
        heads.push("× f16");
    }
    let mut out = String::from("<table>\n<thead><tr>");
    for head in heads {
        let _ = write!(out, "<th>{head}</th>");
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        let mut cells = vec![
            escaped(&row.spec),
            row.bits_per_value.map_or("–".to_owned(), |bits| format!("{bits:.2}")),
            format!("{:.2}", row.bits_total),
            format!("{:.2}", row.kv_bytes as f64 / f64::from(1 << 20)),
            nats(row.kl_mean),
            nats(row.kl_stderr),
            nats(row.kl_median),
            nats(row.kl_p999),
            nats(row.kl_max),
            format!("{:.2}", 100.0 * row.top1),
            format!("{:+.2}", row.dppl_percent),
        ];
        if fast {
            cells.push(row.fast.map_or("–".to_owned(), |fast| nats(fast.fast_kl_mean)));
        }
        if speed {
            cells.push(row.decode.map_or("–".to_owned(), |speed| format!("{:.2}", speed.decode_vs_f16)));
        }
        out.push_str("<tr>");
        for cell in cells {
            let _ = write!(out, "<td>{cell}</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table>\n");
    if let Some(fast) = rows.iter().find_map(|row| row.fast) {
        let _ = writeln!(
            out,
            "<p class=\"soft\">Fast KL is with int8 activations, which alone (with an exact cache) cost {}.</p>",
            nats(fast.fast_floor_kl_mean)
        );
    }
    Some(out)
}

fn nats(nats: f64) -> String {
    match nats.abs() {
        0.0 => "0".to_owned(),
        size if size >= 1e-3 => format!("{nats:.4}"),
        _ => format!("{nats:.1e}"),
    }
}
