"""The engine is host code: nothing in it may reach for a device."""

import ast
from pathlib import Path

import fnx_jax.engine

ALLOWED = ("numpy", "jaxtyping", "fnx_jax.engine")


def imports(source: str) -> set[str]:
    """Names of the modules that a file imports."""
    nodes = list(ast.walk(ast.parse(source)))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def test_engine_imports_no_jax_and_nothing_above_or_below_it():
    (folder,) = fnx_jax.engine.__path__
    files = sorted(Path(folder).rglob("*.py"))
    assert len(files) > 10
    for file in files:
        names = imports(file.read_text())
        assert not [name for name in names if name.split(".")[0] in ("jax", "jaxlib", "flax")], file.name
        assert all(name.startswith(ALLOWED) for name in names if name.startswith("fnx_jax")), file.name
