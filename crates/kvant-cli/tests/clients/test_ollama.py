"""The ollama package, as people use it, against a server whose model knows tools."""

import os

import ollama
import pytest

OPEN = os.environ["KVANT_OPEN"]
HELLO = [{"role": "user", "content": "hello"}]
OPTIONS = {"temperature": 0, "num_predict": 12}


def time(city: str) -> str:
    """The time in a city.

    Args:
        city: Where.
    """
    return f"noon in {city}"


@pytest.fixture(scope="module")
def client():
    return ollama.Client(host=OPEN)


def test_the_model_is_found(client):
    (model,) = client.list().models
    assert model.model == "model"
    shown = client.show("model")
    assert "completion" in shown.capabilities and shown.modelinfo["general.architecture"] == "qwen2"
    (running,) = client.ps().models
    assert running.model == "model" and running.context_length == 320


def test_a_chat_comes_whole_and_in_pieces(client):
    whole = client.chat("model", messages=HELLO, options=OPTIONS)
    assert whole.message.role == "assistant" and whole.message.content and whole.done
    assert whole.eval_count <= 12 and whole.prompt_eval_count > 0
    pieces = list(client.chat("model:latest", messages=HELLO, options=OPTIONS, stream=True))
    assert "".join(piece.message.content for piece in pieces) == whole.message.content
    assert pieces[-1].done and pieces[-1].eval_count == whole.eval_count


def test_texts_are_generated(client):
    raw = client.generate("model", "the rain", raw=True, options=OPTIONS)
    pieces = client.generate("model", "the rain", raw=True, options=OPTIONS, stream=True)
    assert "".join(piece.response for piece in pieces) == raw.response


def test_answers_keep_to_a_schema(client):
    answer = client.chat("model", messages=HELLO, format={"type": "boolean"}, options={"num_predict": 50})
    assert answer.message.content in ("true", "false")


def test_tools_are_offered_and_results_taken(client):
    turns = HELLO + [
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "time", "arguments": {"city": "Oslo"}}}]},
        {"role": "tool", "tool_name": "time", "content": time("Oslo")},
    ]
    answer = client.chat("model", messages=turns, tools=[time], options=OPTIONS)
    assert answer.prompt_eval_count > client.chat("model", messages=HELLO, tools=[time], options=OPTIONS).prompt_eval_count


def test_texts_become_vectors(client):
    answer = client.embed("model", ["red", "green", "red"])
    first, second, third = answer.embeddings
    assert first == third != second and sum(x * x for x in first) == pytest.approx(1, abs=1e-4)


def test_errors_are_those_the_package_knows(client):
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat("model", messages=[{"role": "user", "content": "long " * 400}])
    assert caught.value.status_code == 400 and "context" in caught.value.error
