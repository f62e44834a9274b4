"""The adapter for lm-eval, on a task of its own: 40 items, against a naive computation."""

from types import SimpleNamespace

import numpy as np
import pytest

import kvant
from kvant.lm_eval import KvantLM

COLOURS = ["red", "blue", "green", "white"]
#: Forty questions with four endings each.
ITEMS = [(f"Question {n}: what has the number {n * 3}? It is ", [f"{c} {n}" for c in COLOURS]) for n in range(40)]


def requests(pairs):
    return [SimpleNamespace(args=pair) for pair in pairs]


@pytest.fixture(scope="module")
def model(engine):
    return KvantLM(engine)


def naive(engine: kvant.Engine, ids: list[int], start: int) -> tuple[float, bool]:
    """Token by token, by softmax in f64."""
    session = engine.session()
    logits, total, greedy = session.prefill(ids[:start]), 0.0, True
    for token in ids[start:]:
        exact = logits.astype(np.float64)
        total += exact[token] - exact.max() - np.log(np.exp(exact - exact.max()).sum())
        greedy &= int(exact.argmax()) == token
        logits = session.step(token)
    return total, greedy


def test_forty_items(model, engine):
    pairs = [(question, ending) for question, endings in ITEMS for ending in endings]
    found = model.loglikelihood(requests(pairs))
    assert len(found) == 160
    chosen = np.array([ln for ln, _ in found]).reshape(40, 4).argmax(axis=1)
    for place in range(0, 160, 13):
        context, continuation = pairs[place]
        # The space at the end of the context belongs to the continuation.
        ids = engine.tokenize(context + continuation)
        start = len(engine.tokenize(context.rstrip()))
        ln, greedy = naive(engine, ids, start)
        assert found[place][0] == pytest.approx(ln, abs=1e-3) and found[place][1] == greedy
    # Whoever answers the items one by one gets the same.
    for item in (0, 17, 39):
        question, endings = ITEMS[item]
        alone = [ln for ln, _ in model.loglikelihood(requests([(question, ending) for ending in endings]))]
        assert int(np.argmax(alone)) == chosen[item]


def test_a_compressed_cache_answers_nearly_alike(folder, model):
    pairs = [(question * 3, ending) for question, endings in ITEMS[:4] for ending in endings]
    exact = model.loglikelihood(requests(pairs))
    quantised = KvantLM(folder, kv="int4", ctx=384, threads=1).loglikelihood(requests(pairs))
    difference = [abs(a - b) for (a, _), (b, _) in zip(exact, quantised, strict=True)]
    assert 0 < max(difference) < 3


def test_devices_and_windows_are_handed_on(folder):
    model = KvantLM(folder, kv="int4", threads=1, device="cpu", window=64)
    assert model.engine.info.device == "cpu" and model.engine.info.context > 2**32
    with pytest.raises(ValueError, match="`mps` is not a device"):
        KvantLM(folder, device="mps")


def test_greedy_continuations_are_recognised(model, engine):
    context = "Some context"
    said = engine.generate(context, temperature=0.0, max_tokens=6, logprobs=0)
    ids = engine.tokenize(context) + [token.id for token in said]
    assert engine.score(ids, len(ids) - 6)[1] == [True] * 6


def test_documents_are_rolled_over(folder, model, engine):
    text = "A document that is longer than the context of the engine that reads it. " * 3
    (whole,) = model.loglikelihood_rolling(requests([(text,)]))
    ids = engine.tokenize(text, add_special=False)
    prefix = model._prefix()
    assert whole == pytest.approx(naive(engine, prefix + ids, len(prefix))[0], abs=1e-2)
    with kvant.Engine.open(folder, kv="f32", ctx=64, threads=1) as short:
        (rolled,) = KvantLM(short).loglikelihood_rolling(requests([(text,)]))
        first = 65 - len(prefix)
        expected, at = naive(engine, prefix + ids[:first], len(prefix))[0], first
        while at < len(ids):
            end = min(len(ids), at + 64)
            begin = end - 65
            expected += naive(engine, ids[begin:end], at - begin)[0]
            at = end
        assert rolled == pytest.approx(expected, abs=1e-2)
    assert model.loglikelihood_rolling(requests([("",)])) == [0.0]


def test_texts_are_generated_until(model, engine):
    whole = engine.generate("Context", temperature=0.0, max_tokens=20).read()
    stop = whole[8]
    settings = {"until": [stop], "max_gen_toks": 20, "do_sample": False}
    found = model.generate_until(requests([("Context", settings), ("Context", {"max_gen_toks": 20})]))
    assert found == [whole[: whole.index(stop)], whole]
    with pytest.raises(ValueError, match="num_beams"):
        model.generate_until(requests([("x", {"num_beams": 3})]))
    with pytest.raises(ValueError, match="max_gen_toks"):
        model.generate_until(requests([("x", {"max_gen_toks": 4000})]))
