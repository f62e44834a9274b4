"""Codecs on arrays, against numpy on what they decode to."""

import numpy as np
import pytest

import kvant

SHAPE = (2, 150, 64)  # not a whole number of pages


@pytest.fixture
def rows(rng):
    return rng.standard_normal(SHAPE, dtype=np.float32)


def bf16(array: np.ndarray) -> np.ndarray:
    """Upper halves, rounded to even: the bits of bfloat16."""
    bits = array.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def test_every_codec_is_listed_with_its_bits():
    names = {info.name: info for info in kvant.codecs()}
    assert {"int4", "int8", "f16", "q4_0", "kivi2", "tq3"} <= set(names)
    assert names["int4"].bits_per_value == 4.5 and names["f16"].bits_per_value == 16
    assert (names["int4"].key, names["int4"].value) == ("ch4", "rot4g32")
    assert kvant.codec("int4").bits_per_value(64) == 4.5
    assert repr(kvant.codec("k=ch4,v=rot4g32")) == "kvant.codec('int4')"


@pytest.mark.parametrize("spec", ["int4", "int8", "f16", "f32", "kivi2", "tq3", "turboquant3"])
@pytest.mark.parametrize("side", ["key", "value"])
def test_verbs_agree_with_what_is_decoded(spec, side, rows, rng):
    codec = kvant.codec(spec)
    pages = codec.encode(rows, side)
    decoded = codec.decode(pages)
    assert pages.shape == decoded.shape == SHAPE and pages.data.dtype == np.uint8
    tokens = codec.page_tokens(64, side)
    assert pages.nbytes == 2 * -(-150 // tokens) * tokens * 64 * codec.bits_per_value(64, side) / 8
    queries = rng.standard_normal((2, 3, 64), dtype=np.float32)
    scores = codec.scores(queries, pages)
    exact = queries.astype(np.float64) @ decoded.astype(np.float64).transpose(0, 2, 1)
    # Queries are rounded to 8 bits where codes are small: a percent of the largest score.
    assert np.abs(scores - exact).max() < 0.02 * np.abs(exact).max()
    weights = rng.random((2, 3, 150), dtype=np.float32)
    sums = codec.accumulate(weights, pages)
    exact = weights.astype(np.float64) @ decoded.astype(np.float64)
    assert np.abs(sums - exact).max() < 0.02 * np.abs(exact).max()


def test_the_naive_oracle_of_keys_by_channel(rng):
    # ch4:asym: per page and channel sixteen even steps from the least to the largest; no error exceeds half a step, but for the
    # rounding of scale and zero to f16.
    page = rng.standard_normal((64, 64), dtype=np.float32)
    codec = kvant.codec("k=ch4:asym,v=f16")
    assert codec.page_tokens(64, "key") == 64
    error = np.abs(codec.decode(codec.encode(page)) - page)
    step = (page.max(axis=0) - page.min(axis=0)) / 15
    assert (error <= 0.5 * step + 0.02 * step + 4e-3).all() and error.max() > 0.3 * step.min()


def test_kinds_and_layouts_give_the_same_bytes(rows):
    codec = kvant.codec("int4")
    half = rows.astype(np.float16)
    expected = codec.encode(half.astype(np.float32)).data
    assert np.array_equal(codec.encode(half).data, expected)
    strided = np.ascontiguousarray(half.transpose(2, 0, 1)).transpose(1, 2, 0)
    assert not strided.flags.c_contiguous and np.array_equal(codec.encode(strided).data, expected)
    assert np.array_equal(codec.encode(memoryview(half.astype(np.float32))).data, expected)
    assert np.array_equal(codec.encode(half[:, ::-1][:, ::-1]).data, expected)
    assert np.array_equal(codec.encode(half[1]).data, expected[1])


def test_other_libraries_come_by_dlpack(rows):
    class Tensor:
        """As much of a tensor as DLPack asks for."""

        def __init__(self, array):
            self.array, self.dtype = array, "float32"

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    class Bf16(Tensor):
        def __init__(self, array):
            super().__init__(array)
            self.dtype = "bfloat16"

        def __dlpack__(self, **_):
            raise BufferError("bfloat16 has no twin in numpy")

        def view(self, dtype):
            assert dtype == "uint16"
            return Tensor(self.array)

    codec = kvant.codec("int4")
    assert np.array_equal(codec.encode(Tensor(rows)).data, codec.encode(rows).data)
    bits = bf16(rows)
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(codec.encode(Bf16(bits)).data, codec.encode(wide).data)
    assert codec.error(Bf16(bits)).mse == pytest.approx(codec.error(wide).mse)


def test_bytes_are_what_is_read(rows):
    codec = kvant.codec("int4")
    pages = codec.encode(rows)
    before = codec.decode(pages)
    pages.data[0, 0, 5] ^= 0x40
    after = codec.decode(pages)
    assert not np.array_equal(before[0], after[0]) and np.array_equal(before[1], after[1])
    assert not pages.data.flags.owndata


def test_error_reports(rows):
    errors = {spec: kvant.codec(spec).error(rows) for spec in ("f32", "f16", "int8", "int4", "kivi2")}
    assert errors["f32"].mse == 0 and errors["f32"].snr_db == float("inf")
    order = [errors[spec].mse for spec in ("f16", "int8", "int4", "kivi2")]
    assert order == sorted(order)
    assert 15 < errors["int4"].snr_db < 30 and 0 < errors["int4"].relative_rmse < 0.15
    assert errors["int4"].max_abs >= errors["int4"].mse**0.5


def test_bad_input(rows):
    codec = kvant.codec("int4")
    pages = codec.encode(rows)
    bad = rows.copy()
    bad[1, 140, 7] = np.nan
    cases = [
        (lambda: kvant.codec("int5"), ValueError, "int5"),
        (lambda: codec.encode(bad), ValueError, "head 1, page 2.*channel 7.*NaN"),
        (lambda: codec.encode(rows.astype(np.float64)), TypeError, "float64"),
        (lambda: codec.encode(rows.astype(">f4")), TypeError, "byte order"),
        (lambda: codec.encode([[1.0, 2.0]]), TypeError, "list"),
        (lambda: codec.encode(rows[0, 0]), ValueError, "tokens, dim"),
        (lambda: codec.encode(rows[None]), ValueError, "axes"),
        (lambda: codec.encode(rows[:, :0]), ValueError, "cannot be encoded"),
        (lambda: codec.encode(rows, side="both"), ValueError, "key or value"),
        (lambda: codec.encode(np.zeros((4, 5000), np.float32)), ValueError, "5000"),
        (lambda: codec.scores(rows[:, :1, :32], pages), ValueError, "do not fit"),
        (lambda: codec.scores(rows[:1, :1], pages), ValueError, "do not fit"),
        (lambda: codec.accumulate(rows[:, :1, :10], pages), ValueError, "10 tokens"),
        (lambda: codec.decode(kvant.Pages(pages.data[:, :, 1:].copy(), "key", 64, 150)), ValueError, "no pages"),
        (lambda: codec.decode(kvant.Pages(pages.data[:, :, ::-1], "key", 64, 150)), ValueError, "contiguous"),
        (lambda: kvant.codec("klt4").encode(rows), ValueError, "plan"),
    ]
    for call, kind, words in cases:
        with pytest.raises(kind, match=words):
            call()
