//! What a generation took: a line for people, an object for machines.

use crate::failure::Failure;
use crate::screen::grouped;
use kvant_engine::memory::bytes;
use kvant_engine::reply::ParsedReply;
use kvant_engine::{Engine, Finish, Policy, Reply, Session, kv};
use serde_json::{Value, json};

/// A length that costs are told for besides the whole context.
const USUAL: usize = 8192;
/// Below this part of f16's bytes saved, most of what is held is exact yet.
const COMPRESSED: f64 = 0.8;

/// Costs of a session after a reply.
pub struct Report<'r> {
    reply: &'r Reply,
    used: usize,
    context: usize,
    window: Option<usize>,
    spec: String,
    kv_bytes: u64,
    f16_bytes: u64,
    /// Tokens, and bytes of keys and values in the cache's own codec and in f16, for contexts to come.
    costs: Vec<(usize, u64, u64)>,
}

impl<'r> Report<'r> {
    pub fn new(engine: &Engine, session: &Session, reply: &'r Reply) -> Result<Self, Failure> {
        let (policy, slots) = (session.kv().policy(), engine.model().slots());
        let window = policy.rule.streaming;
        let f16 = Policy { rule: policy.rule, ..Policy::from("f16".parse::<kvant_codec::KvSpec>()?) };
        let context = session.context();
        let lengths = [USUAL.min(context), context];
        let lengths = &lengths[usize::from(context <= USUAL)..];
        let mut costs = Vec::new();
        for &tokens in lengths.iter().filter(|_| window.is_none()) {
            let [own, exact] = [policy, &f16].map(|policy| kv::memory(policy, slots, tokens));
            costs.push((tokens, own? as u64, exact? as u64));
        }
        let footprint = session.kv().footprint();
        Ok(Self {
            reply,
            used: session.tokens().len(),
            context,
            window,
            spec: policy.to_string(),
            kv_bytes: footprint.stored as u64,
            f16_bytes: footprint.f16 as u64,
            costs,
        })
    }

    /// Speed, context and cache in one line.
    pub fn line(&self) -> String {
        let stats = &self.reply.stats;
        let reused = self.reused();
        format!(
            "[prefill {}{reused} tokens at {} tokens/s, decode {} at {} tokens/s, context {}, {}]",
            grouped(stats.prefilled),
            rate(stats.prefill_rate()),
            grouped(stats.decoded),
            rate(stats.decode_rate()),
            self.tokens(),
            self.cache(),
        )
    }

    /// The same for a conversation: what changes from turn to turn.
    pub fn short_line(&self) -> String {
        let stats = &self.reply.stats;
        let (read, speed) = (grouped(stats.prefilled), rate(stats.decode_rate()));
        format!(
            "[read {read}{}, {speed} tokens/s · context {} · {}]",
            self.reused(),
            self.tokens(),
            self.cache()
        )
    }

    /// What did not have to be read again.
    fn reused(&self) -> String {
        match self.reply.stats.reused {
            0 => String::new(),
            reused => format!(" (+{} held)", grouped(reused)),
        }
    }

    fn tokens(&self) -> String {
        match self.window {
            Some(window) => format!("{} seen through {}", grouped(self.used), grouped(window)),
            None => format!("{} of {}", grouped(self.used), grouped(self.context)),
        }
    }

    /// The cache in words. The newest tokens are exact, so a short text is not smaller than in f16: then what longer ones will take.
    fn cache(&self) -> String {
        let (spec, now, f16) = (&self.spec, bytes(self.kv_bytes), bytes(self.f16_bytes));
        let is_compressed = (self.kv_bytes as f64) < COMPRESSED * self.f16_bytes as f64;
        if is_compressed || self.costs.is_empty() {
            return format!("KV {spec} {now} (f16: {f16})");
        }
        let cost = |(tokens, own, exact): &(usize, u64, u64)| {
            format!("{} at {} (f16: {})", bytes(*own), grouped(*tokens), bytes(*exact))
        };
        let costs: Vec<String> = self.costs.iter().map(cost).collect();
        format!("KV {spec} {now}, recent tokens are exact; {}", costs.join(", "))
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

fn rate(rate: Option<f64>) -> String {
    rate.map_or("-".to_owned(), |rate| format!("{rate:.1}"))
}
