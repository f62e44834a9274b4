//! What a generation took: a line for people, an object for machines.

use crate::command::run::call_json;
use crate::failure::Failure;
use crate::screen::grouped;
use kvant_engine::kv::{self, ContextCost};
use kvant_engine::memory::bytes;
use kvant_engine::reply::ParsedReply;
use kvant_engine::{Finish, LoadedModel, Policy, Reply, Session, SpeculationCounts};
use serde_json::{Value, json};

/// Costs of a session after a reply.
pub struct Report<'r> {
    reply: &'r Reply,
    used: usize,
    context: usize,
    window: Option<usize>,
    spec: String,
    /// The same for people: the name of a plan stands for what it says.
    name: String,
    /// Told where it is not the processor.
    device: String,
    kv_bytes: u64,
    f16_bytes: u64,
    /// What longer contexts will take; none where a window bounds them.
    costs: Vec<ContextCost>,
}

impl<'r> Report<'r> {
    pub fn new(opened: &LoadedModel, session: &Session, reply: &'r Reply) -> Result<Self, Failure> {
        let engine = opened.engine();
        let (policy, slots) = (session.kv().policy(), engine.model().slots());
        let window = policy.rule.streaming;
        let context = session.context();
        let costs = match window {
            None => kv::context_costs(policy.clone(), slots, context)?,
            Some(_) => Vec::new(),
        };
        // As `fit`, `inspect` and a context that does not fit have it: with the exact rows of a pass.
        let f16: Policy = "f16".parse().expect("a spec of the grammar");
        let resident = |cost: ContextCost| {
            let of = |policy: &Policy| Ok::<_, Failure>(kv::resident(policy, slots, cost.tokens)? as u64);
            Ok::<_, Failure>(ContextCost { bytes: of(policy)?, f16_bytes: of(&f16)?, ..cost })
        };
        let costs = costs.into_iter().map(resident).collect::<Result<_, _>>()?;
        let footprint = session.kv().footprint();
        Ok(Self {
            reply,
            used: session.tokens().len(),
            context,
            window,
            spec: policy.to_string(),
            name: name(opened, policy),
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
            "[{}prefill {}{reused} token{}{}, decode {}{}{}, context {}, {}{}]",
            self.place(),
            grouped(stats.prefilled),
            if stats.prefilled == 1 { "" } else { "s" },
            rate(" at ", stats.prefill_rate()),
            grouped(stats.decoded),
            rate(" at ", stats.decode_rate()),
            if self.reply.finish == Finish::MaxTokens { ", cut off by -n" } else { "" },
            self.tokens(),
            self.cache(),
            self.speculation(", "),
        )
    }

    /// The same for a conversation: what changes from turn to turn.
    pub fn short_line(&self) -> String {
        let stats = &self.reply.stats;
        let (read, speed) = (grouped(stats.prefilled), rate(", ", stats.decode_rate()));
        format!(
            "[{}read {read}{}{speed} · context {} · {}{}]",
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
        let (spec, now, f16) = (&self.name, bytes(self.kv_bytes), bytes(self.f16_bytes));
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
            "tool_calls": said.calls.iter().map(call_json).collect::<Vec<_>>(),
            "tokens": self.reply.tokens,
            "finish": finish,
            "finish_detail": detail,
            "truncated": matches!(self.reply.finish, Finish::MaxTokens | Finish::ContextFull),
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

/// The cache for people: the policy of a plan beside its name, unless it is a long one.
fn name(opened: &LoadedModel, policy: &Policy) -> String {
    let (name, policy) = (opened.cache_name(), policy.to_string());
    if name == policy || policy.contains(';') { name } else { format!("{name} ({policy})") }
}

/// A rate after these words; nothing where none is known, as after a single token.
fn rate(before: &str, rate: Option<f64>) -> String {
    rate.map_or_else(String::new, |rate| format!("{before}{rate:.1} tokens/s"))
}
