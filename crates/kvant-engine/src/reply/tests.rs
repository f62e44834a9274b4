//! Replies of every family, cut in every way.

use super::{ChatFormat, ParsedReply, ReplyParser, ReplyPart};
use crate::tools::{ToolCall, ToolStyle};
use kvant_text::chat::{ChatTemplate, Message, RenderOptions};
use proptest::prelude::*;
use serde_json::{Value, json};

fn tools() -> Vec<Value> {
    let properties = json!({"s": {"type": "string"}, "n": {"type": "integer"}});
    let parameters = json!({"type": "object", "properties": properties, "required": []});
    let tool = |name| json!({"type": "function", "function": {"name": name, "description": "", "parameters": parameters}});
    ["f", "g"].map(tool).to_vec()
}

/// The format of a template that shows these markers.
fn format(signs: &str) -> ChatFormat {
    ChatFormat::detect(&format!("{{% if tools %}}{signs}{{% endif %}}"), |_| false)
}

fn call(name: &str, arguments: Value) -> ReplyPart {
    ReplyPart::Call(ToolCall { name: name.into(), arguments: arguments.to_string() })
}

fn text(text: &str) -> ReplyPart {
    ReplyPart::Text(text.into())
}

fn reasoning(text: &str) -> ReplyPart {
    ReplyPart::Reasoning(text.into())
}

/// Everything, with neighbours of a kind joined.
fn read<'p>(mut parser: ReplyParser, pieces: impl IntoIterator<Item = &'p str>) -> Vec<ReplyPart> {
    let mut all: Vec<ReplyPart> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    all.extend(parser.finish());
    let mut joined: Vec<ReplyPart> = Vec::new();
    for part in all {
        match (joined.last_mut(), part) {
            (Some(ReplyPart::Text(before)), ReplyPart::Text(more))
            | (Some(ReplyPart::Reasoning(before)), ReplyPart::Reasoning(more)) => before.push_str(&more),
            (_, part) => joined.push(part),
        }
    }
    joined
}

