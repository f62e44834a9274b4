//! The vocabulary of a GGUF file, from `tokenizer.json`.
//!
//! Byte-level BPE becomes a `gpt2` vocabulary, BPE over characters with bytes to fall back on a `llama` one whose scores are the
//! ranks of its merges. GGUF names the rule that cuts text into words; a rule without a name is refused.
//!
//! **Invariant:** the vocabulary reads a list of difficult texts as the original does, or is refused.

use crate::error::{ConvertError, Result};
use kvant_model::gguf::{Gguf, Writer, WriterValue};
use kvant_model::{Checkpoint, LoadError};
use kvant_text::tokenizer::{EncodeOptions, GgufVocab, Tokenizer, pre_tokenizer_name};
use serde_json::Value;
use std::collections::HashMap;

/// The splitting rule of GPT-2, which `ByteLevel` brings with it.
const GPT2_SPLIT: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Texts that splitting rules disagree about.
const PROBES: [&str; 8] = [
    "The quick brown fox isn't 1234567 years old, they'll say: \"WE'RE 3.14159!\"",
    "  two spaces\n\n\tand\ttabs \r\n  end   ",
    "def f(x):\n    return x**2 + 10 # comment…\n\n\n",
    "Größe, naïve café, Ελληνικά, Русский текст, हिन्दी, ไทย",
    "中文分词和日本語のテキスト、한국어 문장입니다。",
    "🙂👩‍👩‍👧‍👦 ½ ² ① é (combining)",
    "https://example.org/a_b-c?d=e&f=1 foo@bar.com $5.00 50%",
    "CamelCase snake_case SHOUTING'S don'T a'b''c",
];

/// Kinds of tokens, by GGUF's numbers.
mod kind {
    pub const NORMAL: i32 = 1;
    pub const UNKNOWN: i32 = 2;
    pub const CONTROL: i32 = 3;
    pub const USER_DEFINED: i32 = 4;
    pub const UNUSED: i32 = 5;
    pub const BYTE: i32 = 6;
}

/// Adds the vocabulary, of `size` tokens, and the chat template. Without a tokenizer the file says that it has none.
pub(super) fn write(
    writer: &mut Writer,
    checkpoint: &Checkpoint,
    size: usize,
    notes: &mut Vec<String>,
) -> Result<()> {
    let Some(text) = checkpoint.companion_text("tokenizer.json")? else {
        notes.push("there is no tokenizer.json beside the weights: the file has no vocabulary".into());
        writer.set("tokenizer.ggml.model", WriterValue::String("no_vocab".into()));
        return Ok(());
    };
    let json: Value = parse("tokenizer.json", &text)?;
    let original = Tokenizer::of(checkpoint)?;
    let settings = match checkpoint.companion_text("tokenizer_config.json")? {
        Some(text) => parse("tokenizer_config.json", &text)?,
        None => Value::Null,
    };
    let vocabulary = Vocabulary::read(&json, size)?;
    vocabulary.write(writer, &json)?;
    let mut id = |key: &str, id: Option<u32>| {
        if let Some(id) = id {
            writer.set(&format!("tokenizer.ggml.{key}_token_id"), WriterValue::U32(id));
        }
    };
    let named = |key: &str| {
        let token = &settings[key];
        vocabulary.id(token.as_str().or(token["content"].as_str())?)
    };
    id("bos", original.bos());
    id("eos", original.eos());
    id("unknown", named("unk_token"));
    id("padding", named("pad_token"));
    writer.set("tokenizer.ggml.add_bos_token", WriterValue::Bool(!original.prefix().is_empty()));
    if let Some(template) = template(checkpoint, &settings)? {
        writer.set("tokenizer.chat_template", WriterValue::String(template));
    }
    check(writer, &original)
}

fn parse(file: &str, text: &str) -> Result<Value> {
    serde_json::from_str(text)
        .map_err(|e| LoadError::malformed(format!("{file} is not the JSON it should be: {e}")).into())
}

