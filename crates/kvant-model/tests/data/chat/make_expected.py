"""Writes cases.json: what Jinja2, set up as transformers' apply_chat_template does, makes of the templates here.

    pip install jinja2==3.1.6
    python make_expected.py

smollm2, qwen2.5 and tinyllama are the templates of those models (Apache-2.0); the others are written for these
tests with the constructs of the models they are named after.
"""

import datetime
import json
import pathlib

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


def main():
    cases = []
    for path in sorted(HERE.glob("*.jinja")):
        template = env.from_string(path.read_text())
        for messages, options in CONSTRUCTS if path.stem == "constructs" else CONVERSATIONS:
            context = {"messages": messages, "tools": None, "add_generation_prompt": True, **bos, **eos, **options}
            case = {"template": path.stem, "messages": messages, "options": options}
            try:
                case["text"] = template.render(**context)
            except jinja2.exceptions.UndefinedError as e:
                case["fails"] = str(e)
            except jinja2.exceptions.TemplateError as e:
                case["refused"] = str(e)
            except TypeError as e:
                case["fails"] = str(e)
            cases.append(case)
    text = "[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "\n]\n"
    (HERE / "cases.json").write_text(text)


main()
