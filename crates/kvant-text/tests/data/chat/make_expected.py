"""Writes cases.json: what Jinja2, set up as transformers' apply_chat_template does, makes of the templates here.

    pip install jinja2==3.1.6
    python make_expected.py

smollm2, qwen2.5 and tinyllama are the templates of those models (Apache-2.0); the others are written for these
tests with the constructs of the models they are named after. Those in families/ think and call tools, each in the
format that its family published. With the name of a folder, the same conversations go through the templates in that
folder instead:

    python make_expected.py FOLDER
    KVANT_CHAT_TEMPLATES=FOLDER cargo nextest run -p kvant-model families
"""

import datetime
import json
import pathlib
import sys

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent
NOW = 1721953805


class Generation(Extension):
    """{% generation %} marks text for training and writes it unchanged."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_write"), [], [], body).set_lineno(line)

    def _write(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
env.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(f)

user = {"role": "user", "content": "Hello there!"}
system = {"role": "system", "content": " You are terse. "}
reply = {"role": "assistant", "content": "Hi. <|im_end|>\n"}
more = {"role": "user", "content": "日本語 👍 \"q\"?"}
tool = {"type": "function", "function": {"name": "weather", "description": "The weather <now> & 'here'", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Köln", "東京"]}, "days": {"type": "integer"}},
    "required": ["city"]}}}
clock = {"type": "function", "function": {"name": "clock", "description": "Time", "parameters": {}}}
calls = {"role": "assistant", "content": None, "tool_calls": [
    {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln", "days": 2}}}]}
two = {"role": "assistant", "content": "Looking.", "tool_calls": calls["tool_calls"] + [
    {"id": "123456789", "type": "function", "function": {"name": "clock", "arguments": {}}}]}
result = {"role": "tool", "content": "{\"temp\": 21.5}", "tool_call_id": "abcdefghi", "name": "weather"}
bos, eos = {"bos_token": "<s>"}, {"eos_token": "</s>"}

CONVERSATIONS = [
    ([user], {}),
    ([system, user], {}),
    ([user, reply, more], {}),
    ([system, user, reply, more], {"add_generation_prompt": False}),
    ([system, user], {"tools": [tool]}),
    ([user], {"tools": [tool, clock]}),
    ([user, calls, result, reply, more], {"tools": [tool]}),
    ([user, two, result, result | {"content": "12:00"}, reply], {"tools": [tool, clock]}),
    ([user, user], {}),
    ([reply], {}),
    ([user, reply, system], {}),
]
CONSTRUCTS = [
    ([user, {"role": "skip", "content": "no"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello", "name": "bob"},
      {"role": "stop", "content": ""}, user], {"extra_variable": {"k": [1, "v"]}}),
    ([more], {"tools": [tool], "extra_variable": False}),
]


# Reasoning under both names that templates know.
thought = {"reasoning_content": "Let me\n\nsee.", "thinking": "Let me\n\nsee."}
odd = {"city": "Köln", "text": "it's \"so\"\n<b>", "days": 2, "tiny": 1e-05, "huge": 1e16, "whole": 21.0, "yes": True,
       "none": None, "list": [1, "a", {"b": []}], "map": {"z": 1, "A": "b"}}
schema = {"type": "function", "function": {"name": "book", "description": "Books \n a <table>", "parameters": {
    "type": "object", "required": ["who", "when"], "properties": {
        "who": {"type": "string", "description": "For whom", "enum": ["me", "us"]},
        "when": {"type": ["string", "null"], "default": "now"},
        "seats": {"type": "array", "items": {"type": "integer"}, "nullable": True},
        "wishes": {"type": "array", "items": {"type": "object", "properties": {"what": {"type": "string"}}}},
        "price": {"type": "number", "default": 12.5, "minimum": 0},
        "extra": {"type": "object", "properties": {"quiet": {"type": "boolean"}}, "required": ["quiet"]},
        "either": {"oneOf": [{"type": "string", "default": "x"}, {"type": "number", "description": "how many"}]}}}}}


def calling(*calls, content="", **more):
    return {"role": "assistant", "content": content, "tool_calls": [
        {"id": f"call{i}abcd", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(calls)], **more}


FAMILIES = [
    ([user], {}),
    ([system, user], {"enable_thinking": False}),
    ([user], {"enable_thinking": True, "reasoning_effort": "high"}),
    ([system, user, reply | thought, more], {}),
    ([user, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi."}, more], {"add_generation_prompt": False}),
    ([user, reply | thought], {"add_generation_prompt": False}),
    ([system, user], {"tools": [tool, clock, schema], "enable_thinking": True}),
    ([user, calling(("weather", odd), **thought), result], {"tools": [tool]}),
    ([user, calling(("weather", {"city": "東京"}), ("clock", {}), content="Looking."), result,
      result | {"content": "12:00", "tool_call_id": "call1abcd", "name": "clock"}, reply | thought, more],
     {"tools": [tool, clock]}),
    ([user, calling(("clock", {})) | {"content": None}, result], {"tools": [clock]}),
]


def render(template, messages, options, case):
    context = {"messages": messages, "tools": None, "add_generation_prompt": True, **bos, **eos, **options}
    try:
        case["text"] = template.render(**context)
    except (jinja2.exceptions.UndefinedError, jinja2.exceptions.SecurityError) as e:
        case["fails"] = str(e)
    except jinja2.exceptions.TemplateError as e:
        case["refused"] = str(e)
    except (TypeError, AttributeError, KeyError, ValueError, RecursionError) as e:
        case["fails"] = str(e)
    return case


def lines(cases):
    return "[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]"


def families(folder):
    conversations = [{"messages": messages, "options": options} for messages, options in FAMILIES]
    texts = {}
    for path in sorted(folder.glob("*.jinja")):
        template = env.from_string(path.read_text())
        texts[path.stem] = [render(template, messages, options, {}) for messages, options in FAMILIES]
    parts = ",\n".join(f"{json.dumps(name)}: {lines(found)}" for name, found in texts.items())
    (folder / "cases.json").write_text(f'{{"conversations": {lines(conversations)},\n"texts": {{\n{parts}\n}}}}\n')


def main():
    cases = []
    for path in sorted(HERE.glob("*.jinja")):
        template = env.from_string(path.read_text())
        for messages, options in CONSTRUCTS if path.stem == "constructs" else CONVERSATIONS:
            cases.append(render(template, messages, options, {"template": path.stem, "messages": messages, "options": options}))
    (HERE / "cases.json").write_text(lines(cases) + "\n")
    families(HERE / "families")


if len(sys.argv) > 1:
    families(pathlib.Path(sys.argv[1]))
else:
    main()
