//! `/v1/completions`, `/tokenize` and `/detokenize`.

use crate::support::*;
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";

#[test]
fn texts_and_tokens_are_continued_one_or_several_at_a_time() {
    let server = usual();
    let one = server.ask(PATH, json!({"prompt": "the rain", "seed": 1}));
    assert_eq!(one["object"], "text_completion");
    assert!(one["usage"]["completion_tokens"].as_u64().unwrap() <= 16, "16 tokens unless asked for more");
    let ids = server.ask("/tokenize", json!({"content": "the rain"}))["tokens"].clone();
    let other = server.ask("/tokenize", json!({"content": "nothing"}))["tokens"].clone();
    let by_ids = server.ask(PATH, json!({"prompt": ids, "seed": 1}));
    assert_eq!(one["choices"], by_ids["choices"]);
    let apart = server.ask(PATH, json!({"prompt": "nothing", "seed": 1}));
    for prompts in [json!(["the rain", "nothing"]), json!([ids, other])] {
        let both = server.ask(PATH, json!({"prompt": prompts, "seed": 1}));
        assert_eq!(both["choices"][0]["text"], one["choices"][0]["text"]);
        assert_eq!(both["choices"][1]["text"], apart["choices"][0]["text"]);
        let sum = |name: &str| one["usage"][name].as_u64().unwrap() + apart["usage"][name].as_u64().unwrap();
        assert_eq!(both["usage"]["prompt_tokens"], sum("prompt_tokens"));
        assert_eq!(both["usage"]["total_tokens"], sum("total_tokens"));
    }
}

