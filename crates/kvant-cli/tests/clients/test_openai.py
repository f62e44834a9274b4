"""The openai package, as people use it, against two servers: one that is open and one that wants a key.

The model is tiny and talks nonsense, so what is tested is the form of answers, their counts, and that they are the same
for the same seed. Whatever is sent in pieces is also held to the server's own description, which schemathesis cannot do.
"""

import json
import os
import time
import urllib.request

import jsonschema_rs
import openai
import pytest
from pydantic import BaseModel

OPEN, LOCKED, STRICT = (os.environ[f"KVANT_{name}"] for name in ("OPEN", "LOCKED", "STRICT"))
KEY = "sesame"
MODEL = "model"
HELLO = [{"role": "user", "content": "hello"}]
# The token that ends a text, which the model would choose at any moment.
ENDLESS = {"logit_bias": {"2": -100}}

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 9}, "days": {"enum": [1, 2, 7]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function", "function": {"name": "time"}}


def connect(base=OPEN, key="none"):
    return openai.OpenAI(base_url=f"{base}/v1", api_key=key, max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def client():
    return connect()


def get(path):
    with urllib.request.urlopen(f"{OPEN}{path}") as answer:
        return answer.read().decode()


@pytest.fixture(scope="module")
def schema():
    """A validator for one of the schemas of the server's description."""
    components = json.loads(get("/openapi.json"))["components"]

    def validator(name):
        return jsonschema_rs.validator_for({"$ref": f"#/components/schemas/{name}", "components": components})

    return validator


def counter(name):
    line = next(line for line in get("/metrics").splitlines() if line.startswith(f"kvant_{name}{{"))
    return float(line.split()[1])


def wait_for(reached):
    end = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_model_is_listed_and_found(client):
    models = client.models.list().data
    assert [model.id for model in models] == [MODEL]
    assert client.models.retrieve(MODEL) == models[0]
    assert models[0].object == "model" and models[0].owned_by == "kvant"


def test_a_chat_is_answered_and_counted(client):
    ask = dict(model=MODEL, messages=HELLO, max_tokens=12, seed=7, **ENDLESS)
    answer = client.chat.completions.create(**ask)
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and choice.message.content and choice.finish_reason == "length"
    usage = answer.usage
    assert usage.completion_tokens == 12 and usage.prompt_tokens > 0
    assert usage.total_tokens == usage.prompt_tokens + 12
    again = client.chat.completions.create(**ask)
    assert again.choices == answer.choices and again.id != answer.id
    other = client.chat.completions.create(**{**ask, "seed": 8})
    assert other.choices[0].message.content != choice.message.content


def test_prompts_that_begin_alike_are_read_once(client):
    # A page holds 64 tokens.
    messages = [{"role": "user", "content": "the rain in spain " * 10}]
    ask = dict(model=MODEL, messages=messages, max_completion_tokens=4, temperature=0)
    first, second = (client.chat.completions.create(**ask) for _ in range(2))
    assert second.usage.prompt_tokens_details.cached_tokens >= 64
    assert first.choices == second.choices


def test_a_stream_says_what_the_whole_says(client, schema):
    ask = dict(model=MODEL, messages=HELLO, max_tokens=20, seed=3, n=2, **ENDLESS)
    whole = client.chat.completions.create(**ask)
    pieces = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    texts, ends = ["", ""], [None, None]
    for piece in pieces[:-1]:
        assert piece.usage is None
        (choice,) = piece.choices
        texts[choice.index] += choice.delta.content or ""
        ends[choice.index] = choice.finish_reason or ends[choice.index]
    assert texts == [choice.message.content for choice in whole.choices] and texts[0] != texts[1]
    assert ends == ["length", "length"]
    last = pieces[-1]
    assert last.choices == [] and last.usage.completion_tokens == whole.usage.completion_tokens == 40
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert {piece.id for piece in pieces} == {last.id}


@pytest.mark.parametrize(
    "create, ask, name",
    [
        ("chat", {"messages": HELLO, "logprobs": True, "top_logprobs": 2}, "ChatPiece"),
        ("chat", {"messages": HELLO, "tools": [WEATHER], "tool_choice": "required", "max_tokens": 200}, "ChatPiece"),
        ("text", {"prompt": "hello", "logprobs": 2}, "TextPiece"),
        ("text", {"prompt": ["hello", "you"], "echo": True}, "TextPiece"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": True}}])
def test_pieces_are_as_described(client, schema, create, ask, name, options):
    completions = client.chat.completions if create == "chat" else client.completions
    create = completions.with_raw_response.create
    raw = create(**{"model": MODEL, "max_tokens": 6, "seed": 1, "stream": True, **ask, **options})
    *events, done, rest = raw.http_response.read().decode().split("\n\n")
    assert done == "data: [DONE]" and rest == "" and len(events) > 1
    validator = schema(name)
    for event in events:
        validator.validate(json.loads(event.removeprefix("data: ")))


def test_probabilities_come_with_chats_and_texts(client):
    ask = dict(model=MODEL, max_tokens=5, temperature=0, **ENDLESS)
    chat = client.chat.completions.create(messages=HELLO, logprobs=True, top_logprobs=3, **ask)
    tokens = chat.choices[0].logprobs.content
    assert len(tokens) == 5
    for token in tokens:
        # Greedy: what was chosen is the likeliest.
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token and token.top_logprobs[0].logprob == token.logprob
    text = client.completions.create(prompt="the rain", logprobs=2, **ask)
    lists = text.choices[0].logprobs
    assert len(lists.tokens) == len(lists.token_logprobs) == len(lists.text_offset) == 5
    assert "".join(lists.tokens).strip() == text.choices[0].text.strip()
    assert all(len(top) <= 2 and token in top for top, token in zip(lists.top_logprobs, lists.tokens))


def test_texts_are_continued(client):
    answer = client.completions.create(model=MODEL, prompt=["one", "two"], n=2, max_tokens=4, seed=1, **ENDLESS)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.completion_tokens == 16
    echo = client.completions.create(model=MODEL, prompt="one", max_tokens=0, echo=True)
    assert echo.choices[0].text == "one" and echo.usage.completion_tokens == 0


class Person(BaseModel):
    name: str
    age: int


def test_answers_keep_to_a_schema(client):
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "kind": {"enum": ["cat", "dog"]},
            "age": {"type": "integer", "minimum": 0, "maximum": 30},
        },
        "required": ["name", "kind", "age"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "pet", "schema": schema, "strict": True}}
    for seed in range(4):
        ask = dict(model=MODEL, messages=HELLO, max_tokens=150, temperature=1.3, seed=seed)
        answer = client.chat.completions.create(**ask, response_format=form)
        assert answer.choices[0].finish_reason == "stop"
        jsonschema_rs.validate(schema, json.loads(answer.choices[0].message.content))
    # The package makes the schema. Nothing bounds the text, so the model may talk until it is cut off.
    try:
        ask = dict(model=MODEL, messages=HELLO, response_format=Person, seed=1, temperature=0.5)
        parsed = client.chat.completions.parse(**ask).choices[0].message.parsed
        assert isinstance(parsed, Person)
    except openai.LengthFinishReasonError as error:
        assert error.completion.choices[0].message.content.startswith('{"name": "')


def test_tools_are_called_as_they_must_be(client):
    ask = dict(model=MODEL, messages=HELLO, tools=[WEATHER, TIME], max_tokens=200, temperature=1.2)
    named = {"type": "function", "function": {"name": "weather"}}
    answer = client.chat.completions.create(**ask, tool_choice=named, seed=2)
    (choice,) = answer.choices
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert call.type == "function" and call.function.name == "weather"
    jsonschema_rs.validate(WEATHER["function"]["parameters"], json.loads(call.function.arguments))
    for seed in range(3):
        answer = client.chat.completions.create(**ask, tool_choice="required", seed=seed)
        assert answer.choices[0].message.tool_calls[0].function.name in ("weather", "time")
    free = client.chat.completions.create(**ask, tool_choice="none", seed=2)
    assert free.choices[0].message.tool_calls is None
    # What came goes back as it is, with the result.
    messages = HELLO + [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "sun"}]
    after = client.chat.completions.create(**{**ask, "messages": messages, "max_tokens": 5}, seed=2)
    assert after.usage.prompt_tokens > answer.usage.prompt_tokens
    with client.chat.completions.stream(**ask, tool_choice=named, seed=2) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == "tool_calls"
    assert streamed.message.tool_calls[0].function.arguments == call.function.arguments


def test_texts_become_vectors(client):
    # The package asks for base64 unless told otherwise.
    packed = client.embeddings.create(model=MODEL, input=["red", "green", "red"])
    plain = client.embeddings.create(model=MODEL, input=["red", "green", "red"], encoding_format="float")
    vectors = [entry.embedding for entry in plain.data]
    assert [entry.index for entry in packed.data] == [0, 1, 2]
    assert vectors[0] == vectors[2] != vectors[1]
    for one, other in zip(packed.data, vectors):
        assert one.embedding == pytest.approx(other, abs=1e-7)
        assert sum(x * x for x in other) == pytest.approx(1, abs=1e-4)
    assert packed.usage.total_tokens == packed.usage.prompt_tokens > 0


@pytest.mark.parametrize(
    "ask, kind, param",
    [
        ({"temperature": 9}, openai.BadRequestError, "temperature"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"messages": [{"role": "user", "content": "long " * 400}]}, openai.BadRequestError, None),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "x"}}}},
         openai.BadRequestError, "response_format"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_those_the_package_knows(client, ask, kind, param, stream):
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**{"model": MODEL, "messages": HELLO, "stream": stream, **ask})
    error = caught.value
    assert error.param == param and error.type == "invalid_request_error" and error.body["message"]