fn template(checkpoint: &Checkpoint, settings: &Value) -> Result<Option<String>> {
    if let Some(text) = checkpoint.companion_text("chat_template.jinja")? {
        return Ok(Some(text));
    }
    let template = &settings["chat_template"];
    let named = || {
        let list = template.as_array()?;
        let usual = list.iter().find(|entry| entry["name"] == "default").or(list.first())?;
        usual["template"].as_str()
    };
    Ok(template.as_str().or_else(named).map(str::to_owned))
}

/// Refuses a vocabulary that reads texts otherwise than the original.
fn check(writer: &Writer, original: &Tokenizer) -> Result<()> {
    let refused =
        |what: String| ConvertError::Refused(format!("the vocabulary cannot be written as GGUF: {what}"));
    let header = Gguf::from_bytes(writer.to_bytes()?)?;
    let written =
        Tokenizer::from_gguf(&GgufVocab::read(header.metadata())?).map_err(|e| refused(e.to_string()))?;
    same_tokens(original, &written).map_err(refused)
}

/// Reads the probes with both.
pub(crate) fn same_tokens(original: &Tokenizer, written: &Tokenizer) -> std::result::Result<(), String> {
    for probe in PROBES {
        let ids = |tokenizer: &Tokenizer| {
            tokenizer.encode(probe, EncodeOptions::default()).map_err(|e| e.to_string())
        };
        if ids(original)? != ids(written)? {
            return Err(format!("{probe:?} would be read as other tokens"));
        }
    }
    Ok(())
}

struct Vocabulary<'j> {
    tokens: Vec<String>,
    kinds: Vec<i32>,
    merges: Vec<(&'j str, &'j str)>,
    is_byte_level: bool,
}

impl<'j> Vocabulary<'j> {
    fn read(json: &'j Value, size: usize) -> Result<Self> {
        let wrong =
            |what: &str| LoadError::unsupported(format!("tokenizer.json: {what} is not written as GGUF"));
        let model = &json["model"];
        let vocab = match model["type"].as_str() {
            Some("BPE") | None => model["vocab"].as_object(),
            Some(other) => return Err(wrong(&format!("a {other} model")).into()),
        };
        let vocab = vocab.ok_or_else(|| wrong("a model without a vocabulary"))?;
        let is_byte_level = has(&json["decoder"], "ByteLevel");
        let mut tokens: Vec<Option<(String, i32)>> = vec![None; size];
        let mut put = |text: &str, id: &Value, kind: i32| {
            let place = id.as_u64().and_then(|id| tokens.get_mut(id as usize));
            place.map(|place| *place = Some((text.to_owned(), kind))).ok_or_else(|| {
                LoadError::mismatch(format!("tokenizer.json: token {text:?} has id {id}, of {size}"))
            })
        };
        let falls_back = model["byte_fallback"] == true;
        for (text, id) in vocab {
            let is_byte = falls_back && text.len() == 6 && text.starts_with("<0x") && text.ends_with('>');
            let is_unknown = model["unk_token"].as_str() == Some(text) && !is_byte_level;
            let kind = match (is_byte, is_unknown) {
                (true, _) => kind::BYTE,
                (_, true) => kind::UNKNOWN,
                _ => kind::NORMAL,
            };
            put(text, id, kind)?;
        }
        for added in json["added_tokens"].as_array().into_iter().flatten() {
            let text = added["content"].as_str().unwrap_or_default();
            let is_unknown = model["unk_token"].as_str() == Some(text) && !is_byte_level;
            let kind = match (is_unknown, added["special"] == true) {
                (true, _) => kind::UNKNOWN,
                (_, true) => kind::CONTROL,
                _ => kind::USER_DEFINED,
            };
            put(text, &added["id"], kind)?;
        }
        // Tables are often longer than vocabularies.
        let unused = |(id, token): (usize, Option<(String, i32)>)| {
            token.unwrap_or_else(|| (format!("[PAD{id}]"), kind::UNUSED))
        };
        let (tokens, kinds) = tokens.into_iter().enumerate().map(unused).unzip();
        let pair = |merge: &'j Value| match merge {
            Value::String(text) => text.split_once(' '),
            Value::Array(pair) if pair.len() == 2 => pair[0].as_str().zip(pair[1].as_str()),
            _ => None,
        };
        let merges = model["merges"].as_array().into_iter().flatten().map(pair).collect::<Option<Vec<_>>>();
        let merges = merges.ok_or_else(|| wrong("a merge that is not a pair"))?;
        Ok(Self { tokens, kinds, merges, is_byte_level })
    }

    fn id(&self, text: &str) -> Option<u32> {
        self.tokens.iter().position(|own| own == text).and_then(|id| u32::try_from(id).ok())
    }

    fn write(&self, writer: &mut Writer, json: &Value) -> Result<()> {
        let text = |text: &str| WriterValue::String(text.to_owned());
        if self.is_byte_level {
            writer.set("tokenizer.ggml.model", text("gpt2"));
            writer.set("tokenizer.ggml.pre", text(rule(json)?));
            let merges = self.merges.iter().map(|(left, right)| format!("{left} {right}"));
            writer.set("tokenizer.ggml.merges", WriterValue::strings(merges));
        } else {
            writer.set("tokenizer.ggml.model", text("llama"));
            writer.set("tokenizer.ggml.pre", text("default"));
            writer.set("tokenizer.ggml.scores", WriterValue::f32s(self.scores()));
            let prefix = has(&json["normalizer"], "Prepend") || prepends(&json["pre_tokenizer"]);
            writer.set("tokenizer.ggml.add_space_prefix", WriterValue::Bool(prefix));
        }
        writer.set("tokenizer.ggml.tokens", WriterValue::strings(self.tokens.iter().cloned()));
        writer.set("tokenizer.ggml.token_type", WriterValue::i32s(self.kinds.iter().copied()));
        Ok(())
    }

    /// Pieces are joined by the score of what they become: the rank of the best merge that makes it.
    fn scores(&self) -> Vec<f32> {
        let mut ranks: HashMap<String, usize> = HashMap::new();
        for (rank, (left, right)) in self.merges.iter().enumerate() {
            ranks.entry(format!("{left}{right}")).or_insert(rank);
        }
        let last = self.merges.len();
        let score = |(token, kind): (&String, &i32)| match *kind {
            kind::NORMAL => -(*ranks.get(token).unwrap_or(&last) as f32),
            _ => 0.0,
        };
        self.tokens.iter().zip(&self.kinds).map(score).collect()
    }
}

