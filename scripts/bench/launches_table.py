"""Launches as ``scripts/bench/count_launches.py`` wrote them, and the iteration they add up to.

Needs what torch and transformers bring along, and no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scripts.bench.ceilings import draft_passes, target_pass
from scripts.bench.expected import Stretch, bound_s, iteration_s
from spec_bench.engine.random_weights import random_config
from spec_bench.measure.bound import known_gpu
from spec_bench.measure.pass_cost import ModelCost, bytes_moved
from spec_bench.system import files

BENCHMARKS = Path(__file__).resolve().parents[2] / "results" / "benchmarks"
LAUNCHES = BENCHMARKS / "launches.csv"
PASSES = BENCHMARKS / "launches-passes.csv"


# Trees that a paper's tables do not print, as its recipe in experiments/ has them.
UNPRINTED = {
    "sd": "3",
    "specinfer": "1-1-3-1-1-1-1-1",
    "dsbd_one_cache": "4x3@0.9",
    "medusa": "mc_sim_7b_63",
    "medusa_typical": "mc_sim_7b_63",
    "redrafter": "15x5",
    "redrafter_typical": "15x5",
}


@dataclass(frozen=True)
class PassLaunches:
    """What an eager pass of an architecture launches; of ``static``, what the host does.

    Attributes:
        shape: which.
        layer: a layer.
        other: all else.
    """

    shape: str
    layer: int
    other: int


@dataclass(frozen=True)
class Outside:
    """What an iteration launches besides its models' passes, and what it runs.

    Attributes:
        decoder, spec, temperature, top_p: of which decoder, tree and law.
        levels: nodes per level below the root, with ``-`` between them.
        draft_passes: of a draft model.
        heads: launches of draft heads.
        sampling, verify, rest: launches of growing the tree, of the walk, and of all else.
        uploads, waits: copies to the device, and how often the host waits.
    """

    decoder: str
    spec: str
    temperature: str
    top_p: str
    levels: str
    draft_passes: int
    heads: int
    sampling: int
    verify: int
    rest: int
    uploads: int
    waits: int

    @property
    def counts(self) -> list[int]:
        """Nodes per level."""
        return [int(each) for each in self.levels.split("-") if each]


def law_of(row: Mapping[str, str]) -> tuple[str, str]:
    """(temperature, top-p) of a printed row; what is not printed is 1."""
    temperature = float(row["temperature"] or 1)
    # Between greedy and temperature 1 nothing is launched that temperature 1 does not launch.
    kind = 0.0 if temperature == 0 else 0.3 if temperature < 1 else 1.0
    return f"{kind:g}", f"{float(row['top_p'] or 1):g}"


def spec_of(row: Mapping[str, str]) -> str:
    """A printed row's tree, or the recipe's; "" where neither has one."""
    return row["spec"] or UNPRINTED.get(row["decoder"], "")


@cache
def pass_launches() -> dict[str, PassLaunches]:
    """By architecture, and ``static``."""
    return {
        row["shape"]: PassLaunches(row["shape"], int(row["layer"]), int(row["other"]))
        for row in _read(PASSES)
    }


@cache
def outside() -> dict[tuple[str, str, tuple[str, str]], Outside]:
    """By decoder, tree and law."""
    names = [name for name, kind in Outside.__annotations__.items() if kind == "int"]
    rows = [{**row, **{name: int(row[name]) for name in names}} for row in _read(LAUNCHES)]
    made = [Outside(**row) for row in rows]
    return {(one.decoder, one.spec, (one.temperature, one.top_p)): one for one in made}


def _read(path: Path) -> list[dict[str, Any]]:
    return [dict(row) for row in files.read_csv(path)]


@dataclass(frozen=True)
class Model:
    """A model as the expectation needs it.

    Attributes:
        cost: what its passes move.
        launches: of an eager pass.
        matrices: its large kernels, which read the weights: no small ones.
    """

    cost: ModelCost
    launches: int
    matrices: int


def described(name: str, cost: ModelCost) -> Model:
    """A published architecture.

    Args:
        name: as in ``random:NAME``, or a folder with a config.
        cost: of its module.
    """
    config = random_config(f"random:{name}")
    shape = config.model_type
    if shape == "opt" and not config.do_layer_norm_before:
        shape = "opt_projected"
    grouped = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    if shape == "llama" and grouped != config.num_attention_heads:
        shape = "llama_grouped"
    one, layers = pass_launches()[shape], config.num_hidden_layers
    own = 7 if config.model_type == "llama" else 6  # matrices of a layer
    return Model(cost, one.layer * layers + one.other, own * layers + 1)


def stretches(
    one: Outside,
    target: Model,
    draft: Model | None,
    head_bytes: float,
    context: float,
    *,
    static: bool,
) -> list[Stretch]:
    """An iteration of one row.

    Args:
        one: what lies outside the passes.
        target: the target.
        draft: the draft model; None for heads or no drafting.
        head_bytes: of draft heads, read in an iteration.
        context: committed tokens before the root.
        static: whether models' passes are replayed.
    """
    replay = pass_launches()["static"].other

    def model_pass(model: Model, moved: float) -> Stretch:
        small = model.launches - model.matrices
        return Stretch(replay if static else model.launches, small + replay * static, moved)

    found = [Stretch(one.heads, one.heads, head_bytes)] if one.heads else []
    if draft is not None and one.draft_passes:
        # Between passes the next level is drawn.
        levels = draft_passes(one.counts, context, 1)
        each = one.sampling / max(len(levels), 1)
        for level in levels[: one.draft_passes]:
            found += [model_pass(draft, bytes_moved(draft.cost, level)), Stretch(each, each)]
    else:
        found.append(Stretch(one.sampling, one.sampling))
    found.append(model_pass(target, bytes_moved(target.cost, target_pass(one.counts, context))))
    return [*found, Stretch(one.verify + one.rest, one.verify + one.rest)]


def expectation(
    device_name: str,
    cell: tuple[str, str, tuple[str, str]],
    target: Model,
    draft: Model | None,
    tau: float,
    context: float,
    how: str,
    *,
    head_bytes: float = 0.0,
) -> dict[str, float | str]:
    """A row's columns about what the model of ``scripts/bench/expected.py`` says.

    They are empty where the GPU is not known, or the tree not counted.

    Args:
        device_name: as the driver tells it.
        cell: decoder, tree and law.
        target: the target.
        draft: the draft model; None for heads or no drafting.
        tau: tokens per iteration.
        context: committed tokens before the root.
        how: passes are captured: ``none`` or ``static``; others are not modelled.
        head_bytes: of draft heads, read in an iteration.

    Returns:
        ``expected_gpu``, ``expected_launches``, ``expected_bound_ms``, ``expected_ms`` of an
        iteration, ``expected_token_rate``.
    """
    names = ("gpu", "launches", "bound_ms", "ms", "token_rate")
    gpu, one = known_gpu(device_name), outside().get(cell)
    if gpu is None or one is None or how not in ("none", "static"):
        return {f"expected_{name}": "" for name in names}
    parts = stretches(one, target, draft, head_bytes, context, static=how == "static")
    ms = 1e3 * iteration_s(parts, gpu)
    launches = sum(each.launches for each in parts)
    found = (gpu.name, launches, 1e3 * bound_s(parts, gpu), ms, 1e3 * tau / ms)
    return {f"expected_{name}": value for name, value in zip(names, found, strict=True)}
