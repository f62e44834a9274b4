//! Tensors of a checkpoint by their names in either format, checked and made into blocks.

use crate::blocks::{Dense, Linear, Multiply, Norm, Packed, Rope, Unpacked};
use crate::bytes::lock;
use crate::checkpoint::Checkpoint;
use crate::config::{Hyper, RopeKeys};
use crate::dtype::DType;
use crate::error::{LoadError, LoadErrorKind, Result};
use crate::outline::Outline;
use crate::quant::quantize_tensor;
use crate::tensor::Tensor;
use kvant_simd::Tier;

/// The name of a part in a Hugging Face checkpoint and in GGUF, without `.weight` or `.bias`.
pub type Name = (&'static str, &'static str);

/// Choices made when a model is loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Packs the weights of linear layers that the file holds as plain numbers into
    /// [`DType::Int8G32`] or [`DType::Int4G32`]; `None` takes them as they are.
    pub weights: Option<DType>,
    /// What activations are rounded to before products.
    pub activations: ActivationType,
    /// Pins the matrices of linear layers and the token table in memory; loading fails where the system does not
    /// allow it.
    pub lock: bool,
}

impl LoadOptions {
    /// Nothing is packed, converted or copied: for looking at a model rather than running it.
    pub const AS_STORED: Self = Self { weights: None, activations: ActivationType::F32, lock: false };
}

/// The numbers that weights are multiplied with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ActivationType {
    /// Signed bytes with a scale for every 32, where the weights' type has kernels for that; f32 elsewhere.
    #[default]
    Int8,
    /// f32 everywhere: the reference for questions of quality.
    F32,
}

/// A checkpoint, seen from a place inside it: names are relative to that place.
pub struct Parts<'a> {
    checkpoint: &'a Checkpoint,
    hyper: Hyper<'a>,
    options: LoadOptions,
    tier: Tier,
    prefix: String,
    /// Where tensors come from when there is no file of them.
    outline: Option<&'a Outline>,
}

impl<'a> Parts<'a> {
    /// The whole checkpoint.
    pub fn new(checkpoint: &'a Checkpoint, options: LoadOptions) -> Result<Self> {
        let hyper = Hyper::new(checkpoint.description())?;
        let tier = Tier::select().map_err(|e| LoadError::unsupported(e.to_string()))?;
        Ok(Self { checkpoint, hyper, options, tier, prefix: String::new(), outline: None })
    }

    /// The same description with tensors that are drawn as they are asked for.
    pub(crate) fn drawing(self, outline: &'a Outline) -> Self {
        Self { outline: Some(outline), ..self }
    }

