"""Measurements, plans and conversions: the chores of the command line."""

import math

import numpy as np
import pytest

import kvant

TEXT = "It is a truth universally acknowledged, that a single man in possession of a good fortune must be in want of a wife. " * 12


def test_perplexity_is_that_of_scores(folder, engine):
    found = kvant.evaluate(folder, text=TEXT, ctx=64, chunks=2, score="all", threads=1)
    ids = engine.tokenize(TEXT)
    prefix = len(engine.info.prefix)
    with kvant.Engine.open(folder, kv="f32", activations="f32", threads=1) as exact:
        windows = [ids[:64], engine.info.prefix + ids[64 + prefix : 128]]
        scores = [exact.score(window, max(1, prefix))[0] for window in windows]
    assert found["nll_mean"] == pytest.approx(-float(np.mean(np.concatenate(scores))), rel=1e-4)
    assert found["ppl"] == pytest.approx(math.exp(found["nll_mean"])) and found["text"] == "a text"


def test_caches_are_compared_with_progress(folder, tmp_path):
    told: list[tuple[int, int]] = []
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    rows = kvant.evaluate(
        folder, ["f32", "int8", "int4"], text=path, ctx=128, chunks=2, threads=1, progress=lambda *now: told.append(now)
    )
    assert [row["spec"] for row in rows] == ["f32", "int8", "int4"]
    divergence = [row["kl_mean"] for row in rows]
    assert divergence[0] == 0 and 0 < divergence[1] < divergence[2]
    assert rows[2]["bits_per_value"] == 4.5 and rows[0]["text"].endswith("text.txt")
    assert told and told[-1][0] == told[-1][1] and told == sorted(told)


def test_a_callback_that_raises_stops(folder, tmp_path):
    class Enough(Exception):
        pass

    def raises(done: int, total: int) -> None:
        raise Enough

    for call in (
        lambda: kvant.evaluate(folder, "int4", text=TEXT, ctx=64, chunks=1, threads=1, progress=raises),
        lambda: kvant.calibrate(folder, tmp_path / "x.kvplan", text=TEXT, tokens=512, threads=1, progress=raises),
        lambda: kvant.convert(folder, tmp_path / "x.gguf", progress=raises, threads=1),
    ):
        with pytest.raises(Enough):
            call()
    assert list(tmp_path.iterdir()) == []


def test_plans_are_made_used_and_changed(folder, tmp_path):
    path = tmp_path / "one.kvplan"
    made = kvant.calibrate(folder, path, text=TEXT, tokens=1024, threads=1)
    assert made.path == str(path) and path.exists() and "a text" in made.made
    assert 4 < made.bits_per_value < 6 and made.bytes_per_token > 0
    rows = kvant.evaluate(folder, [str(path), "int4"], text=TEXT, ctx=128, chunks=1, strict=True, threads=1)
    assert rows[0]["spec"] == made.kv and rows[0]["mode"] == "strict"
    changed = kvant.plan(
        folder, bits=4.6, plan=path, output=tmp_path / "two.kvplan", text=TEXT, tokens=256, threads=1
    )
    assert changed.bits_per_value <= 4.6 and changed.tried[0]["kv"] == changed.kv and "bits spent" in changed.made
    near = kvant.plan(folder, kl=1.0, plan=path, output=tmp_path / "three.kvplan", text=TEXT, tokens=256, threads=1)
    assert near.kl_measured <= 0.7 and near.bits_per_value <= changed.bits_per_value
    with kvant.Engine.open(folder, kv=changed.path, ctx=128, threads=1) as engine:
        assert engine.generate("x", max_tokens=4, seed=1).read() is not None


def test_models_are_converted(folder, tmp_path, engine):
    path = tmp_path / "tiny.gguf"
    converted = kvant.convert(folder, path, "int8", threads=1)
    assert converted.path == str(path) and path.stat().st_size > converted.bytes > 0
    assert 8 < converted.bits_per_weight < 18 and {t["type"] for t in converted.tensors} >= {"Q8_0"}
    ids = engine.tokenize("The same model in other types")
    with kvant.Engine.open(path, kv="f32", threads=1) as other:
        assert np.allclose(other.score(ids)[0], engine.score(ids)[0], atol=0.3)
    with pytest.raises(FileExistsError, match="force"):
        kvant.convert(folder, path)
    kvant.convert(folder, path, "f16", force=True, threads=1)


def test_rounding_is_weighed_by_what_a_text_shows(folder, tmp_path, engine):
    (tmp_path / "text.txt").write_text(TEXT)
    ways = {"plain": False, "own": True, "text": TEXT, "file": tmp_path / "text.txt"}
    made = {}
    for name, calibrate in ways.items():
        path = tmp_path / f"{name}.gguf"
        kvant.convert(folder, path, "int4", calibrate=calibrate, tokens=256, threads=1)
        made[name] = path.read_bytes()
    assert made["text"] == made["file"]
    assert len({made[name] for name in ("plain", "own", "text")}) == 3
    assert len({len(data) for data in made.values()}) == 1
    with pytest.raises(ValueError, match="tokens"):
        kvant.convert(folder, tmp_path / "x.gguf", calibrate="short", threads=1)
    with pytest.raises(FileNotFoundError, match="none.txt"):
        kvant.convert(folder, tmp_path / "x.gguf", calibrate=tmp_path / "none.txt")


def test_bad_input(folder, tmp_path):
    cases = [
        (lambda: kvant.evaluate(folder, [], text=TEXT), ValueError, "empty"),
        (lambda: kvant.evaluate(folder, "int5", text=TEXT, ctx=64, chunks=1), ValueError, "int5"),
        (lambda: kvant.evaluate(folder, text="short"), ValueError, "the text has"),
        (lambda: kvant.evaluate(folder, text=TEXT, ctx=100_000, chunks=1), ValueError, "100000"),
        (lambda: kvant.evaluate(folder, text=TEXT, threads=0), ValueError, "threads"),
        (lambda: kvant.evaluate(folder, text=tmp_path / "none.txt"), FileNotFoundError, "none.txt"),
        (lambda: kvant.evaluate(folder, text=TEXT, score="some"), ValueError, "some"),
        (lambda: kvant.calibrate(folder, kv="int5"), ValueError, "int5"),
        (lambda: kvant.plan(folder, kl=0.1, bits=3), ValueError, "one goal"),
        (lambda: kvant.plan(folder, kl=float("nan")), ValueError, "one goal"),
        (lambda: kvant.plan(folder, bits=4, plan=tmp_path / "none.kvplan"), kvant.KvantError, "none.kvplan"),
        (lambda: kvant.convert(folder, tmp_path / "x.bin"), ValueError, ".gguf or .safetensors"),
        (lambda: kvant.convert(folder, tmp_path / "x.gguf", "int3"), ValueError, "int3"),
        (lambda: kvant.convert(tmp_path, tmp_path / "x.gguf"), kvant.KvantError, "config.json|safetensors"),
        (lambda: kvant.synth(tmp_path / "m", {"model_type": "none"}), ValueError, "none"),
    ]
    for call, kind, words in cases:
        with pytest.raises(kind, match=words):
            call()
