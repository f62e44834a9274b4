//! Flags about the model and how it runs.

use crate::config::{Preset, default_model};
use crate::failure::Failure;
use crate::options::size::Size;
use crate::options::{Activations, ThreadOptions, Tokens, kv_choice, llama_cpp_spec};
use clap::{Args, ValueEnum};
use kvant_engine::device::IS_BUILT;
use kvant_engine::{DeviceChoice, KvChoice, OpenOptions, SparseV, StateType};
use kvant_model::DType;
use std::path::PathBuf;

/// The model, and how it runs.
#[derive(Args, Clone)]
#[command(next_help_heading = "Model")]
pub struct ModelOptions {
    /// A model: a file, a folder, a short name such as qwen3:8b, or org/repo:file or
    /// an address on Hugging Face [default: KVANT_MODEL, the configuration file's, or
    /// smollm2-135m]
    #[arg(short, long, default_value_t = default_model(), hide_default_value = true,
          aliases = ["hf-repo", "model-url"])]
    pub model: String,

    /// Flags by a name: a preset of ~/.config/kvant/config.toml
    #[arg(long, value_name = "NAME")]
    pub preset: Option<String>,

    /// The most tokens to hold, prompt and answer together, such as 32k [default: the
    /// model's own, as far as memory goes; pages are taken as they are needed]
    #[arg(short, long, value_name = "TOKENS", visible_alias = "ctx-size", alias = "num-ctx",
          value_parser = Tokens::context)]
    ctx: Option<Tokens>,

    /// Compute device: cpu, gpu (Metal, Vulkan or DirectX 12), cuda or cuda:N (NVIDIA),
    /// or auto, a GPU that has the memory and was measured to be faster [default:
    /// KVANT_DEVICE, the configuration file's, or auto]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceChoice>,

    /// How keys and values are kept: int4, int8, f16, k=CODEC,v=CODEC …, with
    /// exceptions such as 'int4;layers 0-1:k=f16', or a plan: FILE.kvplan; `--kv list`
    /// prints them [default: auto, by the plan beside the model, or by its family]
    #[arg(long, value_name = "SPEC", value_parser = kv_choice)]
    kv: Option<KvChoice>,

    /// Streaming attention (StreamingLLM): the sinks and the last TOKENS are in view,
    /// without end; what leaves the window is forgotten
    #[arg(long, value_name = "TOKENS", conflicts_with = "ctx")]
    window: Option<Tokens>,

    /// Attention sinks: first tokens that are kept exactly, and stay in view of a
    /// window [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=32))]
    sinks: Option<u32>,

    /// Do not read the values of a page (64 tokens or so) in which no token has TAU of
    /// the largest weight, above 0 and below 1: the larger, the faster on long contexts
    /// and the less exact [default: only what cannot change the result is left out]
    #[arg(long, value_name = "TAU")]
    sparse_v: Option<SparseV>,

    /// The numbers that recurrent state is stored in: f32, bf16 or int8; the narrower,
    /// the smaller and the less exact [default: f32]
    #[arg(long, value_name = "TYPE")]
    state: Option<StateType>,

    /// The most memory for keys and values, such as 512M or 2G
    #[arg(long, value_name = "SIZE")]
    kv_memory: Option<Size>,

    /// A file with a chat template (Jinja) in place of the model's own
    #[arg(long, value_name = "FILE", alias = "chat-template-file")]
    chat_template: Option<PathBuf>,

    /// Pack weights that the file holds as plain numbers
    #[arg(long, value_name = "TYPE")]
    weights: Option<Weights>,

    /// The numbers that weights are multiplied with
    #[arg(long, value_name = "TYPE", default_value = "int8")]
    activations: Activations,

    #[command(flatten)]
    pub threads: ThreadOptions,

    /// Pin weights, keys and values in memory: never swapped out, never read twice;
    /// refused where the system's limit on locked memory is lower
    #[arg(long)]
    mlock: bool,

    /// The type of keys as llama.cpp calls it (-ctk)
    #[arg(long, value_name = "TYPE", hide = true, conflicts_with = "kv")]
    cache_type_k: Option<String>,

    /// The type of values as llama.cpp calls it (-ctv)
    #[arg(long, value_name = "TYPE", hide = true, conflicts_with = "kv")]
    cache_type_v: Option<String>,

    /// Layers on a GPU (-ngl)
    #[arg(long, value_name = "N", hide = true, alias = "gpu-layers", allow_hyphen_values = true)]
    n_gpu_layers: Option<String>,

    /// Flash attention (-fa)
    #[arg(long, value_name = "SWITCH", hide = true, require_equals = true)]
    flash_attn: Option<String>,

    /// Templates are always Jinja.
    #[arg(long, hide = true)]
    jinja: bool,
}

