//! Replies of a model: what control tokens say of them, and prompts that open the reasoning.

#[path = "../../kvant-model/tests/support/tiny.rs"]
mod tiny;

use kvant_engine::grammar::Grammar;
use kvant_engine::reply::ReplyPart;
use kvant_engine::{
    Engine, LoadOptions, Policy, PromptError, Request, SamplingParams, TurnError, TurnOptions,
};
use kvant_model::Checkpoint;
use kvant_model::gguf::Gguf;
use kvant_text::chat::{Message, RenderOptions};
use std::ops::ControlFlow;
use std::sync::Arc;

const TEMPLATE: &str = include_str!("../../kvant-model/tests/support/thinking.jinja");

fn engine() -> Arc<Engine> {
    load(tiny::model_with(Some(TEMPLATE)))
}

fn load(model: Vec<u8>) -> Arc<Engine> {
    let file = Gguf::from_bytes(model).unwrap();
    Arc::new(Engine::load(&Checkpoint::from_gguf(file), LoadOptions::default()).unwrap())
}

#[test]
fn control_tokens_are_text_where_they_are_markers() {
    let engine = engine();
    let bos = engine.tokenizer().bos().unwrap();
    let text = |markers: Vec<u32>| {
        let mut session = engine.session("f16".parse::<Policy>().unwrap(), 64).unwrap();
        let sampling = SamplingParams { logit_bias: vec![(bos, 1e4)], ..SamplingParams::greedy() };
        let prompt = engine.text_prompt("a").unwrap();
        let request = Request { prompt, sampling, max_tokens: Some(3), markers, ..Request::default() };
        session.generate(&request, &mut |_| ControlFlow::Continue(())).unwrap().text
    };
    assert_eq!(text(Vec::new()), "");
    assert_eq!(text(vec![bos]), "<s><s><s>");
}

#[test]
fn a_prompt_may_open_the_reasoning_and_may_be_made_to_close_it() {
    let engine = engine();
    let options = |thinking: bool| {
        let variables = serde_json::Map::from_iter([("enable_thinking".to_owned(), thinking.into())]);
        RenderOptions { variables, ..RenderOptions::default() }
    };
    let turns = [Message::new("user", "hi")];
    let [open, plain] = [true, false].map(|on| engine.chat_prompt_with(&turns, options(on)).unwrap());
    let first = |prompt: &[u32]| engine.reply_parser(prompt, &[]).push("so ");
    assert_eq!(first(&open), [ReplyPart::Reasoning("so".into())]);
    assert_eq!(first(&plain), [ReplyPart::Text("so ".into())]);
    let closed = engine.answer_prompt_with(&turns, options(true)).unwrap();
    assert_eq!(first(&closed), [ReplyPart::Text("so ".into())]);
    assert!(closed.starts_with(&open));
    assert!(engine.tokenizer().decode(&closed).unwrap().ends_with("<think>\n\n</think>\n\n"));
    assert_eq!(engine.answer_prompt_with(&turns, options(false)).unwrap(), plain);
}

#[test]
fn turns_for_a_context_are_refused_by_their_length_and_otherwise_the_same() {
    let engine = engine();
    let turns = [Message::new("user", "hi")];
    let free = engine.turn(&turns, TurnOptions::default()).unwrap();
    assert_eq!(free.prompt, engine.chat_prompt(&turns).unwrap());
    let bounded = engine.prompts(free.prompt.len()).turn(&turns, TurnOptions::default()).unwrap();
    assert_eq!(bounded.prompt, free.prompt);
    let kept = TurnOptions { format: Some(Grammar::json_object()), ..TurnOptions::default() };
    let mut kept = engine.turn(&turns, kept).unwrap();
    assert_eq!(
        kept.parser.push("{} "),
        [ReplyPart::Text("{} ".into())],
        "a format leaves no room for reasoning"
    );
    let long = [Message::new("user", "7".repeat(1 << 16))];
    let refused = engine.prompts(64).turn(&long, TurnOptions::default()).unwrap_err();
    assert!(matches!(refused, TurnError::Prompt(PromptError::TooLong { context: 64, .. })), "{refused}");
}

#[test]
fn a_model_without_a_template_is_taken_as_it_is() {
    let engine = load(tiny::model_bytes(false));
    let said = "<think>a</think>b";
    let tools = [serde_json::json!({"type": "function", "function": {"name": "f"}})];
    let parsed = engine.reply_parser(&[1], &tools).read(said);
    assert_eq!((parsed.text.as_str(), parsed.reasoning.as_str()), (said, ""));
    assert!(engine.reply_markers().is_empty());
}
