"""Measured rows, found for what the places of a table ask; what of tables and figures was measured,
pair by pair, and the commands for the rest.

Of several rows that fit, those that a search confirmed are preferred, then the smallest batch and
the most prompts. Cells that differ in the seed alone are one row.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.report.data.counts import RecordReader
from spec_bench.report.data.differences import task_config
from spec_bench.report.data.rows import (
    MODELS_APART,
    Row,
    check_models,
    get_number,
    get_protocol,
    get_stall,
    read_rows,
    select_experiments,
    split,
    to_rows,
)
from spec_bench.report.data.seeds import pool_seeds
from spec_bench.report.papers.items import Item, read_recipe, recipe_cells
from spec_bench.report.papers.pairs import find_pair, is_embedded, pair_configs
from spec_bench.report.papers.paper import Figure, Paper
from spec_bench.report.tables.printed import SAMPLING, RequestedCell, lay_out_table
from spec_bench.settings.words import quote_text
from spec_bench.system import files
from spec_bench.system.files import ON_GPU, format_training_command, parse_training_folder
from spec_bench.system.groups import group_by_key
from spec_bench.vocabulary.columns import CLEAN
from spec_bench.vocabulary.decoders import decoder_parts
from spec_bench.vocabulary.numbers import format_count
from spec_bench.vocabulary.spec import parse

RESULTS = Path("results")  # where nothing else is said
_SHOWN = ("pair", "task", *SAMPLING)  # a table asks for these


class MeasuredRows:
    """Rows by what tables ask for."""

    def __init__(
        self, rows: pd.DataFrame, results: Path = RESULTS, protocol: str | None = None
    ) -> None:
        self.results = results  # the folder that commands for missing cells write to
        self.protocol = protocol  # that was asked for; None: any
        # whole: see ``apart``
        self.records = RecordReader(Path(files.RESULTS))
        self.whole = self
        self.rows = rows = pool_seeds(rows, self.records)  # as read, seeds pooled
        self.listed: list[Row] = to_rows(rows)
        self._aliases = _aliases(rows)
        self._of: dict[tuple[str, ...], MeasuredRows] = {}
        # The positions in ``listed`` of what tables ask for, the preferred ones first.
        self._cells: dict[tuple[Any, ...], list[int]] = {}
        for place in sorted(
            range(len(rows)), key=lambda each: (*_preference(self.listed[each]), each)
        ):
            row = self.listed[place]
            pair = self._aliases.get(str(row["pair"]), str(row["pair"]))
            cell = (pair, str(row["task"]), str(row["decoder"]), bool(row["tree_attention"]))
            self._cells.setdefault(cell, []).append(place)

    @classmethod
    def below(
        cls, folder: Path, experiments: Collection[str] = (), protocol: str | None = None
    ) -> MeasuredRows:
        """Returns all results files below a results folder, or those of experiments if there; of a
        protocol, if asked, its rows alone.
        """
        found = files.results_files(folder)
        rows = read_rows([path for path in found if path.parent.name in experiments] or found)
        if protocol:
            rows = rows[[get_protocol(row) == protocol for row in to_rows(rows)]]
        return cls(check_models(rows) if MODELS_APART.get() else rows, folder, protocol)

    def pairs(self, tasks: Collection[str] = ()) -> list[str]:
        """Names of the pairs that have rows, of these tasks."""
        return sorted({pair for pair, task, *_ in self._cells if not tasks or task in tasks})

    def of(self, experiments: tuple[str, ...]) -> MeasuredRows:
        """Returns the rows of each pair for these experiments (``select_experiments``)."""
        if experiments not in self._of:
            pairs = self.rows.groupby(self.rows.pair.replace(self._aliases)) if self.listed else []
            kept = [select_experiments(rows, experiments) for _, rows in pairs]
            taken = pd.concat(kept).sort_index() if kept else self.rows
            whole = len(taken) == len(self.rows)
            self._of[experiments] = (
                self if whole else MeasuredRows(taken, self.results, self.protocol)
            )
        return self._of[experiments]

    def row(self, asked: RequestedCell) -> Row | None:
        """Returns what a place asks for; None: it was not run."""
        place = self.place(asked)
        return None if place is None else self.listed[place]

    def place(self, asked: RequestedCell) -> int | None:
        """The position in ``listed`` of what is asked for, by its pick; None: it was not run."""
        fitting = self._find_fitting_rows(asked)
        if asked.pick == "fastest":
            # Where a search was confirmed, of those: its screening only picked whom to confirm.
            rows = ((each, self.listed[each]) for each in self._alive(fitting))
            ranks = [
                ((row.get("stage") == "confirm", not get_stall(row), speed), each)
                for each, row in rows
                if (speed := get_number(row, "speedup")) is not None
            ]
            best = max(ranks, key=lambda rank: rank[0], default=None)
            return best and best[1]
        spec = asked.spec
        if asked.pick == "common":
            spec = self.common_spec(asked)
        elif asked.pick == "same depth":
            other = self.row(asked._replace(decoder=asked.among[0], pick="fastest"))
            spec = "" if other is None else str(len(parse(other["spec"]).numbers))
        named = [each for each in fitting if str(self.listed[each]["spec"]) == spec]
        others = fitting if asked.pick == "preferred" else []
        return next(iter([*named, *others]), None)

    def left_out(self, wanted: Sequence[RequestedCell]) -> list[str]:
        """Says how many rows fit what is asked for but for their sampling."""
        own = {name: {getattr(each, name) for each in wanted} for name in SAMPLING}
        rows = [
            self.listed[p]
            for p in {p for e in wanted for p in self._find_fitting_rows(e.any_sampling)}
        ]
        unlike = Counter(
            ", ".join(f"{n} {row[n]:g}" for n in SAMPLING if not own[n] & {row[n], None})
            for row in rows
        )
        counts = sorted(unlike.items())
        return [f"Left out: {format_count(n, 'row')} at {text}." for text, n in counts if text]

    def missing(self, asked: Iterable[RequestedCell]) -> tuple[RequestedCell, ...]:
        """Returns the asked cells without numbers, failed ones included."""
        rows = ((each, self.row(each)) for each in asked)
        return tuple(each for each, row in rows if row is None or row["status"] == "failed")

    def apart(self, asked: Iterable[RequestedCell]) -> list[tuple[str, MeasuredRows]]:
        """Parts whose rows agree in the settings of runs, as far as these cells are concerned, each
        with its distinctive settings, one that a search confirmed first; this alone where nothing
        differs.
        """
        fitting = sorted({place for each in asked for place in self._find_fitting_rows(each)})
        parts = split(check_models(self.rows.iloc[fitting]), _SHOWN) if fitting else []
        if len(parts) < 2:
            return [("", self)]
        parts.sort(key=lambda part: not ("stage" in part[1] and (part[1].stage == "confirm").any()))
        found = [(text, MeasuredRows(rows, self.results, self.protocol)) for text, rows in parts]
        for _, part in found:
            part.whole = self
        return found

    def trees(self, asked: RequestedCell) -> int:
        """Returns how many trees of the asked decoder have numbers."""
        return len(self._alive(self._find_fitting_rows(asked)))

    def common_spec(self, asked: RequestedCell) -> str:
        """An ablation's tree: the asked one if measured, else most of its decoders', if any."""
        counts: Counter[str] = Counter()
        for decoder, attention in product(asked.among, (True, False)):
            fitting = self._find_fitting_rows(
                asked._replace(decoder=decoder, tree_attention=attention)
            )
            counts.update({str(self.listed[each]["spec"]) for each in fitting})
        if asked.spec in counts:
            return asked.spec
        return max(counts, key=lambda spec: (counts[spec], spec), default="")

    def _find_fitting_rows(self, asked: RequestedCell) -> list[int]:
        """Returns an asked decoder's rows at the asked sampling, the preferred ones first."""
        rows = self._cells.get((*asked[:3], asked.tree_attention), [])
        known = {name: getattr(asked, name) for name in SAMPLING}
        exactly = [(name, value) for name, value in known.items() if value is not None]
        return [e for e in rows if all(self.listed[e][name] == value for name, value in exactly)]

    def _alive(self, fitting: Iterable[int]) -> list[int]:
        """Returns the first row with numbers of each tree."""
        trees: dict[str, int] = {}
        for each in fitting:
            if self.listed[each]["status"] != "failed":
                trees.setdefault(str(self.listed[each]["spec"]), each)
        return list(trees.values())


