"""The package as a whole: what it exports, its stubs, panics."""

import ast
import importlib.metadata
from pathlib import Path

import pytest

import kvant
from kvant import _kvant


def members(body: list[ast.stmt]) -> set[str]:
    """Names that a stub says there are, those of Python's own aside."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name for node in body if isinstance(node, kinds) and not node.name.startswith("__")}


def test_stubs_say_what_is_there():
    path = Path(kvant.__file__).with_name("_kvant.pyi")
    tree = ast.parse(path.read_text())
    public = {name for name in dir(_kvant) if not name.startswith("_")}
    assert members(tree.body) == public
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name != "KvantError":
            own = {name for name in vars(getattr(_kvant, node.name)) if not name.startswith("__")}
            assert members(node.body) == own, node.name
    assert path.with_name("py.typed").exists()


def test_the_module_is_kvants_own_and_versioned():
    assert kvant.__version__ == importlib.metadata.version("kvant")
    assert "abi3" in Path(_kvant.__file__).name or _kvant.__file__.endswith(".pyd")
    assert set(kvant.__all__) <= set(dir(kvant))
    assert issubclass(kvant.KvantError, Exception) and kvant.KvantError.__module__ == "kvant"


def test_every_name_is_documented():
    for name in kvant.__all__:
        thing = getattr(kvant, name)
        if callable(thing):
            assert thing.__doc__, name


def test_native_types_refuse_what_is_not_theirs(rng):
    codec = _kvant.Codec("int4", "key", 64)
    with pytest.raises((TypeError, BufferError)):
        codec.encode([1.0], "f32")
    with pytest.raises((BufferError, TypeError)):
        codec.encode(rng.standard_normal((1, 4, 64)), "f32")
    with pytest.raises(TypeError, match="f64"):
        codec.encode(rng.standard_normal((1, 4, 64)), "f64")
