//! Everything that can be asked for when a model is opened, by name.
//!
//! [`OPENING`] is the one place where such an option is declared besides its field in [`OpenOptions`]. From it come the flags of
//! `kvant run`, `chat` and `serve`, the keys of presets, and the settings of C and Python.

use super::amount::{parse_bytes, parse_tokens};
use super::lora::LoraFile;
use super::{OpenOptions, rope};
use crate::speculation::Speculate;
use kvant_cpu::ActivationType;
use kvant_model::DType;
use kvant_threads::MAX_THREADS;
use std::fmt::Display;
use std::str::FromStr;

/// The most attention sinks.
const MOST_SINKS: usize = 32;

/// An option of opening a model.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct OpenSetting {
    /// Its name in Python, C and presets.
    pub name: &'static str,
    /// The flag.
    pub flag: &'static str,
    /// The flag's letter.
    pub short: Option<char>,
    /// Other names of the flag.
    pub aliases: &'static [&'static str],
    /// What stands for its value in help; empty for a switch, which is `true` or `false`.
    pub value: &'static str,
    /// What it does, and what holds without it.
    pub help: &'static str,
    /// All values, where they can be counted.
    pub choices: &'static [&'static str],
    /// Whether the flag may be given several times; commas then stand between the values.
    pub is_list: bool,
    /// Whether it is a flag; what is not has a flag of another kind, such as a file.
    pub is_flag: bool,
    /// Whether it changes the model's rotary embedding; whatever runs a model takes such options.
    pub is_rope: bool,
    pub(super) set: fn(&mut OpenOptions, &str) -> Result<(), String>,
}

/// What a row of the table leaves out.
pub(super) const UNNAMED: OpenSetting = OpenSetting {
    name: "",
    flag: "",
    short: None,
    aliases: &[],
    value: "",
    help: "",
    choices: &[],
    is_list: false,
    is_flag: true,
    is_rope: false,
    set: |_, _| Ok(()),
};

