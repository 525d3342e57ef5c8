"""The page of ``python -m spec_bench.report sweep`` as a W&B run and a report.

One run, offline or online, holds every figure of the page as an interactive one, and
recommendations as a table; the blocks of a report are these, then the figures of each group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spec_bench.report.page.gather import results_file
from spec_bench.report.sweep.build import Sweep, read_sweep
from spec_bench.report.sweep.choose import Part
from spec_bench.report.sweep.figures import FIGURES
from spec_bench.sinks.wandb import Wandb
from spec_bench.sinks.wandb_reports import log_drawings
from spec_bench.system.files import digest

JOB_TYPE = "sweep"
USES = "what to use"
_COLUMNS = ("prompts", "pair", "decoder", "speed", "how sure")


@dataclass(frozen=True)
class Shown:
    """A results file that a report shows.

    Attributes:
        folder: of the experiment; its run bears its name as a tag.
        sweep: its contents.
    """

    folder: Path
    sweep: Sweep

    @property
    def name(self) -> str:
        """The experiment's."""
        return self.folder.name

    @property
    def uses(self) -> list[list[str]]:
        """Recommendations, a line for each task and category."""
        return [line for part in self.sweep.parts for line in _uses(part)]

    @property
    def figures(self) -> list[dict[str, tuple[str, dict[str, Any]]]]:
        """Of each group the figures: the name that a run logs one under -> title and figure."""
        return [
            {f"sweep {place}/{key}": (FIGURES[key].title, each) for key, each in made.items()}
            for place, made in enumerate(self.sweep.figures, 1)
        ]


def shown(name: str, results: Path) -> Shown:
    """Reads an experiment below ``results``, or a results file.

    Raises:
        ValueError: there is none, or it has no rows.
    """
    table = results_file(name, results)
    return Shown(table.parent, read_sweep(table))


def log_sweep(sink: Wandb, experiment: Shown) -> bool:
    """The run that carries the figures.

    Returns:
        Whether anything was logged: the same results are logged once.
    """
    return log_drawings(
        replace(sink, group=experiment.name),
        f"sweep-{digest(experiment.name)}",
        f"sweep {experiment.name}",
        JOB_TYPE,
        [experiment.name, JOB_TYPE],
        {"experiment": experiment.name},
        {USES: (_COLUMNS, experiment.uses)},
        _drawings(experiment),
        digest(experiment.sweep.figures),
    )


def _drawings(experiment: Shown) -> Iterator[tuple[str, Any]]:
    from plotly import graph_objects

    for group in experiment.figures:
        for key, (title, figure) in group.items():
            yield key, graph_objects.Figure(figure).update_layout(title=title)


def blocks(wr: Any, experiment: Shown, runset: Any) -> Iterator[Any]:
    """The report's blocks: recommendations, then each group's figures, and those not drawn."""
    yield wr.H2("What to use")
    yield wr.MarkdownBlock(_markdown(experiment.uses))
    parts = zip(experiment.sweep.parts, experiment.figures, experiment.sweep.missing, strict=True)
    for part, figures, missing in parts:
        yield wr.H2(f"{part.title} · {part.pair}")
        panels = [
            wr.MediaBrowser(
                title=title,
                media_keys=[key],
                num_columns=1,
                layout=wr.Layout(x=12 * (at % 2), y=10 * (at // 2), w=12, h=10),
            )
            for at, (key, (title, _)) in enumerate(figures.items())
        ]
        if panels:
            yield wr.PanelGrid(runsets=[runset], panels=panels)
        if missing:
            why = (f"{FIGURES[key].title} ({reason})" for key, reason in missing.items())
            yield wr.P(f"Not drawn: {'; '.join(why)}.")


def _uses(part: Part) -> Iterator[list[str]]:
    if not part.answers:
        yield [part.title, part.pair, "–", "", "no speculative decoder has numbers here"]
    for each in part.answers:
        kind = f"{part.title}: {each.kind} ({each.prompts})" if each.kind else part.title
        yield [kind, part.pair, each.decoder, each.value, each.why]


def _markdown(lines: list[list[str]]) -> str:
    rows = [_COLUMNS, ["---"] * len(_COLUMNS), *lines]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)
