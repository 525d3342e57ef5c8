"""Imports point one way. A layering rule that is not a test rots."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "spec_bench"

# The ground floor: no torch, and any layer may import it.
GROUND = {
    "published",
    "records",
    "lines",
    "signals",
    "disk",
    "fields",
    "columns",
    "names",
    "packed",
    "packed_schema",
    "packed_lines",
    "cell_files",
    "seals",
    "reasons",
    "arguments",
    "sql_reference",
    "packed_fields",
    "files",
    "spec",
    "registry",
    "configs",
}
# ground <- core <- engine <- draft <- tree <- decode <- run
MAY_IMPORT: dict[str, set[str]] = {
    **{name: set() for name in GROUND},
    "core": set(),
    "engine": {"core"},
    "draft": {"core", "engine"},
    "tree": {"core", "engine", "draft"},
    "verify": {"core"},
    "decode": {"core", "engine", "draft", "tree", "verify"},
    "validation": set(),
    "tasks": {"validation"},
    "metrics": set(),
    "measure": {"validation"},
    "sinks": {"validation"},
    "judge": {"metrics", "sinks", "validation"},
    "report": {"metrics"},
    "server": {"validation"},
    "audit": {"core", "engine", "draft", "tree", "verify", "decode", "tasks", "server"},
    "forecast": {"core", "engine", "tree", "decode", "verify"},
    # train stands beside run: an application of its own that shares run's pairs and folders
    "train": {"core", "engine", "draft", "tasks", "measure", "sinks", "run", "validation"},
    "embedded": set(),
    "run": {
        *("core", "engine", "draft", "tree", "verify", "decode"),
        *("tasks", "metrics", "measure", "sinks", "judge", "validation", "forecast", "server"),
        "api",  # the package is called as the public function of its name
    },
    "api": {"core", "engine", "decode", "tasks", "sinks", "run", "validation"},
    "__init__": {"api", "run"},
    "__main__": {"run", "report"},
}
ONLY_IN: dict[str, set[str]] = {
    "hydra": {"run", "train", "api"},
    "omegaconf": {"run", "train", "api"},
    "pydantic": {"validation", "run", "train", "judge", "measure", "tasks", "sinks", "report"},
    "accelerate": {"train"},
    "transformers": {"engine", "train"},
    "wandb": {"sinks"},
    "matplotlib": {"report"},
    "plotly": {"report"},
    "datasets": {"tasks", "metrics"},
    "evaluate": {"metrics"},
    "httpx": {"judge", "server"},
    "pyarrow": {"packed", "packed_schema"},
}
NEVER_TORCH = {*GROUND, "validation", "tasks", "metrics", "sinks", "judge", "report", "server"}
FILES = sorted(PACKAGE.rglob("*.py"))


def layer_of(path: Path) -> str:
    """The first part of a file's path below the package, without its suffix."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(source: str, package: str = "spec_bench") -> Iterator[str]:
    """Full names of all modules that a file imports, inside functions too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide a layer"
            yield node.module or ""
            if node.module == package:
                yield from (f"{package}.{alias.name}" for alias in node.names)


def violations(layer: str, source: str) -> list[str]:
    """What a file of this layer imports and must not."""
    found = []
    allowed = {layer, *GROUND, *MAY_IMPORT[layer]}
    for module in imported_modules(source):
        top, _, rest = module.partition(".")
        inner = rest.split(".")[0]
        if top == "spec_bench" and inner in MAY_IMPORT and inner not in allowed:
            found.append(module)
        if top in ONLY_IN and layer not in ONLY_IN[top]:
            found.append(module)
        if top == "torch" and layer in NEVER_TORCH:
            found.append(module)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_only_what_its_layer_may(path: Path) -> None:
    layer = layer_of(path)
    assert layer in MAY_IMPORT, f"layer {layer!r} has no rule: add it to MAY_IMPORT"
    assert not violations(layer, path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("core", "from spec_bench.engine import loading"),
        ("verify", "from spec_bench import decode"),
        ("decode", "def f():\n    import hydra"),
        ("draft", "from transformers import AutoModel"),
        ("report", "import torch.nn"),
        ("metrics", "from spec_bench.run.store import CellStore"),
    ],
)
def test_an_import_that_points_the_wrong_way_is_found(layer: str, source: str) -> None:
    assert violations(layer, source)


def test_a_report_is_made_without_loading_torch() -> None:
    code = "import sys, spec_bench.report.command_line; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
