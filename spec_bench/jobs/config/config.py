"""Validates the composed ``conf/config.yaml``. Checks that need no torch run first, because
importing torch is slow.

These concern ranges, folders and small files: a decoder's file, models' and heads' folders, room
for an answer. Everything else is refused where decoders are read and models described, and only
there.
"""

import json
from collections.abc import Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainValidator

from spec_bench.engine.architectures import get_max_sequence_length
from spec_bench.engine.model_spec import INTERSECTION, read_output_ids, refuse_unreadable_weights
from spec_bench.jobs.config.cells import CellRequest, parse_cells
from spec_bench.jobs.config.model_files import resolve_or_convert_model
from spec_bench.jobs.config.pair import EngineSettings, PairSettings
from spec_bench.measure.energy import EnergySettings, parse_energy_settings
from spec_bench.records.sampling import parse_generation_settings
from spec_bench.server.settings import ServerSettings
from spec_bench.settings.validation import (
    Ge,
    IntOrFloat,
    Le,
    MinLen,
    NonEmptyStr,
    Requirement,
    StrictBool,
    StrictInt,
    read_settings,
    refuse_unless,
    settings,
)
from spec_bench.sinks.sink import SinkSettings, parse_sink_settings
from spec_bench.system.errors import UsageError
from spec_bench.system.files import RESULTS, RUNS
from spec_bench.tasks import build_task
from spec_bench.vocabulary.columns import CLEAN, COLUMNS
from spec_bench.vocabulary.decoders import strip_display

_PROTOCOLS = "clean, or authors with a paper's recipe that has it and with one of its tasks"
_LONGEST_NAME = 200  # bytes; file systems allow 255
Probability = Annotated[IntOrFloat, Ge(0), Le(1)]
PRINTED_SOURCE = Path("printed")  # the papers' numbers, in place of a results file
Cells = Annotated[
    tuple[NonEmptyStr | dict[str, Any], ...], Requirement("a list such as [sd:3,rsd_s:4x3]")
]


def _validate_folder_name(name: str) -> str:
    refuse_unless(name not in {".", ".."} and not set(name) & set("/\\\0\n"))
    refuse_unless(len(name.encode()) <= _LONGEST_NAME)
    if name == RUNS:
        raise UsageError(f"name {RUNS!r} is taken: results/{RUNS} holds what the cells measured")
    return name


def _validate_task(config: Any) -> Any:
    """Checks that a task's mapping builds a task; returns the mapping unchanged, as the run id
    hashes it.
    """
    build_task(config)
    return config


def _validate_ranking_column(name: str) -> str:
    """Checks that a column can rank cells (it has a better direction and an
    interval); returns it.
    """
    names = [column.name for column in COLUMNS if column.better and column.interval]
    if name not in names:
        raise UsageError(f"confirm.by must be one of {', '.join(names)}, got {name!r}")
    return name


def _validate_printed_or_csv(source: Path) -> Path:
    """Checks the source of a simulated acceptance, ``printed`` or a CSV of results; returns it."""
    refuse_unless(source == PRINTED_SOURCE or source.suffix == ".csv")
    return source


@settings
class ConfirmSettings:
    """Settings for a search's second stage: the best cells of each decoder on other prompts.
    ``share`` splits the rows of a task between the stages if it is too short to leave the second
    enough.
    """

    prompts: Annotated[StrictInt, Ge(1)]
    best: Annotated[StrictInt, Ge(1)] = 5
    by: Annotated[NonEmptyStr, AfterValidator(_validate_ranking_column)] = "speedup"
    share: StrictBool = False


@settings
class RunSettings:
    """The validated ``conf/config.yaml``, which explains the keys. A decoder's mapping and the
    cells are validated later, in ``cells``.
    """

    name: Annotated[
        NonEmptyStr,
        AfterValidator(_validate_folder_name),
        Requirement("the name of a folder below results"),
    ]
    results: NonEmptyStr
    seed: Annotated[StrictInt, Ge(0), Le(2**63 - 1)]
    prompts: Annotated[
        Annotated[StrictInt, Ge(1)] | None,
        BeforeValidator(lambda value: None if value == "all" else value),
        Requirement("a whole number >= 1, or all"),
    ]
    warmup: Annotated[StrictInt, Ge(0)]
    spec: Annotated[
        StrictInt | NonEmptyStr | None,
        Requirement("a tree in shorthand such as 3, 4x3, 2-2-1, or null"),
    ]
    cells: Cells
    plan: StrictBool
    pair: PairSettings
    task: Annotated[dict[str, Any], BeforeValidator(_validate_task)]
    decoder: Annotated[dict[str, Any], Requirement("a decoder's drafter, tree and verifier")]
    generation: Annotated[
        dict[str, Any], BeforeValidator(partial(parse_generation_settings, where="generation"))
    ]
    engine: EngineSettings
    energy: Annotated[EnergySettings, PlainValidator(parse_energy_settings)]
    sink: Annotated[SinkSettings, PlainValidator(parse_sink_settings)]
    server: ServerSettings = field(default_factory=ServerSettings)
    simulate: Annotated[
        Probability
        | Annotated[tuple[Probability, ...], MinLen(1)]
        | Annotated[Path, AfterValidator(_validate_printed_or_csv)]
        | None,
        Requirement("a probability, a list of one per depth, printed, a results.csv or null"),
    ] = None
    trees: dict[NonEmptyStr, Cells] | None = None
    repeats: Annotated[StrictInt, Ge(1)] = 1
    gate: Annotated[StrictInt, Ge(0)] = 0
    confirm: ConfirmSettings | None = None
    protocol: Annotated[NonEmptyStr, Requirement(_PROTOCOLS)] = CLEAN