/// All options, in the order in which they are shown.
pub const OPENING: &[OpenSetting] = &[
    OpenSetting {
        name: "ctx",
        flag: "ctx",
        short: Some('c'),
        aliases: &["ctx-size", "num-ctx"],
        value: "TOKENS",
        help: "Context length in tokens, prompt and answer together, such as 32k [default: the model's own, or what \
               fits in memory; memory is allocated as needed]",
        set: |options, text| {
            options.context = if text == "0" { None } else { Some(parse_tokens(text)?) };
            Ok(())
        },
        ..UNNAMED
    },
    OpenSetting {
        name: "device",
        flag: "device",
        value: "DEVICE",
        help: "Compute device: cpu, gpu (Metal, Vulkan or DirectX 12), cuda or cuda:N (NVIDIA), or auto: a GPU with enough \
               memory that is measurably faster than the CPU [default: KVANT_DEVICE, the configuration file's, or auto]",
        set: |options, text| parsed(text).map(|device| options.device = device),
        ..UNNAMED
    },
    OpenSetting {
        name: "gpu_layers",
        flag: "gpu-layers",
        aliases: &["n-gpu-layers"],
        value: "N",
        help: "Layers on the GPU, from the first on (-ngl); the rest run on the CPU. 0 is the CPU alone, all every layer [default: \
               auto, as many as the GPU's memory holds]",
        set: |options, text| {
            options.gpu_layers = parse_layers(text)?;
            Ok(())
        },
        ..UNNAMED
    },
    OpenSetting {
        name: "kv",
        flag: "kv",
        value: "SPEC",
        help: "The KV cache: int4, int8, f16, k=CODEC,v=CODEC …, with exceptions such as 'int4;layers \
               0-1:k=f16', or a plan: FILE.kvplan; `--kv list` lists them [default: auto, the plan beside the model, or else \
               its family's cache]",
        set: |options, text| parsed(text).map(|kv| options.kv = Some(kv)),
        ..UNNAMED
    },
    OpenSetting {
        name: "window",
        flag: "window",
        value: "TOKENS",
        help: "Streaming attention (StreamingLLM): the model sees the sinks and the last TOKENS, for texts of any length; \
               older tokens are forgotten",
        set: |options, text| parse_tokens(text).map(|window| options.window = Some(window)),
        ..UNNAMED
    },
    OpenSetting {
        name: "sinks",
        flag: "sinks",
        value: "N",
        help: "Attention sinks: number of first tokens that stay exact, and visible to a window [default: 4]",
        set: |options, text| whole(text, 0..=MOST_SINKS).map(|sinks| options.sinks = Some(sinks)),
        ..UNNAMED
    },
    OpenSetting {
        name: "sparse_v",
        flag: "sparse-v",
        value: "TAU",
        help: "Skip the values of pages (about 64 tokens) whose attention weights are all below TAU times the largest, above 0 \
               and below 1; larger is faster on long contexts and less exact [default: skip only what cannot change the \
               result]",
        set: |options, text| parsed(text).map(|threshold| options.sparse_v = Some(threshold)),
        ..UNNAMED
    },
    OpenSetting {
        name: "state",
        flag: "state",
        value: "TYPE",
        help: "Type of recurrent state: f32, bf16 or int8; narrower types are smaller and less exact [default: f32]",
        set: |options, text| parsed(text).map(|state| options.state = Some(state)),
        ..UNNAMED
    },
    OpenSetting {
        name: "kv_memory",
        flag: "kv-memory",
        value: "SIZE",
        help: "Maximum memory for the KV cache, such as 512M or 2G",
        set: |options, text| parse_bytes(text).map(|bytes| options.kv_memory = Some(bytes)),
        ..UNNAMED
    },
    OpenSetting {
        name: "weights",
        flag: "weights",
        value: "TYPE",
        help: "Quantize weights that the file stores as plain numbers",
        choices: &["int8", "int4"],
        set: |options, text| {
            options.weights = Some(match text {
                "int8" => DType::Int8G32,
                "int4" => DType::Int4G32,
                other => return Err(format!("`{other}` is neither int4 nor int8")),
            });
            Ok(())
        },
        ..UNNAMED
    },
    OpenSetting {
        name: "activations",
        flag: "activations",
        value: "TYPE",
        help: "Type of the activations that weights are multiplied with [default: int8]",
        choices: &["int8", "f32"],
        set: |options, text| {
            options.activations = match text {
                "int8" => ActivationType::Int8,
                "f32" => ActivationType::F32,
                other => return Err(format!("`{other}` is neither int8 nor f32")),
            };
            Ok(())
        },
        ..UNNAMED
    },
    OpenSetting {
        name: "threads",
        flag: "threads",
        short: Some('t'),
        value: "N",
        help: "Number of threads [default: one for each processor]",
        set: |options, text| whole(text, 1..=MAX_THREADS).map(|threads| options.threads = Some(threads)),
        ..UNNAMED
    },
    OpenSetting {
        name: "speculate",
        flag: "speculate",
        aliases: &["draft"],
        value: "HOW",
        help: "Speculative decoding, with exactly the same output: suffix drafts what followed the last time the text read like \
               this; mtp also uses the model's own head for further tokens (where the file has one; on CPUs); FILE also uses a \
               draft model (smaller, same tokenizer; on CPUs); off decodes one token a pass [default: mtp or suffix on CPUs, \
               suffix on CUDA, off elsewhere]",
        set: |options, text| {
            let how: Speculate = parsed(text)?;
            options.speculate = Some(how);
            Ok(())
        },
        ..UNNAMED
    },
    OpenSetting {
        name: "lora",
        flag: "lora",
        value: "[NAME=]FILE[:SCALE]",
        help: "LoRA adapter, on CPUs: a GGUF file for a GGUF model, a PEFT folder for a Hugging Face one; SCALE multiplies it, and \
               several add up. `kvant serve` applies one with a NAME to requests that name it, others to all [default: none]",
        is_list: true,
        set: |options, text| LoraFile::list(text).map(|lora| options.lora = lora),
        ..UNNAMED
    },
    OpenSetting {
        name: "mlock",
        flag: "mlock",
        help: "Lock weights, keys and values in memory, so that they are never swapped out; fails if the system's limit on \
               locked memory is too low",
        choices: &["true", "false"],
        set: |options, text| {
            let wrong = |_| format!("`{text}` is neither true nor false");
            text.parse().map(|pinned| options.pinned = pinned).map_err(wrong)
        },
        ..UNNAMED
    },
    rope::FREQ_BASE,
    rope::SCALING,
    rope::SCALE,
    rope::FREQ_SCALE,
    rope::ORIG_CTX,
    rope::EXT_FACTOR,
    rope::ATTN_FACTOR,
    rope::BETA_SLOW,
    rope::BETA_FAST,
    OpenSetting {
        name: "chat_template",
        flag: "chat-template",
        value: "TEXT",
        help: "A chat template (Jinja) instead of the model's own",
        is_flag: false,
        set: |options, text| {
            options.chat_template = Some(text.to_owned());
            Ok(())
        },
        ..UNNAMED
    },
];

pub(super) fn parsed<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|e: T::Err| e.to_string())
}

