//! Mixtures of experts, from their description to the device.

use crate::buffer::Buffer;
use crate::compile::Compiler;
use crate::moe::{Moe, Router};
use crate::ops::{Activate, Norm};
use crate::program::{Linear, Widths};
use kvant_device::first_layers;
use kvant_model::description::{self, Inner, Mlp};
use kvant_model::error::{LoadError, Result};
use std::sync::OnceLock;

/// What of a mixture does not run.
pub(crate) fn check_experts(of: &description::Moe) -> Result<(), &'static str> {
    let Some(first) = of.experts.first() else { return Err("a mixture of no experts") };
    if of.router.norm.is_none() && of.router.input_scale.is_some() {
        return Err("a router with scaled inputs");
    }
    let shape = |mlp: &Mlp| {
        let (kind, inner) = match &mlp.inner {
            Inner::Gated { gate, .. } => (0, gate.outputs()),
            Inner::GatedFused(both) => (1, both.outputs()),
            Inner::Plain(up) => (2, up.outputs()),
        };
        (kind, inner, mlp.activation, mlp.clamp, mlp.gate_scale.to_bits(), mlp.down_scale.to_bits())
    };
    if of.experts.iter().any(|mlp| shape(mlp) != shape(first)) {
        return Err("experts of different shapes");
    }
    Ok(())
}

impl Compiler<'_> {
    pub(crate) fn moe(&self, of: &description::Moe, widths: &mut Widths) -> Result<Moe> {
        let [expert, ..] = &of.experts[..] else { return Err(LoadError::mismatch("no experts")) };
        let firsts: Vec<&description::Linear> =
            of.experts.iter().flat_map(|expert| first_layers(&expert.inner)).collect();
        let downs: Vec<&description::Linear> = of.experts.iter().map(|expert| &expert.down).collect();
        let gated = !matches!(expert.inner, Inner::Plain(_));
        let (first, down) = (self.stacked(&firsts)?, self.stacked(&downs)?);
        let (experts, inner) = (of.experts.len(), down.inputs());
        widths.experts = widths.experts.max(experts);
        widths.chosen = widths.chosen.max(of.router.chosen);
        widths.expert_first = widths.expert_first.max(first.outputs() / experts);
        widths.expert_inner = widths.expert_inner.max(inner);
        let shared = of.shared.as_ref().map(|shared| {
            let gate = shared.gate.as_ref().map(|gate| self.linear(&[gate])).transpose()?;
            Ok::<_, LoadError>((self.mlp(&shared.mlp, widths)?, gate))
        });
        let shared = shared.transpose()?;
        let activate = Activate {
            activation: expert.activation,
            gated,
            gate_scale: expert.gate_scale,
            clamp: expert.clamp,
        };
        let narrow = of.latent.as_ref().map(|(into, back)| {
            let (into, back) = (self.linear(&[into])?, self.linear(&[back])?);
            widths.expert_narrow = widths.expert_narrow.max(into.outputs());
            Ok::<_, LoadError>((into, back))
        });
        let (narrow, router) = (narrow.transpose()?, self.router(&of.router)?);
        let down_scale = expert.down_scale;
        Ok(Moe { router, experts, first, inner, activate, down, down_scale, shared, narrow })
    }

    fn router(&self, of: &description::Router) -> Result<Router> {
        let floats = |vector: &Option<description::Vector>| {
            let numbers = vector.as_ref().map(|vector| vector.read(self.checkpoint)).transpose()?;
            Ok::<_, LoadError>(numbers.map(|numbers| Buffer::of_floats(self.gpu, "router", &numbers)))
        };
        Ok(Router {
            described: of.clone(),
            norm: of.norm.as_ref().map(|norm| self.router_norm(of, norm)).transpose()?,
            linear: self.linear(&[&of.linear])?,
            bias: floats(&of.bias)?,
            expert_scale: floats(&of.expert_scale)?,
            kernel: OnceLock::new(),
        })
    }

    /// The router's norm, whose weights have the multipliers of channels in them.
    fn router_norm(&self, of: &description::Router, norm: &description::Norm) -> Result<Norm> {
        let Some(scale) = &of.input_scale else { return self.norm(norm) };
        if norm.bias.is_some() {
            return Err(LoadError::unsupported("a router with a biased norm and scaled inputs"));
        }
        let mut numbers = scale.read(self.checkpoint)?.to_vec();
        if let Some(weight) = &norm.weight {
            let weight = weight.read(self.checkpoint)?;
            numbers.iter_mut().zip(weight.iter()).for_each(|(number, weight)| *number *= weight);
        }
        Ok(Norm::new(self.gpu, norm.kind, norm.width, Some(&numbers), None, norm.eps))
    }

    /// The layers of all experts as one matrix, which a kernel has to see at once.
    fn stacked(&self, layers: &[&description::Linear]) -> Result<Linear> {
        let linear = self.linear(layers)?;
        match &linear.parts[..] {
            [part] if part.matrix.parts().len() == 1 => Ok(linear),
            _ => Err(LoadError::unsupported(format!(
                "the experts of a layer have weights of different types, or more of them than {} binds at once; run the model with `--device cpu`",
                self.gpu.name()
            ))),
        }
    }
}