/// The steps of a part of the pipeline.
fn steps(part: &Value) -> &[Value] {
    let inner = ["pretokenizers", "normalizers", "decoders"].iter().find_map(|key| part[*key].as_array());
    inner.map_or(std::slice::from_ref(part), Vec::as_slice)
}

fn has(part: &Value, kind: &str) -> bool {
    steps(part).iter().any(|step| step["type"] == kind)
}

fn prepends(part: &Value) -> bool {
    steps(part).iter().any(|step| {
        step["type"] == "Metaspace" && step["prepend_scheme"] != "never" && step["add_prefix_space"] != false
    })
}

/// GGUF's name for the way text is cut into words.
fn rule(json: &Value) -> Result<&'static str> {
    let mut splits: Vec<String> = Vec::new();
    for step in steps(&json["pre_tokenizer"]) {
        match step["type"].as_str() {
            Some("Split") => {
                let pattern = &step["pattern"];
                splits.extend(pattern["Regex"].as_str().or(pattern["String"].as_str()).map(str::to_owned));
            }
            Some("Digits") if step["individual_digits"] == true => splits.push(r"\p{N}".into()),
            Some("Digits") => splits.push(r"\p{N}+".into()),
            Some("ByteLevel") if step["use_regex"] != false => splits.push(GPT2_SPLIT.into()),
            _ => {}
        }
    }
    let whole_words = json["model"]["ignore_merges"] == true;
    pre_tokenizer_name(&splits, whole_words).ok_or_else(|| {
        ConvertError::Refused(format!(
            "GGUF has no name for the way this vocabulary cuts text into words ({}); write safetensors (--to safetensors)",
            splits.join(" then ")
        ))
    })
}