def _preference(row: Row) -> tuple[float, ...]:
    """Where a row stands among those that fit: the least is preferred, unknown numbers last."""
    sizes = (get_number(row, name) for name in ("batch_size", "temperature", "seed", "top_k"))
    unlike = (row["status"] == "failed", row.get("stage") != "confirm")
    known = (inf if size is None else size for size in sizes)
    return (*unlike, *known, -(get_number(row, "top_p") or 1), -(get_number(row, "prompts") or 0))


def _aliases(rows: pd.DataFrame) -> dict[str, str]:
    """Label in the results -> pair config, for labels made from the models' names."""
    named = pair_configs()
    by_models = {(each.target, ",".join(each.drafts)): each.name for each in named.values()}
    labels = rows.reindex(columns=["pair", "target", "draft"]).drop_duplicates()
    return {
        label: by_models[target, draft]
        for label, target, draft in labels.itertuples(index=False)
        if label not in named and (target, draft) in by_models
    }


# What was measured, and the commands for the rest.


NO_PAIR = "pair's config names its models under paper (docs/pairs.md)"
_TEMPERATURE = "generation.temperature"
_NO_GPU = ("cpu", "server")
_CAPTURED = "static"  # what ON_GPU compiles
_ONE_GPU = 48 * 2**30 / 2  # parameters of two bytes on the papers' smaller cards, A6000 and L40
_SOURCES = {"embedded": "task.source.kind=embedded", "local": "task.source.path={}"}