def validate_run_settings(config: Any) -> RunSettings:
    """Validates a composed config with resolved interpolations; opens no file."""
    request = read_settings(RunSettings, config)
    lists = [request.cells, *(request.trees or {}).values()]
    request = replace(
        request,
        cells=tuple(cell for cells in lists for cell in cells),
        decoder=strip_display(request.decoder),
    )
    if request.cells and request.spec is not None:
        raise UsageError(
            f"spec={request.spec} goes with decoder=..., not with cells=[...], budget or length"
        )
    if request.confirm and request.prompts is None:
        raise UsageError("confirm wants prompts that the search has not seen: set prompts=NUMBER")
    require_creatable_folder("results", Path(request.results))
    refuse_unrelated_folder("results", Path(request.results))
    return request


def refuse_unrelated_folder(key: str, folder: Path) -> None:
    """Raises UsageError unless a folder is below the working folder, new,
    empty, or written by us.
    """
    absolute = folder.expanduser().resolve()
    if absolute.is_relative_to(Path.cwd()) or not absolute.is_dir():
        return
    entries = {entry.name for entry in absolute.iterdir()}
    our_folders = {RUNS, "trees"}  # the first folders that jobs and `fit` write
    if entries and not entries & our_folders and not any(absolute.glob(f"*/{RESULTS}")):
        raise UsageError(
            f"{key}={folder}: {str(absolute)!r} holds other things and no results; a folder that "
            "is new, empty or below the working one is needed"
        )


def require_creatable_folder(key: str, folder: Path) -> None:
    """Raises UsageError if a folder cannot be made, because it or a parent of it is a file."""
    for place in (folder, *folder.parents):
        if place.is_dir():
            return
        if place.exists():
            raise UsageError(f"{key} must be a folder, got {str(folder)!r}: {place} is a file")


def check_before_torch(request: RunSettings, folders: Sequence[Path]) -> list[CellRequest]:
    """Checks models' folders, room for an answer and cells without torch;
    returns the parsed cells.
    """
    pair = request.pair
    models = [resolve_or_convert_model(name) for name in (pair.target, *pair.drafts)]
    if pair.tokenizer is not None:
        resolve_or_convert_model(pair.tokenizer)
    if request.engine.is_served:
        return []
    for name in models:
        refuse_unreadable_weights(name, _read_json_object_if_exists(Path(name) / "config.json"))
    for name in filter(None, (pair.heads or {}).values()):
        _read_json_object_if_exists(Path(name).expanduser() / "config.json")
    if pair.draft_vocabulary not in (None, INTERSECTION):
        read_output_ids(pair.draft_vocabulary)
    limit = request.generation.get("max_new_tokens")
    positions = read_max_positions(models[0])
    if limit is not None and positions is not None and limit >= positions:
        raise UsageError(
            f"generation.max_new_tokens={limit} leaves no room for a prompt: {pair.target!r} has "
            f"{positions} positions"
        )
    return parse_cells(request.decoder, request.spec, request.cells, folders)


def read_max_positions(model_folder: str) -> int | None:
    """Reads the longest sequence from a model folder's ``config.json``; None if
    it is not stated.
    """
    config = _read_json_object_if_exists(Path(model_folder) / "config.json")
    try:
        return get_max_sequence_length(SimpleNamespace(**(config.get("text_config") or config)))
    except (AttributeError, TypeError):
        return None


def _read_json_object_if_exists(file: Path) -> dict[str, Any]:
    """Reads a file's JSON object; {} if there is no file. Raises UsageError if it is no object."""
    try:
        content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"cannot read {str(file)!r}: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{str(file)!r} holds no JSON object")
    return content
