//! A report in one HTML file: pictures, no scripts, nothing fetched.
//!
//! Light and dark follow the reader's settings, and paper is white. Pictures are SVG written here; wide ones scroll within
//! their frame on a narrow screen.

mod axis;
mod curves;
mod frame;
mod heat;
mod memory;
mod pareto;
mod table;
mod tasks;

use crate::divergence::DivergenceRow;
use crate::layers::LayerViews;
use curves::{Curve, Meaning};
use std::fmt::Write;

pub use memory::{MemoryNeed, MemoryPage, MemoryPoint};
pub use tasks::TaskPage;

/// One measured speed.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeedPoint {
    /// The cache.
    pub spec: String,
    /// Tokens of context.
    pub depth: usize,
    /// Milliseconds per token.
    pub ms: f64,
}

/// What a report shows. What is empty is left out.
#[derive(Debug, Clone, Copy)]
pub struct Page<'p> {
    /// Caches against the exact one.
    pub rows: &'p [DivergenceRow],
    /// Errors layer by layer.
    pub layers: Option<&'p LayerViews>,
    /// Times of generation.
    pub speed: &'p [SpeedPoint],
}

impl Page<'_> {
    /// The whole file.
    pub fn to_html(&self) -> String {
        let title = self.rows.first().map_or("caches".to_owned(), |row| file_name(&row.setting.model));
        let mut out = beginning(&title, &format!("What caches cost {title}"));
        self.write_setting(&mut out);
        section(
            &mut out,
            "Divergence against size",
            "Mean KL divergence of the predictions from those with an exact cache, against bits per value with all scales. \
             Lower and further left is better; the line joins the caches that no other beats in both.",
            pareto::svg(self.rows),
        );
        if let Some(layers) = self.layers {
            section(
                &mut out,
                "Where it is lost: scores",
                "Error of attention scores in nats, layer by layer, less what all keys of a query have in common. From about \
                 one nat on, attention looks elsewhere.",
                heat::svg(layers, heat::Quantity::Scores),
            );
            section(
                &mut out,
                "Where it is lost: outputs",
                "Error of attention's output in percent, layer by layer.",
                heat::svg(layers, heat::Quantity::Outputs),
            );
        }
        section(
            &mut out,
            "Speed against context",
            "Milliseconds to generate one token, int8 activations; the best of several runs that took turns.",
            self.speed_curves(),
        );
        section(&mut out, "All figures", "", table::html(self.rows));
        out.push_str(END);
        out
    }

    fn speed_curves(&self) -> Option<String> {
        let mut curves: Vec<Curve<'_>> = Vec::new();
        for SpeedPoint { spec, depth, ms } in self.speed {
            match curves.iter_mut().find(|curve| curve.name == spec) {
                Some(curve) => curve.points.push((*depth, *ms)),
                None => curves.push(Curve { name: spec, points: vec![(*depth, *ms)] }),
            }
        }
        let label = "milliseconds per token against context";
        curves::svg(&curves, &Meaning { label, unit: "ms per token", mark: None })
    }

    fn write_setting(&self, out: &mut String) {
        let Some(row) = self.rows.first() else { return };
        let setting = &row.setting;
        let facts = [
            ("model", format!("{} ({})", file_name(&setting.model), setting.architecture)),
            ("text", file_name(&setting.text)),
            (
                "windows",
                format!(
                    "{} of {} tokens, {} positions compared ({})",
                    row.chunks, row.ctx, row.tokens, row.score
                ),
            ),
            ("mode", format!("{}, activations {}", row.mode, setting.activations)),
            ("exact", format!("perplexity {:.3} with an f32 cache", row.ppl_reference)),
            (
                "machine",
                format!(
                    "{}, {} cores, {} threads",
                    setting.machine.cpu, setting.machine.cores, setting.threads
                ),
            ),
            ("kvant", setting.version.clone()),
        ];
        write_facts(out, &facts);
    }
}

/// Everything before the first fact.
fn beginning(title: &str, heading: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>kvant: {}</title>\n<style>\n{}</style>\n</head>\n<body>\n<h1>{}</h1>\n",
        escaped(title),
        include_str!("style.css"),
        escaped(heading)
    )
}

/// Everything after the last picture.
const END: &str = "</body>\n</html>\n";

fn write_facts(out: &mut String, facts: &[(&str, String)]) {
    out.push_str("<dl>\n");
    for (name, fact) in facts {
        let _ = writeln!(out, "<dt>{name}</dt><dd>{}</dd>", escaped(fact));
    }
    out.push_str("</dl>\n");
}

/// A heading, a sentence and a picture; nothing where there is no picture.
fn section(out: &mut String, heading: &str, text: &str, picture: Option<String>) {
    let Some(picture) = picture else { return };
    let _ = write!(out, "<h2>{heading}</h2>\n<p class=\"soft\">{text}</p>\n<figure>\n{picture}</figure>\n");
}

/// The last part of a path: folders say more about a machine than about a measurement.
fn file_name(path: &str) -> String {
    path.rsplit(['/', '\\']).find(|part| !part.is_empty()).unwrap_or(path).to_owned()
}

/// Text that means itself in HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