@dataclass(frozen=True)
class TableProgress:
    """One pair's share of a table or figure."""

    pair: str
    in_paper: bool  # whether the paper has this pair here
    wanted: tuple[RequestedCell, ...]  # the cells
    missing: tuple[RequestedCell, ...]  # those without numbers

    @property
    def measured(self) -> int:
        """Cells that have numbers."""
        return len(self.wanted) - len(self.missing)


def list_wanted_cells(paper: Paper, item: Item) -> tuple[RequestedCell, ...]:
    """Returns the measured cells that a table or figure needs of the paper's pairs."""
    if not isinstance(item, Figure):
        return lay_out_table(item.name, None).wanted
    if item.tables:
        sheets = (lay_out_table(f"{paper.name}/{number}", None) for number in item.tables)
        return tuple(dict.fromkeys(each for sheet in sheets for each in sheet.wanted))
    sampling = item.sampling
    limits = sampling.get("top_k"), sampling.get("top_p")
    temperatures = item.temperatures or (sampling.get("temperature"),)
    wanted: dict[RequestedCell, None] = {}
    for (target, draft), task, temperature in product(item.pairs, item.tasks, temperatures):
        pair = find_pair(target, draft)
        for cell in item.cells or recipe_cells(item.recipes[0]):
            decoder, _, spec = cell.partition(":")
            if pair is not None:
                wanted[RequestedCell(pair, task, decoder, spec, temperature, *limits)] = None
    return tuple(wanted)


def compute_progress(
    paper: Paper, item: Item, measured: MeasuredRows, pair: str | None = None
) -> list[TableProgress]:
    """Each of the paper's pairs, then other measured pairs; or this pair only."""
    measured = measured.of(item.experiments)
    wanted = list_wanted_cells(paper, item)
    pairs = list(dict.fromkeys(each.pair for each in wanted))

    def share(name: str) -> TableProgress:
        own = [each for each in wanted if each.pair == name or name not in pairs]
        moved = tuple(dict.fromkeys(each._replace(pair=name) for each in own))
        return TableProgress(name, name in pairs, moved, measured.missing(moved))

    if pair is not None:
        return [share(pair)]
    known = measured.pairs({each.task for each in wanted})
    others = [share(name) for name in known if name not in pairs]
    return [*map(share, pairs), *(each for each in others if each.measured)]


