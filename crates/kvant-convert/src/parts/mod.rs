//! The weights of a description, and its numbers, in an order that two descriptions of one model share.
//!
//! A Hugging Face folder and a GGUF file of the same model have the same blocks under other names and in other layouts. Each
//! describes itself, from the one file of its architecture that has both names of everything; walking both descriptions side by
//! side tells which rows become which, what has to be turned, stacked, taken apart or multiplied on the way, and whether both mean
//! the same model. Either of the two may be the one that exists.

mod mixers;
mod order;

pub(crate) use order::Order;

use crate::recipe::Role;
use kvant_model::Description;
use kvant_model::description::{
    AltUp, DecayRate, Ffn, Linear, Matrix, Mixer, Norm, NormKind, Pairing, PerLayerInput, Precision,
    Residual, TensorRef, Vector,
};

/// A matrix or vector that both formats have as a whole, wherever they keep it: a gate and not a gate with its up.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Part {
    pub role: Role,
    /// The tensor that it is, or is a part of.
    pub tensor: TensorRef,
    /// Its number in a tensor of all experts, or of all heads.
    pub expert: Option<usize>,
    /// How many rows; numbers of a vector.
    pub count: usize,
    /// Where they are.
    pub rows: Order,
    /// What the model multiplies it with, where that belongs to the weights: converters may have done it already.
    pub scale: f32,
    pub form: Form,
}

/// What a part is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Form {
    Matrix {
        /// The file has `(inputs, outputs)`.
        transposed: bool,
        inputs: usize,
        /// Where the inputs are.
        columns: Order,
    },
    Vector {
        /// Numbers of a row.
        width: usize,
        /// What files leave out of every number.
        offset: f32,
        /// Whether numbers are logarithms of rates, with the other sign.
        is_log: bool,
    },
}

/// Some outputs of a linear layer.
struct Outputs {
    rows: Order,
    count: usize,
    scale: f32,
    bias_scale: f32,
}

impl Outputs {
    fn new(rows: Order, count: usize) -> Self {
        Self { rows, count, scale: 1.0, bias_scale: 1.0 }
    }
}

/// A walk over a description.
pub(crate) struct Parts {
    pub list: Vec<Part>,
    /// What is not a weight, with a word for it: scales, widths, kinds as numbers.
    pub numbers: Vec<(&'static str, f64)>,
    /// Whether the output is the embeddings once more, and what it is then multiplied with.
    pub tied: Option<f32>,
    /// The order of channels in heads that do not turn.
    still: Pairing,
}

impl Parts {
    /// `still` is the order of channels in heads that do not turn, of which scores know nothing.
    pub fn of(description: &Description, still: Pairing) -> Self {
        let mut parts = Self { list: Vec::new(), numbers: Vec::new(), tied: None, still };
        parts.table(Role::Embedding, &description.embedding.table, description.embedding.scale);
        description.embedding.positions.iter().for_each(|table| parts.table(Role::Positions, table, 1.0));
        if let Some(of) = &description.embedding.per_layer {
            parts.table(Role::Embedding, &of.table, 1.0);
            parts.linear(&of.projection);
            parts.norm(&of.norm);
            [of.table_scale, of.projection_scale, of.scale]
                .into_iter()
                .for_each(|scale| parts.number("scale of layers' inputs", scale));
        }
        if let Some(streams) = &description.embedding.streams {
            streams.open.iter().chain(&streams.join).for_each(|linear| parts.linear(linear));
        }
        for rope in &description.ropes {
            for frequency in rope.frequencies(0).iter() {
                parts.number("rotary frequency", *frequency);
            }
            for frequency in rope.frequencies(description.context.unwrap_or(0)).iter() {
                parts.number("rotary frequency of long contexts", *frequency);
            }
            parts.number("rotary amplitude", rope.amplitude());
        }
        for layer in &description.layers {
            parts.size("residuals of a layer", layer.residuals.len());
            layer.residuals.iter().for_each(|residual| parts.residual(description, residual));
            parts.flag("scale of a layer", layer.scale.is_some());
            layer.scale.iter().for_each(|scale| parts.vector(scale));
            layer.altup.iter().for_each(|altup| parts.altup(altup));
        }
        parts.norm(&description.head.norm);
        parts.optional("logit cap", description.head.soft_cap);
        let (output, scale) = (&description.head.output, description.head.scale);
        if output.weight.tensor == description.embedding.table {
            parts.tied = Some(scale);
            output.bias.iter().for_each(|bias| parts.vector(bias));
        } else {
            let outputs = Outputs { scale, bias_scale: scale, ..Outputs::new(Order::ALL, output.outputs()) };
            parts.outputs(Role::Output, output, outputs, Order::ALL);
        }
        parts
    }

    fn number(&mut self, what: &'static str, value: f32) {
        self.numbers.push((what, value.into()));
    }

    fn size(&mut self, what: &'static str, size: usize) {
        self.number(what, size as f32);
    }

    fn flag(&mut self, what: &'static str, flag: bool) {
        self.number(what, if flag { 1.0 } else { 0.0 });
    }

    fn optional(&mut self, what: &'static str, value: Option<f32>) {
        self.number(what, value.unwrap_or(-1.0));
    }

    fn table(&mut self, role: Role, tensor: &TensorRef, scale: f32) {
        let matrix = Matrix::whole(tensor.clone());
        let outputs = Outputs { scale, ..Outputs::new(Order::ALL, matrix.outputs()) };
        self.matrix(role, &matrix, outputs, Order::ALL);
    }

