//! A place inside a checkpoint, from which an architecture names its tensors: checked, in both formats.

use crate::arch::Architecture;
use crate::checkpoint::Checkpoint;
use crate::config::{Key, ModelConfig, RopeKeys, RopeOverride, TEXT_CONFIG};
use crate::description::{Linear, Matrix, Norm, NormKind, Precision, Rope, RopeId, TensorRef, Vector};
use crate::error::{LoadError, Result};
use crate::tensor::Tensor;
use kvant_cache::{KvShape, KvSlot, Slots};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The name of a part in a Hugging Face checkpoint and in GGUF, without `.weight` or `.bias`.
pub type Name = (&'static str, &'static str);

/// Where no file bounds what a configuration may ask for, this does. The largest models have a third as many tensors,
/// nearly all of them experts.
const MAX_TENSORS: usize = 1 << 18;
/// The same for the values of all vectors together.
const MAX_VECTOR_VALUES: usize = 1 << 26;

/// A checkpoint, seen from a place inside it: names are relative to that place.
///
/// Every tensor that is asked for is held against the checkpoint's directory at once, so a configuration that claims a
/// million layers ends at the first missing tensor.
pub struct Scope<'a> {
    checkpoint: &'a Checkpoint,
    config: ModelConfig<'a>,
    /// The place in a Hugging Face checkpoint.
    hf_prefix: String,
    /// The same place in a GGUF file.
    gguf_prefix: String,
    side: Option<TextSide<'a>>,
    draft: Rc<Draft>,
}

/// Where a multimodal checkpoint keeps the model that reads and writes text.
#[derive(Clone, Copy)]
struct TextSide<'a> {
    /// The parameters of the whole.
    whole: ModelConfig<'a>,
    /// What `model.` is there.
    body: &'static str,
    /// What `lm_head` is there.
    head: &'static str,
}

impl TextSide<'_> {
    /// Newer checkpoints, and older ones.
    const PLACES: [(&'static str, &'static str); 2] =
        [("model.language_model.", "lm_head"), ("language_model.model.", "language_model.lm_head")];

    fn name(&self, name: String) -> String {
        if let Some(rest) = name.strip_prefix("model.") {
            format!("{}{rest}", self.body)
        } else if let Some(rest) = name.strip_prefix("lm_head") {
            format!("{}{rest}", self.head)
        } else {
            name
        }
    }
}

/// What grows while a model is described.
#[derive(Default)]
struct Draft {
    slots: RefCell<Slots>,
    ropes: RefCell<Vec<Rope>>,
    /// Tensors asked for, and values of those that are vectors.
    tensors: Cell<usize>,
    vector_values: Cell<usize>,
}

impl<'a> Scope<'a> {
    /// The whole checkpoint or, where its architecture is a multimodal one around a text model, that model.
    pub fn new(checkpoint: &'a Checkpoint) -> Result<Self> {
        let config = ModelConfig::new(checkpoint.config())?.for_sizes(checkpoint.is_outline());
        let scope = Self {
            checkpoint,
            config,
            hf_prefix: String::new(),
            gguf_prefix: String::new(),
            side: None,
            draft: Rc::default(),
        };
        match config.nested_if(TEXT_CONFIG)? {
            Some(text) if Architecture::of(&config).is_err() && Architecture::of(&text).is_ok() => {
                scope.text_side(text)
            }
            _ => Ok(scope),
        }
    }

    fn text_side(self, text: ModelConfig<'a>) -> Result<Self> {
        let (mut body, mut head) = TextSide::PLACES[0];
        for place in TextSide::PLACES {
            if self.checkpoint.get(&format!("{}embed_tokens.weight", place.0))?.is_some() {
                (body, head) = place;
            }
        }
        let side = TextSide { whole: self.config, body, head };
        Ok(Self { config: text, side: Some(side), ..self })
    }

    /// Whether the output is the token embeddings once more, where the configuration says.
    pub fn is_tied(&self) -> Result<Option<bool>> {
        const TIED: Key = Key("tie_word_embeddings", "");
        let whole = self.side.map(|side| side.whole.flag_if(TIED)).transpose()?.flatten();
        Ok(if whole.is_some() { whole } else { self.config.flag_if(TIED)? })
    }

