"""The tier below kvant.tiers, with blocks of this file's own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import kvant
from kvant import _kvant
from kvant.tiers import ModelShape, bytes_of
from kvant.tiers.shape import layer_number, source_of

LAYERS, HEADS, TOKENS, DIM = 2, 2, 32, 64


def form(tokens: int = TOKENS):
    """Blocks (layers, K and V, tokens, heads, channels) of float16."""
    row = HEADS * DIM * 2
    place = lambda layer, head: (layer * 2 * tokens * row + head * DIM * 2, (layer * 2 + 1) * tokens * row + head * DIM * 2)  # noqa: E731
    layers = [(layer, [place(layer, head) for head in range(HEADS)]) for layer in range(LAYERS)]
    return ("float16", tokens, DIM, DIM, row, tokens, 0, layers)


def blocks(count: int, seed: int = 3) -> np.ndarray:
    numbers = np.random.default_rng(seed).standard_normal((count, LAYERS, 2, TOKENS, HEADS, DIM))
    return numbers.astype(np.float16)


def lent(memory: np.ndarray) -> _kvant.EngineMemory:
    return _kvant.EngineMemory(memory.view(np.uint8).reshape(-1), memory[0].nbytes)


def stored(count: int = 4, **kwargs):
    memory = np.concatenate([blocks(count), np.zeros_like(blocks(count))])
    tier = _kvant.Tier([form()], "a test", 1 << 30, **kwargs)
    tier.store(1, lent(memory), [(0, b"key %d" % block, block) for block in range(count)])
    assert tier.wait(1)[1:3] == ([], None)
    return memory, tier


def test_blocks_come_back_as_the_codecs_make_them():
    memory, tier = stored(kv="int4")
    tier.load(2, lent(memory), [(0, b"key %d" % block, 4 + block) for block in range(4)])
    assert tier.wait(2)[1:3] == ([], None)
    # Two blocks of 32 tokens fill a page of 64.
    assert tier.groups == [2]
    codec = kvant.codec("int4")
    for layer in range(LAYERS):
        for side, name in enumerate(("key", "value")):
            rows = memory[:4, layer, side].reshape(2, 2 * TOKENS, HEADS, DIM)
            back = memory[4:, layer, side].reshape(2, 2 * TOKENS, HEADS, DIM)
            for page in range(2):
                own = np.ascontiguousarray(rows[page].transpose(1, 0, 2), np.float32)
                expected = codec.decode(codec.encode(own, name))
                assert np.array_equal(back[page].transpose(1, 0, 2), expected.astype(np.float16))
    usage = tier.usage()
    assert usage["stored_bytes"] <= 0.29 * usage["stored_raw"] and usage["kl"] is None


def test_a_packer_packs_and_refuses_what_is_damaged():
    packer = _kvant.BlockPacker(form(64), "a test", kv="int8")
    memory = blocks(2).reshape(-1)
    packed = np.zeros(packer.packed_bytes, np.uint8)
    assert packer.pack(memory.view(np.uint8), packed) == len(packed)
    back = np.zeros_like(memory)
    packer.unpack(packed, back.view(np.uint8))
    assert 0 < np.abs(back.astype(np.float32) - memory).max() < 0.05
    packed[-9] ^= 1
    with pytest.raises(ValueError, match="checksum"):
        packer.unpack(packed, back.view(np.uint8))
    with pytest.raises(ValueError, match="there is room for 3"):
        packer.pack(memory.view(np.uint8), np.zeros(3, np.uint8))
    with pytest.raises(ValueError, match="were expected"):
        packer.pack(memory.view(np.uint8)[:100], packed)


WRITER = """
import sys
sys.path.insert(0, {here!r})
from test_tier import blocks, form, lent, _kvant
tier = _kvant.Tier([form()], "a test", 400_000, kv="int4", folder={folder!r}, threads=2)
memory = blocks(2)
print("begun", flush=True)
for job in range(1_000_000):
    tier.store(job, lent(memory), [(0, b"%d %d" % (job % 40, place), place) for place in range(2)])
    tier.wait(job)
"""


def test_writers_that_are_killed_leave_whole_entries(tmp_path):
    folder, here = str(tmp_path / "tier"), str(__import__("pathlib").Path(__file__).parent)
    for _ in range(3):
        code = WRITER.format(here=here, folder=folder)
        writers = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
        for writer in writers:
            assert writer.stdout.readline() == b"begun\n"
        time.sleep(0.3)
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
    memory = np.concatenate([blocks(2), np.zeros_like(blocks(2))])
    tier = _kvant.Tier([form()], "a test", 400_000, kv="int4", folder=folder)
    assert not list((tmp_path / "tier").glob(".*"))
    usage, found = tier.usage(), 0
    assert 0 < usage["bytes"] <= usage["limit"]
    expected = None
    for job in range(40):
        keys = [b"%d %d" % (job, place) for place in range(2)]
        if all(tier.held_now(0, key) for key in keys):
            tier.load(job, lent(memory), [(0, key, 2 + place) for place, key in enumerate(keys)])
            assert tier.wait(job)[2] is None
            expected = memory[2:].copy() if expected is None else expected
            assert np.array_equal(memory[2:], expected)
            found += 1
    assert found > 0 and tier.usage()["refused"] == 0


def test_what_cannot_be_is_refused_by_name():
    for kv, words in (("int4;sinks=8", "does not know the position"), ("int4;layers 7:k=f16", "7"), ("int5000", "int5000")):
        with pytest.raises(ValueError, match=words):
            _kvant.Tier([form()], "a test", 1 << 20, kv=kv)
    odd = form()
    with pytest.raises(ValueError, match="float8"):
        _kvant.Tier([("float8_e4m3fn", *odd[1:])], "a test", 1 << 20)
    memory = np.zeros(16, np.uint8)
    memory.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        _kvant.EngineMemory(memory, 16)
    with pytest.raises(ValueError, match="make this folder"):
        _kvant.Tier([form()], "a test", 1 << 20, folder=__file__)
    memory, tier = stored()
    tier.close()
    with pytest.raises(ValueError, match="closed"):
        tier.usage()


def test_settings_are_read(tmp_path):
    assert [bytes_of(limit) for limit in (5, "64GiB", "1.5 kB", "7")] == [5, 64 << 30, 1500, 7]
    for limit in (0, True, "", "-1", "GiB", "3 pounds"):
        with pytest.raises(ValueError, match="limit is"):
            bytes_of(limit)
    assert (layer_number("model.layers.12.self_attn", 3), layer_number("attn", 3)) == (12, 3)
    (tmp_path / "a.kvplan").write_bytes(b"plan")
    assert source_of(tmp_path / "a.kvplan") == {"plan": b"plan"} and source_of("int8") == {"kv": "int8"}
    assert ModelShape.of(None, 8, 128) == ModelShape(8, 128)
    with pytest.raises(ValueError, match="give the tier kv_heads and head_dim"):
        ModelShape.of("no/such model", None, 64)
