//! Answers in pieces.

use super::{Form, Reply};
use crate::error::ApiError;
use crate::turn::{Step, StreamFormat, sse};
use serde_json::{Value, json};

/// A stream under way.
pub struct Pieces {
    reply: Reply,
    include_usage: bool,
}

impl Reply {
    /// The same in pieces; the last tells what the answers took where that is wanted.
    pub fn pieces(self, include_usage: bool) -> Pieces {
        Pieces { reply: self, include_usage }
    }
}

impl Pieces {
    fn say(&self, choice: Value, out: &mut String) {
        let mut piece = self.reply.frame(vec![choice], true);
        if self.include_usage {
            piece["usage"] = Value::Null;
        }
        sse(out, None, &piece);
    }
}

impl StreamFormat for Pieces {
    fn step(&mut self, step: Step, out: &mut String) {
        let index = step.index;
        if step.started.is_some() && self.reply.form == Form::Chat {
            let delta = json!({"role": "assistant", "content": "", "refusal": null});
            self.say(json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null}), out);
        }
        self.reply.take(step);
        let piece = self.reply.choices[index].take_piece();
        if !piece.is_empty() {
            self.say(piece.into_piece(index, &self.reply.form), out);
        }
    }

    fn end(&mut self, out: &mut String) {
        if self.include_usage {
            let mut piece = self.reply.frame(Vec::new(), true);
            piece["usage"] = self.reply.usage();
            sse(out, None, &piece);
        }
        out.push_str("data: [DONE]\n\n");
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        sse(out, None, &error.body());
    }
}