def list_paper(paper: Paper, measured: MeasuredRows, pair: str | None = None) -> str:
    """Returns a paper's items, one line each, then the commands for missing cells."""
    lines = [f"{paper.title} (arXiv:{paper.arxiv})"]
    missing: dict[str, dict[RequestedCell, None]] = {}
    before: dict[str, list[str]] = {}
    words: dict[str, tuple[str, ...]] = {}
    for item in paper.items:
        shares = compute_progress(paper, item, measured, pair) if item.recipes else []
        title = lay_out_table(item.name, None).title if item.kind == "table" else item.title
        lines.append(f"  {f'{item.kind} {item.name}':<20}{title}")
        lines.append(f"  {'':<20}  {_state(item, shares)}")
        for recipe in item.recipes[:1]:
            asked = [p for p in shares if p.in_paper or pair is not None]
            cells = [cell for progress in asked for cell in progress.missing]
            missing.setdefault(recipe, {}).update(dict.fromkeys(cells))
            if isinstance(item, Figure) and cells:
                before.setdefault(recipe, []).extend(item.before)
                words[recipe] = words.get(recipe) or item.words
    commands: list[str] = []
    for recipe, wanted in missing.items():
        more = build_commands(recipe, wanted, measured, words.get(recipe, ()))
        commands += [*before.get(recipe, ()), *more]
    if commands:
        once = dict.fromkeys(commands)  # several recipes want the same heads
        lines += ["  what is missing is run by:", *(f"    {command}" for command in once)]
    return "\n".join(lines) + "\n"


def _state(item: Item, shares: Sequence[TableProgress]) -> str:
    """Cells measured of cells needed, pairs with equal counts together."""
    if isinstance(item, Figure) and item.command:
        return f"{item.how}: {item.command}"
    counts = group_by_key(
        (
            f"{progress.measured}/{len(progress.wanted)}",
            progress.pair if progress.in_paper else f"{progress.pair} (not the paper's)",
        )
        for progress in shares
    )
    known = "; ".join(f"{count} cells: {', '.join(names)}" for count, names in counts.items())
    return known or f"no {NO_PAIR}"


def build_commands(
    recipe: str, missing: Iterable[RequestedCell], measured: MeasuredRows, words: Sequence[str] = ()
) -> list[str]:
    """Returns one command of a recipe (``rsd=exp1``) for all pairs that miss the same tasks and
    temperatures.

    Before it those that train the pairs' heads, which nobody published.
    """
    swept = read_recipe(recipe).get("hydra", {}).get("sweeper", {}).get("params", {})
    if measured.protocol not in (None, CLEAN):
        words = (*words, f"protocol={measured.protocol}")
    warm: dict[tuple[str, str], set[float]] = {}
    for cell in missing:
        known = warm.setdefault((cell.pair, cell.task), set())
        # A recipe that does not sweep over it takes the task's temperature.
        if _TEMPERATURE in swept and cell.temperature is not None:
            known.add(cell.temperature)
    tasks = group_by_key(((pair, tuple(sorted(at))), task) for (pair, task), at in warm.items())
    pairs = group_by_key(((tuple(names), at), pair) for (pair, at), names in tasks.items())
    runs = [
        _command(
            recipe,
            (*group, *words, *_limits(recipe, labels, names, measured)),
            names,
            at,
            measured.results,
        )
        for (names, at), labels in pairs.items()
        for group in _groups(labels, measured)
    ]
    return [*_trainings(recipe, [label for labels in pairs.values() for label in labels]), *runs]


def _limits(
    recipe: str, pairs: Collection[str], tasks: Collection[str], measured: MeasuredRows
) -> list[str]:
    """Returns the settings that keep the prompts and limits of the rows beside."""
    asked = read_recipe(recipe)
    rows = measured.of((str(asked["name"]),)).rows
    if not {"pair", "task", "prompts", "max_new_tokens"} <= {*rows.columns}:
        return []
    rows = rows[rows.pair.isin(pairs)]
    usual = {task_config(task).get("generation", {}).get("max_new_tokens") for task in tasks}
    limits = []
    for column, key, known in (
        ("prompts", "prompts", {asked.get("prompts")}),
        ("max_new_tokens", "generation.max_new_tokens", usual),
    ):
        numbers = {*rows[column].dropna()}
        if len(numbers) == 1 and not numbers & known:
            limits.append(f"{key}={numbers.pop():g}")
    return limits


