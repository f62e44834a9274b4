//! Gated short convolutions.

use crate::compile::Compiler;
use crate::product::Epilogue;
use crate::program::{Linear, Widths};
use crate::run::{Input, Run};
use crate::states::StateKernels;
use crate::weights::Place;
use kvant_model::description;
use kvant_model::error::{LoadError, Result};

/// `output(C ⊙ conv(B ⊙ x))`.
pub(crate) struct ShortConv {
    pub state: StateKernels,
    /// To B, C and x.
    pub input: Linear,
    channels: usize,
    output: Linear,
}

impl Compiler<'_> {
    pub(crate) fn short_conv(&self, of: &description::ShortConv, widths: &mut Widths) -> Result<ShortConv> {
        let channels = of.conv.channels;
        let shape = description::ShortConv::state_shape(channels, of.conv.kernel);
        let input = self.linear(&[&of.input])?;
        if input.outputs() != 3 * channels {
            return Err(LoadError::mismatch(format!("a short convolution of {channels} channels")));
        }
        widths.projected = widths.projected.max(input.outputs());
        widths.mixed = widths.mixed.max(channels);
        let own = (&[][..], String::new());
        let state = StateKernels::new(self.gpu, self.checkpoint, (of.slot, shape), &of.conv, own)?;
        Ok(ShortConv { state, input, channels, output: self.linear(&[&of.output])? })
    }
}

impl Run<'_> {
    pub(crate) fn short_conv(&mut self, of: &ShortConv, input: Input<'_>, y: Place<'_>, epilogue: Epilogue) {
        let (projected, mixed) = (self.buffers.place("projected"), self.buffers.place("mixed"));
        self.project(&of.input, input, projected, None);
        let text = ("short_conv", include_str!("wgsl/short_conv.wgsl"));
        for round in self.state_rounds(&of.state) {
            let workgroups = round.pieces * of.channels.div_ceil(64);
            self.state_kernel(&of.state, text, round, (projected, mixed), workgroups);
            self.close_chunks(&of.state, round, projected, None);
        }
        self.linear(&of.output, self.rows, mixed, y, epilogue);
    }
}
