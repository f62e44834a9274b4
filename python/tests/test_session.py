"""Sequences, step by step."""

import numpy as np
import pytest

import kvant


@pytest.fixture(scope="module")
def quantised(folder):
    with kvant.Engine.open(folder, kv="int4", ctx=320, threads=1) as engine:
        yield engine


IDS = [n * 7 % 250 for n in range(200)]


def test_logits_do_not_depend_on_how_tokens_came(quantised):
    whole, stepped = quantised.session(), quantised.session()
    expected = whole.prefill(IDS)
    stepped.prefill(IDS[:150])
    for token in IDS[150:]:
        found = stepped.step(token)
    assert np.array_equal(expected, found)
    assert stepped.tokens == IDS and len(stepped) == 200 and stepped.nbytes > 0


def test_logits_are_a_view_that_stays(quantised):
    session = quantised.session()
    first = session.prefill(IDS[:5])
    assert first.shape == (288,) and first.dtype == np.float32 and first.flags.c_contiguous
    assert not first.flags.owndata, "numpy looks at the engine's own memory"
    kept = first.copy()
    second = session.step(3)
    assert np.array_equal(first, kept) and not np.array_equal(first, second)
    assert session.logits is second
    del session
    assert np.array_equal(first, kept)


def test_forks_part_and_share_what_came_before(quantised):
    session = quantised.session()
    session.prefill(IDS)
    fork = session.fork()
    assert fork.logits is session.logits
    a, b = session.step(1), fork.step(2)
    assert not np.array_equal(a, b)
    other = quantised.session()
    assert np.array_equal(other.prefill([*IDS, 2]), b)


def test_rollback_reads_again_what_it_must(quantised):
    session = quantised.session()
    session.prefill(IDS)
    left = session.rollback(190)
    assert left <= 190 and session.tokens == IDS[:left] and session.logits is None
    again = session.prefill([*IDS[:190], 9])
    assert np.array_equal(again, quantised.session().prefill([*IDS[:190], 9]))
    assert session.rollback(10_000) == 191


def test_saved_sessions_go_on(quantised, folder, tmp_path):
    path = tmp_path / "one.kvant"
    session = quantised.session()
    session.prefill(IDS)
    assert session.save(path, b"a note") == path.stat().st_size
    resumed = quantised.session()
    assert resumed.resume(path) == b"a note" and resumed.tokens == IDS and resumed.logits is None
    assert np.array_equal(resumed.step(4), session.step(4))
    with kvant.Engine.open(folder, kv="int8", ctx=320, threads=1) as other, pytest.raises(kvant.KvantError, match="one.kvant"):
        other.session().resume(path)
    damaged = bytearray(path.read_bytes())
    damaged[-20] ^= 1
    (tmp_path / "two.kvant").write_bytes(damaged)
    with pytest.raises(kvant.KvantError, match="two.kvant"):
        quantised.session().resume(tmp_path / "two.kvant")
    with pytest.raises(kvant.KvantError, match="three.kvant"):
        quantised.session().resume(tmp_path / "three.kvant")


def test_bad_steps_change_nothing(quantised):
    session = quantised.session()
    session.prefill(IDS[:10])
    for call in (lambda: session.step(5000), lambda: session.prefill([1, 5000])):
        with pytest.raises((ValueError, kvant.KvantError), match="5000"):
            call()
    with pytest.raises(ValueError, match="empty"):
        session.prefill([])
    with pytest.raises(ValueError, match="320"):
        session.prefill([1] * 400)
    with pytest.raises(ValueError, match="token id is -1"):
        session.step(-1)
    with pytest.raises(TypeError, match="whole number"):
        session.step("x")


def test_samplers_choose_as_told(quantised):
    logits = np.array([0.0, 3.0, 2.5, -1.0], dtype=np.float32)
    greedy = kvant.Sampler(temperature=0.0)
    assert greedy.sample(logits) == 1
    assert greedy.sample(logits.astype(np.float16)) == 1
    assert greedy.sample(logits[::-1]) == 2, "strides are followed"
    options = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    draws = [[sampler.sample(logits) for _ in range(50)] for sampler in (kvant.Sampler(seed=1, **options) for _ in range(2))]
    assert draws[0] == draws[1] and set(draws[0]) <= {0, 1, 2, 3} and len(set(draws[0])) > 1
    penal = kvant.Sampler(temperature=0.0, repetition_penalty=100.0)
    assert [penal.sample(logits), penal.sample(logits)] == [1, 2]
    bad = logits.copy()
    bad[2] = np.nan
    with pytest.raises(kvant.KvantError, match="logit of token 2"):
        greedy.sample(bad)
    with pytest.raises(TypeError, match="float64"):
        greedy.sample(logits.astype(np.float64))
    with pytest.raises(ValueError, match="vocabulary"):
        greedy.sample(np.zeros((2, 2), np.float32))
