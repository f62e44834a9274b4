"""The engine: texts, conversations, vectors, errors."""

import asyncio
import gc
import json
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import kvant

PROMPT = "The sky is"
GREEDY = {"temperature": 0.0, "max_tokens": 12}


def softmax(logits: np.ndarray) -> np.ndarray:
    exact = np.exp(logits.astype(np.float64) - logits.max())
    return exact / exact.sum()


def greedy_by_steps(engine: kvant.Engine, prompt: str, count: int) -> list[tuple[int, float]]:
    """Tokens and ln p, the naive way."""
    session, found = engine.session(), []
    logits = session.prefill(prompt)
    for _ in range(count):
        token = int(np.argmax(logits))
        found.append((token, float(np.log(softmax(logits)[token]))))
        logits = session.step(token)
    return found


def test_what_is_known_of_a_model(engine):
    info = engine.info
    assert (info.architecture, info.context, info.vocabulary, info.kv) == ("llama", 384, 288, "f32")
    assert info.converses and info.eos == 257 and info.threads == 1
    assert "llama" in repr(engine)


def test_options_are_those_of_kvant_run(engine, folder):
    alike = {"kv": "f32", "ctx": 384, "threads": 1}
    text = engine.generate(PROMPT, **GREEDY).read()
    with kvant.Engine.open(folder, **alike, device="cpu", sinks=4) as own:
        assert own.info.device == "cpu" and own.generate(PROMPT, **GREEDY).read() == text
    with kvant.Engine.open(folder, **alike, device="cpu", chat_template="{{ messages[0].content }}!") as own:
        assert own.detokenize(own.chat_prompt([{"role": "user", "content": "hi"}])).endswith("hi!")
    with kvant.Engine.open(folder, kv="int4", threads=1, device="cpu", sparse_v=0.5) as own:
        assert "sparse" in own.info.kv


def test_a_window_goes_on_without_end(folder):
    with kvant.Engine.open(folder, kv="int4", threads=1, device="cpu", window=64, sinks=4) as own:
        assert own.info.context > 2**32
        session, prompt = own.session(), own.tokenize("a long text " * 60)
        assert len(prompt) > 512, "more than the model has learned"
        first = int(np.argmax(session.prefill(prompt)))
        stream = own.generate(prompt, temperature=0.0, max_tokens=3, logprobs=0)
        assert next(iter(stream)).id == first, "the scheduler's sequences have the same window"


def test_the_samplers_settings_are_typed_as_the_engine_declares_them():
    from kvant import _generation, _kvant

    declared = {name for name, _, _ in _kvant.sampling_settings()}
    other = {"logit_bias", "stop", "max_tokens", "schema", "grammar", "regex"}
    assert set(_generation.Sampling.__annotations__) == declared | other


def test_ids_and_texts(engine):
    ids = engine.tokenize("Grüße, Welt", add_special=False)
    assert engine.detokenize(ids) == "Grüße, Welt"
    assert engine.tokenize("x")[: len(engine.info.prefix)] == engine.info.prefix
    assert engine.tokenize("<|end|>", add_special=False, parse_special=True) == [257]
    with pytest.raises(ValueError, match="288|4000"):
        engine.detokenize([4000])


def test_a_generation_is_what_steps_say(engine):
    expected = greedy_by_steps(engine, PROMPT, 12)
    tokens = list(engine.generate(PROMPT, logprobs=2, **GREEDY))
    assert [token.id for token in tokens] == [token for token, _ in expected]
    assert np.allclose([token.logprob for token in tokens], [ln for _, ln in expected], atol=1e-5)
    for token in tokens:
        assert token.top[0] == (token.id, token.logprob) and len(token.top) == 2
    stream = engine.generate(PROMPT, **GREEDY)
    pieces = list(stream)
    assert all(isinstance(piece, str) and piece for piece in pieces)
    assert "".join(pieces) == stream.text == engine.detokenize([token for token, _ in expected])
    assert stream.finish_reason == "length"
    assert (stream.usage.prompt, stream.usage.generated) == (len(engine.tokenize(PROMPT)), 12)


