//! Every codec on real activations, as tables: `cargo run --release -p kvant-codec --example codecs [SPEC,SPEC…]`.
//!
//! Keys, values and the last 32 queries are those of SmolLM2-135M on 512 tokens of English, layers 0, 9, 19 and 29;
//! figures are averages over layers and kv heads. With specs as arguments, only those.

mod activations;
mod measure;

use kvant_codec::KvSpec;
use measure::{KeyErrors, ValueErrors};

/// Presets first, then their parts and what those are measured against, by width.
const SPECS: &str = "f16 bf16 int8 int8g32 q8_0 k8v4 k8v2 q5_0 int4 q4_0 q5_1 q4_1 iq4_nl kivi4 kivi3 kivi2 \
                     ch8 sym8g32 srft8:token ch5 rot5g32 asym5g32 ch4 ch4:p128 rot4g32 srht4g32 srft4g32 srft4:token asym4g32 \
                     max4g32 iq4 nf4 nf4:srht uniform4 chg4 tq4 turbo4 polar5 polar4 delta4 delta4:srht \
                     ch3 rot3g32 asym3g32 tq3 tq3:g32 turbo3 polar3 delta3 \
                     ch2 rot2g32 srht2g32 asym2g32 uniform2 uniform2g32 tq2 tq2:g32 turbo2 tq1 qjl1";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let names = if wanted.is_empty() { SPECS.to_owned() } else { wanted.join(" ") };
    let layers = activations::layers()?;
    let mut rows = Vec::new();
    for name in names.split_whitespace() {
        let spec: KvSpec = name.parse()?;
        rows.push((name, measure::keys(&spec.key, &layers)?, measure::values(&spec.value, &layers)?));
    }
    errors(&rows);
    println!();
    rounding(&rows);
    Ok(())
}

type Row<'a> = (&'a str, KeyErrors, ValueErrors);

/// What each codec loses, through its kernels.
fn errors(rows: &[Row<'_>]) {
    println!(
        "| {:<12} | {:>6} | {:>9} | {:>8} | {:>8} | {:>6} | {:>9} | {:>8} | {:>7} |",
        "codec", "K bits", "K MSE", "K cosine", "q·k", "V bits", "V MSE", "V cosine", "output"
    );
    println!("|{:-<14}|{}", "", [8, 11, 10, 10, 8, 11, 10, 9].map(|n| format!("{:->n$}|", ":")).concat());
    for (name, key, value) in rows {
        println!(
            "| {name:<12} | {:>6} | {:>9.1e} | {:>8.5} | {:>7.2}% | {:>6} | {:>9.1e} | {:>8.5} | {:>6.2}% |",
            key.bits,
            key.mse,
            key.cosine,
            100.0 * key.kernel,
            value.bits,
            value.mse,
            value.cosine,
            100.0 * value.kernel,
        );
    }
}

/// What the kernels' rounding of queries and weights adds to that.
fn rounding(rows: &[Row<'_>]) {
    println!(
        "| {:<12} | {:>9} | {:>9} | {:>11} | {:>9} | {:>9} | {:>11} |",
        "codec", "q·decoded", "q·k", "noise added", "w·decoded", "output", "noise added"
    );
    println!("|{:-<14}|{}", "", [11, 11, 13, 11, 11, 13].map(|n| format!("{:->n$}|", ":")).concat());
    for (name, key, value) in rows {
        println!(
            "| {name:<12} | {:>8.3}% | {:>8.3}% | {:>10.2}% | {:>8.3}% | {:>8.3}% | {:>10.2}% |",
            100.0 * key.score,
            100.0 * key.kernel,
            100.0 * key.rounding,
            100.0 * value.output,
            100.0 * value.kernel,
            100.0 * value.rounding,
        );
    }
}