/// Types weights can be packed to.
#[derive(Clone, Copy, ValueEnum)]
pub enum Weights {
    /// 8 bits in groups of 32
    Int8,
    /// 4 bits in groups of 32
    Int4,
}

impl Weights {
    /// The type of packed weights.
    pub fn dtype(self) -> DType {
        match self {
            Self::Int8 => DType::Int8G32,
            Self::Int4 => DType::Int4G32,
        }
    }
}

impl ModelOptions {
    /// The window of a conversation without end.
    pub fn window(&self) -> Option<usize> {
        self.window.map(|tokens| tokens.0)
    }

    /// Takes from a preset what no flag said.
    pub fn apply(&mut self, preset: &Preset) {
        if let Some(model) = preset.model.clone().filter(|_| self.model == default_model()) {
            self.model = model;
        }
        if self.ctx.is_none() && self.window.is_none() {
            (self.ctx, self.window) = (preset.ctx, preset.window);
        }
        let has_types = self.cache_type_k.is_some() || self.cache_type_v.is_some();
        if self.kv.is_none() && !has_types {
            self.kv = preset.kv.clone();
        }
        self.device = self.device.or(preset.device);
        self.kv_memory = self.kv_memory.or(preset.kv_memory);
        self.threads.or(preset.threads);
        if self.chat_template.is_none() {
            self.chat_template = preset.chat_template.clone();
        }
    }

    /// What flags of other programs mean here, for people.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if let Some(layers) = self.n_gpu_layers.as_deref().filter(|layers| *layers != "0") {
            remarks.push(match IS_BUILT {
                true => format!("-ngl {layers}: all layers run on one device; --device says which"),
                false => {
                    format!("-ngl {layers}: kvant was built without GPU support; all layers run on the CPU")
                }
            });
        }
        if matches!(self.flash_attn.as_deref(), Some("off" | "0")) {
            remarks.push(
                "-fa off: attention always runs in one pass over the cache, without a matrix of scores"
                    .into(),
            );
        }
        if self.cache_type_k.is_some() || self.cache_type_v.is_some() {
            let spec = self.cache_types().unwrap_or_default();
            remarks.push(format!("-ctk, -ctv: keys and values are kept as --kv {spec}"));
        }
        remarks
    }

    fn cache_types(&self) -> Result<String, String> {
        llama_cpp_spec(self.cache_type_k.as_deref(), self.cache_type_v.as_deref())
    }

    /// What the engine is asked for.
    ///
    /// # Errors
    /// If the chat template cannot be read, or llama.cpp's types of a cache are mistyped.
    pub fn open_options(&self) -> Result<OpenOptions, Failure> {
        let template = self.chat_template.as_ref().map(|path| {
            std::fs::read_to_string(path).map_err(|e| {
                let path = path.display();
                Failure::new(format!("--chat-template {path}: {e}; it takes a file with a Jinja template"))
            })
        });
        let kv = match self.cache_type_k.is_some() || self.cache_type_v.is_some() {
            true => Some(self.cache_types().and_then(|spec| kv_choice(&spec)).map_err(Failure::Usage)?),
            false => self.kv.clone(),
        };
        Ok(OpenOptions {
            device: self.device.unwrap_or_default(),
            measurements: kvant_hub::cache_folder().ok(),
            kv,
            context: self.ctx.map(|tokens| tokens.0).filter(|tokens| *tokens > 0),
            window: self.window(),
            sinks: self.sinks.map(|tokens| tokens as usize),
            sparse_v: self.sparse_v,
            state: self.state,
            kv_memory: self.kv_memory.map(|size| size.0),
            memory: None,
            weights: self.weights.map(Weights::dtype),
            activations: self.activations.kind(),
            pinned: self.mlock,
            threads: self.threads.count(),
            chat_template: template.transpose()?,
        })
    }
}