def _trainings(recipe: str, pairs: Iterable[str]) -> Iterator[str]:
    """Yields what trains the heads of a recipe's cells; run twice it ends at once."""
    kinds = {decoder_parts(cell.partition(":")[0])[0] for cell in recipe_cells(recipe)}
    for pair in dict.fromkeys(pairs):
        config = pair_configs().get(pair)
        for kind, heads in config.heads.items() if config else ():
            if config and kind in kinds and (name := parse_training_folder(Path(heads))):
                yield format_training_command(kind, f"pair={pair}", name, not is_embedded(config))


def _groups(labels: Sequence[str], measured: MeasuredRows) -> list[tuple[str, ...]]:
    """Pairs that have a config and decode in one way at once, any other pair by its models."""
    known = group_by_key(
        (_engine(label, measured), label) for label in labels if label in pair_configs()
    )
    others = [label for label in labels if label not in pair_configs()]
    return [
        *((f"pair={','.join(names)}", *engine) for engine, names in known.items()),
        *((*_models(label, measured), *_engine(label, measured)) for label in others),
    ]


def _engine(label: str, measured: MeasuredRows) -> tuple[str, ...]:
    """Returns the settings that put a pair's cells on a GPU, with passes run as in its rows there,
    those that take its rows' prompts, and the one that spreads a target over several GPUs.

    The embedded pairs run on the CPU; a pair that was measured, one without a config and one in a
    folder where their rows did, or where the engine finds. No table mixes rows whose passes ran in
    different ways.
    """
    config = pair_configs().get(label)
    if config is not None and is_embedded(config):
        return ()
    own = measured.rows
    own = own if own.empty else own[own.pair == label]
    told = own.reindex(columns=["data_source", "data_file"]).drop_duplicates("data_source")
    source = [
        word.format(quote_text(str(file)))
        for kind, file in told.to_numpy()
        if len(told) == 1 and (word := _SOURCES.get(kind))
    ]
    own = own.reindex(columns=["device", "compile"]).dropna(subset="device")
    ways = [str(way) for way in own["compile"][~own.device.isin(_NO_GPU)].dropna().unique()]
    if not ways and (config is None or len(own) or Path(config.target).is_dir()):
        return tuple(source)
    other = ways and _CAPTURED not in ways
    large = config and not ways and (config.target_parameters or 0) > _ONE_GPU
    spread = ["pair.target_device_map=auto"] if large else []
    return (ON_GPU, *([f"engine.compile={ways[0]}"] if other else []), *spread, *source)


def _command(
    recipe: str,
    pair: tuple[str, ...],
    tasks: Sequence[str],
    temperatures: Sequence[float],
    results: Path,
) -> str:
    """Returns one command, quoted for a shell; several jobs of it need ``-m``."""
    swept = [f"task={','.join(tasks)}"] if any(tasks) else []
    if temperatures:
        swept.append(f"{_TEMPERATURE}={','.join(f'{value:g}' for value in temperatures)}")
    where = [f"results={results}"] if results != RESULTS else []
    by_models = any(word.startswith("pair.target=") for word in pair)
    several = any("," in part for part in (*swept, *where, *(() if by_models else pair)))
    words = ["spec-bench", "run", *(["-m"] if several else []), recipe, *pair, *swept]
    return shlex.join([*words, *where])


def _models(label: str, measured: MeasuredRows) -> tuple[str, ...]:
    rows = measured.rows
    matching = rows if rows.empty else rows[(rows.pair == label) & rows.draft.notna()]
    if matching.empty:
        return (f"pair={label}",)
    first = matching.iloc[0]
    target, name, *drafts = map(quote_text, (first.target, label, *first.draft.split(",")))
    draft = f"[{','.join(drafts)}]" if drafts[1:] else drafts[0]
    return f"pair.target={target}", f"pair.draft={draft}", f"pair.name={name}"