#[test]
fn streams_echoes_and_probabilities_agree_with_the_whole() {
    let server = usual();
    let body = json!({"prompt": ["ab", "the"], "n": 2, "seed": 3, "max_tokens": 9});
    let with = |fields: Value| {
        let mut body = body.clone();
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let text = |whole: &Value, choice: usize| whole["choices"][choice]["text"].as_str().unwrap().to_owned();
    let streamed = |pieces: &[Value], choice: usize| -> String {
        let choices = pieces.iter().flat_map(|piece| piece["choices"].as_array().unwrap());
        choices
            .filter(|found| found["index"] == choice)
            .map(|found| found["text"].as_str().unwrap())
            .collect()
    };
    let (plain, echoed) = (server.ask(PATH, body.clone()), server.ask(PATH, with(json!({"echo": true}))));
    let (pieces, echoes) =
        (server.stream(PATH, body.clone()), server.stream(PATH, with(json!({"echo": true}))));
    for choice in 0..4 {
        let prompt = if choice < 2 { "ab" } else { "the" };
        assert_eq!(text(&echoed, choice), format!("{prompt}{}", text(&plain, choice)));
        assert_eq!(streamed(&pieces, choice), text(&plain, choice));
        assert_eq!(streamed(&echoes, choice), text(&echoed, choice));
    }
    let found = server.ask(PATH, with(json!({"logprobs": 2})));
    let pieces = server.stream(PATH, with(json!({"logprobs": 2})));
    let lists = &found["choices"][3]["logprobs"];
    let list = |name: &str| lists[name].as_array().unwrap().clone();
    let (tokens, offsets) = (list("tokens"), list("text_offset"));
    let mut at = 0;
    for (token, offset) in tokens.iter().zip(&offsets) {
        assert_eq!(*offset, at);
        at += token.as_str().unwrap().chars().count();
    }
    assert!(list("top_logprobs").iter().all(|top| (1..=2).contains(&top.as_object().unwrap().len())));
    let last: Vec<Value> = pieces
        .iter()
        .flat_map(|piece| piece["choices"].as_array().unwrap())
        .filter(|found| found["index"] == 3)
        .filter_map(|found| found["logprobs"]["text_offset"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(last, offsets);
}

#[test]
fn nothing_can_be_asked_for_and_the_context_ends_what_is_not_ended() {
    let server = usual();
    let nothing = server.ask(PATH, json!({"prompt": "abc", "max_tokens": 0, "echo": true}));
    assert_eq!(
        (&nothing["choices"][0]["text"], &nothing["usage"]["completion_tokens"]),
        (&json!("abc"), &json!(0))
    );
    let long = server.ask(PATH, json!({"prompt": "abc", "max_tokens": 100_000, "ignore_eos": true}));
    assert_eq!(long["choices"][0]["finish_reason"], "length");
    assert_eq!(long["usage"]["total_tokens"], 481, "the last token is never read");
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    let server = strict();
    for (body, param) in [
        (json!({}), "prompt"),
        (json!({"prompt": 5}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": [[1, -1]]}), "prompt"),
        (json!({"prompt": [1, "x"]}), "prompt"),
        (json!({"prompt": vec!["x"; 9], "n": 2}), "prompt"),
        (json!({"prompt": "x", "logprobs": 6}), "logprobs"),
        (json!({"prompt": "x", "suffix": "y", "echo": true}), "echo"),
        (json!({"prompt": "x", "best_of": 3, "stream": true}), "best_of"),
        (json!({"prompt": "x", "best_of": 1, "n": 2}), "best_of"),
        (json!({"prompt": "x", "suffix": "y"}), "suffix"),
        (json!({"prompt": "x", "messages": []}), "messages"),
    ] {
        let error = server.post(PATH, &body).fails(400, "");
        assert_eq!(error["param"], param, "{body}: {error}");
    }
    server.post(PATH, &json!({"prompt": [999_999]})).fails(400, "vocabulary");
    server.post("/tokenize", &json!({"content": 5})).fails(400, "content");
    server.post("/tokenize", &json!({})).fails(400, "messages");
    server.post("/detokenize", &json!({"tokens": "x"})).fails(400, "tokens");
    server.post("/detokenize", &json!({"tokens": [999_999]})).fails(400, "999999");
}

#[test]
fn the_tokens_of_a_prompt_are_scored_where_it_is_repeated() {
    let server = usual();
    let prompt = "the rain in spain ".repeat(6);
    let ask = json!({"prompt": prompt, "echo": true, "logprobs": 2, "max_tokens": 0});
    let answer = server.ask(PATH, ask.clone());
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], prompt.as_str());
    let list = |name: &str| choice["logprobs"][name].as_array().unwrap().clone();
    let (tokens, scores) = (list("tokens"), list("token_logprobs"));
    assert_eq!(tokens.len() as u64, answer["usage"]["prompt_tokens"].as_u64().unwrap());
    assert!(scores[0].is_null() && scores[1..].iter().all(|score| score.as_f64().unwrap() <= 0.0));
    assert_eq!((scores.len(), list("top_logprobs").len()), (tokens.len(), tokens.len()));
    assert_eq!(server.ask(PATH, ask)["choices"], answer["choices"], "and again, whatever is in the cache");
    // What is generated is scored as it is without the prompt.
    let more = |echo: bool| {
        let ask = json!({"prompt": prompt, "echo": echo, "logprobs": 2, "max_tokens": 5, "temperature": 0, "ignore_eos": true});
        server.ask(PATH, ask)["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap().clone()
    };
    assert_eq!(more(true)[tokens.len()..], more(false)[..]);
    let pieces = server.stream(PATH, json!({"prompt": "abc", "echo": true, "logprobs": 1, "max_tokens": 1}));
    let text: String = pieces.iter().filter_map(|piece| piece["choices"][0]["text"].as_str()).collect();
    assert!(text.starts_with("abc"), "{pieces:?}");
}

#[test]
fn texts_and_tokens_go_by_the_names_of_llama_cpp_and_of_vllm() {
    let server = usual();
    let tokens = server.ask("/tokenize", json!({"content": "the rain"}))["tokens"].clone();
    let other =
        json!({"model": MODEL, "prompt": "the rain", "add_special_tokens": true, "return_token_strs": true});
    let other = server.ask("/tokenize", other);
    assert_eq!(other["tokens"], tokens);
    assert_eq!(other["token_strs"].as_array().unwrap().len(), tokens.as_array().unwrap().len());
    let pieces = server.ask("/tokenize", json!({"content": "the rain", "with_pieces": true}));
    let text: String = pieces["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .skip(1)
        .map(|token| token["piece"].as_str().unwrap())
        .collect();
    assert_eq!(text.trim(), "the rain");
    let text = server.ask("/detokenize", json!({"tokens": tokens}));
    assert_eq!((&text["content"], &text["prompt"]), (&json!("the rain"), &json!("the rain")));
    let info = server.get("/tokenizer_info").json();
    assert_eq!((&info["bos_token"], &info["eos_token"]), (&json!("<s>"), &json!("</s>")));
    let turns = json!([{"role": "user", "content": "hi"}]);
    assert_eq!(
        server.ask("/apply-template", json!({"messages": turns}))["prompt"],
        "[user] hi\n[assistant] "
    );
}

#[test]
fn a_gap_is_filled_by_models_that_were_taught_it() {
    let server = usual();
    for (path, body) in [
        (PATH, json!({"prompt": "a", "suffix": "b"})),
        ("/infill", json!({"input_prefix": "a", "input_suffix": "b"})),
    ] {
        server.post(path, &body).fails(400, "fill-in-the-middle");
    }
    let names = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"];
    let server = serve(crate::tiny::model_with_tokens(None, &names), options(), Default::default());
    let ask = json!({"prompt": "one ", "suffix": " two", "max_tokens": 4, "ignore_eos": true});
    let answer = server.ask(PATH, ask);
    let tokens = |text: &str| {
        server.ask("/tokenize", json!({"content": text, "add_special": false}))["count"].as_u64().unwrap()
    };
    // The beginning of the text, and the three tokens.
    assert_eq!(answer["usage"]["prompt_tokens"].as_u64().unwrap(), tokens("one ") + tokens(" two") + 4);
    let body = json!({"input_prefix": "one ", "input_suffix": " two", "n_predict": 4, "ignore_eos": true, "seed": 1,
        "input_extra": [{"filename": "a.txt", "text": "more"}]});
    let filled = server.ask("/infill", body.clone());
    assert_eq!((&filled["stop_type"], &filled["tokens_predicted"]), (&json!("limit"), &json!(4)));
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let answer = server.post("/infill", &streamed);
    let text: String = answer
        .body
        .split("\n\n")
        .filter_map(|event| serde_json::from_str::<Value>(event.strip_prefix("data: ")?).ok())
        .map(|event| event["content"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(text, filled["content"].as_str().unwrap());
}

#[test]
fn the_likeliest_of_several_answers_are_given() {
    let server = usual();
    let body = json!({"prompt": ["a", "b"], "max_tokens": 6, "seed": 3, "logprobs": 0, "n": 4});
    let all = server.ask("/v1/completions", body.clone());
    let mean = |choice: &Value| {
        let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        logprobs.iter().map(|one| one.as_f64().unwrap()).sum::<f64>() / logprobs.len() as f64
    };
    let mut best = body;
    (best["n"], best["best_of"]) = (json!(2), json!(4));
    let chosen = server.ask("/v1/completions", best.clone());
    for prompt in 0..2 {
        let mut of_prompt: Vec<&Value> =
            all["choices"].as_array().unwrap()[4 * prompt..][..4].iter().collect();
        of_prompt.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        for (place, expected) in of_prompt.iter().take(2).enumerate() {
            let choice = &chosen["choices"][2 * prompt + place];
            assert_eq!((&choice["text"], &choice["index"]), (&expected["text"], &json!(2 * prompt + place)));
        }
    }
    assert_eq!(chosen["choices"].as_array().unwrap().len(), 4);
    assert_eq!(chosen["usage"], all["usage"], "all that were made count");
    best.as_object_mut().unwrap().remove("logprobs");
    assert_eq!(server.ask("/v1/completions", best)["choices"][0]["logprobs"], Value::Null);
}

#[test]
fn llama_cpps_own_route_continues_texts_whole_and_in_pieces() {
    let server = usual();
    let body =
        json!({"prompt": "the rain", "n_predict": 6, "temperature": 0, "n_probs": 2, "return_tokens": true});
    let whole = server.ask("/completion", body.clone());
    let expected =
        server.ask(PATH, json!({"prompt": "the rain", "max_tokens": 6, "temperature": 0, "logprobs": 0}));
    assert_eq!(whole["content"], expected["choices"][0]["text"]);
    assert_eq!(
        (&whole["stop"], &whole["stop_type"], &whole["prompt"]),
        (&json!(true), &json!("limit"), &json!("the rain"))
    );
    assert_eq!((&whole["tokens_predicted"], &whole["timings"]["predicted_n"]), (&json!(6), &json!(6)));
    let probabilities = whole["completion_probabilities"].as_array().unwrap();
    assert_eq!(probabilities.len(), 6);
    assert_eq!(probabilities[0]["logprob"], expected["choices"][0]["logprobs"]["token_logprobs"][0]);
    assert_eq!(probabilities[0]["id"], whole["tokens"][0]);
    assert_eq!(probabilities[0]["top_logprobs"][0]["id"], whole["tokens"][0]);
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let answer = server.post("/completion", &streamed);
    let pieces = answer.body.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    let pieces: Vec<Value> = pieces.map(|data| serde_json::from_str(data).unwrap()).collect();
    let (last, before) = pieces.split_last().unwrap();
    let text: String = before.iter().map(|piece| piece["content"].as_str().unwrap()).collect();
    assert_eq!((json!(text), &last["stop"]), (whole["content"].clone(), &json!(true)));
    assert!(before.iter().all(|piece| piece["stop"] == false));
    server.post("/completion", &json!({"prompt": ["a", "b"]})).fails(400, "one text");
}

#[test]
fn props_and_slots_tell_what_is_set_and_what_is_done() {
    let server = usual();
    let props = server.get("/props").json();
    let settings = &props["default_generation_settings"];
    assert_eq!((&settings["n_ctx"], &settings["params"]["seed"]), (&json!(480), &json!(1)));
    assert_eq!(settings["params"]["xtc_threshold"], json!(0.1), "and not the digits of an f32");
    assert_eq!(
        settings["params"]["samplers"],
        "penalties;dry;top_n_sigma;temperature;top_k;typical_p;top_p;min_p;xtc"
    );
    let slots = server.get("/slots").json();
    assert_eq!(json!(slots.as_array().unwrap().len()), props["total_slots"]);
    assert!(slots.as_array().unwrap().iter().all(|slot| slot["is_processing"] == false), "{slots}");
}

#[test]
fn every_sampler_is_asked_for_by_llama_cpps_names() {
    let server = strict();
    let with = |more: Value| {
        let mut body = json!({"prompt": "the rain", "max_tokens": 12, "seed": 4, "temperature": 1.5});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.ask(PATH, body)["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let plain = with(json!({}));
    // What does nothing leaves the text as it is.
    let neutral = json!({"typical_p": 1, "top_n_sigma": -1, "xtc_probability": 0, "dynatemp_range": 0, "mirostat": 0,
        "dry_multiplier": 0, "dry_penalty_last_n": -1, "ignore_eos": false, "samplers": null});
    assert_eq!(with(neutral), plain);
    for more in [
        json!({"typical_p": 0.3}),
        json!({"top_n_sigma": 0.5}),
        json!({"xtc_probability": 1, "xtc_threshold": 0.001}),
        json!({"dynatemp_range": 1.5, "dynatemp_exponent": 4}),
        json!({"mirostat": 2, "mirostat_tau": 1, "mirostat_eta": 0.5}),
        json!({"dry_multiplier": 50, "dry_allowed_length": 1, "dry_sequence_breakers": ["\u{1}"], "temperature": 0}),
        json!({"samplers": ["top_k", "temperature"], "top_k": 2}),
        json!({"samplers": "kt", "top_k": 2}),
        json!({"logit_bias": [[5, 100]]}),
    ] {
        let changed = with(more.clone());
        assert_eq!(changed, with(more.clone()), "{more}: a seed repeats it");
        assert_ne!(changed, plain, "{more}");
    }
    for (more, param) in [
        (json!({"mirostat": 1}), Value::Null),
        (json!({"samplers": ["warmth"]}), json!("samplers")),
        (json!({"dry_base": 0.5}), json!("dry_base")),
    ] {
        let mut body = more;
        body["prompt"] = json!("x");
        let error = server.post(PATH, &body).fails(400, "");
        assert_eq!(error["param"], param, "{error}");
    }
}