def test_seeds_repeat_and_stop_strings_end(engine):
    options = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": 24}
    first = engine.generate(PROMPT, seed=5, **options)
    text = first.read()
    assert engine.generate(PROMPT, seed=first.seed, **options).read() == text
    assert engine.generate(PROMPT, seed=6, **options).read() != text
    stop = text[3]
    stopped = engine.generate(PROMPT, seed=5, stop=stop, **options)
    assert stopped.read() == text[: text.index(stop)]
    assert (stopped.finish_reason, stopped.stopped_by) == ("stop", stop)


def test_schemas_grammars_and_expressions_are_kept(engine):
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["blue", "red"]}, "n": {"type": "boolean"}},
        "required": ["colour", "n"],
        "additionalProperties": False,
    }
    found = json.loads(engine.generate("JSON: ", schema=schema, max_tokens=100, seed=1).read())
    assert found["colour"] in ("blue", "red") and isinstance(found["n"], bool)
    assert engine.generate("x", regex="[ab]{4}c", max_tokens=20, seed=1).read()[-1] == "c"
    assert engine.generate("x", grammar='start: "yes" | "no"', max_tokens=20, seed=1).read() in ("yes", "no")
    with pytest.raises(ValueError, match="exclude each other"):
        engine.generate("x", regex="a", grammar='start: "a"')
    with pytest.raises(ValueError, match="cannot be followed"):
        engine.generate("x", regex="(")


def test_a_conversation_has_text_and_calls(engine):
    messages = [{"role": "user", "content": "Hello"}]
    reply = engine.chat(messages, seed=2, max_tokens=16)
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}]
    assert engine.chat_prompt(parts) == engine.chat_prompt(messages)
    system, developer = ([{"role": role, "content": "Be brief."}, *messages] for role in ("system", "developer"))
    assert engine.chat_prompt(developer) == engine.chat_prompt(system)
    assert reply.text and not reply.tool_calls and reply.finish_reason in ("stop", "length")
    assert reply.message["role"] == "assistant" and reply.usage.generated <= 16
    tool = {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Oslo", "Rome"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    reply = engine.chat(messages, [tool], tool_choice="required", seed=2, max_tokens=200)
    assert [call.name for call in reply.tool_calls] == ["weather"]
    assert reply.tool_calls[0].parsed()["city"] in ("Oslo", "Rome")
    assert reply.finish_reason == "tool_calls" and reply.text == ""
    answer = {"role": "tool", "content": "12 degrees"}
    ids = engine.chat_prompt([*messages, reply.message, answer], [tool])
    assert "12 degrees" in engine.detokenize(ids) and "weather" in engine.detokenize(ids)


def test_reasoning_comes_apart(engine):
    # The template opens the reasoning; a model of noise never closes it.
    stream = engine.chat_stream(
        [{"role": "user", "content": "Why?"}], variables={"enable_thinking": True}, seed=4, max_tokens=8
    )
    kinds = {part.kind for part in stream}
    assert kinds == {"reasoning"} and stream.reply.reasoning and stream.reply.text == ""


def test_vectors_are_means_of_length_one(engine):
    texts = ["one", "another text", "x"]
    vectors = engine.embed(texts)
    assert vectors.shape == (3, 64) and vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert np.array_equal(engine.embed("x"), vectors[2])
    assert not np.allclose(engine.embed(texts, pooling="last"), vectors)
    with pytest.raises(ValueError, match="mean, cls or last"):
        engine.embed("x", pooling="max")


def test_encoders_give_vectors_and_refuse_to_write():
    folder = Path(__file__).parents[2] / "crates/kvant-engine/tests/fixtures/encoders/bert"
    with kvant.Engine.open(folder) as encoder:
        vectors = encoder.embed(["the cat", "rain"])
        assert vectors.shape == (2, 16) and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
        assert np.array_equal(encoder.embed("rain", pooling="cls"), vectors[1]), "as 1_Pooling/config.json says"
        assert not np.allclose(encoder.embed("rain", pooling="mean"), vectors[1])
        with pytest.raises(ValueError, match="no text"):
            encoder.generate("the cat", max_tokens=1)


def test_scores_are_those_of_logits(engine):
    ids = engine.tokenize("A text to be scored, and more of it")
    found, likeliest = engine.score(ids, 3)
    session = engine.session()
    logits = session.prefill(ids[:3])
    for ln, best, token in zip(found, likeliest, ids[3:], strict=True):
        assert ln == pytest.approx(np.log(softmax(logits)[token]), abs=1e-4)
        assert best == (token == int(np.argmax(logits)))
        logits = session.step(token)
    # What is shared with the text before is not read again, and changes nothing.
    assert engine.score([*ids[:20], 65, 66], 18)[0][:2] == engine.score(ids, 18)[0][:2]
    for start in (0, len(ids) + 1):
        with pytest.raises(ValueError, match="place"):
            engine.score(ids, start)


def test_many_ask_at_once_and_get_what_they_would_alone(engine):
    prompts = [f"Prompt {n}" for n in range(6)]
    alone = [engine.generate(prompt, **GREEDY).read() for prompt in prompts]
    streams = [engine.generate(prompt, **GREEDY) for prompt in prompts]
    assert [stream.read() for stream in streams] == alone
    found: dict[int, str] = {}

    def ask(n: int) -> None:
        found[n] = engine.generate(prompts[n], **GREEDY).read()

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert [found[n] for n in range(6)] == alone


def test_asyncio(engine):
    async def one(prompt: str) -> str:
        return "".join([piece async for piece in engine.agenerate(prompt, **GREEDY)])

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*(one(f"Prompt {n}") for n in range(4)))

    assert asyncio.run(all_of_them()) == [engine.generate(f"Prompt {n}", **GREEDY).read() for n in range(4)]

    async def leave() -> int:
        count = 0
        stream = engine.generate(PROMPT, temperature=0.0, logprobs=0)
        async for _ in stream:
            count += 1
            if count == 3:
                break
        return count

    assert asyncio.run(leave()) == 3
    with pytest.raises(ValueError, match="empty"):
        asyncio.run(engine.generate([]).aread())


