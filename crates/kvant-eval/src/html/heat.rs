//! Errors layer by layer: a row for every cache, a cell for every layer.

use super::escaped;
use crate::layers::{LayerErrors, LayerViews};
use std::fmt::Write;

const CELL: f64 = 22.0;
const LEFT: f64 = 150.0;
const TOP: f64 = 24.0;

/// What is shown.
#[derive(Clone, Copy)]
pub enum Quantity {
    /// Errors of scores, in nats.
    Scores,
    /// Errors of outputs, in percent.
    Outputs,
}

impl Quantity {
    /// Where the ground gets darker.
    fn steps(self) -> [f64; 6] {
        match self {
            Self::Scores => [0.05, 0.1, 0.2, 0.5, 1.0, 2.0],
            Self::Outputs => [1.0, 2.0, 5.0, 10.0, 20.0, 40.0],
        }
    }

    fn of(self, layer: &LayerErrors) -> f64 {
        match self {
            Self::Scores => layer.score_error,
            Self::Outputs => 100.0 * layer.output_error,
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Scores => "nats",
            Self::Outputs => "%",
        }
    }
}

/// The picture with its legend; none without layers or caches.
pub fn svg(views: &LayerViews, quantity: Quantity) -> Option<String> {
    let layers = views.layers.len();
    if layers == 0 || views.caches.is_empty() {
        return None;
    }
    let (width, height) = (LEFT + CELL * layers as f64 + 8.0, TOP + CELL * views.caches.len() as f64 + 8.0);
    let mut out = format!(
        "<svg class=\"wide\" viewBox=\"0 0 {width} {height}\" style=\"max-width:{:.0}px\" role=\"img\" \
         aria-label=\"errors layer by layer\">\n",
        width * 1.2
    );
    let every = layers.div_ceil(16).max(1);
    for layer in (0..layers).step_by(every) {
        let _ = writeln!(
            out,
            "<text class=\"axis\" x=\"{:.1}\" y=\"16\" text-anchor=\"middle\">{layer}</text>",
            LEFT + CELL * (layer as f64 + 0.5)
        );
    }
    let steps = quantity.steps();
    for (row, cache) in views.caches.iter().enumerate() {
        let top = TOP + CELL * row as f64;
        let name = escaped(&cache.spec);
        let _ = writeln!(
            out,
            "<text class=\"name\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
            LEFT - 8.0,
            top + CELL / 2.0 + 4.0
        );
        for (layer, errors) in cache.layers.iter().enumerate() {
            let value = quantity.of(errors);
            let shade = steps.iter().take_while(|&&step| value >= step).count();
            let _ = writeln!(
                out,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"2\" style=\"fill:var(--h{shade})\">\
                 <title>{name}, layer {layer}: {value:.3} {}</title></rect>",
                LEFT + CELL * layer as f64 + 1.0,
                top + 1.0,
                CELL - 2.0,
                CELL - 2.0,
                quantity.unit()
            );
        }
    }
    out.push_str("</svg>\n<div class=\"legend\">");
    for shade in 0..=steps.len() {
        let text = match shade {
            0 => format!("below {} {}", steps[0], quantity.unit()),
            _ => format!("from {}", steps[shade - 1]),
        };
        let _ = write!(out, "<span><i style=\"background:var(--h{shade})\"></i>{text}</span>");
    }
    out.push_str("</div>\n");
    Some(out)
}
