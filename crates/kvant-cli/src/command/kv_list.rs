//! `--kv list`: ways to keep keys and values.

use crate::failure::Failure;
use crate::table::Column::{Left, Right};
use crate::table::Table;
use clap::Args;
use kvant_cache::{KvShape, Slots};
use kvant_codec::{PRESETS, catalogue};
use kvant_engine::kv;
use std::io::Write;

/// The usual width of a head, for bits per value.
const DIM: usize = 128;

/// Mean KL divergence from the exact cache, in nats, on SmolLM2-135M and on Qwen2.5-Coder-0.5B, as deployed: columns of
/// docs/results/codecs.md. What is not here was not measured.
const MEASURED: [(&str, &str, &str); 48] = [
    ("f16", "3.7e-7", "2.3e-6"),
    ("bf16", "2.8e-5", "0.000201"),
    ("int8", "1.2e-5", "1.7e-5"),
    ("srft8g32", "1.8e-5", "0.00117"),
    ("q8_0", "2.0e-5", "0.000575"),
    ("int8g32", "6.1e-5", "0.00362"),
    ("k8v4", "0.000572", "0.000610"),
    ("q5_1", "0.00105", "1.03"),
    ("q5_0", "0.00117", "0.405"),
    ("kivi4", "0.00304", "0.00375"),
    ("asym5g32", "0.00223", "0.393"),
    ("int4", "0.00292", "0.00406"),
    ("ch4", "0.00516", "0.00427"),
    ("v3", "0.00316", "0.00373"),
    ("max5g32", "0.00405", "0.0873"),
    ("q4_1", "0.00459", "0.686"),
    ("delta4g32", "0.00714", "0.0778"),
    ("iq4_nl", "0.00425", "1.07"),
    ("chg4", "0.00829", "0.0280"),
    ("q4_0", "0.00560", "1.36"),
    ("rot4g32", "0.00513", "1.84"),
    ("polar5", "0.00599", "0.301"),
    ("srht4g32", "0.00671", "0.987"),
    ("tq4", "0.00675", "1.63"),
    ("srft4g32", "0.00686", "2.38"),
    ("kivi3", "0.0149", "0.0174"),
    ("asym4g32", "0.0100", "0.287"),
    ("iq4", "0.0117", "0.137"),
    ("turboquant4", "0.0135", "1.71"),
    ("nf4g64", "0.0147", "0.169"),
    ("uniform4g128", "0.0151", "0.154"),
    ("turbo4", "0.0148", "1.67"),
    ("k8v2", "0.0175", "0.0187"),
    ("max4g32", "0.0196", "0.0617"),
    ("delta3g32", "0.0375", "0.460"),
    ("sym4g32", "0.0268", "0.0635"),
    ("rot3g32", "0.0259", "2.77"),
    ("polar4", "0.0260", "1.23"),
    ("tq3", "0.0279", "2.10"),
    ("turboquant3", "0.0594", "1.73"),
    ("turbo3", "0.0646", "1.86"),
    ("kivi2", "0.132", "0.138"),
    ("ch2", "0.330", "0.151"),
    ("tq2", "0.134", "1.02"),
    ("polar3", "0.160", "2.98"),
    ("uniform2g128", "1.01", "1.23"),
    ("qjl", "2.51", "3.97"),
    ("qjl1", "2.86", "4.40"),
];

/// Arguments of `kvant kv-list`.
#[derive(Args)]
pub struct KvList {}

impl KvList {
    /// Prints a line for each.
    pub fn execute(self) -> Result<(), Failure> {
        let slots = Slots::uniform(1, KvShape { kv_heads: 1, key_dim: DIM, value_dim: DIM, window: None });
        let mut out = crate::shown::stdout();
        writeln!(out, "KV caches: kvant run --kv NAME (or k=NAME,v=NAME for keys and values apart)\n")?;
        let mut table =
            Table::new(&[Left("name"), Right("bits"), Right("KL, S"), Right("KL, Q"), Left("what it is")]);
        let exact = ["f32", "f16"].map(|name| (name.to_owned(), "exact".to_owned()));
        let presets = PRESETS.iter().map(|preset| (preset.name.to_owned(), preset.about.to_owned()));
        let others = catalogue().into_iter().map(|line| (line.name, line.about.to_owned()));
        let mut seen: Vec<String> = Vec::new();
        for (name, about) in exact.into_iter().chain(presets).chain(others) {
            let Ok(spec) = name.parse::<kvant_codec::KvSpec>() else { continue };
            if seen.contains(&name) {
                continue;
            }
            let bits = kv::bytes_per_token(&spec, &slots).map(|bytes| 8.0 * bytes / (2 * DIM) as f64);
            let bits = bits.map_or("-".to_owned(), |bits| format!("{bits:.2}"));
            let measured = MEASURED.iter().find(|(measured, ..)| *measured == name);
            let [small, qwen] =
                measured.map_or(["", ""], |(_, small, qwen)| [*small, *qwen]).map(str::to_owned);
            table.row([name.clone(), bits, small, qwen, about]);
            seen.push(name);
        }
        table.write(&mut out, 2)?;
        writeln!(
            out,
            "\nKL: mean divergence from the exact cache in nats, on SmolLM2-135M (S) and Qwen2.5-Coder-0.5B (Q), as\n\
             deployed (docs/results/codecs.md); empty where not measured. Bits are per value at heads of {DIM}.\n\
             `kvant calibrate` makes the plan that some codecs need. `--kv auto` chooses the cache for the model."
        )?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::MEASURED;

    /// Figures are copied by hand nowhere else: these are the record's.
    #[test]
    fn the_figures_are_those_of_the_record() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/codecs.md");
        let record = std::fs::read_to_string(path).unwrap();
        for (name, small, qwen) in MEASURED {
            let row = record.lines().find(|line| line.starts_with(&format!("| `{name}` |"))).unwrap();
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            assert_eq!((cells[4], cells[6]), (small, qwen), "{name}");
        }
    }
}
