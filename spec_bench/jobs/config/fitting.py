"""Selects the cells that fit a job's pair and batches, and fills in trees fitted to the pair.

A fit is a file with the shares of target calls that accepted the draft's first, second, ... child,
for certain models, a task and sampling settings; a tree of any number of nodes follows from it.
``recommend.fit_tree`` writes fits to ``results/trees``; the embedded pair's fits ship with it. A
fit is valid for nothing else.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import yaml

import spec_bench
from spec_bench.jobs.config.cells import Cell
from spec_bench.jobs.config.model_files import EMBEDDED_PREFIX, resolve_or_convert_model
from spec_bench.jobs.config.pair import EngineSettings, Pair
from spec_bench.records.sampling import SamplingSettings, parse_generation_settings
from spec_bench.settings.configs import find_configs, read_yaml
from spec_bench.settings.validation import NonEmptyStr, read_settings, settings
from spec_bench.system import files
from spec_bench.system.errors import UsageError
from spec_bench.system.files import (
    format_own_command,
    format_training_command,
    get_training_name_of_heads,
)

FITS_FOLDER = "trees"
POLICY = "fitted_list"
_SETTINGS_IN_FILE_NAME = (
    "temperature",
    "probability_dtype",
)  # in the file's name; not part of a fit
_SHIPPED_FITS = Path(spec_bench.__file__).resolve().parent / "embedded" / FITS_FOLDER


@settings
class TreeFit:
    """A file of ``results/trees``."""

    pair: NonEmptyStr  # its label, for people
    target: NonEmptyStr  # as the pair names it
    draft: NonEmptyStr
    revisions: tuple[str, str]  # of target and draft; "" if unknown
    task: NonEmptyStr
    sampling: SamplingSettings  # in the file: the settings one by one
    prompts: int  # decoded
    iterations: int  # target calls that were counted
    accepted: tuple[float, ...]  # share of target calls that accepted the child of rank 0, 1, ...

    def write(self, folder: Path) -> Path:
        """Writes the fit and returns the file; replaces a fit of the same models, task and
        sampling.
        """
        sampling = self.sampling.get_run_id_settings()
        others = [value for name, value in sampling.items() if name not in _SETTINGS_IN_FILE_NAME]
        setup = [self.target, self.draft, *others]
        digest = files.hash_json(setup, 6)
        name = f"{self.pair}-{self.task}-t{self.sampling.temperature:g}-{digest}.yaml"
        path = folder / name.replace("/", "_")
        content = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self).items()}
        content = {**content, **sampling}
        del content["sampling"], content["probability_dtype"]
        files.write_text(path, yaml.safe_dump(content, sort_keys=False, width=100))
        return path


@dataclass(frozen=True)
class FittedTrees:
    """The available fits, for one job."""

    pair: Pair
    task: str | None  # its name; None: fits of any task may be used
    sampling: SamplingSettings
    results: Path = Path("results")  # the results folder
    arguments: tuple[str, ...] = ()  # further arguments of the command that fits

    def fill_in_tree(self, cell: Cell) -> Cell:
        """Fills the fitted tree into a cell that needs one; returns any other cell unchanged.
        Raises UsageError, with the command that makes the fit, if there is none.
        """
        tree = cell.settings["tree"]
        if tree.get("policy") != POLICY or tree.get("nodes") or not self.pair.drafts:
            return cell
        # A user's fits take precedence over the shipped ones.
        folders = dict.fromkeys(
            (self.results / FITS_FOLDER, Path("results", FITS_FOLDER), _SHIPPED_FITS)
        )
        paths = (path for folder in folders for path in sorted(folder.glob("*.yaml")))
        fit = next((fit for fit in map(read_tree_fit, paths) if self._matches_job(fit)), None)
        if fit is None:
            raise UsageError(f"{cell.title}: {self._explain_missing_fit()}")
        from spec_bench.tree.node_list import build_sequoia_list

        nodes = [list(node) for node in build_sequoia_list(fit.accepted, int(tree["total"]))]
        settings = {**cell.settings, "tree": {**tree, "nodes": nodes}}
        return Cell.from_mapping(settings, self.sampling).with_name(cell.name)

    def _matches_job(self, fit: TreeFit) -> bool:
        """Returns whether a fit was made with the job's models, task and sampling."""
        revision_pairs = zip(fit.revisions, self.pair.revisions, strict=False)
        return (
            (fit.target, fit.draft) == (self.pair.target, self.pair.drafts[0])
            and all(
                not fit_revision or not pair_revision or fit_revision == pair_revision
                for fit_revision, pair_revision in revision_pairs
            )
            and self.task in (None, fit.task)
            and fit.sampling == replace(self.sampling, probability_dtype="float32")
        )

    def _explain_missing_fit(self) -> str:
        """Explains in one line which fit is missing, with the command that makes it."""
        pair = self.pair
        task_text = ""
        words = [format_pair_or_target_override(pair)]
        if words[0].startswith("pair.target"):
            words.append(f"pair.draft={pair.drafts[0]}")
        if self.task is not None:
            task_text = f" on {self.task}"
            words.append(f"task={self.task}")
        return (
            f"no tree was fitted to {pair.name}{task_text} at temperature "
            f"{self.sampling.temperature:g} and this top-k and top-p; first: "
            f"{format_own_command('fit', *words, *self.arguments)}"
        )


def format_pair_or_target_override(pair: Pair) -> str:
    """Formats ``pair=NAME`` for a pair with a config, ``pair.target=TARGET`` for any other."""
    has_config = pair.name in find_configs("pair")
    return f"pair={pair.name}" if has_config else f"pair.target={pair.target}"


