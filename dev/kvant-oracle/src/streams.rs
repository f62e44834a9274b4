//! Beside the residual stream: inputs of each layer's own, and several streams.

use crate::function::{activate, add};
use crate::oracle::{Rows, Run, scaled};
use crate::weights::Weights;
use kvant_model::description::{AltUp, Laurel, PerLayerEmbedding, PerLayerInput, Streams};

/// `scale · (norm(projection_scale · projection(x)) + table_scale · table[id])`.
pub fn per_layer_inputs(weights: &Weights, of: &PerLayerEmbedding, token: u32, x: &[f64]) -> Vec<f64> {
    let PerLayerEmbedding { width: _, table, table_scale, projection, projection_scale, norm, scale } = of;
    let mut sum = weights.norm(norm, &scaled(weights.linear(projection, x), *projection_scale));
    let id = if (token as usize) < table.shape[0] { token as usize } else { 0 };
    add(&mut sum, weights.row(table, id), f64::from(*table_scale));
    scaled(sum, *scale)
}

/// `output(act(gate(x)) · input)`.
pub fn per_layer_input(run: &Run<'_>, of: &PerLayerInput, x: &Rows) -> Rows {
    let PerLayerInput { layer, gate, activation, output } = of;
    let gated = |(x, inputs): (&Vec<f64>, &Vec<f64>)| {
        let gate = run.weights.linear(gate, x);
        let own = &inputs[layer * gate.len()..];
        let inner: Vec<f64> = gate.iter().zip(own).map(|(&g, own)| activate(*activation, g) * own).collect();
        run.weights.linear(output, &inner)
    };
    x.iter().zip(&run.per_layer).map(gated).collect()
}

/// `x + norm(right(left(x)))`.
pub fn laurel(weights: &Weights, of: &Laurel, x: &[f64]) -> Vec<f64> {
    let mut y = weights.norm(&of.norm, &weights.linear(&of.right, &weights.linear(&of.left, x)));
    add(&mut y, x, 1.0);
    y
}

fn mean_square(row: &[f64]) -> f64 {
    row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64
}

/// A row rescaled to the root mean square of another.
fn like(mut row: Vec<f64>, to: &[f64]) -> Vec<f64> {
    let own = mean_square(&row).max(f64::from(Streams::LEAST_MEAN_SQUARE));
    let by = (mean_square(to) / own).sqrt();
    row.iter_mut().for_each(|x| *x *= by);
    row
}

/// All streams, from the embedding.
pub fn opened(weights: &Weights, of: Option<&Streams>, x: Rows) -> Vec<Rows> {
    let further: Vec<Rows> = of
        .iter()
        .flat_map(|of| &of.open)
        .map(|open| x.iter().map(|row| like(weights.linear(open, row), row)).collect())
        .collect();
    std::iter::once(x).chain(further).collect()
}

/// What the head gets.
pub fn joined(weights: &Weights, of: Option<&Streams>, streams: Vec<Rows>) -> Rows {
    let Some(of) = of else { return streams.into_iter().next().expect("there is a first stream") };
    let row = |token: usize| {
        let first = &streams[0][token];
        let mut sum = first.clone();
        for (join, stream) in of.join.iter().zip(&streams[1..]) {
            add(&mut sum, &like(weights.linear(join, &stream[token]), first), 1.0);
        }
        sum.into_iter().map(|x| x / streams.len() as f64).collect()
    };
    (0..streams[0].len()).map(row).collect()
}

/// `tanh(router(router_scale · router_norm(u)))`.
fn route(weights: &Weights, of: &AltUp, u: &[f64]) -> Vec<f64> {
    let input = scaled(weights.norm(&of.router_norm, u), of.router_scale);
    weights.linear(&of.router, &input).into_iter().map(f64::tanh).collect()
}

/// `predicted[to] = stream[to] + Σ c[to, from] · stream[from]`.
pub fn predicted(weights: &Weights, of: &AltUp, streams: &[Rows]) -> Vec<Rows> {
    let mut predicted = streams.to_vec();
    for token in 0..streams[0].len() {
        let c = weights.linear(&of.prediction, &route(weights, of, &streams[of.active][token]));
        for (to, predicted) in predicted.iter_mut().enumerate() {
            for (from, stream) in streams.iter().enumerate() {
                add(&mut predicted[token], &stream[token], c[to * streams.len() + from]);
            }
        }
    }
    predicted
}

/// All streams after the layer turned its prediction of the active one into `out`.
pub fn corrected(run: &Run<'_>, of: &AltUp, predicted: Vec<Rows>, out: &Rows) -> Vec<Rows> {
    let weights = run.weights;
    let mut streams = predicted.clone();
    for (token, out) in out.iter().enumerate() {
        let c = weights.linear(&of.correction, &route(weights, of, out));
        let mut change = out.clone();
        add(&mut change, &predicted[of.active][token], -1.0);
        for (stream, c) in streams.iter_mut().zip(c) {
            add(&mut stream[token], &change, 1.0 + c);
        }
    }
    let scale = of.output_scale.as_ref().map(|scale| weights.vector(scale));
    let input = |row: &Vec<f64>| match &scale {
        Some(scale) => row.iter().zip(scale).map(|(x, s)| x * s).collect(),
        None => row.clone(),
    };
    let inputs: Rows = streams[of.active].iter().map(input).collect();
    for (token, own) in per_layer_input(run, &of.input, &inputs).iter().enumerate() {
        let own = weights.norm(&of.input_norm, own);
        streams.iter_mut().skip(1).for_each(|stream| add(&mut stream[token], &own, 1.0));
    }
    streams
}
