//! `/tokenize`, `/detokenize`, `/tokenizer_info` and `/apply-template`, in the spellings of llama.cpp and of vLLM.

use super::{Answered, Asked, Caller, json};
use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Fields, whole};
use crate::models::Served;
use crate::request::messages::messages;
use crate::request::tools::Tools;
use axum::Extension;
use axum::extract::State;
use kvant_engine::{Interrupt, Prompts};
use kvant_text::chat::{Message, RenderOptions};
use kvant_text::tokenizer::EncodeOptions;
use serde_json::{Map, Value, json as object};
use std::sync::Arc;

/// How many times longer than the context a text may be that is only counted.
const COUNTED_CONTEXTS: usize = 8;

/// A conversation, and what its template is given.
fn conversation(
    fields: &mut Fields,
    app: &App,
    served: &Served,
) -> Result<(Vec<Message>, RenderOptions), ApiError> {
    let limits = app.limits();
    let messages = messages(fields, limits.messages)?;
    let mut variables = crate::protocol::thinking_variables(fields, served)?;
    match fields.take("chat_template_kwargs") {
        None => {}
        Some(Value::Object(more)) => variables.extend(more),
        Some(other) => return Err(fields.wrong("chat_template_kwargs", "an object", &other)),
    }
    let add_generation_prompt = fields.flag("add_generation_prompt")?.unwrap_or(true);
    let continue_final_message = fields.flag("continue_final_message")?.unwrap_or(false);
    let tools = Tools::read(fields, limits.format_bytes)?;
    let tools = tools.map(|tools| tools.definitions).unwrap_or_default();
    let options = RenderOptions { tools, variables, ..RenderOptions::default() };
    Ok((messages, RenderOptions { add_generation_prompt, continue_final_message, ..options }))
}

/// The tokens of a text, or of a conversation as the model reads it.
pub async fn tokenize(Asked { app, caller, mut fields }: Asked) -> Answered {
    let served = app.model(fields.text("model")?.as_deref(), &caller).await?;
    let context = served.handle.context();
    // llama.cpp's names, and vLLM's.
    let text = match fields.text("content")? {
        Some(text) => Some(text),
        None => fields.text("prompt")?,
    };
    let with_pieces = fields.flag("with_pieces")?.unwrap_or(false);
    let with_strings = fields.flag("return_token_strs")?.unwrap_or(false);
    let model = Arc::clone(&served);
    let tokens = match text {
        Some(text) => {
            let older = fields.flag("add_special_tokens")?;
            let add_special = fields.flag("add_special")?.or(older).unwrap_or(true);
            let parse_special = fields.flag("parse_special")?.unwrap_or(false);
            fields.end()?;
            let options = EncodeOptions { add_special, parse_special };
            let encode = move |_: &Interrupt| counted(&model).encode(&text, options);
            app.prepare(encode).await?.map_err(|error| ApiError::from(error).at("content"))?
        }
        None => {
            let (messages, options) =
                conversation(&mut fields, &app, &served).map_err(|error| {
                    match error.is_about("messages") {
                        true => ApiError::bad(
                            "a text as content or prompt is required, or a conversation as messages",
                        ),
                        false => error,
                    }
                })?;
            fields.ignore(&["add_special_tokens", "add_special"]);
            fields.end()?;
            app.prepare(move |_| counted(&model).chat(&messages, options)).await??
        }
    };
    let piece = |&id: &u32| {
        let bytes = served.handle.engine().tokenizer().token_bytes(id).unwrap_or_default();
        match std::str::from_utf8(bytes) {
            Ok(text) => Value::from(text),
            // A part of a character.
            Err(_) => bytes.to_vec().into(),
        }
    };
    let mut answer = object!({"tokens": tokens, "count": tokens.len(), "max_model_len": context});
    if with_pieces {
        answer["tokens"] = tokens.iter().map(|id| object!({"id": id, "piece": piece(id)})).collect();
    }
    if with_strings {
        let name = |&id: &u32| served.handle.engine().tokenizer().token_name(id).unwrap_or_default();
        answer["token_strs"] = tokens.iter().map(name).collect();
    }
    Ok(json(&answer))
}

/// Texts that are only counted may be longer than the context, though not without end.
fn counted(served: &Served) -> Prompts<'_> {
    served.handle.engine().prompts(served.handle.context().saturating_mul(COUNTED_CONTEXTS))
}

/// The text of tokens.
pub async fn detokenize(Asked { app, caller, mut fields }: Asked) -> Answered {
    let served = app.model(fields.text("model")?.as_deref(), &caller).await?;
    let value = fields.take("tokens").unwrap_or(Value::Null);
    let ids = value.as_array().and_then(|ids| ids.iter().map(whole).collect::<Option<Vec<u32>>>());
    let ids = ids.ok_or_else(|| fields.wrong("tokens", "an array of token ids", &value))?;
    fields.end()?;
    let text = app.prepare(move |_| served.handle.engine().tokenizer().decode(&ids)).await?;
    let text = text.map_err(|e| ApiError::field("tokens", e.to_string()))?;
    // Under llama.cpp's name, and under vLLM's.
    Ok(json(&object!({"content": text, "prompt": text})))
}

/// What clients that render templates themselves want to know.
pub async fn info(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Answered {
    let served = app.model(None, &caller).await?;
    let engine = served.handle.engine();
    let tokenizer = engine.tokenizer();
    let name = |id: Option<u32>| id.and_then(|id| tokenizer.token_name(id));
    let mut answer = Map::new();
    answer.insert("tokenizer_class".into(), "PreTrainedTokenizerFast".into());
    answer.insert("chat_template".into(), engine.template().into());
    answer.insert("bos_token".into(), name(tokenizer.bos()).into());
    answer.insert("eos_token".into(), name(tokenizer.eos()).into());
    answer.insert("pad_token".into(), name(tokenizer.eos()).into());
    answer.insert("add_bos_token".into(), (!tokenizer.prefix().is_empty()).into());
    answer.insert("vocab_size".into(), engine.model().vocabulary().into());
    answer.insert("model_max_length".into(), served.handle.context().into());
    Ok(json(&answer.into()))
}

/// The text of a conversation as the model reads it.
pub async fn apply_template(Asked { app, caller, mut fields }: Asked) -> Answered {
    let served = app.model(fields.text("model")?.as_deref(), &caller).await?;
    let (messages, options) = conversation(&mut fields, &app, &served)?;
    fields.end()?;
    let text = app.prepare(move |_| served.handle.engine().chat_text(&messages, options)).await??;
    Ok(json(&object!({"prompt": text})))
}