    /// The hyper-parameters.
    pub fn hyper(&self) -> &Hyper<'a> {
        &self.hyper
    }

    /// The part called `name`. GGUF numbers its layers `blk.N` at top level.
    pub fn inside(&self, (hf, gguf): (&str, &str)) -> Self {
        let own = if self.hyper.is_gguf() { gguf } else { hf };
        let dot = if own.is_empty() { "" } else { "." };
        let prefix = format!("{}{own}{dot}", self.prefix);
        Self { prefix, ..*self }
    }

    fn full_name(&self, (hf, gguf): Name, suffix: &str) -> String {
        format!("{}{}{suffix}", self.prefix, if self.hyper.is_gguf() { gguf } else { hf })
    }

    /// True when the part has weights in the file.
    pub fn has(&self, name: Name) -> Result<bool> {
        Ok(self.checkpoint.get(&self.full_name(name, ".weight"))?.is_some())
    }

    /// The weights of a part, of whatever shape.
    pub fn weight(&self, name: Name) -> Result<Tensor> {
        self.checkpoint.tensor(&self.full_name(name, ".weight"))
    }

    /// The weights of a part, of this shape.
    pub fn weight_of(&self, name: Name, shape: &[usize]) -> Result<Tensor> {
        self.tensor_of(&self.full_name(name, ".weight"), shape)
    }

    fn tensor_of(&self, full_name: &str, shape: &[usize]) -> Result<Tensor> {
        if let Some(outline) = self.outline {
            return outline.draw(full_name, shape);
        }
        let tensor = self.checkpoint.tensor(full_name)?;
        tensor.expect_shape(shape)?;
        Ok(tensor)
    }

    /// A linear layer from `inputs` to `outputs`. `biased` says what the hyper-parameters say; GGUF files do
    /// not always say, so there a bias that is in the file is used in any case.
    pub fn linear(&self, name: Name, outputs: usize, inputs: usize, biased: bool) -> Result<Linear> {
        let weight = self.weight_of(name, &[outputs, inputs])?;
        Ok(Linear::new(self.product(weight)?, self.bias(name, outputs, biased)?))
    }

    /// A small linear layer whose weights stay as they are: a router, a gate.
    pub fn exact_linear(&self, name: Name, outputs: usize, inputs: usize) -> Result<Linear> {
        let weight = match self.weight_of(name, &[outputs, inputs]) {
            // A single row is stored as a vector in GGUF.
            Err(_) if outputs == 1 => self.weight_of(name, &[inputs])?.reshape(vec![outputs, inputs])?,
            matrix => matrix?,
        };
        Ok(Linear::new(Box::new(Unpacked::new(self.tier, weight)?), None))
    }

    /// The product with a matrix of weights: the one place that chooses how it is stored and multiplied.
    pub fn product(&self, weight: Tensor) -> Result<Box<dyn Multiply>> {
        // Shapes and types that cannot be multiplied at all are refused by the reference.
        let weight = Unpacked::new(self.tier, weight)?.into_weight();
        let plain = matches!(weight.dtype(), DType::F32 | DType::F16 | DType::BF16);
        let weight = match self.options.weights {
            Some(packed) if plain && packed.row_bytes(weight.columns()).is_some() => {
                let quantised = quantize_tensor(&weight, packed)?;
                weight.bytes().release();
                quantised
            }
            _ => weight,
        };
        let name = weight.name().to_owned();
        let fast = self.options.activations == ActivationType::Int8;
        let product: Box<dyn Multiply> = match (Packed::layout(weight.dtype()), Dense::number(weight.dtype()))
        {
            (Some(layout), _) if fast => Box::new(Packed::new(self.tier, layout, &weight)?),
            (_, Some(number)) => Box::new(Dense::new(self.tier, number, weight)),
            _ => Box::new(Unpacked::new(self.tier, weight)?),
        };
        self.pin(&name, product.bytes())?;
        Ok(product)
    }

    /// Pins the bytes of the tensor `name` in memory where the options ask for that.
    pub fn pin(&self, name: &str, bytes: &[u8]) -> Result<()> {
        if !self.options.lock {
            return Ok(());
        }
        lock(bytes).map_err(|e| {
            let message = format!(
                "tensor {name:?}: cannot pin {} bytes in memory: {e}; raise the limit on locked memory (`ulimit -l`) or \
                 do without pinning",
                bytes.len()
            );
            LoadError::new(LoadErrorKind::Io, message)
        })
    }

    /// A linear layer whose Hugging Face checkpoint stores the weights `(inputs, outputs)`.
    pub fn linear_transposed(&self, name: Name, outputs: usize, inputs: usize) -> Result<Linear> {
        // Zeros need not be turned.
        if self.hyper.is_gguf() || !self.checkpoint.has_weights() {
            return self.linear(name, outputs, inputs, true);
        }
        let stored = self.weight_of(name, &[inputs, outputs])?;
        let values = stored.to_f32()?; // (inputs, outputs)
        let turned: Vec<f32> =
            (0..outputs).flat_map(|o| values[o..].iter().step_by(outputs).copied()).collect();
        stored.bytes().release();
        let weight = Tensor::from_f32(stored.name(), vec![outputs, inputs], &turned)?;
        Ok(Linear::new(self.product(weight)?, self.bias(name, outputs, true)?))
    }

    /// The linear layers `(experts, outputs, inputs)` of a mixture: one tensor in GGUF, one per expert in
    /// Hugging Face checkpoints, where `name` holds a `{}` for the expert's number. The first GGUF files of
    /// mixtures had one per expert too: `ffn_gate.3` where later ones have `ffn_gate_exps`.
    pub fn experts(&self, name: Name, count: usize, outputs: usize, inputs: usize) -> Result<Vec<Linear>> {
        let apart = |index: usize| match name.1.strip_suffix("_exps") {
            Some(stem) if self.hyper.is_gguf() => format!("{}{stem}.{index}.weight", self.prefix),
            _ => self.full_name(name, ".weight").replace("{}", &index.to_string()),
        };
        let is_whole = self.hyper.is_gguf() && self.checkpoint.get(&apart(0))?.is_none();
        let whole = if is_whole { Some(self.weight_of(name, &[count, outputs, inputs])?) } else { None };
        let expert = |index: usize| {
            let weight = match &whole {
                Some(whole) => whole.index(index)?,
                None => self.tensor_of(&apart(index), &[outputs, inputs])?,
            };
            Ok(Linear::new(self.product(weight)?, None))
        };
        (0..count).map(expert).collect()
    }

    /// An RMS norm; `offset` is what the family's Hugging Face checkpoints leave out of the weights (converters
    /// to GGUF add it).
    pub fn rms_norm(&self, name: Name, width: usize, eps: f32, offset: f32) -> Result<Norm> {
        let offset = if self.hyper.is_gguf() { 0.0 } else { offset };
        let mut weight = self.weight_of(name, &[width])?.to_f32()?;
        weight.iter_mut().for_each(|w| *w += offset);
        Ok(Norm::rms(weight, eps))
    }

    /// A layer norm with its bias.
    pub fn layer_norm(&self, name: Name, width: usize, eps: f32) -> Result<Norm> {
        let weight = self.weight_of(name, &[width])?.to_f32()?;
        Ok(Norm::layer(weight, self.bias(name, width, true)?, eps))
    }

    /// The rotary embedding that `keys` describe.
    pub fn rope(&self, keys: &RopeKeys, head_dim: usize) -> Result<Rope> {
        keys.read(&self.hyper, head_dim, |name| {
            let Some(divisors) = self.checkpoint.get(name)? else { return Ok(None) };
            // There is one for a pair of channels; a directory may say anything.
            if divisors.len() > head_dim {
                return Err(LoadError::mismatch(format!(
                    "tensor {name:?}: {} divisors for heads of {head_dim} channels",
                    divisors.len()
                )));
            }
            divisors.to_f32().map(Some)
        })
    }

    fn bias(&self, name: Name, width: usize, needed: bool) -> Result<Option<Vec<f32>>> {
        let full_name = self.full_name(name, ".bias");
        let is_there = self.hyper.is_gguf() && self.checkpoint.get(&full_name)?.is_some();
        if !needed && !is_there {
            return Ok(None);
        }
        Ok(Some(self.tensor_of(&full_name, &[width])?.to_f32()?))
    }
}
