"""Progress of a paper's tables and figures, pair by pair, and the commands for missing cells."""

import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pandas as pd

from spec_bench.report.data.differences import read_task_config
from spec_bench.report.papers.items import Item, list_recipe_cells, read_recipe
from spec_bench.report.papers.pairs import find_pair_config, is_embedded, read_pair_configs
from spec_bench.report.papers.paper import Figure, Paper
from spec_bench.report.tables.measured import RESULTS, MeasuredRows
from spec_bench.report.tables.printed import RequestedCell, lay_out_printed_table
from spec_bench.settings.override_values import quote_if_needed
from spec_bench.system.files import ON_GPU, format_training_command, get_training_name_of_heads
from spec_bench.system.groups import group_by_key
from spec_bench.vocabulary.columns import CLEAN
from spec_bench.vocabulary.decoders import get_decoder_parts

NO_PAIR = "pair's config names its models under paper (docs/pairs.md)"
_TEMPERATURE = "generation.temperature"
_NO_GPU = ("cpu", "server")
_CAPTURED = "static"  # ``engine.compile`` of ON_GPU
# parameters of two bytes that fit into the papers' smaller GPUs, A6000 and L40
_ONE_GPU = 48 * 2**30 / 2
_SOURCES = {"embedded": "task.source.kind=embedded", "local": "task.source.path={}"}


@dataclass(frozen=True)
class ItemProgress:
    """Progress of one pair in a table or figure."""

    pair: str
    in_paper: bool  # whether the paper has this pair in the table or figure
    wanted: tuple[RequestedCell, ...]  # all cells needed
    missing: tuple[RequestedCell, ...]  # cells without numbers

    @property
    def measured_count(self) -> int:
        """Number of cells that have numbers."""
        return len(self.wanted) - len(self.missing)


def list_wanted_cells(paper: Paper, item: Item) -> tuple[RequestedCell, ...]:
    """Lists the measured cells that a table or figure needs for the paper's pairs."""
    if not isinstance(item, Figure):
        return lay_out_printed_table(item.name, None).wanted
    if item.tables:
        sheets = (lay_out_printed_table(f"{paper.name}/{number}", None) for number in item.tables)
        return tuple(dict.fromkeys(request for sheet in sheets for request in sheet.wanted))
    sampling = item.sampling
    limits = sampling.get("top_k"), sampling.get("top_p")
    temperatures = item.temperatures or (sampling.get("temperature"),)
    cells = [cell.partition(":") for cell in item.cells or list_recipe_cells(item.recipes[0])]
    requests = {
        RequestedCell(pair, task, decoder, spec, temperature, *limits): None
        for models, task, temperature in product(item.pairs, item.tasks, temperatures)
        if (pair := find_pair_config(*models)) is not None
        for decoder, _, spec in cells
    }
    return tuple(requests)


def compute_progress_by_pair(
    paper: Paper, item: Item, cells: MeasuredRows, pair: str | None = None
) -> list[ItemProgress]:
    """Computes the progress of each of the paper's pairs, then of other measured pairs; or only of
    ``pair`` if given.
    """
    cells = cells.for_experiments_or_all(item.experiments)
    requests = list_wanted_cells(paper, item)
    pairs = list(dict.fromkeys(request.pair for request in requests))

    def share(name: str) -> ItemProgress:
        is_other = name not in pairs
        requests_of_pair = (request for request in requests if is_other or request.pair == name)
        wanted = tuple(dict.fromkeys(request._replace(pair=name) for request in requests_of_pair))
        return ItemProgress(name, not is_other, wanted, cells.list_missing(wanted))

    if pair is not None:
        return [share(pair)]
    measured_pairs = cells.list_pairs({request.task for request in requests})
    other_shares = [share(name) for name in measured_pairs if name not in pairs]
    return [*map(share, pairs), *(request for request in other_shares if request.measured_count)]


