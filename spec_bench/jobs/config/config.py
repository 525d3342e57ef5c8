"""What ``conf/config.yaml`` composes to, checked; reads no file and imports no torch."""

from __future__ import annotations

from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainValidator

from spec_bench.jobs.config.engine_settings import EngineSettings
from spec_bench.jobs.config.pair import PairSettings
from spec_bench.jobs.config.simulation import check_simulate
from spec_bench.measure.energy import EnergySettings, energy_settings
from spec_bench.server.settings import ServerSettings
from spec_bench.settings.validation import Flag, Ge, Le, Says, Text, Whole, check, settings
from spec_bench.sinks.settings import SinkSettings, sink_settings
from spec_bench.system.files import RESULTS, RUNS
from spec_bench.tasks import build_task
from spec_bench.tasks.generation import Generation
from spec_bench.vocabulary.columns import COLUMNS
from spec_bench.vocabulary.decoders import without_display

_LONGEST_NAME = 200  # bytes; file systems allow 255

Cells = Annotated[tuple[Text | dict[str, Any], ...], Says("a list such as [sd:3,rsd_s:4x3]")]


def _folder_name(name: str) -> str:
    assert name not in {".", ".."} and not set(name) & set("/\\\0\n")
    assert len(name.encode()) <= _LONGEST_NAME
    if name == RUNS:
        raise ValueError(f"name {RUNS!r} is taken: results/{RUNS} holds what the cells measured")
    return name


def _checked_task(config: Any) -> Any:
    """A task's mapping unchanged, as the run id hashes it, once it makes a task."""
    build_task(config)
    return config


def _ranking(name: str) -> str:
    """A column that ranks cells: more, or less, of it is better."""
    known = [each.name for each in COLUMNS if each.better and each.interval]
    if name not in known:
        raise ValueError(f"confirm.by must be one of {', '.join(known)}, got {name!r}")
    return name


@settings
class ConfirmSettings:
    """The second stage of a search: the best cells of each decoder again, on other prompts.

    ``share`` says that both stages share the rows of a task too short to leave the second enough.
    """

    prompts: Annotated[Whole, Ge(1)]
    best: Annotated[Whole, Ge(1)] = 5
    by: Annotated[Text, AfterValidator(_ranking)] = "speedup"
    share: Flag = False


@settings
class RunSettings:
    """What ``conf/config.yaml`` composes to, checked; it explains the keys.

    A decoder's mapping and the cells are checked where they become cells (``cells``).
    """

    name: Annotated[Text, AfterValidator(_folder_name), Says("the name of a folder below results")]
    results: Text
    seed: Annotated[Whole, Ge(0), Le(2**63 - 1)]
    prompts: Annotated[Whole, Ge(1)] | None
    warmup: Annotated[Whole, Ge(0)]
    spec: Annotated[Whole | Text | None, Says("a tree in shorthand such as 3, 4x3, 2-2-1, or null")]
    cells: Cells
    plan: Flag
    pair: PairSettings
    task: Annotated[dict[str, Any], BeforeValidator(_checked_task)]
    decoder: Annotated[dict[str, Any], Says("a decoder's drafter, tree and verifier")]
    generation: Generation
    engine: EngineSettings
    energy: Annotated[EnergySettings, PlainValidator(energy_settings)]
    sink: Annotated[SinkSettings, PlainValidator(sink_settings)]
    server: ServerSettings = field(default_factory=ServerSettings)
    simulate: Annotated[Any, PlainValidator(check_simulate)] = None
    trees: dict[Text, Cells] = field(default_factory=dict)
    repeats: Annotated[Whole, Ge(1)] = 1
    confirm: ConfirmSettings | None = None


def check_settings(config: Any) -> RunSettings:
    """Checks a composed config, interpolations resolved; reads no file and imports no torch."""
    asked = check(RunSettings, config)
    lists = [asked.cells, *asked.trees.values()]
    asked = replace(
        asked,
        cells=tuple(cell for cells in lists for cell in cells),
        decoder=without_display(asked.decoder, "decoder."),
    )
    if asked.cells and asked.spec is not None:
        raise ValueError(
            f"spec={asked.spec} goes with decoder=..., not with cells=[...], budget or length"
        )
    if asked.confirm and asked.prompts is None:
        raise ValueError("confirm wants prompts that the search has not seen: set prompts=NUMBER")
    check_folder("results", Path(asked.results))
    check_own("results", Path(asked.results))
    return asked


def check_own(key: str, folder: Path) -> None:
    """Checks that a folder outside the working one is new, empty, or one that we wrote to. Raises
    ValueError: it holds other things.
    """
    whole = folder.expanduser().resolve()
    if whole.is_relative_to(Path.cwd()) or not whole.is_dir():
        return
    held = {each.name for each in whole.iterdir()}
    ours = {RUNS, "trees"}  # what jobs and `fit_tree` leave first
    if held and not held & ours and not any(whole.glob(f"*/{RESULTS}")):
        raise ValueError(
            f"{key}={folder}: {str(whole)!r} holds other things and no results; a folder that is "
            "new, empty or below the working one is needed"
        )


def check_folder(key: str, folder: Path) -> None:
    """Checks that a folder exists or can be made. Raises ValueError: a file is in its place or
    above it.
    """
    for place in (folder, *folder.parents):
        if place.is_dir():
            return
        if place.exists():
            raise ValueError(f"{key} must be a folder, got {str(folder)!r}: {place} is a file")