def test_unknown_names_and_fields_are_no_obstacle(client):
    ask = dict(model="gpt-4o", messages=HELLO, max_tokens=4, seed=1)
    raw = client.chat.completions.with_raw_response.create(**ask, extra_body={"temprature": 1}, verbosity="low")
    assert raw.headers["x-kvant-ignored-fields"] == "temprature, verbosity"
    assert raw.parse().model == MODEL
    for kind, more in ((openai.NotFoundError, {}), (openai.BadRequestError, {"model": MODEL})):
        with pytest.raises(kind):
            strict = openai.OpenAI(base_url=f"{STRICT}/v1", api_key="none", max_retries=0)
            strict.chat.completions.create(**{**ask, **more}, extra_body={"temprature": 1})


def test_keys_are_asked_for():
    ask = dict(model=MODEL, messages=HELLO, max_tokens=2)
    assert connect(LOCKED, KEY).chat.completions.create(**ask).choices
    for call in (
        lambda client: client.chat.completions.create(**ask),
        lambda client: client.models.list(),
        lambda client: client.embeddings.create(model=MODEL, input="x"),
    ):
        with pytest.raises(openai.AuthenticationError) as caught:
            call(connect(LOCKED, "wrong"))
        assert caught.value.code == "invalid_api_key"


def test_a_stream_that_is_left_is_ended(client):
    before = counter("request_aborted_total")
    # Several long answers, so that there is something left to end.
    ask = dict(model=MODEL, messages=HELLO, n=16, stream=True, **ENDLESS)
    with client.chat.completions.create(**ask) as stream:
        next(iter(stream))
    wait_for(lambda: counter("request_aborted_total") > before)
    wait_for(lambda: counter("num_requests_running") == 0)
    assert client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=2).choices


def test_many_at_once_get_what_each_gets_alone():
    import asyncio

    ask = dict(model=MODEL, messages=HELLO, max_tokens=16, **ENDLESS)

    async def together():
        async with openai.AsyncOpenAI(base_url=f"{OPEN}/v1", api_key="none", max_retries=0) as client:
            asks = (client.chat.completions.create(**ask, seed=seed) for seed in range(8))
            return [answer.choices for answer in await asyncio.gather(*asks)]

    alone = [connect().chat.completions.create(**ask, seed=seed).choices for seed in range(8)]
    assert asyncio.run(together()) == alone