    /// Sides of a multimodal checkpoint beside its text model.
    pub(super) fn left_out(&self) -> Result<Vec<&'static str>> {
        let Some(side) = self.side else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for (key, name) in [("vision_config", "vision"), ("audio_config", "audio")] {
            if side.whole.nested_if(key)?.is_some() {
                found.push(name);
            }
        }
        Ok(found)
    }

    /// The config-parameters.
    pub fn config(&self) -> &ModelConfig<'a> {
        &self.config
    }

    /// The part called `name`. GGUF numbers its layers `blk.N` at top level.
    pub fn inside(&self, (hf, gguf): (&str, &str)) -> Self {
        let below =
            |prefix: &str, own: &str| format!("{prefix}{own}{}", if own.is_empty() { "" } else { "." });
        let (hf_prefix, gguf_prefix) = (below(&self.hf_prefix, hf), below(&self.gguf_prefix, gguf));
        let Self { checkpoint, config, side, .. } = *self;
        Self { checkpoint, config, hf_prefix, gguf_prefix, side, draft: Rc::clone(&self.draft) }
    }

    fn full_name(&self, name: (&str, &str), suffix: &str) -> String {
        if self.config.is_gguf() { self.gguf_name(name, suffix) } else { self.hf_name(name, suffix) }
    }

    fn gguf_name(&self, (_, gguf): (&str, &str), suffix: &str) -> String {
        format!("{}{gguf}{suffix}", self.gguf_prefix)
    }

    fn hf_name(&self, (hf, _): (&str, &str), suffix: &str) -> String {
        let name = format!("{}{hf}{suffix}", self.hf_prefix);
        match &self.side {
            Some(side) => side.name(name),
            None => name,
        }
    }

    /// The tensor of this name, where it is there; that of a twin is its counterpart in the other format.
    fn find(&self, name: (&str, &str), suffix: &str) -> Result<Option<Tensor>> {
        let (hf, gguf) = (self.hf_name(name, suffix), self.gguf_name(name, suffix));
        let Some(found) = self.checkpoint.counterpart(&hf, &gguf) else {
            return self.checkpoint.get(if self.config.is_gguf() { &gguf } else { &hf });
        };
        if let Some(found) = found? {
            return Ok(Some(found));
        }
        // The metadata of a GGUF file do not say that it came from the text side of a larger checkpoint.
        for (body, head) in TextSide::PLACES {
            let side = TextSide { whole: self.config, body, head };
            let found = self.checkpoint.counterpart(&side.name(hf.clone()), &gguf).transpose()?.flatten();
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// True when the part has weights in the file.
    pub fn has(&self, name: Name) -> Result<bool> {
        Ok(self.find(name, ".weight")?.is_some())
    }

    /// True when there is a tensor of this name, to which nothing is added.
    pub fn has_tensor(&self, name: (&str, &str)) -> Result<bool> {
        Ok(self.find(name, "")?.is_some())
    }

    /// False where a configuration is all there is.
    pub fn has_weights(&self) -> bool {
        !self.checkpoint.is_bare()
    }

    /// A name as the file has it.
    pub fn name_of(&self, name: (&str, &str)) -> String {
        self.full_name(name, "")
    }

    /// The same place under the part `key` of the configuration; GGUF files have no such parts.
    pub fn nested(&self, key: &'static str) -> Result<Self> {
        let config = self.config.nested(key)?;
        let (hf_prefix, gguf_prefix) = (self.hf_prefix.clone(), self.gguf_prefix.clone());
        let (checkpoint, side, draft) = (self.checkpoint, self.side, Rc::clone(&self.draft));
        Ok(Self { checkpoint, config, hf_prefix, gguf_prefix, side, draft })
    }

    /// The shape of a part's weights, where there is a file that has them.
    pub fn shape(&self, name: Name) -> Result<Option<Vec<usize>>> {
        Ok(self.find(name, ".weight")?.map(|tensor| tensor.shape().to_vec()))
    }

    /// A size that the configuration says, or else the rows of a part's weights.
    pub fn size_or_rows(&self, key: Key, name: Name) -> Result<usize> {
        match (self.config.size_if(key)?, self.shape(name)?) {
            (Some(size), _) => Ok(size),
            (None, Some(shape)) => Ok(shape.first().copied().unwrap_or(0).max(1)),
            (None, None) => Err(self.unknown_size(name, key.0)),
        }
    }

    /// An error about a part whose size nothing tells.
    fn unknown_size(&self, name: Name, key: &str) -> LoadError {
        let name = self.full_name(name, ".weight");
        LoadError::missing(format!("key {key:?} is missing, and there is no tensor {name:?} to tell it"))
    }

    /// The tensor of this name, to which nothing is added, and this shape.
    pub fn tensor(&self, name: (&str, &str), shape: &[usize]) -> Result<TensorRef> {
        self.checked(self.full_name(name, ""), shape)
    }

    /// The numbers of the tensor of this name, to which nothing is added. In GGUF files any shape will do: converters add and
    /// drop extents of one.
    pub fn numbers(&self, name: (&str, &str), shape: &[usize]) -> Result<Vector> {
        let full_name = self.full_name(name, "");
        let found = if self.config.is_gguf() { self.checkpoint.get(&full_name)? } else { None };
        let count: usize = shape.iter().product();
        let shape = match &found {
            Some(stored) if stored.len() == count => stored.shape(),
            _ => shape,
        };
        Ok(Vector::whole(self.checked(full_name, shape)?))
    }

    /// The weights of a part, of this shape.
    pub fn weight(&self, name: Name, shape: &[usize]) -> Result<TensorRef> {
        self.checked(self.full_name(name, ".weight"), shape)
    }

    fn checked(&self, name: String, shape: &[usize]) -> Result<TensorRef> {
        let asked = self.draft.tensors.get() + 1;
        self.draft.tensors.set(asked);
        if let [width] = *shape {
            self.draft.vector_values.update(|values| values.saturating_add(width));
        }
        if self.checkpoint.is_bare() {
            if asked > MAX_TENSORS || self.draft.vector_values.get() > MAX_VECTOR_VALUES {
                return Err(LoadError::mismatch(format!(
                    "the configuration asks for more than any model has: {asked} tensors up to {name:?}"
                )));
            }
        } else {
            self.checkpoint.tensor(&name)?.expect_shape(shape)?;
        }
        Ok(TensorRef { name, shape: shape.to_vec() })
    }

    /// A linear layer from `inputs` to `outputs`. `biased` says what the config-parameters say; GGUF files do
    /// not always say, so there a bias that is in the file is used in any case.
    pub fn linear(&self, name: Name, outputs: usize, inputs: usize, biased: bool) -> Result<Linear> {
        let weight = Matrix::whole(self.weight(name, &[outputs, inputs])?);
        Ok(Linear { bias: self.bias(name, outputs, biased)?, ..Linear::new(weight) })
    }

    /// A small linear layer whose weights stay as they are: a router, a gate.
    pub fn exact_linear(&self, name: Name, outputs: usize, inputs: usize) -> Result<Linear> {
        // A single row is stored as a vector in GGUF.
        let may_be_vector = outputs == 1 && self.config.is_gguf();
        let is_vector = may_be_vector && self.shape(name)?.is_some_and(|shape| shape.len() == 1);
        let weight =
            if is_vector { self.weight(name, &[inputs])? } else { self.weight(name, &[outputs, inputs])? };
        Ok(Linear { precision: Precision::Exact, ..Linear::new(Matrix::whole(weight)) })
    }

    /// A linear layer with a bias whose Hugging Face checkpoint stores the weights `(inputs, outputs)`.
    pub fn linear_transposed(&self, name: Name, outputs: usize, inputs: usize) -> Result<Linear> {
        if self.config.is_gguf() {
            return self.linear(name, outputs, inputs, true);
        }
        let weight = Matrix { transposed: true, ..Matrix::whole(self.weight(name, &[inputs, outputs])?) };
        Ok(Linear { bias: self.bias(name, outputs, true)?, ..Linear::new(weight) })
    }

    /// The linear layers `(experts, outputs, inputs)` of a mixture: one tensor in GGUF, one per expert in
    /// Hugging Face checkpoints, where `name` holds a `{}` for the expert's number. The first GGUF files of
    /// mixtures had one per expert too: `ffn_gate.3` where later ones have `ffn_gate_exps`.
    pub fn experts(&self, name: Name, count: usize, outputs: usize, inputs: usize) -> Result<Vec<Linear>> {
        let apart = |index: usize| match name.1.strip_suffix("_exps") {
            Some(stem) if self.config.is_gguf() => format!("{}{stem}.{index}.weight", self.gguf_prefix),
            _ => self.full_name(name, ".weight").replace("{}", &index.to_string()),
        };
        let is_whole = self.config.is_gguf() && self.checkpoint.get(&apart(0))?.is_none();
        let whole = if is_whole { Some(self.weight(name, &[count, outputs, inputs])?) } else { None };
        let expert = |index: usize| {
            let weight = match &whole {
                Some(whole) => Matrix { expert: Some(index), ..Matrix::whole(whole.clone()) },
                None => Matrix::whole(self.checked(apart(index), &[outputs, inputs])?),
            };
            Ok(Linear::new(weight))
        };
        (0..count).map(expert).collect()
    }

    /// An RMS norm; `offset` is what the family's Hugging Face checkpoints leave out of the weights (converters
    /// to GGUF add it).
    pub fn rms_norm(&self, name: Name, width: usize, eps: f32, offset: f32) -> Result<Norm> {
        let offset = if self.config.is_gguf() { 0.0 } else { offset };
        let weight = Vector { offset, ..Vector::whole(self.weight(name, &[width])?) };
        Ok(Norm { kind: NormKind::Rms, width, weight: Some(weight), bias: None, eps })
    }

    /// A layer norm with its bias.
    pub fn layer_norm(&self, name: Name, width: usize, eps: f32) -> Result<Norm> {
        let weight = Vector::whole(self.weight(name, &[width])?);
        Ok(Norm {
            kind: NormKind::Layer,
            width,
            weight: Some(weight),
            bias: self.bias(name, width, true)?,
            eps,
        })
    }

    fn bias(&self, name: Name, width: usize, needed: bool) -> Result<Option<Vector>> {
        let is_there = self.config.is_gguf() && self.find(name, ".bias")?.is_some();
        if !needed && !is_there {
            return Ok(None);
        }
        Ok(Some(Vector::whole(self.checked(self.full_name(name, ".bias"), &[width])?)))
    }

    /// What takes the place of the file's rotary settings.
    pub fn rope_override(&self) -> &RopeOverride {
        self.checkpoint.rope_override()
    }

    /// The rotary embedding that `keys` describe.
    pub fn rope(&self, keys: &RopeKeys, head_dim: usize) -> Result<RopeId> {
        Ok(self.add_rope(self.read_rope(keys, head_dim)?))
    }

    /// The same, before it is one of the model's.
    pub fn read_rope(&self, keys: &RopeKeys, head_dim: usize) -> Result<Rope> {
        keys.read(&self.config, head_dim, self.rope_override(), |name| {
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

    /// Makes a rotary embedding one of the model's.
    pub fn add_rope(&self, rope: Rope) -> RopeId {
        let mut ropes = self.draft.ropes.borrow_mut();
        ropes.push(rope);
        RopeId(ropes.len() - 1)
    }

    /// A slot for the keys and values of a layer.
    pub fn keys_values(&self, layer: usize, shape: KvShape) -> KvSlot {
        self.slots(|slots| slots.keys_values(layer, shape))
    }

    /// Adds to the model's slots.
    pub fn slots<T>(&self, add: impl FnOnce(&mut Slots) -> T) -> T {
        add(&mut self.draft.slots.borrow_mut())
    }

    /// The slots and rotary embeddings that were asked for.
    pub(super) fn take_draft(&self) -> (Slots, Vec<Rope>) {
        (self.draft.slots.take(), self.draft.ropes.take())
    }
}
