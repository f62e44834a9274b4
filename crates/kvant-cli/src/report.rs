//! What a generation took: a line for people, an object for machines.

use crate::failure::Failure;
use kvant_codec::KvSpec;
use kvant_engine::memory::bytes;
use kvant_engine::reply::ParsedReply;
use kvant_engine::{Engine, Finish, Reply, Session, kv};
use serde_json::{Value, json};

/// Costs of a session after a reply.
pub struct Report<'r> {
    reply: &'r Reply,
    used: usize,
    context: usize,
    window: Option<usize>,
    spec: String,
    kv_bytes: u64,
    f16_bytes: u64,
}

impl<'r> Report<'r> {
    pub fn new(engine: &Engine, session: &Session, reply: &'r Reply) -> Result<Self, Failure> {
        let f16: KvSpec = "f16".parse()?;
        let used = session.tokens().len();
        Ok(Self {
            reply,
            used,
            context: session.context(),
            window: session.kv().policy().rule.streaming,
            spec: session.kv().policy().to_string(),
            kv_bytes: session.kv().bytes(),
            f16_bytes: (kv::bytes_per_token(&f16, engine.model().slots())? * used as f64) as u64,
        })
    }

    /// Speed, context and cache in one line.
    pub fn line(&self) -> String {
        let stats = &self.reply.stats;
        let rate = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.1}"));
        let reused = match stats.reused {
            0 => String::new(),
            reused => format!(" (+{reused} held)"),
        };
        let context = match self.window {
            Some(window) => format!("{} seen through {window}", self.used),
            None => format!("{} of {}", self.used, self.context),
        };
        format!(
            "[prefill {}{reused} tokens at {} tokens/s, decode {} at {} tokens/s, context {context}, KV {} {} (f16: {})]",
            stats.prefilled,
            rate(stats.prefill_rate()),
            stats.decoded,
            rate(stats.decode_rate()),
            self.spec,
            bytes(self.kv_bytes),
            bytes(self.f16_bytes),
        )
    }

    /// Everything, for `--json`.
    pub fn json(&self, model: &str, said: &ParsedReply) -> Value {
        let stats = &self.reply.stats;
        let (finish, detail) = match &self.reply.finish {
            Finish::EndOfText(token) => ("end_of_text", json!(token)),
            Finish::Stop(stop) => ("stop", json!(stop)),
            Finish::MaxTokens => ("max_tokens", Value::Null),
            Finish::ContextFull => ("context_full", Value::Null),
            Finish::Cancelled => ("cancelled", Value::Null),
        };
        json!({
            "model": model,
            "text": said.text,
            "reasoning": Some(&said.reasoning).filter(|text| !text.is_empty()),
            "tokens": self.reply.tokens,
            "finish": finish,
            "finish_detail": detail,
            "seed": self.reply.seed,
            "prefill": {
                "tokens": stats.prefilled,
                "reused": stats.reused,
                "seconds": stats.prefill.as_secs_f64(),
                "tokens_per_second": stats.prefill_rate(),
            },
            "decode": {
                "tokens": stats.decoded,
                "seconds": stats.decode.as_secs_f64(),
                "tokens_per_second": stats.decode_rate(),
            },
            "context": {
                "used": self.used,
                "size": self.window.is_none().then_some(self.context),
                "window": self.window,
            },
            "kv": {"spec": self.spec, "bytes": self.kv_bytes, "f16_bytes": self.f16_bytes},
        })
    }
}