def read_tree_fit(path: Path) -> TreeFit:
    """Reads a file of ``results/trees``. Raises UsageError, with the file and the key, if it is
    invalid.
    """
    values = read_yaml(path)
    if isinstance(values, dict):
        names = {field.name for field in fields(SamplingSettings)}
        sampling = {name: value for name, value in values.items() if name in names}
        values = {name: value for name, value in values.items() if name not in names}
        values["sampling"] = parse_generation_settings(sampling, str(path))
    return read_settings(TreeFit, values, str(path))


def select_fitting_cells(
    cells: Sequence[Cell], trees: FittedTrees, engine: EngineSettings
) -> tuple[tuple[Cell, ...], tuple[str, ...]]:
    """Selects the cells that fit the pair and its batches, the baseline first, and fills in their
    trees; returns them and the reason for each omitted cell. Raises UsageError if only the baseline
    is left.
    """
    fitting_cells = []
    reasons = []
    for cell in cells:
        try:
            filled_cell = trees.fill_in_tree(cell)
            require_drafts_and_heads(filled_cell, trees.pair)
            refuse_library_batches(filled_cell, engine, trees.sampling)
            fitting_cells.append(filled_cell)
        except UsageError as error:
            reasons.append(str(error))
    if reasons and len(fitting_cells) <= 1:
        raise UsageError(reasons[0])
    return tuple(fitting_cells), tuple(reasons)


def require_drafts_and_heads(cell: Cell, pair: Pair) -> None:
    """Raises UsageError unless a pair has the drafts and heads that a cell uses."""
    if cell.config.library == "server":
        raise UsageError(f"{cell.title}: a server decodes it: engine=server server.url=...")
    if cell.config.drafts > len(pair.drafts):
        raise UsageError(
            f"{cell.title} needs draft models: {cell.config.drafts}; pair.draft names "
            f"{len(pair.drafts)}: --draft MODEL, or a decoder that looks drafts up: --decoders "
            "prompt_lookup"
        )
    kind = cell.config.heads
    if kind is None:
        return _require_draft_trained_for_masks(cell, pair)
    if kind not in pair.heads:
        raise UsageError(
            f"{cell.title} uses {kind} heads, pair {pair.name!r} names "
            f"{', '.join(pair.heads) or 'none'}: set pair.heads.{kind} to a folder or hub id"
        )
    heads = Path(pair.heads[kind])
    name = get_training_name_of_heads(heads)
    if name is not None and not heads.is_dir():
        on_gpu = pair.specs[0].device != "cpu"
        override = format_pair_or_target_override(pair)
        remedy = f"train them: {format_training_command(kind, override, name, on_gpu)}"
        if heads.parent.is_dir():
            remedy = "their training was interrupted: the command that began it goes on"
        raise UsageError(
            f"{cell.title} uses {kind} heads, {pair.heads[kind]!r} does not exist; {remedy}"
        )
    if pair.heads[kind].startswith(EMBEDDED_PREFIX) and not pair.target.startswith(EMBEDDED_PREFIX):
        raise UsageError(
            f"{cell.title} uses {kind} heads; {pair.heads[kind]!r} were trained on the embedded "
            f"target, not on {pair.target!r}: set pair.heads.{kind} to a folder or hub id"
        )
    training_file = Path(resolve_or_convert_model(pair.heads[kind]), "training.json")
    if training_file.is_file():  # heads trained elsewhere are checked when they are loaded
        head = json.loads(training_file.read_text("utf-8"))["settings"]["head"]
        if (trained_kind := head["kind"]) != kind:
            raise UsageError(
                f"{cell.title} uses {kind} heads, {pair.heads[kind]!r} has {trained_kind} heads: "
                f"name them as pair.heads.{trained_kind}"
            )
        if cell.config.drafter.passes:
            cell.config.limit_tree_depth(head["guesses"])


def _require_draft_trained_for_masks(cell: Cell, pair: Pair) -> None:
    """Raises UsageError if a draft must guess all levels at once and was not trained for it."""
    from spec_bench.engine.loading import load_config  # with torch, as cells are by now

    if getattr(cell.config.drafter, "mask_token", 0) is not None or not pair.specs:
        return
    cell.config.limit_tree_depth(cell.config.drafter.find_max_depth(None))
    try:
        config = load_config(pair.specs[1].path, pair.specs[1].revision)
    except Exception:  # loading the model raises the same error later
        return
    if getattr(config, "pard_token", None) is None:
        raise UsageError(
            f"{cell.title} needs a draft trained for it: the config.json of {pair.drafts[0]!r} "
            "names no pard_token; pair=qwen3_8b_pard has one, head=pard trains one"
        )


def refuse_library_batches(cell: Cell, engine: EngineSettings, sampling: SamplingSettings) -> None:
    """Raises UsageError if a library would decode a batch differently than single prompts."""
    if not cell.config.library or engine.batch_size == 1:
        return
    if cell.config.spec != "-":
        reason = "decodes one prompt at a time with a draft or lookup"
    elif sampling.temperature > 0:
        reason = "draws for all rows from one generator, so that a row would hang on its neighbours"
    elif engine.batching != "static":
        reason = "has no continuous batches"
    else:
        return
    raise UsageError(
        f"{cell.title}: {cell.config.library} {reason}; engine.batch_size must be 1, got "
        f"{engine.batch_size} (engine.batching={engine.batching})"
    )
