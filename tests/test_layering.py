"""Imports point one way. A layering rule that is not a test rots."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "spec_bench"

# The ground floor: no torch. Each of its rooms may import those before it, any layer all of them.
GROUND = ("system", "settings", "records", "vocabulary")
MACHINE = {"core", "engine", "draft", "tree", "verify", "decode"}
_JOBS = ("config", "store", "work", "job", "sweep")
_REPORT = ("papers", "data", "claims", "tables", "figures", "page", "summary")
_PAGES = ("comparison", "compare", "wandb_report")


def _before(room, rooms, folder=""):
    """The rooms of a row that stand before one of them."""
    return {f"{folder}{each}" for each in rooms[: rooms.index(room)]}


# Left to right and top to bottom, a room imports only what stands before it.
MAY_IMPORT = {
    **{room: _before(room, GROUND) for room in GROUND},
    "embedded": set(),
    "core": set(),
    "engine": {"core"},
    "draft": {"core", "engine"},
    "tree": {"core", "draft"},
    "verify": {"core"},
    "decode": MACHINE,
    **{room: set() for room in ("tasks", "measure", "sinks", "server", "metrics")},
    "audit": {*MACHINE, "tasks", "server"},
    "jobs": set(),
    **{
        f"jobs/{room}": {
            *MACHINE,
            *("tasks", "metrics", "measure", "sinks", "server", "audit"),
            *_before(room, _JOBS, "jobs/"),
        }
        for room in _JOBS
    },
    "jobs/app": {
        *("core", "engine", "metrics", "sinks", "report/page"),
        *(f"jobs/{room}" for room in _JOBS),
    },
    # train stands beside the jobs: an application of its own that shares their pairs and folders.
    "train": {*MACHINE, "tasks", "measure", "sinks", "jobs/config", "jobs/work"},
    "report": set(),
    **{
        f"report/{room}": {"metrics", *_before(room, (*_REPORT, *_PAGES), "report/")}
        for room in (*_REPORT, *_PAGES)
    },
    "report/data": {"metrics", "jobs/store", "report/papers"},  # cells that no table has yet
    "report/wandb_report": {"sinks", *_before("wandb_report", (*_REPORT, *_PAGES), "report/")},
    "exchange": {"engine", "tasks", "metrics", "jobs/config", "report/data", "report/tables"},
    "report/cli": {
        *("exchange", "metrics", "jobs/store"),  # it writes tables
        *(f"report/{room}" for room in (*_REPORT, *_PAGES)),
    },
    "report/__main__": {"report/cli"},
    "recommend": {
        *MACHINE,
        *("jobs/config", "jobs/work", "jobs/app", "jobs/sweep", "sinks", "tasks"),
        *("report/data", "report/page"),
    },
    "serve": {"server", "jobs/config", "jobs/sweep"},
    "api": {
        *(*MACHINE, "tasks", "metrics", "sinks", "jobs/app", "jobs/config", "jobs/work"),
        *("recommend", "audit", "report/compare", "report/comparison"),
    },
    "__init__": {"api", "report/figures"},
    "__main__": {
        *("engine", "serve", "jobs/app", "jobs/config", "jobs/sweep", "tasks", "exchange"),
        *(
            "jobs/store",
            "report/data",
            "recommend",
            "report/cli",
            "report/compare",
            "audit",
            "train",
            "measure",
        ),
    },
}
ONLY_IN = {
    "hydra": {"jobs", "train", "api", "recommend", "serve"},
    "omegaconf": {"jobs", "train", "api", "recommend", "serve"},
    "pydantic": {"settings", "jobs", "train", "measure", "tasks", "sinks", "report"},
    "accelerate": {"train"},
    "transformers": {"engine", "train"},
    "wandb": {"sinks"},
    "wandb_workspaces": {"report"},
    "matplotlib": {"report"},
    "datasets": {"tasks", "metrics"},
    "evaluate": {"metrics"},
    "httpx": {"server"},
    "pyarrow": {"records", "tasks"},
}
NEVER_TORCH = {*GROUND, "tasks", "metrics", "sinks", "report", "server"}
ASKS_TORCH_FOR_A_DTYPE = PACKAGE / "records" / "sampling.py"  # when one is asked for
FILES = sorted(PACKAGE.rglob("*.py"))


def layer_of(module):
    """The room of a module of the package: its own folder, or that around it."""
    parts = module.split(".")[1:] or ["__init__"]
    inner = "/".join(parts[:2])
    return inner if inner in MAY_IMPORT else parts[0]


def module_of(path):
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


def imported_modules(source, package="spec_bench"):
    """Full names of all modules that a file imports, inside functions too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide a layer"
            yield node.module or ""
            if (node.module or "").split(".")[0] == package:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def violations(layer, source):
    """What a file of this layer imports and must not."""
    found = []
    allowed = {layer, *MAY_IMPORT[layer], *(() if layer in GROUND else GROUND), "__init__"}
    floor = layer.partition("/")[0]
    for module in imported_modules(source):
        top = module.partition(".")[0]
        if top == "spec_bench" and (room := layer_of(module)) in MAY_IMPORT:
            inside = room == floor and not MAY_IMPORT[room]  # its folder's own docstring
            found += [module] * (room not in allowed and not inside)
        if top in ONLY_IN and floor not in ONLY_IN[top]:
            found.append(module)
        if top == "torch" and floor in NEVER_TORCH:
            found.append(module)
    if floor in MACHINE and "spec_bench.settings.validation" in source:
        found.append("spec_bench.settings.validation")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_only_what_its_layer_may(path):
    layer = layer_of(module_of(path))
    assert layer in MAY_IMPORT, f"layer {layer!r} has no rule: add it to MAY_IMPORT"
    found = violations(layer, path.read_text("utf-8"))
    assert not found or (path == ASKS_TORCH_FOR_A_DTYPE and set(found) == {"torch"})


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("core", "from spec_bench.engine import loading"),
        ("verify", "from spec_bench import decode"),
        ("decode", "def f():\n    import hydra"),
        ("draft", "from transformers import AutoModel"),
        ("report", "import torch.nn"),
        ("metrics", "from spec_bench.jobs.store.store import CellStore"),
        ("system", "from spec_bench.records import jsonl"),
        ("records", "from spec_bench.vocabulary import names"),
        ("core", "from spec_bench.settings.validation import read_settings"),
        ("jobs/store", "from spec_bench.jobs.work.prompts import JobPrompts"),
        ("jobs/config", "from spec_bench.jobs import app"),
        ("report/papers", "from spec_bench.report.claims import verdict"),
    ],
)
def test_an_import_that_points_the_wrong_way_is_found(layer, source):
    assert violations(layer, source)


@pytest.mark.parametrize(
    ("code", "without"),
    [
        ("import spec_bench; dir(spec_bench)", {"torch", "hydra", "pandas", "pydantic"}),
        ("import spec_bench.settings.registry, spec_bench.vocabulary.spec", {"hydra", "pydantic"}),
        (
            "from spec_bench.vocabulary import columns, names; import spec_bench.system.files, "
            "spec_bench.records.types; names.get_decoder_or_task_title('eagle3_sd')",
            {"torch", "pandas", "numpy"},
        ),
        ("import spec_bench.report.cli.command_line", {"torch"}),
        (
            'from spec_bench.__main__ import load_command; load_command("run", [])',
            {"nltk", "pandas", "datasets", "evaluate", "wandb", "matplotlib"},
        ),
    ],
    ids=["package", "settings", "ground floor", "report", "job"],
)
def test_what_is_light_stays_so(code, without):
    check = f"{code}; import gc, sys; assert gc.isenabled() and not {without} & {{*sys.modules}}"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
