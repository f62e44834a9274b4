//! Templates that would take all stack or memory. A model file carries its template, so each of them must be an error.

use kvant_text::chat::{ChatError, ChatTemplate, Message, RenderOptions};
use serde_json::{Value, json};

fn render(template: &str) -> Result<String, ChatError> {
    ChatTemplate::new(template)?.render(&[Message::new("user", "Hi")], &RenderOptions::default())
}

/// The template must be refused by a bound, not by chance.
fn assert_refused(name: &str, template: &str) {
    match render(template) {
        Err(ChatError::Failed(why) | ChatError::Syntax(why)) => {
            let by_bound =
                ["too much", "too large", "more than", "longer than", "recursion", "namespace", "fuel"];
            assert!(by_bound.iter().any(|words| why.contains(words)), "{name}: {why}");
        }
        Err(other) => panic!("{name}: {other}"),
        Ok(text) => panic!("{name} wrote {} bytes", text.len()),
    }
}

/// `{{ ns.s }}` doubled in place `times` times by `doubling`.
fn doubled(doubling: &str, times: usize) -> String {
    format!(
        "{{% set ns = namespace(s='0123456789abcdef') %}}{{% for i in range({times}) %}}{{% set ns.s = {doubling} %}}{{% endfor %}}{{{{ ns.s | length }}}}"
    )
}

#[test]
fn long_expressions_do_not_overflow_the_stack() {
    let many = |part: &str| part.repeat(20_000);
    for (name, template) in [
        ("not", format!("{{{{ {}true }}}}", many("not "))),
        ("minus", format!("{{{{ {}1 }}}}", many("-"))),
        ("sum", format!("{{{{ {}1 }}}}", many("1 + "))),
        ("power", format!("{{{{ {}1 }}}}", many("1 ** "))),
        ("joined", format!("{{{{ {}'a' }}}}", many("'a' ~ "))),
        ("or", format!("{{{{ {}true }}}}", many("false or "))),
        ("filters", format!("{{{{ 'a' {} }}}}", many("| trim "))),
        ("attributes", format!("{{{{ a{} }}}}", many(".b"))),
        ("items", format!("{{{{ a{} }}}}", many("[0]"))),
        ("calls", format!("{{{{ a{} }}}}", many("()"))),
        ("tests", format!("{{{{ a {} }}}}", many("is defined "))),
        ("comparisons", format!("{{{{ 1 {} }}}}", many("< 1 "))),
        ("ternaries", format!("{{{{ {}1 }}}}", many("1 if 0 else "))),
        ("lists", format!("{{{{ {}{} }}}}", many("["), many("]"))),
        ("parentheses", format!("{{{{ {}1{} }}}}", many("("), many(")"))),
        ("elif", format!("{{% if a %}}{}{{% endif %}}", many("{% elif b %}x"))),
        ("if", format!("{}{}", many("{% if true %}"), many("{% endif %}"))),
        ("for", format!("{}{}", many("{% for x in [1] %}"), many("{% endfor %}"))),
        ("length", "x".repeat(2 << 20)),
    ] {
        assert_refused(name, &template);
    }
}

#[test]
fn expressions_just_within_the_bound_are_compiled_and_run() {
    for template in [
        format!("{{{{ {}true }}}}", "not ".repeat(3900)),
        format!("{{{{ {}'a' }}}}", "'a' ~ ".repeat(1900)),
        format!("{{{{ 'a' {} }}}}", "| trim ".repeat(1900)),
        format!("{{% if a %}}{}{{% endif %}}", "{% elif b %}x".repeat(900)),
    ] {
        render(&template).unwrap();
    }
}

#[test]
fn values_within_themselves_do_not_overflow_the_stack() {
    for (name, template) in [
        ("itself", "{% set ns = namespace() %}{% set ns.ns = ns %}{{ ns }}"),
        ("in a list", "{% set ns = namespace() %}{% set ns.l = [ns] %}{{ ns }}"),
        ("each other", "{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}{{ a }}"),
        (
            "nested lists",
            "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
        ),
        (
            "nested lists that nobody prints",
            "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}",
        ),
        (
            "nested maps",
            "{% set ns = namespace(l={}) %}{% for i in range(100000) %}{% set ns.l = {'a': ns.l} %}{% endfor %}",
        ),
        (
            "a list twice in the next",
            "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
        ),
        ("a macro that calls itself", "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"),
        (
            "a loop that calls itself",
            "{% set l = [[1]] %}{% for x in l recursive %}{{ loop(l) }}{% endfor %}",
        ),
    ] {
        assert_refused(name, template);
    }
    let straight = "{% set l = [] %}".to_owned() + &"{% set l = [l] %}".repeat(30_000) + "{{ l == l }}";
    assert_refused("nested lists without a loop", &straight);
}