fn whole(text: &str, range: std::ops::RangeInclusive<usize>) -> Result<usize, String> {
    let (least, most) = (range.start(), range.end());
    let wrong = || format!("`{text}` is not a whole number from {least} to {most}");
    text.parse().ok().filter(|number| range.contains(number)).ok_or_else(wrong)
}

impl OpenSetting {
    /// The option of a name.
    pub fn named(name: &str) -> Option<&'static Self> {
        OPENING.iter().find(|setting| setting.name == name)
    }

    /// Sets it to a value as people type it.
    ///
    /// # Errors
    /// Says what is wrong with the value.
    pub fn set(&self, options: &mut OpenOptions, text: &str) -> Result<(), String> {
        (self.set)(options, text)
    }

    /// Whether a value can be had at all.
    ///
    /// # Errors
    /// As [`OpenSetting::set`].
    pub fn check(&self, text: &str) -> Result<(), String> {
        self.set(&mut OpenOptions::default(), text)
    }
}

impl OpenOptions {
    /// Sets an option by its name, to a value as people type it: `("device", "cuda:1")`, `("window", "4k")`.
    ///
    /// # Errors
    /// If there is no such option, or it cannot have that value; both are named.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), String> {
        let Some(setting) = OpenSetting::named(name) else {
            let known: Vec<&str> = OPENING.iter().map(|setting| setting.name).collect();
            return Err(format!("there is no option `{name}`; there are {}", known.join(", ")));
        };
        setting.set(self, text).map_err(|why| format!("{name}: {why}"))
    }

    /// Sets options by their names from a JSON object; `null` says nothing.
    ///
    /// # Errors
    /// As [`OpenOptions::set`].
    pub fn set_all(&mut self, object: &serde_json::Map<String, serde_json::Value>) -> Result<(), String> {
        for (name, value) in object {
            match value {
                serde_json::Value::Null => {}
                serde_json::Value::String(text) => self.set(name, text)?,
                other => self.set(name, &other.to_string())?,
            }
        }
        Ok(())
    }
}

/// A number of layers on a device: `None` for `auto`, as many as fit.
///
/// # Errors
/// If it is no number, `all` or `auto`.
pub fn parse_layers(text: &str) -> Result<Option<usize>, String> {
    Ok(match text.trim() {
        "auto" => None,
        "all" => Some(usize::MAX),
        // llama.cpp's way to say all.
        below_zero if below_zero.starts_with('-') => Some(usize::MAX),
        number => Some(parsed(number)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceChoice;
    use serde_json::json;

    fn set(value: serde_json::Value) -> Result<OpenOptions, String> {
        let mut options = OpenOptions::default();
        options.set_all(value.as_object().unwrap()).map(|()| options)
    }

    #[test]
    fn options_are_set_by_name_from_text_and_numbers() {
        let options = set(json!({
            "device": "cuda:1", "kv": "int8", "window": "2k", "sinks": 8, "sparse_v": 1e-4, "state": "bf16", "kv_memory": 1000,
            "weights": "int4", "activations": "f32", "threads": 2, "mlock": true, "chat_template": "{{ 1 }}", "ctx": null,
        }))
        .unwrap();
        assert_eq!(
            (options.device, options.window, options.sinks),
            (DeviceChoice::Cuda(1), Some(2048), Some(8))
        );
        assert_eq!((options.kv_memory, options.threads, options.pinned), (Some(1000), Some(2), true));
        assert_eq!(options.sparse_v.unwrap().get(), 1e-4);
        assert_eq!((options.context, options.chat_template.as_deref()), (None, Some("{{ 1 }}")));
        assert_eq!(set(json!({"ctx": 512})).unwrap().context, Some(512));
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (value, words) in [
            (json!({"device": "tpu"}), "device: `tpu` is not a device"),
            (json!({"devise": "cpu"}), "there is no option `devise`"),
            (json!({"sinks": 33}), "sinks: `33` is not a whole number from 0 to 32"),
            (json!({"threads": 0}), "threads: `0`"),
            (json!({"mlock": "yes"}), "mlock: `yes` is neither true nor false"),
            (json!({"sparse_v": 2}), "sparse_v: `2`"),
            (json!({"window": 0}), "window: invalid number of tokens `0`"),
            (json!({"weights": "int5"}), "weights: `int5`"),
            (json!({"lora": "a.gguf,"}), "lora: `` is not the FILE of an adapter"),
        ] {
            let error = set(value).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn every_choice_can_be_had() {
        for setting in OPENING {
            assert!(!setting.help.is_empty(), "{}", setting.name);
            assert_eq!(setting.flag, setting.name.replace('_', "-"));
            setting.choices.iter().for_each(|choice| setting.check(choice).unwrap());
        }
    }
}
