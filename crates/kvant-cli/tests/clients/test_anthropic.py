"""The anthropic package, as people use it, against a server whose model knows tools."""

import os

import anthropic
import pytest

OPEN, LOCKED = os.environ["KVANT_OPEN"], os.environ["KVANT_LOCKED"]
KEY = "sesame"
HELLO = [{"role": "user", "content": "hello"}]
# Whatever a client calls the model, the one that is served answers.
MODEL = "claude-sonnet-4-5"
# The package has no argument for it any more.
GREEDY = {"extra_body": {"temperature": 0}}

WEATHER = {
    "name": "weather",
    "description": "Forecasts it.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def connect(base=OPEN, key="none"):
    return anthropic.Anthropic(base_url=base, api_key=key, max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def client():
    return connect()


def test_a_message_is_answered_and_counted(client):
    ask = dict(model=MODEL, messages=HELLO, max_tokens=12, **GREEDY)
    message = client.messages.create(**ask)
    (block,) = message.content
    assert message.role == "assistant" and block.type == "text" and message.model == "model"
    assert message.stop_reason in ("end_turn", "max_tokens")
    count = client.messages.count_tokens(model=MODEL, messages=HELLO)
    usage = message.usage
    assert count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    again = client.messages.create(**ask)
    assert again.content == message.content and again.id != message.id


def test_prompts_that_begin_alike_are_read_once(client):
    ask = dict(model=MODEL, max_tokens=4, **GREEDY, messages=[{"role": "user", "content": "the rain in spain " * 10}])
    first, second = (client.messages.create(**ask) for _ in range(2))
    assert second.usage.cache_read_input_tokens >= 64 and first.content == second.content


def test_a_stream_says_what_the_whole_says(client):
    ask = dict(model=MODEL, messages=HELLO, max_tokens=20, **GREEDY, system=[{"type": "text", "text": "Be brief."}])
    whole = client.messages.create(**ask)
    with client.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens and final.stop_reason == whole.stop_reason


def test_tools_are_called_and_their_results_taken(client):
    ask = dict(model=MODEL, messages=HELLO, tools=[WEATHER], max_tokens=200)
    message = client.messages.create(**ask, tool_choice={"type": "tool", "name": "weather"})
    (call,) = message.content
    assert message.stop_reason == "tool_use" and call.type == "tool_use" and call.input["city"] in ("Oslo", "Rome")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sun"}
    turns = HELLO + [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    after = client.messages.create(**{**ask, "messages": turns, "max_tokens": 5})
    read = lambda usage: usage.input_tokens + usage.cache_read_input_tokens
    assert read(after.usage) > read(message.usage)
    with client.messages.stream(**ask, tool_choice={"type": "any"}) as stream:
        (streamed,) = stream.get_final_message().content
    assert streamed.type == "tool_use" and streamed.input["city"] in ("Oslo", "Rome")


def test_errors_are_those_the_package_knows(client):
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(model=MODEL, messages=[], max_tokens=2)
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    assert connect(LOCKED, KEY).messages.create(model=MODEL, messages=HELLO, max_tokens=2).content
    with pytest.raises(anthropic.AuthenticationError):
        connect(LOCKED, "wrong").messages.create(model=MODEL, messages=HELLO, max_tokens=2)