def format_progress_and_commands(
    paper: Paper, cells_measured: MeasuredRows, pair: str | None = None
) -> str:
    """Formats the progress of a paper's tables and figures, two lines each, then the commands for
    missing cells.
    """
    lines = [f"{paper.title} (arXiv:{paper.arxiv})"]
    by_recipe: dict[str, list[tuple[Item, list[RequestedCell]]]] = {}
    for item in paper.items:
        shares = compute_progress_by_pair(paper, item, cells_measured, pair) if item.recipes else []
        title = lay_out_printed_table(item.name, None).title if item.kind == "table" else item.title
        lines.append(f"  {f'{item.kind} {item.name}':<20}{title}")
        lines.append(f"  {'':<20}  {_format_progress(item, shares)}")
        for recipe in item.recipes[:1]:
            shown_shares = [p for p in shares if p.in_paper or pair is not None]
            missing = [cell for progress in shown_shares for cell in progress.missing]
            by_recipe.setdefault(recipe, []).append((item, missing))
    commands: list[str] = []
    for recipe, items in by_recipe.items():
        figures = [item for item, missing in items if isinstance(item, Figure) and missing]
        commands += [command for figure in figures for command in figure.before]
        words = next((figure.words for figure in figures if figure.words), ())
        requests = dict.fromkeys(cell for _, missing in items for cell in missing)
        commands += build_training_and_run_commands(recipe, requests, cells_measured, words)
    if commands:
        distinct_commands = dict.fromkeys(commands)  # several recipes may train the same heads
        lines += [
            "  what is missing is run by:",
            *(f"    {command}" for command in distinct_commands),
        ]
    return "\n".join(lines) + "\n"


def _format_progress(item: Item, shares: Sequence[ItemProgress]) -> str:
    """Formats the numbers of measured and needed cells, pairs with equal numbers together."""
    if isinstance(item, Figure) and item.command:
        return f"{item.how}: {item.command}"
    counts = group_by_key(
        (
            f"{progress.measured_count}/{len(progress.wanted)}",
            progress.pair if progress.in_paper else f"{progress.pair} (not the paper's)",
        )
        for progress in shares
    )
    summary = "; ".join(f"{count} cells: {', '.join(names)}" for count, names in counts.items())
    return summary or f"no {NO_PAIR}"


def build_training_and_run_commands(
    recipe: str, missing: Iterable[RequestedCell], cells: MeasuredRows, words: Sequence[str] = ()
) -> list[str]:
    """Builds the commands for missing cells: one of the recipe (such as ``rsd=exp1``) for all pairs
    that miss the same tasks and temperatures.

    Commands that train the pairs' unpublished heads come first.
    """
    swept = read_recipe(recipe).get("hydra", {}).get("sweeper", {}).get("params", {})
    if cells.protocol not in (None, CLEAN):
        words = (*words, f"protocol={cells.protocol}")
    temperatures_by_cell: dict[tuple[str, str], set[float]] = {}
    for cell in missing:
        temperatures_of_cell = temperatures_by_cell.setdefault((cell.pair, cell.task), set())
        # A recipe that does not sweep over the temperature takes the task's.
        if _TEMPERATURE in swept and cell.temperature is not None:
            temperatures_of_cell.add(cell.temperature)
    tasks = group_by_key(
        ((pair, tuple(sorted(temperatures))), task)
        for (pair, task), temperatures in temperatures_by_cell.items()
    )
    pairs = group_by_key(
        ((tuple(names), temperatures), pair) for (pair, temperatures), names in tasks.items()
    )
    runs = [
        _format_command(
            recipe,
            (*group, *words, *_list_limit_overrides(recipe, labels, names, cells)),
            names,
            temperatures,
            cells.results,
        )
        for (names, temperatures), labels in pairs.items()
        for group in _group_pair_overrides_by_engine(labels, cells)
    ]
    return [
        *_iter_training_commands(recipe, [label for labels in pairs.values() for label in labels]),
        *runs,
    ]


def _list_limit_overrides(
    recipe: str, pairs: Collection[str], tasks: Collection[str], cells: MeasuredRows
) -> list[str]:
    """Lists the overrides that give new rows the number of prompts and the answer limit of the
    existing rows.
    """
    recipe_values = read_recipe(recipe)
    rows = cells.for_experiments_or_all((str(recipe_values["name"]),)).rows
    if not {"pair", "task", "prompts", "max_new_tokens"} <= {*rows.columns}:
        return []
    rows = rows[rows.pair.isin(pairs)]
    usual_limits = {
        read_task_config(task).get("generation", {}).get("max_new_tokens") for task in tasks
    }
    limits = []
    for column, key, default_values in (
        ("prompts", "prompts", {recipe_values.get("prompts")}),
        ("max_new_tokens", "generation.max_new_tokens", usual_limits),
    ):
        numbers = {*rows[column].dropna()}
        if len(numbers) == 1 and not numbers & default_values:
            limits.append(f"{key}={numbers.pop():g}")
    return limits


