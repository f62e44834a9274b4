"""Packed weights, against their formulas in numpy."""

import numpy as np
import pytest

import kvant


def naive(weights: np.ndarray, precision: str, group: int) -> np.ndarray:
    """Groups by the formula: the signed maximum over -8, or the largest over 127; an f16 scale."""
    groups = weights.reshape(-1, group).astype(np.float64)
    if precision == "int4":
        extreme = groups[np.arange(len(groups)), np.abs(groups).argmax(axis=1)] / -8
        scale = extreme.astype(np.float16).astype(np.float64)[:, None]
        codes = np.clip(np.floor(groups / scale + 8.5), 0, 15) - 8
    else:
        scale = (np.abs(groups).max(axis=1) / 127).astype(np.float16).astype(np.float64)[:, None]
        codes = np.clip(np.round(groups / scale), -127, 127)
    return (codes * scale).reshape(weights.shape)


@pytest.mark.parametrize("group", [16, 32, 64])
@pytest.mark.parametrize(("precision", "width"), [("int4", 4), ("int8", 8)])
def test_rounding_is_the_formula(precision, width, group, rng):
    weights = rng.standard_normal((5, 192), dtype=np.float32)
    quantizer = kvant.Quantizer(precision, group)
    packed = quantizer.quantize(weights)
    expected = naive(weights, precision, group)
    assert np.allclose(quantizer.dequantize(packed), expected, rtol=1e-6, atol=0)
    assert packed.shape == (5, 192) and packed.bits_per_value == width + 16 / group
    assert packed.precision == precision and packed.group_size == group
    rebuilt = packed.codes.reshape(5, -1, group) * packed.scales[:, :, None]
    assert np.array_equal(rebuilt.reshape(5, 192).astype(np.float32), packed.dequantize())
    if group == 32:
        same = kvant.QuantizedTensor.from_blocks(packed.blocks, precision, packed.shape)
        assert np.array_equal(same.dequantize(), packed.dequantize())
    assert np.array_equal(quantizer.quantize(weights.T.copy().T).blocks, packed.blocks)


@pytest.mark.parametrize("group", [16, 32, 64])
@pytest.mark.parametrize("precision", ["int4", "int8"])
def test_products_are_those_of_rounded_numbers(precision, group, rng):
    weights = kvant.Quantizer(precision, group).quantize(rng.standard_normal((40, 128), dtype=np.float32))
    x = rng.standard_normal((3, 2, 128), dtype=np.float32)
    groups = x.reshape(-1, 32).astype(np.float64)
    scale = np.abs(groups).max(axis=1, keepdims=True) / 127
    rounded = (np.round(groups / scale) * scale).reshape(x.shape)
    expected = rounded @ weights.dequantize().astype(np.float64).T
    found = kvant.matmul(x, weights)
    assert found.shape == (3, 2, 40)
    assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()
    assert np.array_equal(kvant.matmul(x[1, 1], weights), found[1, 1]), "the same bits alone and in a batch"
    half = x.astype(np.float16)
    assert np.array_equal(kvant.matmul(half, weights), kvant.matmul(half.astype(np.float32), weights))


def test_bad_input(rng):
    weights = rng.standard_normal((4, 64), dtype=np.float32)
    packed = kvant.Quantizer().quantize(weights)
    nan = weights.copy()
    nan[2, 40] = np.inf
    cases = [
        (lambda: kvant.Quantizer("int3"), ValueError, "int3"),
        (lambda: kvant.Quantizer("int4", 128), ValueError, "16, 32 or 64"),
        (lambda: kvant.Quantizer().quantize(weights[:, :30]), ValueError, "whole groups"),
        (lambda: kvant.Quantizer().quantize(weights[0]), ValueError, "rows, columns"),
        (lambda: kvant.Quantizer().quantize(nan), ValueError, "row 2.*finite"),
        (lambda: kvant.Quantizer().quantize(weights.astype(int)), TypeError, "int64"),
        (lambda: kvant.matmul(weights[:, :32], packed), ValueError, "32 columns"),
        (lambda: kvant.matmul(nan, packed), ValueError, "finite"),
        (lambda: kvant.QuantizedTensor.from_blocks(packed.blocks[:, 1:].copy(), "int4", (4, 64)), ValueError, "bytes"),
    ]
    for call, kind, words in cases:
        with pytest.raises(kind, match=words):
            call()