def test_two_engines_in_two_threads(folder):
    results: dict[int, str] = {}

    def run(n: int) -> None:
        with kvant.Engine.open(folder, kv="int4", ctx=256, threads=1) as own:
            results[n] = own.generate(PROMPT, **GREEDY).read()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert results[0] == results[1] != ""


def test_the_gil_is_released(folder):
    # While a text is read, this thread counts; with the GIL held it would not get a word in.
    with kvant.Engine.open(folder, kv="int4", ctx=512, threads=1) as own:
        session, ids, state = own.session(), [n % 200 for n in range(500)], []

        def read() -> None:
            state.append("begun")
            session.prefill(ids)
            state.append("done")

        worker = threading.Thread(target=read)
        worker.start()
        while not state:
            pass
        counted = 0
        while len(state) < 2:
            counted += 1
        worker.join()
        assert counted > 10


def test_streams_can_be_left(engine):
    with engine.generate(PROMPT, temperature=0.0) as stream:
        next(stream)
    assert list(stream) == [] and stream.finish_reason == "cancelled"
    stream = engine.generate(PROMPT, temperature=0.0)
    next(stream)
    del stream
    gc.collect()
    assert engine.generate(PROMPT, **GREEDY).read()


@pytest.fixture
def ctrl_c():
    """Ctrl-C as Python has it, also where the tests were started with it switched off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_signal_ends_the_wait(folder, ctrl_c):
    import _thread

    with kvant.Engine.open(folder, kv="int4", ctx=512, threads=1) as own:
        # A text as long as the context, so that there is something to interrupt.
        stream = own.generate("x", temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, logit_bias={257: float("-inf")}, seed=1)

        def interrupt() -> None:
            time.sleep(0.05)
            _thread.interrupt_main()

        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            while True:
                for _ in stream:
                    pass
                stream = own.generate("y", max_tokens=400, seed=1)
        assert own.generate(PROMPT, **GREEDY).read()


def test_bad_input_is_an_exception_with_kvants_words(engine, folder, tmp_path):
    cases = [
        (lambda: kvant.Engine.open(tmp_path / "nowhere.gguf"), FileNotFoundError, "no such file"),
        (lambda: kvant.Engine.open(folder, kv="int5"), ValueError, "int5"),
        (lambda: kvant.Engine.open(folder, ctx=0), ValueError, "ctx is 0"),
        (lambda: kvant.Engine.open(folder, ctx=-1), ValueError, "ctx is -1"),
        (lambda: kvant.Engine.open(folder, threads=1.5), TypeError, "threads is 1.5"),
        (lambda: kvant.Engine.open(folder, activations="f64"), ValueError, "f64"),
        (lambda: kvant.Engine.open(folder, weights="int3"), ValueError, "int3"),
        (lambda: kvant.Engine.open(folder, device="tpu"), ValueError, "`tpu` is not a device: there are auto, cpu"),
        (lambda: kvant.Engine.open(folder, window=0), ValueError, "window is 0"),
        (lambda: kvant.Engine.open(folder, sparse_v=3), ValueError, "sparse_v"),
        (lambda: kvant.Engine.open(folder, sinks=99), ValueError, "sinks: `99` is not a whole number from 0 to 32"),
        (lambda: kvant.Engine.open(3), TypeError, "int"),
        (lambda: engine.generate([]), ValueError, "empty"),
        (lambda: engine.generate([1] * 500), ValueError, "500 tokens"),
        (lambda: engine.generate([5000]), ValueError, "5000"),
        (lambda: engine.generate([2**40]), ValueError, str(2**40)),
        (lambda: engine.generate(["a"]), TypeError, "token id"),
        (lambda: engine.generate("x", stop=[3]), TypeError, "stop"),
        (lambda: engine.generate("x", max_tokens=-1), ValueError, "max_tokens"),
        (lambda: engine.chat("hello"), TypeError, "list of turns"),
        (lambda: engine.chat([{"role": "user", "content": [{"type": "image_url"}]}]), ValueError, "not text"),
        (lambda: engine.generate("x", temperature=float("nan")), ValueError, "temperature"),
        (lambda: engine.generate("x", top_p=2.0), ValueError, "top_p"),
        (lambda: engine.generate("x", temperature="hot"), TypeError, "temperature"),
        (lambda: engine.generate("x", heat=1), TypeError, "heat"),
        (lambda: engine.generate("x", logit_bias={9999: 1.0}), ValueError, "9999"),
        (lambda: engine.chat([{"content": "x"}]), ValueError, "message 0 has the role None"),
        (lambda: engine.chat([{"role": "robot", "content": "x"}]), ValueError, "'robot'; it must be system, developer"),
        (lambda: engine.chat_prompt([{"role": 3, "content": "x"}]), ValueError, "message 0 has the role 3"),
        (lambda: engine.chat([{"role": "user", "content": "x"}], tool_choice="f"), ValueError, "among the tools"),
    ]
    for call, kind, words in cases:
        with pytest.raises(kind, match=words):
            call()
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(kvant.KvantError, match="broken.gguf"):
        kvant.Engine.open(broken)


def test_a_closed_engine_refuses(folder):
    own = kvant.Engine.open(folder, kv="int4", ctx=512, threads=1)
    session = own.session()
    stream = own.generate(PROMPT, temperature=0.0)
    own.close()
    own.close()
    assert own.closed and "closed" in repr(own)
    for call in (
        lambda: own.generate("x"),
        lambda: own.tokenize("x"),
        lambda: own.embed("x"),
        lambda: own.session(),
        lambda: session.prefill([1, 2]),
    ):
        with pytest.raises(kvant.KvantError, match="closed"):
            call()
    with pytest.raises(kvant.KvantError, match="closed"):
        for _ in range(1000):
            next(stream)
