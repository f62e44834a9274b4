"""`mx.fast.metal_kernel` on MLX's build for processors: it puts a kernel's text together as MLX does, and `metal_on_host` runs it.

What MLX adds around a kernel is written from its documentation: a pointer for every array, constant where an array has less than eight numbers; the
built-in values that the body names; the namespace of Metal's functions opened.
"""

from __future__ import annotations

import metal_on_host
import mlx.core as mx
import numpy as np

TYPES = {mx.float32: "float", mx.uint32: "uint32_t"}

BEFORE = "#include <metal_stdlib>\nusing namespace metal;\n"


def metal_kernel(name, input_names, output_names, source, header="", ensure_row_contiguous=True, atomic_outputs=False):
    """As MLX's, for grids of one dimension."""
    assert ensure_row_contiguous and not atomic_outputs

    def launch(*, inputs, grid, threadgroup, output_shapes, output_dtypes):
        assert grid[1:] == threadgroup[1:] == (1, 1) and grid[0] % threadgroup[0] == 0
        mx.eval(inputs)
        arrays = [np.ascontiguousarray(np.array(array)) for array in inputs]
        results = [np.empty(shape, np.float32) for shape in output_shapes]
        assert output_dtypes == [mx.float32] * len(results)
        kinds = [(TYPES[array.dtype], "constant" if array.size < 8 else "device") for array in inputs]
        # The host has one address space; a Mac has two, and no kernel of ours takes the other.
        assert all(space == "device" for _, space in kinds)
        parameters = [f"const device {kind}* {own}" for (kind, _), own in zip(kinds, input_names, strict=True)]
        parameters += [f"device float* {own}" for own in output_names]
        signature = [f"  {parameter} [[buffer({slot})]]" for slot, parameter in enumerate(parameters)]
        for own in metal_on_host.BUILT_IN:
            if own in source:
                kind = "uint" if own.startswith("thread_index") else "uint3"
                signature.append(f"  {kind} {own} [[{own}]]")
        full = f"custom_kernel_{name}"
        text = f"{BEFORE}{header}[[kernel]] void {full}(\n" + ",\n".join(signature) + ") {\n" + source + "\n}\n"
        slots = range(len(inputs), len(inputs) + len(results))
        metal_on_host.run(text, full, arrays + results, list(slots), grid[0] // threadgroup[0], threadgroup[0])
        return [mx.array(result) for result in results]

    return launch
