"""The commands that would measure missing cells."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
import yaml

from spec_bench.report.papers.pairs import is_embedded, pair_configs
from spec_bench.report.papers.paper import read_recipe, recipe_cells
from spec_bench.report.tables.measured import Measured
from spec_bench.system.files import ON_GPU, package_folder, training_command, training_of

_TEMPERATURE = "generation.temperature"
_NO_GPU = ("cpu", "server")
_CAPTURED = "static"  # what ON_GPU compiles


def commands_for(
    recipe: str,
    missing: pd.DataFrame,
    measured: Measured,
    results: Path | None = None,
    words: Sequence[str] = (),
) -> list[str]:
    """One command of a recipe (``rsd=exp1``) for all pairs that miss the same tasks and
    temperatures.

    Before it those that train the pairs' heads, which nobody published.
    """
    swept = read_recipe(recipe).get("hydra", {}).get("sweeper", {}).get("params", {})
    tasks: dict[tuple[str, tuple[float, ...]], list[str]] = {}
    for (pair, task), cells in missing.groupby(["pair", "task"], sort=False):
        # A recipe that does not sweep over it takes the task's temperature.
        warm = sorted({*cells.temperature.dropna()}) if _TEMPERATURE in swept else []
        tasks.setdefault((pair, tuple(warm)), []).append(task)
    pairs: dict[tuple[tuple[str, ...], tuple[float, ...]], list[str]] = {}
    for (pair, temperatures), names in tasks.items():
        pairs.setdefault((tuple(names), temperatures), []).append(pair)
    runs = [
        _command(recipe, (*group, *words), names, temperatures, results)
        for (names, temperatures), labels in pairs.items()
        for group in _groups(labels, measured)
    ]
    return [*_trainings(recipe, [label for labels in pairs.values() for label in labels]), *runs]


def _trainings(recipe: str, pairs: Iterable[str]) -> list[str]:
    """Commands that train the heads of a recipe's cells; run twice they end at once."""
    kinds = {_drafter(cell.partition(":")[0]) for cell in recipe_cells(recipe)}
    commands: dict[str, None] = {}
    for pair in pairs:
        config = pair_configs().get(pair)
        for kind, heads in config.heads.items() if config else ():
            if config and kind in kinds and (name := training_of(Path(heads))):
                commands[training_command(kind, pair, name, not is_embedded(config))] = None
    return list(commands)


@functools.cache
def _drafter(decoder: str) -> str:
    """The kind of drafter in the config of a decoder; "" for one of another package."""
    path = package_folder("conf") / "decoder" / f"{decoder}.yaml"
    data = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return str((data.get("drafter") or {}).get("kind", ""))


def _groups(labels: Sequence[str], measured: Measured) -> list[tuple[str, ...]]:
    """Pairs that have a config and decode in one way at once, any other pair by its models."""
    known: dict[tuple[str, ...], list[str]] = {}
    for label in labels:
        if label in pair_configs():
            known.setdefault(_engine(label, measured), []).append(label)
    others = [label for label in labels if label not in pair_configs()]
    return [
        *((f"pair={','.join(names)}", *engine) for engine, names in known.items()),
        *((*_models(label, measured), *_engine(label, measured)) for label in others),
    ]


def _engine(label: str, measured: Measured) -> tuple[str, ...]:
    """The settings that put a pair's cells on a GPU, with passes run as in its rows there.

    The embedded pairs run on the CPU; a pair without a config runs where its rows did. No table
    mixes rows whose passes ran in different ways.
    """
    config = pair_configs().get(label)
    if config is not None and is_embedded(config):
        return ()
    rows, ways = measured.rows, []
    if {"pair", "device", "compile"} <= {*rows.columns}:
        on_gpu = (rows.pair == label) & rows.device.notna() & ~rows.device.isin(_NO_GPU)
        ways = [str(way) for way in rows["compile"][on_gpu].dropna().unique()]
    if config is None and not ways:
        return ()
    other = ways and _CAPTURED not in ways
    return (ON_GPU, f"engine.compile={ways[0]}") if other else (ON_GPU,)


def _command(
    recipe: str,
    pair: tuple[str, ...],
    tasks: Sequence[str],
    temperatures: Sequence[float],
    results: Path | None,
) -> str:
    """One command, quoted for a shell; several jobs of it need ``-m``."""
    swept = [f"task={','.join(tasks)}"] if any(tasks) else []
    if temperatures:
        swept.append(f"{_TEMPERATURE}={','.join(f'{value:g}' for value in temperatures)}")
    where = [f"results={results}"] if results is not None else []
    by_models = any(word.startswith("pair.target=") for word in pair)
    several = any("," in part for part in (*swept, *where, *(() if by_models else pair)))
    words = ["spec-bench", *(["-m"] if several else []), recipe, *pair, *swept]
    return shlex.join([*words, *where])


def _models(label: str, measured: Measured) -> tuple[str, ...]:
    """The settings of a pair without a config: its models, as the results name them."""
    rows = measured.rows
    matching = rows if rows.empty else rows[(rows.pair == label) & rows.draft.notna()]
    if matching.empty:
        return (f"pair={label}",)
    first = matching.iloc[0]
    draft = f"[{first.draft}]" if "," in first.draft else first.draft
    return f"pair.target={first.target}", f"pair.draft={draft}", f"pair.name={label}"
