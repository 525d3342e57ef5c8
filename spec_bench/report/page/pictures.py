"""The figures of an experiment, and the first of them as pictures in the page."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from spec_bench.report.data.rows import Group, prompts_of
from spec_bench.report.page.images import data_uri
from spec_bench.report.papers.paper import Figure, Item, Paper
from spec_bench.report.tables.measured import Measured
from spec_bench.report.tables.progress import wanted_of

_WIDTH = 1600  # pixels; figures are shown at up to 960
_PICTURES = 5  # drawing takes a second each; the page has commands for the rest


@dataclass(frozen=True)
class Picture:
    """A figure as a PNG."""

    title: str
    data_uri: str


@dataclass(frozen=True)
class Drawing:
    """A figure and whose rows it shows."""

    item: Figure
    pairs: tuple[str, ...]
    in_paper: bool  # whether the paper's figure has these pairs

    @property
    def title(self) -> str:
        """A caption, which names a pair that is not the paper's."""
        names = ", ".join(self.pairs)
        if self.in_paper:
            return f"Figure {self.item.number}, {names}. {self.item.title}"
        return f"{names}, drawn as Figure {self.item.number} of the paper ({self.item.title})"


def drawings(paper: Paper, items: Sequence[Item], measured: Measured) -> list[Drawing]:
    """The figures with their pairs: pairs that no figure has get the
    figures for any pair, or else the first one.

    Args:
        paper: whose figures.
        items: its tables and figures that the experiment measures.
        measured: the rows there are.
    """
    figures = [item for item in items if isinstance(item, Figure) and paper.draws(item)]
    pairs = measured.pairs()
    paper_drawings = [
        Drawing(item, (pair,), True)
        for item in figures
        for pair in dict.fromkeys(wanted_of(paper, item).pair)
        if pair in pairs
    ]
    shown = {pair for drawing in paper_drawings for pair in drawing.pairs}
    others = tuple(pair for pair in pairs if pair not in shown)
    if not figures or not others:
        return paper_drawings
    fitting = [item for item in figures if item.any_pair] or figures[:1]
    together = [item for item in fitting if item.together]
    apart = [item for item in fitting if item not in together]
    return [
        *paper_drawings,
        *(Drawing(item, others, False) for item in together),
        *(Drawing(item, (pair,), False) for pair in others for item in apart),
    ]


def draw(drawing: Drawing, measured: Measured, folder: Path, *formats: str) -> list[Path]:
    """Writes a figure's files; none if it shows none of the rows."""
    from spec_bench.report import figures

    item, rows = drawing.item, measured.rows
    shown = rows[rows.pair.isin(drawing.pairs)]
    pair = drawing.pairs[0] if len(drawing.pairs) == 1 else None
    try:
        return list(figures.draw(item.paper, str(item.number), shown, folder, pair, formats))
    except figures.NothingMeasuredError:
        return []


def pictures(
    paper: Paper | None, items: Sequence[Item], groups: Sequence[Group], measured: Measured
) -> list[Picture]:
    """The paper's first figures; for an experiment of no paper the plain one."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if paper is None:
            from spec_bench.report.figures.sweep import draw as draw_plain

            draw_plain(groups, folder / "figure.png")
            return [_picture("All decoders, with their 95% intervals", folder / "figure.png")]
        return list(_first(drawings(paper, items, measured)[:_PICTURES], measured, folder))


def more_figures(
    paper: Paper | None, items: Sequence[Item], measured: Measured, results: Path | None
) -> list[str]:
    """The commands that draw the figures that the page leaves out."""
    if paper is None:
        return []
    where = f" --results {results}" if results is not None else ""
    return [
        f"python -m spec_bench.report figure {drawing.item.name} --pair {pair}{where}"
        for drawing in islice(drawings(paper, items, measured), _PICTURES, None)
        for pair in drawing.pairs
    ]


def _first(chosen: Sequence[Drawing], measured: Measured, folder: Path) -> Iterator[Picture]:
    for number, drawing in enumerate(chosen):
        paths = draw(drawing, measured, folder / str(number), "png")
        rows = measured.rows[measured.rows.pair.isin(drawing.pairs)]
        prompts = prompts_of(rows)
        for path in paths:
            yield _picture(f"{drawing.title}{f' ({prompts} a cell)' if prompts else ''}", path)


def _picture(title: str, path: Path) -> Picture:
    return Picture(title, data_uri(path, _WIDTH))