/// The text in pieces of `size` characters.
fn cut(text: &str, size: usize) -> Vec<&str> {
    let mut starts: Vec<usize> = text.char_indices().map(|(at, _)| at).step_by(size).collect();
    starts.push(text.len());
    starts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

#[track_caller]
fn check(signs: &str, prompt_end: &str, reply: &str, expected: &[ReplyPart]) {
    for size in [1, 2, 3, 7, 10_000] {
        let parser = ReplyParser::new(&format(signs), &tools()).after(prompt_end);
        assert_eq!(read(parser, cut(reply, size)), expected, "pieces of {size}: {reply}");
    }
}

const QWEN: &str = "<think> <tool_call>";
const QWEN_XML: &str = "<think> <tool_call> <function=";

#[test]
fn qwen() {
    let two = "<think>\nLet me\n\nsee.\n</think>\n\nOne moment.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"</é>\"}}\n\
               </tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call>\n";
    let calls = [call("f", json!({"s": "</é>"})), call("g", json!({}))];
    let [first, second] = calls.clone();
    check(QWEN, "", two, &[reasoning("Let me\n\nsee."), text("One moment.\n"), first, second]);
    check(QWEN, "<think>\n", "Hm.\n</think>\n\nYes.", &[reasoning("Hm."), text("Yes.")]);
    check(QWEN, "<think>\n", "cut off", &[reasoning("cut off")]);
    check(QWEN, "<think>\n\n</think>\n\n", "Yes.", &[text("Yes.")]);
    // What a model talks about is text.
    check(
        QWEN,
        "",
        "The tag <think> opens, </think> closes.",
        &[text("The tag <think> opens, </think> closes.")],
    );
    check(QWEN, "", "{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n", &[call("f", json!({"n": 1}))]);
    check(QWEN, "", "<tool_call>{\"name\": \"f\", \"arguments\": {}}", &[call("f", json!({}))]);
    let xml = "<tool_call>\n<function=f>\n<parameter=s>\n1\n2\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>";
    check(
        QWEN_XML,
        "<think>\n",
        &format!("Hm\n</think>\n\n{xml}"),
        &[reasoning("Hm"), call("f", json!({"s": "1\n2", "n": 3}))],
    );
    check(QWEN_XML, "", "<function=f>{\"n\": 1}</function>", &[call("f", json!({"n": 1}))]);
    let bare = "<function=g>\n</function>";
    check(
        QWEN_XML,
        "",
        &format!("{xml}\n{bare}"),
        &[call("f", json!({"s": "1\n2", "n": 3})), call("g", json!({}))],
    );
    let seed = "<seed:think>a</seed:think>b\n<seed:tool_call>\n<function=f>\n<parameter=n>7</parameter>\n</function>\n</seed:tool_call>";
    check(
        "<seed:think> <seed:tool_call>",
        "",
        seed,
        &[reasoning("a"), text("b\n"), call("f", json!({"n": 7}))],
    );
}

#[test]
fn glm() {
    let signs = "<think> <tool_call> <arg_key>";
    let old = "\n<think>Hm</think>\n<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>7</arg_value>\n<arg_key>n</arg_key>\n\
               <arg_value>7</arg_value>\n</tool_call>\n<tool_call>g\n</tool_call>";
    check(signs, "", old, &[reasoning("Hm"), call("f", json!({"s": "7", "n": 7})), call("g", json!({}))]);
    let new = "Hm</think><tool_call>f<arg_key>n</arg_key><arg_value>[1]</arg_value></tool_call>";
    check(signs, "<|assistant|><think>", new, &[reasoning("Hm"), call("f", json!({"n": [1]}))]);
    // Cut short it is another call, or none.
    check(signs, "", "<tool_call>f\n<arg_key>n", &[text("<tool_call>f\n<arg_key>n")]);
    check(signs, "", "<tool_call>f\n", &[text("<tool_call>f\n")]);
}

#[test]
fn harmony() {
    let signs = "<|channel|> <|message|>";
    let start = "<|start|>assistant";
    let reply = "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>final<|message|>Say <b>.<|return|>";
    check(signs, start, reply, &[reasoning("Think."), text("Say <b>.")]);
    let calls = "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B<|end|>\
                 <|start|>assistant<|channel|>commentary<|message|>Looking.<|end|>\
                 <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"n\": 1}<|call|>\
                 <|start|>assistant to=functions.g<|channel|>commentary json<|message|>{}";
    let expected = [reasoning("A\n\nB"), text("Looking."), call("f", json!({"n": 1})), call("g", json!({}))];
    check(signs, start, calls, &expected);
    check(
        signs,
        start,
        " to=functions.f<|channel|>commentary json<|message|>{\"n\":2}",
        &[call("f", json!({"n": 2}))],
    );
    check(signs, "<|start|>assistant<|channel|>final<|message|>", "{\"a\": 1}", &[text("{\"a\": 1}")]);
    // Without a header, and with one that no message follows.
    check(signs, start, "to be or not", &[text("to be or not")]);
    check(
        signs,
        start,
        "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>fin",
        &[reasoning("A")],
    );
    let unknown = "<|channel|>commentary to=functions.h <|constrain|>json<|message|>{}";
    check(signs, start, unknown, &[text(unknown)]);
    let broken = "<|channel|>commentary to=functions.f json<|message|>{\"n\": ";
    check(signs, start, broken, &[text(broken)]);
}

#[test]
fn gemma4() {
    let signs = "<|channel> <|tool_call>";
    let reply = "<|channel>thought\nHm.\n<channel|><|tool_call>call:f{n:2,s:<|\"|>a,{b}\"<|\"|>,o:{x:[1,true,<|\"|>y<|\"|>],<|\"|>z<|\"|>:null}}<tool_call|>\
                 <|tool_call>call:g{}<tool_call|>";
    let arguments = json!({"n": 2, "s": "a,{b}\"", "o": {"x": [1, true, "y"], "z": null}});
    check(signs, "", reply, &[reasoning("Hm."), call("f", arguments), call("g", json!({}))]);
    check(signs, "<|channel>thought\n<channel|>", "Hello", &[text("Hello")]);
    let broken = "<|tool_call>call:f{n:<tool_call|>";
    check(signs, "", broken, &[text(broken)]);
}

#[test]
fn lfm2_and_olmo3() {
    let signs = "<|tool_call_start|> <think>";
    let reply = "<think>Hm</think><|tool_call_start|>[f(s='it\\'s \\u00e9', n=-1.5), g(l=[1, (2,), {\"a\": None}], b=True)]<|tool_call_end|>Done.";
    let second = call("g", json!({"l": [1, [2], {"a": null}], "b": true}));
    check(
        signs,
        "",
        reply,
        &[reasoning("Hm"), call("f", json!({"s": "it's é", "n": -1.5})), second, text("Done.")],
    );
    let json_list = "<|tool_call_start|>[{\"name\": \"f\", \"arguments\": {\"n\": 1}}]<|tool_call_end|>";
    check(signs, "", json_list, &[call("f", json!({"n": 1}))]);
    let broken = "<|tool_call_start|>[f(n=1]<|tool_call_end|>";
    check(signs, "", broken, &[text(broken)]);
    let lines = "<function_calls>\nf(n=1)\ng()\n</function_calls>";
    check("<function_calls>", "", lines, &[call("f", json!({"n": 1})), call("g", json!({}))]);
    // A vocabulary may show what a template leaves out.
    let hidden = ChatFormat::detect("{{ tools }}", |name| name == "<|tool_call_start|>");
    assert_eq!(hidden.tools, Some(ToolStyle::Lfm2));
}

#[test]
fn deepseek() {
    let signs = "<think> <｜tool▁call▁begin｜>";
    let new = "Hm</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"n\": 1}<｜tool▁call▁end｜>\
               <｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    let calls = [reasoning("Hm"), call("f", json!({"n": 1})), call("g", json!({}))];
    check(signs, "<｜Assistant｜><think>", new, &calls);
    let old = "Hm\n</think>\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"n\": 1}\n```<｜tool▁call▁end｜>\n\
               <｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    check(signs, "<think>\n", old, &calls);
    let dsml = "Hm</think>\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"s\" string=\"true\">1</｜DSML｜parameter>\n\
                <｜DSML｜parameter name=\"n\" string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>";
    check("<think> ｜DSML｜", "<think>", dsml, &[reasoning("Hm"), call("f", json!({"s": "1", "n": 1}))]);
    let minimax = "Hm\n</think>\n\n<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">1</parameter>\n</invoke>\n\
                   <invoke name=\"g\">\n</invoke>\n</minimax:tool_call>";
    let expected = [reasoning("Hm"), call("f", json!({"s": "1"})), call("g", json!({}))];
    check("<think> <minimax:tool_call>", "<think>\n", minimax, &expected);
}

#[test]
fn mistral_and_lists_of_json() {
    let signs = "[THINK] [TOOL_CALLS]";
    let new = "[THINK]Hm[/THINK]Well.[TOOL_CALLS]f[ARGS]{\"n\": 1}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{}";
    check(
        signs,
        "",
        new,
        &[reasoning("Hm"), text("Well."), call("f", json!({"n": 1})), call("g", json!({}))],
    );
    let list = "[{\"name\": \"f\", \"arguments\": {\"n\": 1}}, {\"name\": \"g\", \"arguments\": {}}]";
    let calls = [call("f", json!({"n": 1})), call("g", json!({}))];
    for (signs, reply) in [
        (signs, format!("[TOOL_CALLS] {list}")),
        ("<TOOLCALL>", format!("<TOOLCALL>{list}</TOOLCALL>")),
        ("<tool_calls>", format!("<tool_calls>{list}</tool_calls>")),
        ("<|tool_call|>", format!("<|tool_call|>{list}")),
    ] {
        check(signs, "", &reply, &calls);
    }
    let broken = "[TOOL_CALLS]f[ARGS]{\"n\": ";
    check(signs, "", broken, &[text(broken)]);
    let hunyuan = "<think>\nHm\n</think>\n<answer>\n42\n</answer>";
    check("<think> <answer> <tool_calls>", "", hunyuan, &[reasoning("Hm"), text("42\n")]);
    check(
        "<think> <response>",
        "",
        "<think>Hm</think><response>42</response>",
        &[reasoning("Hm"), text("42")],
    );
    check(QWEN, "", "<answer>42</answer>", &[text("<answer>42</answer>")]);
}

#[test]
fn llama3() {
    let signs = "{\"name\": function name, \"parameters\": …}";
    check(signs, "", " {\"name\": \"f\", \"parameters\": {\"n\": 1}}", &[call("f", json!({"n": 1}))]);
    for reply in ["{\"name\": \"unknown\"}", "Hello {\"name\": \"f\"}", "{ not json"] {
        check(signs, "", reply, &[text(reply)]);
    }
}

#[test]
fn complete_bare_calls_are_calls_where_the_next_is_cut() {
    let signs = "{\"name\": function name, \"parameters\": …}";
    let (first, second) =
        ("{\"name\": \"f\", \"parameters\": {\"n\": 1}}", "{\"name\": \"g\", \"parameters\": {}}");
    let calls = [call("f", json!({"n": 1})), call("g", json!({}))];
    for signs in [signs, QWEN] {
        check(signs, "", &format!("{first}\n{second}"), &calls);
        let cut = "{\"name\": \"f\", \"par";
        let expected = [calls.as_slice(), &[text(cut)]].concat();
        check(signs, "", &format!("{first}\n{second}\n{cut}"), &expected);
    }
    // What is no call, and what is no JSON, leaves all of it text.
    for rest in ["{\"name\": \"unknown\"} {\"na", "and so on", "{ not json"] {
        let reply = format!("{first} {rest}");
        check(signs, "", &reply, &[text(&reply)]);
    }
}

#[test]
fn what_is_no_call_stays_text() {
    for reply in [
        "a < b, <tool, <tool_call",
        "<tool_call>nonsense</tool_call> and more",
        "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"f\"",
        "{\"answer\": 42}",
        "Yes: {\"name\": \"f\", \"arguments\": {}}",
    ] {
        check(QWEN, "", reply, &[text(reply)]);
    }
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let parsed = ReplyParser::new(&format(QWEN), &[]).read(call);
    assert_eq!(parsed, ParsedReply { text: call.into(), ..ParsedReply::default() }, "there are no tools");
}

#[test]
fn templates_show_how_reasoning_is_switched() {
    let variables = |template: &str, effort: Option<&str>| {
        let format = ChatFormat::detect(template, |_| false);
        let mut variables = serde_json::Map::new();
        let is_known = match effort {
            Some(effort) => format.set_effort(effort, &mut variables),
            None => format.set_thinking(false, &mut variables),
        };
        is_known.then(|| Value::Object(variables))
    };
    assert_eq!(variables("{% if enable_thinking %}", None), Some(json!({"enable_thinking": false})));
    assert_eq!(variables("{% if not thinking is defined %}", None), Some(json!({"thinking": false})));
    assert_eq!(variables("{% if message.thinking is defined %}{{ thinking_budget }}", None), None);
    assert_eq!(variables("{{ reasoning_effort }}", Some("low")), Some(json!({"reasoning_effort": "low"})));
    assert_eq!(variables("{% if enable_thinking %}", Some("high")), Some(json!({"enable_thinking": true})));
    assert_eq!(variables("{% if enable_thinking %}", Some("none")), Some(json!({"enable_thinking": false})));
    assert_eq!(variables("plain", Some("none")), Some(json!({})), "there is none");
    assert_eq!((variables("plain", Some("low")), variables("<think>", Some("none"))), (None, None));
}

#[test]
fn earlier_reasoning_has_the_name_that_the_template_knows() {
    let turn = || Message::calling(Some("Look.".into()), Vec::new()).with("reasoning_content", "Hm.");
    let prepared = |template: &str| ChatFormat::detect(template, |_| false).prepare(turn());
    assert_eq!(prepared("{{ m.reasoning_content }}").fields["reasoning_content"], "Hm.");
    assert_eq!(prepared("{{ m.thinking }}").fields["thinking"], "Hm.");
    assert!(!prepared("plain").fields.contains_key("reasoning_content"));
    // gpt-oss takes reasoning or content in a turn that calls, and fails without content.
    let harmony = prepared("<|channel|><|message|>{{ m.thinking }}");
    assert_eq!(
        (harmony.fields["thinking"].as_str(), harmony.content.as_deref()),
        (Some("Hm.\n\nLook."), Some(""))
    );
}

#[test]
fn text_is_not_held_back_longer_than_it_must() {
    let mut parser = ReplyParser::new(&format(QWEN), &tools());
    assert_eq!(parser.push("1 <"), [text("1 ")]);
    assert_eq!(parser.push(" 2"), [text("< 2")]);
    let mut parser = ReplyParser::new(&format("<|channel|> <|message|>"), &[]).after("<|start|>assistant");
    assert_eq!(parser.push("<|channel|>final<|message|>1 <"), [text("1 ")]);
    assert_eq!(parser.push("|x"), [text("<|x")]);
}

/// What a template writes of an assistant's turn is what the parser of its format reads.
#[test]
fn what_templates_write_is_read_back() {
    let folder =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-text/tests/data/chat/families");
    let (im, im_end) = ("<|im_start|>assistant\n", "<|im_end|>\n");
    // By template: its style, the markers around an assistant's turn, how many calls it writes, and whether reasoning with them.
    for (name, style, start, end, count, thinks) in [
        ("harmony", ToolStyle::Harmony, "<|start|>assistant", "", 1, true),
        ("qwen3", ToolStyle::Hermes, im, im_end, 2, true),
        ("qwen3.5", ToolStyle::QwenXml, im, im_end, 2, true),
        ("glm4", ToolStyle::Glm, "<|assistant|>", "", 2, true),
        ("gemma4", ToolStyle::Gemma4, "<|turn>model\n", "<turn|>\n", 2, true),
        ("lfm2", ToolStyle::Lfm2, im, im_end, 2, true),
        ("deepseek", ToolStyle::DeepSeek, "<｜Assistant｜>", "<｜end▁of▁sentence｜>", 2, false),
        ("mistral", ToolStyle::Mistral, "[/INST]", "</s>", 2, true),
        ("minimax", ToolStyle::MiniMax, "]~b]ai\n", "[e~[\n", 2, true),
        ("nemotron", ToolStyle::Nemotron, "<SPECIAL_11>Assistant\n", "\n<SPECIAL_12>\n", 2, false),
        ("seed_oss", ToolStyle::SeedOss, "<seed:bos>assistant", "<seed:eos>", 2, true),
    ] {
        let source = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
        let format = ChatFormat::detect(&source, |_| false);
        assert_eq!(format.tools, Some(style), "{name}");
        let calls = [("f", json!({"n": 2, "s": "Köln, \"a\" {b}"})), ("g", json!({}))];
        let written = calls.iter().take(count).map(|(name, arguments)| {
            json!({"type": "function", "function": {"name": name, "arguments": arguments}})
        });
        let turn =
            Message::calling(Some(String::new()), written.collect()).with("reasoning_content", "Hm.\nSo.");
        let turns = [Message::new("user", "Why?"), format.prepare(turn)];
        let options = RenderOptions {
            add_generation_prompt: false,
            tools: tools(),
            eos_token: "</s>".into(),
            ..RenderOptions::default()
        };
        let whole = ChatTemplate::new(&source).unwrap().render(&turns, &options).unwrap();
        let reply = whole.split_once(start).and_then(|(_, reply)| reply.strip_suffix(end));
        let reply = reply.unwrap_or_else(|| panic!("{name}: {whole}"));
        let parsed = ReplyParser::new(&format, &tools()).after(start).read(reply);
        let read = parsed
            .calls
            .iter()
            .map(|call| (call.name.as_str(), serde_json::from_str(&call.arguments).unwrap()));
        assert_eq!(read.collect::<Vec<(&str, Value)>>(), calls[..count], "{name}: {reply}");
        assert_eq!(
            (parsed.reasoning.as_str(), parsed.text.as_str()),
            (if thinks { "Hm.\nSo." } else { "" }, ""),
            "{name}"
        );
    }
}

const FORMATS: [&str; 13] = [
    QWEN,
    QWEN_XML,
    "<seed:think> <seed:tool_call>",
    "<think> <arg_key>",
    "<|channel|> <|message|>",
    "<|channel> <|tool_call>",
    "<think> <|tool_call_start|>",
    "<think> <｜tool▁call▁begin｜>",
    "<think> ｜DSML｜",
    "<think> <minimax:tool_call>",
    "[THINK] [TOOL_CALLS]",
    "<think> <answer> <tool_calls>",
    "{\"name\": …, \"parameters\":",
];

/// What replies are made of; `{}` stands for a word of its own.
const PIECES: [&str; 64] = [
    "{}",
    "{}",
    "{}",
    " ",
    "\n",
    "<",
    "</",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    "=",
    ",",
    "\"",
    "f",
    "g",
    "functions.f",
    "to=functions.f",
    " to=",
    "json",
    "analysis",
    "final",
    "commentary",
    "thought",
    "<think>",
    "</think>",
    "<seed:think>",
    "</seed:think>",
    "<tool_call>",
    "</tool_call>",
    "<function=f>",
    "</function>",
    "<parameter=s>",
    "</parameter>",
    "<arg_key>n</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<|start|>",
    "<|start|>assistant",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|end|>",
    "<|call|>",
    "<|channel>thought",
    "<channel|>",
    "<|tool_call>call:",
    "<tool_call|>",
    "<|\"|>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[THINK]",
    "[/THINK]",
    "{\"name\": \"f\", \"arguments\": {\"s\": \"{}\"}}",
    "<answer>",
    "</answer>",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// However a reply is cut, it says the same; no word of it is lost; nothing panics.
    #[test]
    fn cutting_changes_nothing_and_nothing_is_lost(
        format_index in 0..FORMATS.len(),
        pieces in prop::collection::vec(0..PIECES.len(), 0..14),
        opened in any::<bool>(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let reply: String = (0..).zip(&pieces).map(|(n, &piece)| PIECES[piece].replace("{}", &format!("w{n}w"))).collect();
        let prompt_end = if opened { "<|start|>assistant<think>" } else { "<|start|>assistant" };
        let parser = ReplyParser::new(&format(FORMATS[format_index]), &tools()).after(prompt_end);
        let whole = read(parser.clone(), [reply.as_str()]);
        let boundaries: Vec<usize> = reply.char_indices().map(|(at, _)| at).chain([reply.len()]).collect();
        let mut ends: Vec<usize> = cuts.iter().map(|cut| *cut.get(&boundaries)).chain([0, reply.len()]).collect();
        ends.sort_unstable();
        prop_assert_eq!(&read(parser.clone(), ends.windows(2).map(|pair| &reply[pair[0]..pair[1]])), &whole);
        prop_assert_eq!(&read(parser, cut(&reply, 1)), &whole);
        // The type of a call's content in harmony is nobody's text.
        if !reply.contains("to=functions.f") {
            let shown = format!("{whole:?}");
            for word in (0..pieces.len()).map(|n| format!("w{n}w")).filter(|word| reply.contains(word)) {
                prop_assert!(shown.contains(&word), "{} is lost: {}", word, shown);
            }
        }
    }
}

#[test]
fn calls_in_blocks_of_code_are_calls_and_other_blocks_are_text() {
    let signs = "<tool_call>";
    check(
        signs,
        "",
        "Sure:\n```json\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n```\n",
        &[text("Sure:\n"), call("f", json!({"n": 1}))],
    );
    check(
        signs,
        "",
        "```tool_call\n[{\"name\": \"f\", \"parameters\": {}}, {\"name\": \"g\", \"arguments\": {}}]\n```",
        &[call("f", json!({})), call("g", json!({}))],
    );
    for block in [
        "```json\n{\"name\": \"f\"}\n```",
        "```json\n{\"name\": \"unknown\", \"arguments\": {}}\n```",
        "```json\n{\"a\": 1}\n``` and more",
        "```js\nf()\n```",
        "```json\n{\"name\": \"f\", ",
    ] {
        check(signs, "", block, &[text(block)]);
    }
}
