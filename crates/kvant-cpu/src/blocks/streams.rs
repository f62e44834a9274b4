//! Several residual streams side by side: how they are opened and joined, and what a layer does with them.

use crate::blocks::{Activations, AltUp, Block, Streams, for_each_row};
use crate::pass::CpuPass;
use kvant_model::description;

impl Block<'_, Streams> {
    /// All streams, from the embedding.
    pub fn opened(&self, x: Activations) -> Vec<Activations> {
        let further: Vec<Activations> = self.open.iter().map(|open| like(open.forward(&x), &x)).collect();
        std::iter::once(x).chain(further).collect()
    }

    /// What the head gets.
    pub fn joined(&self, streams: Vec<Activations>) -> Activations {
        let count = streams.len() as f32;
        let mut streams = streams.into_iter();
        let mut sum = streams.next().expect("there is a first stream");
        let further: Vec<Activations> =
            self.join.iter().zip(streams).map(|(join, stream)| like(join.forward(&stream), &sum)).collect();
        further.iter().for_each(|stream| sum.add_scaled(stream, 1.0));
        sum.data_mut().iter_mut().for_each(|x| *x /= count);
        sum
    }
}

/// Rows rescaled to the root mean square of `to`.
fn like(mut rows: Activations, to: &Activations) -> Activations {
    let mean_square = |row: &[f32]| row.iter().map(|x| x * x).sum::<f32>() / row.len() as f32;
    let width = rows.width();
    for_each_row(rows.data_mut(), width, |token, row| {
        let own = mean_square(row).max(description::Streams::LEAST_MEAN_SQUARE);
        let by = mean_square(to.row(token)).sqrt() / own.sqrt();
        row.iter_mut().for_each(|x| *x *= by);
    });
    rows
}

impl Block<'_, AltUp> {
    /// `(tokens, streams)`.
    fn route(&self, x: &Activations) -> Activations {
        let mut input = self.router_norm.forward(x);
        input.data_mut().iter_mut().for_each(|x| *x *= self.router_scale);
        let mut routed = self.router.forward(&input);
        routed.data_mut().iter_mut().for_each(|x| *x = x.tanh());
        routed
    }

    /// What the layer expects each stream to become.
    pub fn predicted(&self, streams: &[Activations]) -> Vec<Activations> {
        let coefficients = self.prediction.forward(&self.route(&streams[self.active])); // (tokens, to · from)
        let predict = |(to, stream): (usize, &Activations)| {
            let mut predicted = stream.clone();
            let width = predicted.width();
            for_each_row(predicted.data_mut(), width, |token, row| {
                let by = &coefficients.row(token)[to * streams.len()..];
                for (from, by) in streams.iter().zip(by) {
                    row.iter_mut().zip(from.row(token)).for_each(|(x, y)| *x += by * y);
                }
            });
            predicted
        };
        streams.iter().enumerate().map(predict).collect()
    }

    /// All streams after the layer turned its prediction of the active one into `out`.
    pub fn corrected(
        &self,
        mut predicted: Vec<Activations>,
        out: &Activations,
        pass: &CpuPass<'_, '_>,
    ) -> Vec<Activations> {
        let coefficients = self.correction.forward(&self.route(out)); // (tokens, streams)
        let mut change = out.clone();
        change.add_scaled(&predicted[self.active], -1.0);
        for (index, stream) in predicted.iter_mut().enumerate() {
            let width = stream.width();
            for_each_row(stream.data_mut(), width, |token, row| {
                let by = 1.0 + coefficients.row(token)[index];
                row.iter_mut().zip(change.row(token)).for_each(|(x, y)| *x += by * y);
            });
        }
        let mut input = predicted[self.active].clone();
        if let Some(scale) = &self.output_scale {
            let width = input.width();
            for_each_row(input.data_mut(), width, |_, row| {
                row.iter_mut().zip(scale).for_each(|(x, s)| *x *= s);
            });
        }
        let mut own = Block(&self.input).forward(&input, pass);
        self.input_norm.in_place(&mut own);
        predicted.iter_mut().skip(1).for_each(|stream| stream.add_scaled(&own, 1.0));
        predicted
    }
}
