"""The openai package's newer interface, against a server whose model knows tools."""

import json
import os

import openai
import pytest

OPEN = os.environ["KVANT_OPEN"]
WEATHER = {
    "type": "function",
    "name": "weather",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
ASK = dict(model="gpt-anything", temperature=0, max_output_tokens=12)


@pytest.fixture(scope="module")
def client():
    return openai.OpenAI(base_url=f"{OPEN}/v1", api_key="none", max_retries=0, timeout=120)


def test_a_response_is_given_and_gone_on_from(client):
    first = client.responses.create(input="one", **ASK)
    assert first.output_text and first.model == "model" and first.usage.input_tokens > 0
    second = client.responses.create(input="two", previous_response_id=first.id, **ASK)
    turns = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "two"},
    ]
    repeated = client.responses.create(input=turns, **ASK)
    assert second.output_text == repeated.output_text
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(input="x", previous_response_id=first.id, **ASK)


def test_a_stream_says_what_the_whole_says(client):
    whole = client.responses.create(input="tell me", **ASK)
    events = list(client.responses.create(input="tell me", stream=True, **ASK))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    final = events[-1].response
    assert events[-1].type == f"response.{final.status}" and final.status in ("completed", "incomplete")
    assert text == whole.output_text == final.output_text
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_functions_are_called_and_results_taken(client):
    ask = {**ASK, "max_output_tokens": 200, "tools": [WEATHER, {"type": "web_search"}]}
    response = client.responses.create(input="rain?", tool_choice="required", **ask)
    (call,) = response.output
    assert call.type == "function_call" and json.loads(call.arguments)["city"] in ("Oslo", "Rome")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    after = client.responses.create(input=[result], previous_response_id=response.id, **{**ask, "max_output_tokens": 4})
    assert after.usage.input_tokens > response.usage.input_tokens
