//! What a file says about its model: name, licence, quantisation, and what it was taught.

use kvant_engine::reply::{ChatFormat, ReasoningStyle};
use kvant_model::checkpoint::ConfigSource;
use kvant_model::{Checkpoint, DType};
use kvant_text::chat::ChatTemplate;
use serde_json::{Value, json};

/// Names of `general.file_type`, as llama.cpp numbers them.
const FILE_TYPES: [(u32, &str); 36] = [
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K_S"),
    (12, "Q3_K_M"),
    (13, "Q3_K_L"),
    (14, "Q4_K_S"),
    (15, "Q4_K_M"),
    (16, "Q5_K_S"),
    (17, "Q5_K_M"),
    (18, "Q6_K"),
    (19, "IQ2_XXS"),
    (20, "IQ2_XS"),
    (21, "Q2_K_S"),
    (22, "IQ3_XS"),
    (23, "IQ3_XXS"),
    (24, "IQ1_S"),
    (25, "IQ4_NL"),
    (26, "IQ3_S"),
    (27, "IQ3_M"),
    (28, "IQ2_S"),
    (29, "IQ2_M"),
    (30, "IQ4_XS"),
    (31, "IQ1_M"),
    (32, "BF16"),
    (33, "Q4_0_4_4"),
    (34, "Q4_0_4_8"),
    (35, "Q4_0_8_8"),
    (36, "TQ1_0"),
    (37, "TQ2_0"),
    (38, "MXFP4_MOE"),
];

/// What is known.
pub struct About {
    pub name: Option<String>,
    pub licence: Option<String>,
    pub quantisation: Option<String>,
    /// How it replies; none for a model without a chat template. Or why its template is refused.
    chat: Result<Option<ChatFormat>, String>,
    /// Files beside it that are not read, and what they are.
    pub beside: Vec<(String, &'static str)>,
}

impl About {
    /// Reads it; `largest` is the type that most of its bytes are of.
    pub fn of(checkpoint: &Checkpoint, largest: Option<DType>) -> Self {
        let (name, licence, quantisation) = match checkpoint.config() {
            ConfigSource::Gguf(metadata) => {
                let text = |key: &str| metadata.get::<&str>(key).ok().flatten().map(str::to_owned);
                let kind = metadata.get::<u32>("general.file_type").ok().flatten();
                let named = kind.and_then(|kind| FILE_TYPES.iter().find(|(number, _)| *number == kind));
                (text("general.name"), text("general.license"), named.map(|(_, name)| (*name).to_owned()))
            }
            ConfigSource::Config(config) => {
                let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
                (text(&config["_name_or_path"]), None, text(&config["quantization_config"]["quant_method"]))
            }
        };
        let format = |template: ChatTemplate| ChatFormat::detect(template.source(), |_| false);
        let chat = ChatTemplate::of(checkpoint).map(|template| template.map(format));
        Self {
            name,
            licence,
            quantisation: quantisation.or_else(|| largest.map(|dtype| dtype.to_string())),
            chat: chat.map_err(|error| error.to_string()),
            beside: beside(checkpoint),
        }
    }

    /// Whether it converses, calls tools and reasons, in words.
    pub fn chat(&self) -> [(&'static str, String); 3] {
        let none = |why: String| [("chat template", why), ("tools", "no".into()), ("thinking", "no".into())];
        let format = match &self.chat {
            Ok(Some(format)) => format,
            Ok(None) => return none("no: it continues text".to_owned()),
            Err(why) => return none(format!("refused: {why}")),
        };
        let tools = format.tools.map_or("no".to_owned(), |style| format!("yes, as {style:?} writes calls"));
        let thinking = format.reasoning.map_or("no".to_owned(), |style| match style {
            ReasoningStyle::Harmony => "yes, in the channel `analysis`".to_owned(),
            style => format!("yes, marked as {style:?} does"),
        });
        [("chat template", "yes".into()), ("tools", tools), ("thinking", thinking)]
    }

    pub fn json(&self) -> Value {
        let format = self.chat.as_ref().ok().and_then(Option::as_ref);
        json!({
            "name": self.name,
            "license": self.licence,
            "quantisation": self.quantisation,
            "chat_template": format.is_some(),
            "chat_template_error": self.chat.as_ref().err(),
            "tools": format.is_some_and(|format| format.tools.is_some()),
            "thinking": format.is_some_and(|format| format.reasoning.is_some()),
            "beside": self.beside.iter().map(|(name, kind)| json!({"file": name, "kind": kind})).collect::<Vec<_>>(),
        })
    }
}

/// Files in the folder of a GGUF model that belong to models and are none.
fn beside(checkpoint: &Checkpoint) -> Vec<(String, &'static str)> {
    let own = checkpoint.path();
    let Some(folder) = own.parent().filter(|_| own.extension().is_some_and(|end| end == "gguf")) else {
        return Vec::new();
    };
    let folder = if folder.as_os_str().is_empty() { std::path::Path::new(".") } else { folder };
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let others = names
        .filter(|name| name.ends_with(".gguf") && own.file_name().is_none_or(|own| own != name.as_str()));
    let mut found: Vec<(String, &'static str)> =
        others.filter_map(|name| kvant_hub::sidecar(&name).map(|kind| (name.clone(), kind))).collect();
    found.sort();
    found
}
