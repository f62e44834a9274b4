//! `--layers`: where caches lose what they lose.

use crate::table::Column::{Left, Right};
use crate::table::{Shade, Table};
use kvant_eval::layers::{CacheView, LayerErrors, LayerStatistics, LayerViews};
use std::io::{self, IsTerminal, Write};

/// Values of a column at which the ground gets darker.
type Steps = [f64; 5];

/// Errors of keys, values and outputs, as shares.
const SHARES: Steps = [0.02, 0.05, 0.1, 0.2, 0.4];
/// Errors of scores, in nats.
const NATS: Steps = [0.1, 0.2, 0.4, 0.8, 1.6];
/// Errors of scores over α‖q‖‖k‖.
const SCORE_SHARES: Steps = [0.002, 0.005, 0.01, 0.02, 0.04];
/// Excess kurtosis.
const KURTOSIS: Steps = [1.0, 3.0, 10.0, 30.0, 100.0];

/// Writes what the layers are like, then a heat-table for every cache.
pub fn write(out: &mut dyn Write, views: &LayerViews) -> io::Result<()> {
    let colours = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    writeln!(
        out,
        "\nkeys and values, layer by layer (excess kurtosis; loudest key channels as head.channel × root mean square)"
    )?;
    let mut table = Table::new(&[
        Right("layer"),
        Right("K kurtosis"),
        Right("rotated"),
        Right("V kurtosis"),
        Right("rotated"),
        Right("α‖q‖‖k‖"),
        Left("loud channels"),
    ]);
    for layer in &views.layers {
        add(&mut table, statistics(layer), colours);
    }
    table.write(out, 0)?;
    for CacheView { spec, layers } in &views.caches {
        writeln!(out, "\n{spec}: errors, layer by layer")?;
        let mut table = Table::new(&[
            Right("layer"),
            Right("K %"),
            Right("V %"),
            Right("scores, nats"),
            Right("% of α‖q‖‖k‖"),
            Right("output %"),
        ]);
        for (number, layer) in layers.iter().enumerate() {
            add(&mut table, errors(number, layer), colours);
        }
        table.write(out, 0)?;
    }
    Ok(())
}

fn add(table: &mut Table, cells: Vec<(String, Shade)>, colours: bool) {
    if colours {
        table.shaded_row(cells);
    } else {
        table.row(cells.into_iter().map(|(cell, _)| cell));
    }
}

fn shaded(value: f64, text: String, steps: &Steps) -> (String, Shade) {
    (text, steps.iter().take_while(|&&step| value >= step).count() as Shade)
}

fn statistics(layer: &LayerStatistics) -> Vec<(String, Shade)> {
    let kurtosis = |value: f64| shaded(value, format!("{value:.1}"), &KURTOSIS);
    let loud =
        layer.loud_channels.iter().map(|loud| format!("{}.{} ×{:.1}", loud.head, loud.channel, loud.times));
    vec![
        (layer.layer.to_string(), 0),
        kurtosis(layer.key_kurtosis),
        kurtosis(layer.key_kurtosis_rotated),
        kurtosis(layer.value_kurtosis),
        kurtosis(layer.value_kurtosis_rotated),
        (format!("{:.1}", layer.score_scale), 0),
        (loud.collect::<Vec<_>>().join(", "), 0),
    ]
}

fn errors(number: usize, layer: &LayerErrors) -> Vec<(String, Shade)> {
    let percent = |value: f64, steps: &Steps| shaded(value, format!("{:.2}", 100.0 * value), steps);
    vec![
        (number.to_string(), 0),
        percent(layer.key_error, &SHARES),
        percent(layer.value_error, &SHARES),
        shaded(layer.score_error, format!("{:.3}", layer.score_error), &NATS),
        percent(layer.score_share, &SCORE_SHARES),
        percent(layer.output_error, &SHARES),
    ]
}
