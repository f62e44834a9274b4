//! `/v1/completions`: continuations of texts, and what belongs between two of them.

use super::{Form, Reply};
use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::fill::FillTokens;
use crate::models::Served;
use crate::request::jobs::{JobOptions, Jobs};
use crate::request::prompts::{Prompt, prompts};
use crate::request::sampling::Settings;
use crate::route::{Answered, Asked, json};
use crate::turn::Turns;
use kvant_engine::Interrupt;
use std::sync::Arc;

/// Tokens where the request does not say, as clients know it.
const USUAL_TOKENS: usize = 16;

/// The most likely tokens that may be asked for.
const MOST_LIKELY: u64 = 5;

struct TextRequest {
    settings: Settings,
    prompts: Vec<Prompt>,
    max_tokens: Option<usize>,
    logprobs: Option<usize>,
    echo: bool,
    suffix: Option<String>,
    /// Of so many answers to each prompt the `n` of the settings are given.
    best_of: usize,
}

pub async fn completions(Asked { app, caller, mut fields }: Asked) -> Answered {
    let served = app.model_of(&mut fields, &caller).await?;
    let TextRequest { settings, prompts, max_tokens, logprobs, echo, suffix, best_of } =
        read(fields, &app, &served)?;
    let model = Arc::clone(&served);
    let (grammar, answers) = (settings.grammar.clone(), prompts.len() * best_of);
    let prepare = move |interrupt: &Interrupt| {
        let prompts = encode(&model, prompts, echo, suffix.as_deref())?;
        Ok::<_, ApiError>((prompts, model.constraints(grammar.as_ref(), answers, interrupt)?))
    };
    let (prompts, constraints) = app.prepare(prepare).await??;
    let count = prompts.len();
    let requests = prompts.iter().flat_map(|(_, prompt)| {
        (0..best_of).map(|choice| kvant_engine::Request {
            prompt: prompt.clone(),
            sampling: settings.sampling_of(choice),
            stop: settings.stop.clone(),
            max_tokens,
            trim_start: false,
            markers: Vec::new(),
            adapters: None,
        })
    });
    let options = JobOptions {
        // The likeliest are found by them.
        logprobs: logprobs.or((best_of > settings.n).then_some(0)),
        prompt_logprobs: echo && logprobs.is_some(),
        cache_prompt: settings.cache_prompt,
        ..JobOptions::of(&caller)
    };
    let requests: Vec<_> = requests.collect();
    let lengths = requests.iter().map(|request| request.prompt.len()).collect();
    let jobs = Jobs::generate(served, app.limits(), requests, constraints, options).await?;
    let turns = Turns::new(jobs, lengths, None, Arc::clone(&caller.log));
    let form = Form::Text { echo: if echo { prompts } else { Vec::new() } };
    let reply = Reply::new(&app, turns.served(), form, count, best_of).best(settings.n, logprobs.is_some());
    match settings.stream {
        true => Ok(turns.stream(reply.pieces(settings.include_usage))),
        false => Ok(json(&reply.whole(turns).await?)),
    }
}

/// Every prompt as a text, where that is wanted, and as tokens.
fn encode(
    served: &Served,
    prompts: Vec<Prompt>,
    echo: bool,
    suffix: Option<&str>,
) -> Result<Vec<(String, Vec<u32>)>, ApiError> {
    let engine = served.handle.engine();
    let fill = suffix.map(|suffix| FillTokens::of(engine).map(|tokens| (tokens, suffix))).transpose()?;
    let one = |prompt: Prompt| {
        let text = if echo || fill.is_some() { prompt.text(engine)? } else { String::new() };
        let tokens = match &fill {
            Some((fill, suffix)) => fill.prompt(served, &text, suffix)?,
            None => prompt.tokens(served.prompts())?,
        };
        Ok((text, tokens))
    };
    prompts.into_iter().map(one).collect()
}

fn read(mut fields: Fields, app: &App, served: &Served) -> Result<TextRequest, ApiError> {
    let settings = Settings::read(&mut fields, served, app.limits())?;
    let most = app.limits().answers;
    let prompts = prompts(&mut fields, "prompt")?;
    let best_of = fields.integer("best_of", 1..=most as u64)?.map_or(settings.n, |count| count as usize);
    if best_of < settings.n {
        let message = format!("best_of is {best_of}; it must be at least n, which is {}", settings.n);
        return Err(ApiError::field("best_of", message));
    }
    if best_of > settings.n && settings.stream {
        let message = "best_of cannot be combined with stream: the best answer is known only at the end";
        return Err(ApiError::field("best_of", message).code("unsupported_parameter"));
    }
    if prompts.is_empty() || prompts.len() * best_of > most {
        let message = format!(
            "{} prompts with {best_of} answers each: a request may have 1 to {most} answers",
            prompts.len(),
        );
        return Err(ApiError::field("prompt", message));
    }
    let is_open = fields.is_negative("max_tokens");
    let max_tokens = fields.tokens("max_tokens", 0)?.or((!is_open).then_some(USUAL_TOKENS));
    let logprobs = fields.integer("logprobs", 0..=MOST_LIKELY)?;
    let echo = fields.flag("echo")?.unwrap_or(false);
    let suffix = fields.text("suffix")?.filter(|suffix| !suffix.is_empty());
    if suffix.is_some() && echo {
        let message = "echo cannot be combined with suffix: the answer stands between the two";
        return Err(ApiError::field("echo", message).code("unsupported_parameter"));
    }
    fields.end()?;
    Ok(TextRequest {
        settings,
        prompts,
        max_tokens,
        logprobs: logprobs.map(|count| count as usize),
        echo,
        suffix,
        best_of,
    })
}
