"""The trees of ``fitted_list`` that were fitted to a pair, and the cells that take them.

A fit is a file that says what the target accepted of the draft's first, second, ... child, on which
models, task and sampling; a tree of any number of nodes follows from it. ``recommend.fit_tree``
writes them to ``results/trees``; those of the embedded pair ship with it. A fit is
for nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import yaml

import spec_bench
from spec_bench.core.sampling import SamplingSettings
from spec_bench.jobs.config.cells import Cell
from spec_bench.jobs.config.pair import Pair
from spec_bench.settings.configs import conf_dirs
from spec_bench.settings.fields import one_line
from spec_bench.settings.validation import Text, check, settings
from spec_bench.system import files

FOLDER = "trees"
POLICY = "fitted_list"
_OURS = Path(spec_bench.__file__).resolve().parent / "embedded" / FOLDER


@settings
class Fit:
    """A file of ``results/trees``."""

    pair: Text  # its label, for people
    target: Text  # as the pair names it
    draft: Text
    revisions: tuple[str, str]  # of both; "" where unknown
    task: Text
    temperature: float  # of the sampling, as are the next three
    top_k: int
    top_p: float
    draft_temperature: float | None  # null: the target's
    prompts: int  # decoded
    iterations: int  # target calls that were counted
    accepted: tuple[float, ...]  # share of them whose accepted child had rank 0, 1, ...

    def write(self, folder: Path) -> Path:
        """Writes it, in place of one of the same models, task and sampling; where to."""
        setup = [self.target, self.draft, self.top_k, self.top_p, self.draft_temperature]
        name = f"{self.pair}-{self.task}-t{self.temperature:g}-{files.digest(setup, 6)}.yaml"
        path = folder / name.replace("/", "_")
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        files.write_text(path, yaml.safe_dump(plain, sort_keys=False, width=100))
        return path

    @property
    def sampling(self) -> SamplingSettings:
        """How its tokens were sampled."""
        return SamplingSettings(self.temperature, self.top_k, self.top_p, self.draft_temperature)


@dataclass(frozen=True)
class FittedTrees:
    """The fits there are, as one job may use them."""

    pair: Pair
    task: str | None  # its name; None: of no task, any fits
    sampling: SamplingSettings
    results: Path = Path("results")  # the results folder
    arguments: tuple[str, ...] = ()  # what else the command that fits must be given

    def filled(self, cells: Sequence[Cell]) -> tuple[tuple[Cell, ...], tuple[str, ...]]:
        """The cells, their trees filled in, and why each of the others is left out."""
        fit, why = [], []
        for cell in cells:
            try:
                fit.append(self.given(cell))
            except ValueError as error:
                why.append(str(error))
        return tuple(fit), tuple(why)

    def given(self, cell: Cell) -> Cell:
        """The cell, its tree filled in if it takes one that is fitted. Raises ValueError: none was
        fitted to the pair; naming the command that does.
        """
        tree = cell.settings["tree"]
        if tree.get("policy") != POLICY or tree.get("nodes") or not self.pair.drafts:
            return cell
        ours = next((fit for fit in self._known if self._is_ours(fit)), None)
        if ours is None:
            raise ValueError(f"{cell.title}: {self._missing()}")
        from spec_bench.tree.node_list import best_list

        nodes = [list(node) for node in best_list(ours.accepted, int(tree["total"]))]
        return Cell.read({**cell.settings, "tree": {**tree, "nodes": nodes}}, self.sampling)

    @cached_property
    def _known(self) -> list[Fit]:
        """All fits, a user's before ours."""
        folders = dict.fromkeys((self.results / FOLDER, Path("results", FOLDER), _OURS))
        paths = [path for folder in folders for path in sorted(folder.glob("*.yaml"))]
        return [read_fit(path) for path in paths]

    def _is_ours(self, fit: Fit) -> bool:
        """Whether it was made with these models, task and sampling."""
        known = zip(fit.revisions, self.pair.revisions, strict=False)
        return (
            (fit.target, fit.draft) == (self.pair.target, self.pair.drafts[0])
            and all(not one or not other or one == other for one, other in known)
            and self.task in (None, fit.task)
            and fit.sampling == replace(self.sampling, probability_dtype="float32")
        )

    def _missing(self) -> str:
        """What was not fitted, and what does it."""
        pair, where = self.pair, ""
        words = [f"pair={pair.name}"]
        if not any((folder / "pair" / f"{pair.name}.yaml").is_file() for folder in conf_dirs()):
            words = [f"pair.target={pair.target}", f"pair.draft={pair.drafts[0]}"]
        if self.task is not None:
            where = f" on {self.task}"
            words.append(f"task={self.task}")
        return (
            f"no tree was fitted to {pair.name}{where} at temperature "
            f"{self.sampling.temperature:g} and this top-k and top-p; first: "
            f"spec-bench fit_tree {' '.join([*words, *self.arguments])}"
        )


def read_fit(path: Path) -> Fit:
    """A file of ``results/trees``. Raises ValueError: it cannot be right, naming it and the key."""
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {one_line(error)}") from None
    return check(Fit, given, str(path))
