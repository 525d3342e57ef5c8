"""A paper's table before it is written as text: columns, lines, cells.

Knows no paper and no format. Layouts make a grid of printed numbers, ``fill`` puts the measured
ones beside them, renderers write it.

Words: **printed** is the paper's number, **ours** the measured one; a **block** is a set of lines
within which a column has one best value; **lost** is a number that the paper prints and that could
not be read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spec_bench.report.papers.items import Column, Pick
from spec_bench.vocabulary.columns import columns_in
from spec_bench.vocabulary.spec import parse


@dataclass(frozen=True)
class Wanted:
    """The measured cell that belongs beside a printed number.

    Attributes:
        pair: name of the pair.
        task: name of the task.
        decoder: name of the decoder.
        spec: its tree, as ``pick`` takes it.
        temperature: None takes any, the lowest first.
        top_k: truncation of the sampling; 0: none.
        top_p: nucleus of the sampling.
        tree_attention: False takes cells whose candidates were rows of the batch.
        pick: ``spec`` that tree; ``preferred`` that tree, or where it was not measured the first
            one that was; ``fastest`` the tree with the highest speedup; ``same depth`` a
            chain as deep as another decoder's fastest tree; ``common`` the tree of an ablation,
            rather that tree than another one.
        among: that other decoder; the decoders that share the ablation's tree.
    """

    pair: str
    task: str
    decoder: str
    spec: str = ""
    temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    tree_attention: bool = True
    pick: Pick = "spec"
    among: tuple[str, ...] = ()


@dataclass(frozen=True)
class Estimate:
    """A measured value.

    Attributes:
        value: the number; None for a text alone.
        low: lower end of its 95% interval; None where it has none.
        high: upper end.
        text: a tree, for columns that hold no number.
        mark: ``exact_beam``, ``approximate`` or ``simulated`` where the measured row is one; ""
            where it is exact.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    text: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Cell:
    """One place of the table.

    Attributes:
        printed: the paper's number as printed; "" where it prints none.
        plus_minus: the paper's spread, as printed; "" for none.
        lost: it prints one that could not be read.
        best: the paper's best of its block.
        underlined: the paper underlines it.
        wanted: the measured cell that belongs here; None: none does.
        column: the measured column; or ``tree``, as MCSD writes it, ``setting``, as we do, or
            ``size``, how many parameters drafted.
        scale: factor of the measured value: 100 beside a percentage.
        minus: the cell to subtract, if the value is a difference.
        over: the cell to divide by, if it is a ratio.
        ours: the measured value.
        ours_best: best of its block, by its interval.
        state: why ``ours`` is empty, e.g. ``not run``; in a layout, the text for a measured cell
            without such a number or a reason.
    """

    printed: str = ""
    plus_minus: str = ""
    lost: bool = False
    best: bool = False
    underlined: bool = False
    wanted: Wanted | None = None
    column: str = ""
    scale: float = 1.0
    minus: Wanted | None = None
    over: Wanted | None = None
    ours: Estimate | None = None
    ours_best: bool = False
    state: str = ""

    @property
    def difference(self) -> float | None:
        """Ours minus printed; None where one of them is missing."""
        if self.ours is None or self.ours.value is None or not self.printed:
            return None
        return self.ours.value - float(self.printed)

    def is_number(self, value: float | None) -> bool:
        """Whether this very number is printed here."""
        return value is not None and bool(self.printed) and float(self.printed) == value

    def exceeds(self, other: Cell) -> bool:
        """Whether a larger number is printed here than there."""
        return bool(self.printed and other.printed) and float(self.printed) > float(other.printed)


@dataclass(frozen=True)
class Text:
    """The text in a place.

    Attributes:
        text: the number or the reason why there is none.
        bold: whether it stands out.
        interval: the 95% interval in brackets, or the paper's plus/minus; "" for none.
        is_number: whether it is one.
        underlined: whether it is.
    """

    text: str
    bold: bool = False
    interval: str = ""
    is_number: bool = True
    underlined: bool = False


