"""Libraries that speak to models through OpenAI's, Anthropic's and Ollama's interfaces, as people use them."""

import asyncio
import json
import os
import subprocess
import sys

import pytest

OPEN = os.environ["KVANT_OPEN"]
HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Forecasts it.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize(
    "model, base",
    [("openai/any", f"{OPEN}/v1"), ("ollama_chat/model", OPEN), ("anthropic/claude-any", OPEN)],
)
def test_litellm(model, base):
    import litellm

    ask = dict(model=model, api_base=base, api_key="none", messages=HELLO, max_tokens=12)
    whole = litellm.completion(**ask)
    assert whole.choices[0].message.content and whole.usage.completion_tokens > 0
    pieces = litellm.completion(**ask, stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces)


def test_litellm_calls_tools():
    import litellm

    ask = dict(model="openai/any", api_base=f"{OPEN}/v1", api_key="none", messages=HELLO, max_tokens=200)
    answer = litellm.completion(**ask, tools=[WEATHER], tool_choice="required")
    call = answer.choices[0].message.tool_calls[0]
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")


def test_langchain():
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(model="any", base_url=f"{OPEN}/v1", api_key="none", max_tokens=12, max_retries=0)
    assert chat.invoke("hello").content
    assert "".join(piece.content for piece in chat.stream("hello"))
    schema = {"title": "pet", "type": "object", "properties": {"kind": {"enum": ["cat", "dog"]}}, "required": ["kind"], "additionalProperties": False}
    kept = ChatOpenAI(model="any", base_url=f"{OPEN}/v1", api_key="none", max_tokens=100).with_structured_output(schema, method="json_schema")
    assert kept.invoke("a pet")["kind"] in ("cat", "dog")


def test_instructor():
    import instructor
    import openai
    from typing import Literal
    from pydantic import BaseModel

    class Pet(BaseModel):
        kind: Literal["cat", "dog"]

    client = instructor.from_openai(openai.OpenAI(base_url=f"{OPEN}/v1", api_key="none"), mode=instructor.Mode.JSON_SCHEMA)
    pet = client.chat.completions.create(model="any", messages=HELLO, response_model=Pet, max_tokens=100)
    assert pet.kind in ("cat", "dog")


def test_openai_agents_with_the_responses_they_use_by_default():
    import agents
    import openai

    agents.set_tracing_disabled(True)
    agents.set_default_openai_client(openai.AsyncOpenAI(base_url=f"{OPEN}/v1", api_key="none"), use_for_tracing=False)

    @agents.function_tool
    def weather(city: str) -> str:
        """Forecasts it."""
        return "sun"

    settings = agents.ModelSettings(max_tokens=24)
    agent = agents.Agent(name="a", instructions="Be brief.", model="any", tools=[weather], model_settings=settings)
    result = asyncio.run(agents.Runner.run(agent, "hello", max_turns=4))
    assert isinstance(result.final_output, str)


def test_llm():
    import pathlib

    home = pathlib.Path(os.environ["HOME"]) / "llm"
    home.mkdir(exist_ok=True)
    (home / "extra-openai-models.yaml").write_text(
        f"- model_id: kvant\n  model_name: any\n  api_base: {OPEN}/v1\n  api_key_name: none\n"
    )
    command = [sys.executable, "-m", "llm", "-m", "kvant", "--key", "none", "-o", "max_tokens", "12", "hello"]
    done = subprocess.run(command, env={**os.environ, "LLM_USER_PATH": str(home)}, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


@pytest.fixture
def lm_eval_tasks(tmp_path):
    """Three questions, for the likeliest of two endings, and to be gone on with."""
    items = [{"q": f"Question {n}: it is", "gold": n % 2} for n in range(3)]
    (tmp_path / "items.jsonl").write_text("\n".join(map(json.dumps, items)))
    common = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "items.jsonl")}},
        "test_split": "test",
        "doc_to_text": "{{q}}",
        "target_delimiter": " ",
    }
    choice = {"task": "colours", "output_type": "multiple_choice", "doc_to_choice": ["red", "blue"], "doc_to_target": "gold"}
    generation = {"until": ["\n"], "max_gen_toks": 4}
    text = {"task": "goes_on", "output_type": "generate_until", "doc_to_target": "{{gold}}", "generation_kwargs": generation}
    return [
        {**common, **choice, "metric_list": [{"metric": "acc"}]},
        {**common, **text, "metric_list": [{"metric": "exact_match"}]},
    ]


def test_lm_eval_has_likelihoods_and_texts(lm_eval_tasks):
    import lm_eval
    import requests

    where = {"model": "any", "base_url": f"{OPEN}/v1/completions", "tokenizer_backend": "remote", "max_retries": 1}
    found = lm_eval.simple_evaluate(
        model="local-completions", model_args=where, tasks=lm_eval_tasks, bootstrap_iters=0, log_samples=True
    )
    samples = found["samples"]
    assert len(samples["goes_on"]) == 3 and all(isinstance(one["resps"][0][0], str) for one in samples["goes_on"])
    # The sum that it has found is that of the ending's tokens; it wants none that begins a text.
    sample = samples["colours"][0]
    question = sample["doc"]["q"]

    def tokens(text):
        ask = {"prompt": text, "add_special_tokens": False}
        return requests.post(f"{OPEN}/tokenize", json=ask).json()["tokens"]

    begins = len(tokens(question))
    ask = {"prompt": tokens(f"{question} red"), "max_tokens": 0, "echo": True, "logprobs": 1}
    scored = requests.post(f"{OPEN}/v1/completions", json=ask).json()["choices"][0]["logprobs"]["token_logprobs"]
    assert sample["resps"][0][0][0] == pytest.approx(sum(scored[begins:]), abs=1e-3)