#[test]
fn texts_that_grow_do_not_take_the_memory() {
    for (name, template) in [
        ("~", doubled("ns.s ~ ns.s", 40)),
        ("+", doubled("ns.s + ns.s", 40)),
        ("*", doubled("ns.s * 16", 10)),
        ("replace", doubled("ns.s | replace('0', ns.s)", 40)),
        ("replace by nothing", doubled("ns.s | replace('', ns.s)", 40)),
        (".replace", doubled("ns.s.replace('0', ns.s)", 40)),
        ("join", doubled("[ns.s, ns.s] | join(ns.s)", 40)),
        ("join of letters", doubled("ns.s | join(ns.s)", 40)),
        (".join", doubled("ns.s.join([ns.s, ns.s])", 40)),
        ("format", doubled("'%s%s' | format(ns.s, ns.s)", 40)),
        (".format", doubled("'{0}{0}'.format(ns.s)", 40)),
        ("indent", doubled("(ns.s ~ '\n' ~ ns.s) | indent(100000000)", 2)),
        ("list +", doubled("((ns.s | list) + (ns.s | list)) | join", 40)),
        ("capture", "{% set t %}{% for i in range(9999) %}{% for j in range(999) %}raw text raw text{% endfor %}{% endfor %}{% endset %}{{ t | length }}".into()),
        ("set block", "{% set ns = namespace(s='0123456789') %}{% for i in range(40) %}{% set t %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = t %}{% endfor %}".into()),
        ("macro", "{% macro f(s) %}{{ s }}{{ s }}{% endmacro %}{% set ns = namespace(s='0123456789') %}{% for i in range(40) %}{% set ns.s = f(ns.s) %}{% endfor %}".into()),
        ("output", "{% set s = '0123456789' %}{% set s = s * 100000 %}{% for i in range(100000) %}{{ s }}{% endfor %}".into()),
        ("raw output", format!("{{% for i in range(100000) %}}{}{{% endfor %}}", "x".repeat(100_000))),
        ("printf", "{{ '%1000000000d' | format(1) }}".into()),
        ("printf *", "{{ '%*d' | format(1000000000, 1) }}".into()),
        ("precision", "{{ '%.1000000000f' | format(1.5) }}".into()),
        ("str.format", "{{ '{:>1000000000}'.format('a') }}".into()),
        ("batch", "{{ [1] | batch(1000000000, 'a') | list }}".into()),
        ("slice", "{{ [1] | slice(1000000000, 'a') | list }}".into()),
        ("list *", "{% set l = [1] %}{{ (l * 100000000) | list | length }}".into()),
        ("arguments", "{% set l = [1] %}{{ dict(*(l * 100000000)) }}".into()),
        ("constant list *", "{{ ([1] * 100000000) | list | length }}".into()),
        ("constant text *", "{{ ('a' * 100000000) ~ ('a' * 100000000) }}".into()),
        ("constant power", "{{ 'a' * 10 ** 8 }}".into()),
        ("many constants", "{{ 'a' * 1000000 }}".repeat(20)),
        ("tojson", "{{ [1] | tojson(indent=1000000000) }}".into()),
        ("tojson of much", "{% set l = range(100000) | list %}{{ [l, l, l, l, l, l, l, l, l] | tojson(indent=64) }}".into()),
        ("sum", "{{ (range(100000) | map('string') | list) | sum(start='') | length }}".into()),
        ("many names", (0..100).map(|i| format!("{{% set a = 'a' %}}{{% set v{i} = a * 16000000 %}}")).collect()),
    ] {
        assert_refused(name, &template);
    }
}

#[test]
fn the_padding_of_json_is_no_panic() {
    assert_eq!(
        render("{{ [1, {'a': []}] | tojson(indent=2) }}").unwrap(),
        "[\n  1,\n  {\n    \"a\": []\n  }\n]"
    );
    assert!(render("{{ [1] | tojson(indent=70000) }}").is_err());
}

/// What the engine itself cannot do must not end the program either.
#[test]
fn a_panic_of_the_engine_is_an_error() {
    for template in [
        "{{ 'abc'[0:2:-1] }}",
        "{{ 'abc'[::-9223372036854775808] }}",
        &format!("{{{{ f({}) }}}}", "1,".repeat(1900)),
    ] {
        let _ = render(template);
    }
}

/// Writing a number that is not whole within n lists took 2ⁿ steps.
#[test]
fn deep_values_of_a_request_are_written_in_linear_time() {
    let mut deep = json!(1.5);
    for _ in 0..100 {
        deep = json!([deep]);
    }
    let message = Message::new("user", "x").with("deep", deep);
    let template = ChatTemplate::new("{{ messages[0].deep }}{{ messages[0].deep | string }}").unwrap();
    let text = template.render(&[message], &RenderOptions::default()).unwrap();
    let once = format!("{}1.5{}", "[".repeat(100), "]".repeat(100));
    assert_eq!(text, format!("{once}{once}"));
}

#[test]
fn names_of_the_measuring_functions_cannot_be_given() {
    let variables: Value =
        json!({"value that is made": 1, "value that is shared": 2, "values joined": 3, "fine": "f"});
    let Value::Object(variables) = variables else { unreachable!() };
    let options = RenderOptions { variables, ..RenderOptions::default() };
    let template = ChatTemplate::new("{{ fine ~ '!' }}{{ debug is defined }}").unwrap();
    assert_eq!(template.render(&[], &options).unwrap(), "f!False");
}

/// What people really send: a prompt of 200 KB, and 500 messages, through every template of the tests.
#[test]
fn large_conversations_are_no_bombs() {
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/chat");
    let mut templates = 0;
    for folder in [data.clone(), data.join("families")] {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|ext| ext != "jinja") {
                continue;
            }
            templates += 1;
            let template = ChatTemplate::new(&std::fs::read_to_string(&path).unwrap()).unwrap();
            let long = "word ".repeat(40_000);
            let few = [Message::new("user", long.clone())];
            let many: Vec<Message> = (0..500)
                .map(|i| Message::new(if i % 2 == 0 { "user" } else { "assistant" }, "word ".repeat(800)))
                .collect();
            for messages in [&few[..], &many] {
                match template.render(messages, &RenderOptions::default()) {
                    Ok(text) => assert!(text.len() >= messages.len() * 4000, "{}", path.display()),
                    Err(ChatError::Refused(_)) => {}
                    Err(other) => panic!("{}: {other}", path.display()),
                }
            }
        }
    }
    assert!(templates > 10, "{templates} templates");
}