def _iter_training_commands(recipe: str, pairs: Iterable[str]) -> Iterator[str]:
    """Yields the commands that train the heads of a recipe's cells; repeating such a command does
    nothing.
    """
    kinds = {
        get_decoder_parts(cell.partition(":")[0]).drafter for cell in list_recipe_cells(recipe)
    }
    for pair in dict.fromkeys(pairs):
        config = read_pair_configs().get(pair)
        for kind, heads in config.heads.items() if config else ():
            if config and kind in kinds and (name := get_training_name_of_heads(Path(heads))):
                yield format_training_command(kind, f"pair={pair}", name, not is_embedded(config))


def _group_pair_overrides_by_engine(
    pairs: Sequence[str], cells: MeasuredRows
) -> list[tuple[str, ...]]:
    """Lists the overrides that select pairs: one entry for all pairs that have a config and the
    same engine overrides, and one for each pair without a config, which names its models.
    """
    by_engine = group_by_key(
        (_list_engine_overrides(label, cells), label)
        for label in pairs
        if label in read_pair_configs()
    )
    other_labels = [label for label in pairs if label not in read_pair_configs()]
    return [
        *((f"pair={','.join(names)}", *engine) for engine, names in by_engine.items()),
        *(
            (*_list_model_overrides(label, cells), *_list_engine_overrides(label, cells))
            for label in other_labels
        ),
    ]


def _list_engine_overrides(pair: str, cells: MeasuredRows) -> tuple[str, ...]:
    """Lists the overrides for a pair's missing cells: a GPU, with the same ``engine.compile`` as
    the pair's rows there; the source of the rows' prompts; and a device map that spreads a large
    target over several GPUs.

    Embedded pairs run on the CPU. Without rows on a GPU no device is set for a pair that was
    measured elsewhere, has no config, or has its target in a local folder. No table mixes rows that
    differ in ``engine.compile``.
    """
    config = read_pair_configs().get(pair)
    if config is not None and is_embedded(config):
        return ()
    rows = [row for row in cells.row_list if row["pair"] == pair]
    sources = {row.get("data_source"): row.get("data_file") for row in reversed(rows)}
    source = [
        _SOURCES[kind].format(quote_if_needed(str(file)))
        for kind, file in sources.items()
        if len(sources) == 1 and kind in _SOURCES
    ]
    rows = [row for row in rows if not pd.isna(row.get("device"))]
    compiled = (row.get("compile") for row in rows if row["device"] not in _NO_GPU)
    modes = list(dict.fromkeys(str(mode) for mode in compiled if not pd.isna(mode)))
    if not modes and (config is None or rows or Path(config.target).is_dir()):
        return tuple(source)
    is_other = modes and _CAPTURED not in modes
    is_large = config and not modes and (config.target_parameters or 0) > _ONE_GPU
    spread = ["pair.target_device_map=auto"] if is_large else []
    return (ON_GPU, *([f"engine.compile={modes[0]}"] if is_other else []), *spread, *source)


def _format_command(
    recipe: str,
    pair: tuple[str, ...],
    tasks: Sequence[str],
    temperatures: Sequence[float],
    results: Path,
) -> str:
    """Formats one command, quoted for a shell, with ``-m`` if it makes several jobs."""
    swept = [f"task={','.join(tasks)}"] if any(tasks) else []
    if temperatures:
        swept.append(f"{_TEMPERATURE}={','.join(f'{value:g}' for value in temperatures)}")
    results_word = [f"results={results}"] if results != RESULTS else []
    by_models = any(word.startswith("pair.target=") for word in pair)
    is_multirun = any("," in part for part in (*swept, *results_word, *(() if by_models else pair)))
    words = ["spec-bench", "run", *(["-m"] if is_multirun else []), recipe, *pair, *swept]
    return shlex.join([*words, *results_word])


def _list_model_overrides(pair: str, cells: MeasuredRows) -> tuple[str, ...]:
    rows = (row for row in cells.row_list if row["pair"] == pair and not pd.isna(row.get("draft")))
    if (row := next(rows, None)) is None:
        return (f"pair={pair}",)
    target, name, *drafts = map(quote_if_needed, (row["target"], pair, *row["draft"].split(",")))
    draft = f"[{','.join(drafts)}]" if drafts[1:] else drafts[0]
    return f"pair.target={target}", f"pair.draft={draft}", f"pair.name={name}"