@dataclass(frozen=True)
class Line:
    """A row of the table.

    Attributes:
        labels: as many as the grid has heads.
        cells: as many as it has columns.
        block: lines with the same one compete for the best value; "" competes with none.
        extra: the paper has no such line; dropped if unmeasured.
        texts: of the cells, as many as the grid has columns ``shown``.
    """

    labels: tuple[str, ...]
    cells: tuple[Cell, ...]
    block: str = ""
    extra: bool = False
    texts: tuple[Text, ...] = ()

    @property
    def mark(self) -> str:
        """The mark that all its measured cells bear; "" where they differ or bear none."""
        marks = {cell.ours.mark for cell in self.cells if cell.ours is not None}
        return marks.pop() if len(marks) == 1 else ""


@dataclass(frozen=True)
class Grid:
    """A table.

    Attributes:
        name: e.g. ``rsd/7``.
        title: its caption.
        heads: titles of the labels.
        columns: the numbers' columns.
        lines: in the paper's order.
        notes: for readers, a sentence or two each.
        commands: those that would measure the missing cells.
        measured: whether any cell has a measured value.
        setting: settings of its measured cells that the table's other parts lack; "" without
            other parts.
        shown: the columns that are written, each with ``paper``, ``ours`` or ``difference``; with
            "" where only the paper's numbers are.
    """

    name: str
    title: str
    heads: tuple[str, ...]
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    measured: bool = False
    setting: str = ""
    shown: tuple[tuple[Column, str], ...] = ()

    def cells_of(self, column: int) -> list[Cell]:
        """A column's cells, top to bottom."""
        return [line.cells[column] for line in self.lines]

    def wanted(self) -> list[Wanted]:
        """Every measured cell that the table asks for, each once, in order."""
        cells = [
            each
            for line in self.lines
            if not line.extra
            for cell in line.cells
            for each in (cell.wanted, cell.minus, cell.over)
            if each is not None
        ]
        return list(dict.fromkeys(cells))


def tree_text(decoder: str, spec: str) -> str:
    """A tree as MCSD writes it: factors with an x; a chain of three is 1x1x1."""
    numbers = parse(spec).numbers if spec else ()
    return "x".join(["1"] * numbers[0] if decoder == "sd" else map(str, numbers))


def falls(column: Column) -> bool:
    """Whether less is better in a column."""
    name = column.measured or column.metrics[0]
    return any(each.name == name and each.better == "down" for each in columns_in([name]))


def mark_best(lines: Sequence[Line], columns: Sequence[Column]) -> tuple[Line, ...]:
    """Marks the best printed value of every column and block of several lines.

    Equal values share the mark.
    """
    sizes = Counter(line.block for line in lines)
    better = [min if falls(column) else max for column in columns]
    best: dict[tuple[str, int], float] = {}
    places = [(line.block, i, cell) for line in lines for i, cell in enumerate(line.cells)]
    for block, index, cell in places:
        if block and sizes[block] > 1 and columns[index].best and cell.printed:
            key, value = (block, index), float(cell.printed)
            best[key] = better[index](best.get(key, value), value)
    return tuple(
        replace(
            line,
            cells=tuple(
                replace(cell, best=cell.is_number(best.get((line.block, i))))
                for i, cell in enumerate(line.cells)
            ),
        )
        for line in lines
    )


def mark_tuned(
    lines: Sequence[Line], heads: Sequence[Column], tuned_from: Mapping[str, str]
) -> tuple[Line, ...]:
    """Marks numbers that are larger than those of the draft before fine-tuning."""
    by_labels = {line.labels: line for line in lines}
    marked = []
    for line in lines:
        draft, *rest = line.labels
        before = by_labels.get((tuned_from.get(draft, ""), *rest))
        cells = list(line.cells)
        for index, column in enumerate(heads) if before and draft in tuned_from else ():
            if before and column.tuned and cells[index].exceeds(before.cells[index]):
                bold = column.tuned == "bold"
                cells[index] = replace(cells[index], best=bold, underlined=not bold)
        marked.append(replace(line, cells=tuple(cells)))
    return tuple(marked)
