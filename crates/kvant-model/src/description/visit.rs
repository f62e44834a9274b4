//! Every tensor of a description.

use super::{
    Convolution, DecayRate, Description, GatedNorm, LatentHeads, Linear, Lower, Node, Norm, TensorRef,
    Vector, Weights,
};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

impl Description {
    /// Every tensor it names, each once.
    pub fn tensors(&self) -> Vec<&TensorRef> {
        self.found().list
    }

    /// Every tensor of its head that guesses further tokens, each once; the model's own where the head shares them.
    pub fn mtp_tensors(&self) -> Vec<&TensorRef> {
        let mut found = Found::default();
        if let Some(Ok(mtp)) = &self.mtp {
            let Ok(_) = mtp.layer.lower(&mut found);
        }
        found.list
    }

    /// The weights of norms by their tensors' names, and what the files leave out of them.
    pub fn norm_offsets(&self) -> BTreeMap<String, f32> {
        self.found().norms.into_iter().map(|(name, offset)| (name.to_owned(), offset)).collect()
    }

    /// SHA-256 over the names and shapes of its tensors: adapters that fit one model fit those with the same.
    pub fn tensor_digest(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for TensorRef { name, shape } in self.tensors() {
            for number in [name.len(), shape.len()].iter().chain(shape) {
                hash.update((*number as u64).to_le_bytes());
            }
            hash.update(name);
        }
        hash.finalize().into()
    }

    fn found(&self) -> Found<'_> {
        let mut found = Found::default();
        let Ok(()) = self.visit(&mut found);
        found
    }

    fn visit<'d>(&'d self, found: &mut Found<'d>) -> Result<(), Infallible> {
        self.embedding.table.lower(found)?;
        self.embedding.positions.lower(found)?;
        self.embedding.per_layer.lower(found)?;
        self.embedding.streams.lower(found)?;
        self.layers.lower(found)?;
        self.head.lower(found)?;
        self.encoder.lower(found)?;
        Ok(())
    }
}

#[derive(Default)]
struct Found<'d> {
    seen: BTreeSet<&'d str>,
    list: Vec<&'d TensorRef>,
    norms: BTreeMap<&'d str, f32>,
}

/// Nothing stands for weights that were only looked at.
enum Nothing {}

impl Weights for Nothing {
    type Linear = ();
    type Norm = ();
    type Vector = ();
    type Table = ();
    type LatentHeads = ();
    type Convolution = ();
    type Decay = ();
    type GatedNorm = ();
}

type Seen = Result<(), Infallible>;

impl<'d> Lower<'d> for Found<'d> {
    type To = Nothing;
    type Error = Infallible;

    fn linear(&mut self, of: &'d Linear) -> Seen {
        self.table(&of.weight.tensor)?;
        of.bias.iter().try_for_each(|bias| self.vector(bias))
    }

    fn norm(&mut self, of: &'d Norm) -> Seen {
        if let Some(weight) = &of.weight {
            self.norms.insert(&weight.tensor.name, weight.offset);
        }
        of.weight.iter().chain(&of.bias).try_for_each(|vector| self.vector(vector))
    }

    fn vector(&mut self, of: &'d Vector) -> Seen {
        self.table(&of.tensor)
    }

    fn table(&mut self, of: &'d TensorRef) -> Seen {
        if self.seen.insert(&of.name) {
            self.list.push(of);
        }
        Ok(())
    }

    fn latent_heads(&mut self, of: &'d LatentHeads) -> Seen {
        of.key.iter().chain(&of.value).try_for_each(|matrix| self.table(&matrix.tensor))
    }

    fn convolution(&mut self, of: &'d Convolution) -> Seen {
        self.vector(&of.weight)?;
        of.bias.iter().try_for_each(|bias| self.vector(bias))
    }

    fn decay(&mut self, of: &'d DecayRate) -> Seen {
        match of {
            DecayRate::Log(rates) | DecayRate::Plain(rates) => self.vector(rates),
        }
    }

    fn gated_norm(&mut self, of: &'d GatedNorm) -> Seen {
        self.norms.insert(&of.weight.tensor.name, of.weight.offset);
        self.vector(&of.weight)
    }
}
