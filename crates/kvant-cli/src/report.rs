//! What a generation took: a line for people, an object for machines.

use crate::failure::Failure;
use crate::screen::grouped;
use kvant_engine::kv::{self, ContextCost};
use kvant_engine::memory::bytes;
use kvant_engine::reply::ParsedReply;
use kvant_engine::{Engine, Finish, Reply, Session, SpeculationCounts};
use serde_json::{Value, json};

/// Costs of a session after a reply.
pub struct Report<'r> {
    reply: &'r Reply,
    used: usize,
    context: usize,
    window: Option<usize>,
    spec: String,
    /// Told where it is not the processor.
    device: String,
    kv_bytes: u64,
    f16_bytes: u64,
    /// What longer contexts will take; none where a window bounds them.
    costs: Vec<ContextCost>,
}

impl<'r> Report<'r> {
    pub fn new(engine: &Engine, session: &Session, reply: &'r Reply) -> Result<Self, Failure> {
        let (policy, slots) = (session.kv().policy(), engine.model().slots());
        let window = policy.rule.streaming;
        let context = session.context();
        let costs = match window {
            None => kv::context_costs(policy.clone(), slots, context)?,
            Some(_) => Vec::new(),
        };
        let footprint = session.kv().footprint();
        Ok(Self {
            reply,
            used: session.tokens().len(),
            context,
            window,
            spec: policy.to_string(),
            device: engine.device().to_owned(),
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
            "[{}prefill {}{reused} tokens at {} tokens/s, decode {} at {} tokens/s, context {}, {}{}]",
            self.place(),
            grouped(stats.prefilled),
            rate(stats.prefill_rate()),
            grouped(stats.decoded),
            rate(stats.decode_rate()),
            self.tokens(),
            self.cache(),
            self.speculation(", "),
        )
    }

    /// The same for a conversation: what changes from turn to turn.
    pub fn short_line(&self) -> String {
        let stats = &self.reply.stats;
        let (read, speed) = (grouped(stats.prefilled), rate(stats.decode_rate()));
        format!(
            "[{}read {read}{}, {speed} tokens/s · context {} · {}{}]",
            self.place(),
            self.reused(),
            self.tokens(),
            self.cache(),
            self.speculation(" · ")
        )
    }

    /// The device, where it is not the processor.
    fn place(&self) -> String {
        if self.device == "cpu" { String::new() } else { format!("{}: ", self.device) }
    }

    /// What did not have to be read again.
    fn reused(&self) -> String {
        match self.reply.stats.reused {
            0 => String::new(),
            reused => format!(" (+{} held)", grouped(reused)),
        }
    }

    /// What speculative decoding has brought, where it has proposed anything.
    fn speculation(&self, before: &str) -> String {
        let stats = &self.reply.stats;
        let SpeculationCounts { proposed, accepted } = stats.speculation;
        match stats.tokens_per_pass().filter(|_| proposed > 0) {
            Some(tokens) => {
                let (accepted, proposed) = (grouped(accepted), grouped(proposed));
                format!(
                    "{before}{accepted} of {proposed} proposed tokens accepted, {tokens:.2} tokens a pass"
                )
            }
            None => String::new(),
        }
    }

    fn tokens(&self) -> String {
        match self.window {
            Some(window) => format!("{} tokens, window {}", grouped(self.used), grouped(window)),
            None => format!("{} of {}", grouped(self.used), grouped(self.context)),
        }
    }

    /// The cache in words. The newest tokens are exact, so a short text is not smaller than in f16: then what longer ones will take.
    fn cache(&self) -> String {
        let (spec, now, f16) = (&self.spec, bytes(self.kv_bytes), bytes(self.f16_bytes));
        if kv::is_compressed(self.kv_bytes, self.f16_bytes) || self.costs.is_empty() {
            return format!("KV {spec} {now} (f16: {f16})");
        }
        let cost = |cost: &ContextCost| {
            format!("{} at {} (f16: {})", bytes(cost.bytes), grouped(cost.tokens), bytes(cost.f16_bytes))
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
            "device": self.device,
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
                "passes": stats.passes,
                "proposed": stats.speculation.proposed,
                "accepted": stats.speculation.accepted,
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