    fn matrix(&mut self, role: Role, of: &Matrix, outputs: Outputs, columns: Order) {
        let Outputs { rows, count, scale, .. } = outputs;
        self.list.push(Part {
            role,
            tensor: of.tensor.clone(),
            expert: of.expert,
            count,
            rows: rows.through(count, of.rows),
            scale,
            form: Form::Matrix { transposed: of.transposed, inputs: of.inputs(), columns },
        });
    }

    /// All numbers of a vector, as they lie.
    fn vector(&mut self, vector: &Vector) {
        self.numbers_of(vector, Outputs::new(Order::ALL, vector.len()), 1, false);
    }

    /// Rows of `width` numbers of a vector.
    fn numbers_of(&mut self, of: &Vector, outputs: Outputs, width: usize, is_log: bool) {
        let Outputs { rows, count, bias_scale: scale, .. } = outputs;
        self.list.push(Part {
            role: Role::Exact,
            tensor: of.tensor.clone(),
            expert: of.expert,
            count,
            rows: rows.through(count, of.rows),
            scale,
            form: Form::Vector { width, offset: of.offset, is_log },
        });
    }

    fn linear(&mut self, linear: &Linear) {
        self.linear_in(linear, Order::ALL);
    }

    fn linear_in(&mut self, linear: &Linear, rows: Order) {
        self.linear_scaled(linear, Outputs::new(rows, linear.outputs()));
    }

    fn linear_scaled(&mut self, linear: &Linear, outputs: Outputs) {
        let role = if linear.precision == Precision::Exact { Role::Exact } else { Role::Matrix };
        self.outputs(role, linear, outputs, Order::ALL);
    }

    /// Some outputs of a linear layer, weights and biases.
    fn outputs(&mut self, role: Role, linear: &Linear, outputs: Outputs, columns: Order) {
        self.flag("a bias", linear.bias.is_some());
        if let Some(bias) = &linear.bias {
            let own = Outputs { rows: outputs.rows.clone(), ..outputs };
            self.numbers_of(bias, own, 1, false);
        }
        self.matrix(role, &linear.weight, outputs, columns);
    }

    fn norm(&mut self, norm: &Norm) {
        self.norm_in(norm, |count| Outputs::new(Order::ALL, count));
    }

    fn norm_in(&mut self, norm: &Norm, outputs: impl Fn(usize) -> Outputs) {
        self.number("norm epsilon", norm.eps);
        self.size("norm width", norm.width);
        self.flag("norm of a mean", norm.kind == NormKind::Layer);
        for vector in norm.weight.iter().chain(&norm.bias) {
            self.numbers_of(vector, outputs(vector.len()), 1, false);
        }
    }

    fn decay(&mut self, decay: &DecayRate, rows: Order) {
        let (DecayRate::Log(rates) | DecayRate::Plain(rates)) = decay;
        let is_log = matches!(decay, DecayRate::Log(_));
        self.numbers_of(rates, Outputs::new(rows, rates.len()), 1, is_log);
    }

    fn residual(&mut self, description: &Description, residual: &Residual) {
        self.number("residual scale", residual.scale);
        self.number("residual that is kept", residual.keep);
        for branch in &residual.branches {
            branch.norm.iter().for_each(|norm| self.norm(norm));
            // Linear layers at both ends take the multipliers of their branch.
            let scales = (branch.input_scale, branch.scale);
            let is_folded = match &branch.mixer {
                Mixer::Attention(_) | Mixer::Mamba2(_) | Mixer::Ffn(Ffn::Dense(_)) => true,
                Mixer::LatentAttention(_)
                | Mixer::ShortConv(_)
                | Mixer::GatedDeltaNet(_)
                | Mixer::Ffn(Ffn::Experts(_))
                | Mixer::PerLayerInput(_)
                | Mixer::Laurel(_) => false,
            };
            if !is_folded {
                self.number("branch input scale", scales.0);
                self.number("branch scale", scales.1);
            }
            match &branch.mixer {
                Mixer::Attention(attention) => self.attention(description, attention, scales),
                Mixer::LatentAttention(attention) => self.latent_attention(description, attention),
                Mixer::ShortConv(conv) => self.short_conv(conv),
                Mixer::Mamba2(mamba) => self.mamba2(mamba, scales),
                Mixer::GatedDeltaNet(net) => self.delta_net(net),
                Mixer::Ffn(Ffn::Dense(mlp)) => self.mlp(mlp, scales),
                Mixer::Ffn(Ffn::Experts(moe)) => self.moe(moe),
                Mixer::PerLayerInput(input) => self.per_layer_input(input),
                Mixer::Laurel(laurel) => {
                    self.linear(&laurel.left);
                    self.linear(&laurel.right);
                    self.norm(&laurel.norm);
                }
            }
            branch.after.iter().for_each(|norm| self.norm(norm));
        }
        residual.after.iter().for_each(|norm| self.norm(norm));
    }

    fn per_layer_input(&mut self, input: &PerLayerInput) {
        self.linear(&input.gate);
        self.linear(&input.output);
        self.number("activation", f32::from(input.activation as u8));
    }

    fn altup(&mut self, of: &AltUp) {
        [&of.router_norm, &of.input_norm].into_iter().for_each(|norm| self.norm(norm));
        [&of.router, &of.prediction, &of.correction].into_iter().for_each(|linear| self.linear(linear));
        of.output_scale.iter().for_each(|scale| self.vector(scale));
        self.per_layer_input(&of.input);
        self.size("active stream", of.active);
    }
}
