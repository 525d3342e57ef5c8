"""A claim as data: the schema of ``claims:`` in a paper's ``paper.yaml``.

Knows how a claim is written; nothing about rows.

    - claim: "{left} > {right} in {metric}"
      sentence: "RSD-S strictly outperforms both SD and SpecTr for all performance metrics"
      section: Section 5.1
      experiments: rsd-exp1
      sides: [[rsd_s, spectr], [rsd_s, sd]]
      same: depth
      metric: [mbsu, token_rate]
      pooled: true

compares every two trees of one depth, on each task and on all tasks' prompts together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from spec_bench.settings.validation import check

Value = str | bool | int | float

Expect = Literal["ahead", "more", "less", "rising", "open"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Range(_Strict):
    """Numbers from one to another, both included unless ``above`` excludes the first."""

    least: float | None = Field(None, alias="from")
    most: float | None = Field(None, alias="to")
    above: float | None = None

    def holds(self, value: float) -> bool:
        """Whether a number lies in it."""
        if self.above is not None and value <= self.above:
            return False
        return (self.least is None or value >= self.least) and (
            self.most is None or value <= self.most
        )


class Side(_Strict):
    """Cells on one side of a comparison; in YAML also a decoder's name or a list of them.

    Attributes:
        decoder: names; none: all.
        without: names that are left out.
        tree_attention: with it or without; None: either.
        form: of the tree's shorthand, e.g. ``number``; "": any.
        where: columns, or parts of the shorthand such as ``width``, with the values they may have.
    """

    decoder: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    tree_attention: bool | None = True
    form: str = ""
    where: Mapping[str, Range | tuple[Value, ...]] = {}

    @model_validator(mode="before")
    @classmethod
    def _names(cls, data: Any) -> Any:
        """A name or a list of names for the decoder, single values for lists."""
        if isinstance(data, str | list | tuple):
            data = {"decoder": data}
        if not isinstance(data, dict):
            return data
        for name in ("decoder", "without"):
            if isinstance(data.get(name), str):
                data = {**data, name: (data[name],)}
        where = data.get("where", {})
        if isinstance(where, dict):
            data = {**data, "where": {k: _listed(v) for k, v in where.items()}}
        return data


class Claim(_Strict):
    """One claim: the cells to compare, the metric, and the difference that the paper expects.

    Attributes:
        claim: its text, with fields in braces: ``{left}``, ``{right}``, ``{metric}``, ...
        sentence: the paper's words; "" where they are not at hand, or the check is ours.
        reported: in place of these, the paper's result as a summary states it.
        section: of the paper.
        ours: that it is in no sentence of the paper.
        function: name of a claim function; then nothing below but ``experiments`` counts.
        experiments: results folders whose rows count; all rows where none of them is there.
        only: no rows of other experiments, even where none of these is there.
        given: required settings of the cells, e.g. ``temperature: {from: 0.7}``.
        across: settings in which compared cells may differ, e.g. ``batch_size``.
        join: a function of the paper's code that adds columns to the cells.
        sides: pairs of left and right; ``left`` and ``right`` is short for one.
        pairs: model pairs to compare, left: right; none: both sides have the same.
        compare: ``best``: the best cell of each side. ``first``: the first cell of each side.
            ``pairs``: every left cell with every right one. ``steps``: each left cell with the
            next smaller one along ``along``. ``ends``: the largest with the smallest. Any other
            name: a function of the paper's code.
        same: columns or parts of the shorthand in which compared cells agree.
        along: the order of ``steps`` and ``ends``; a minus before it puts the smaller value
            on the left.
        axis: an axis of the paper's tables; cells that stand in no table are left out.
        each: one check per value of these, else one on the mean; ``left`` and ``right`` stand for
            decoder and tree.
        every: each comparison must hold by itself, from this value of ``each`` on.
        majority: more than half of the comparisons must hold, each a value of ``each``.
        metric: a column each; ``score``: the task's score.
        counted: the columns are counts without an interval.
        against: a part of the left cell's shorthand that stands in for the right side's count.
        recorded: only where the prompts' records are there.
        rounds: the cells are of different jobs; their times are compared where every job was run
            under two seeds or more, and the interval covers the spread over such rounds.
        expect: ``ahead``: left is better, as the column's direction has it; ``more``, ``less``;
            ``rising``: more at the end of ``steps`` than at the start, and less at no step;
            ``open``: nothing is decided.
        within: the difference is at most this, e.g. 0.05 or ``10%`` of the left side.
        at_least: the difference is at least this.
        pooled: also on the prompts of all tasks together; a text names that place.
        where: the place as text with fields; "": the task and the settings that differ.
        evidence: parts of the evidence, with fields; a part whose field has no value is left out.
    """

    claim: str = ""
    sentence: str = ""
    reported: str = ""
    section: str = ""
    ours: bool = False
    function: str = ""
    experiments: tuple[str, ...] = ()
    only: bool = False
    given: Mapping[str, Range] = {}
    across: tuple[str, ...] = ()
    join: str = ""
    sides: tuple[tuple[Side, Side], ...] = ()
    pairs: Mapping[str, str] = {}
    compare: str = "pairs"
    same: tuple[str, ...] = ()
    along: str = ""
    axis: str = ""
    each: tuple[str, ...] = ()
    every: float | None = None
    majority: bool = False
    metric: tuple[str, ...] = ()
    counted: bool = False
    against: str = ""
    recorded: bool = False
    rounds: bool = False
    expect: Expect = "ahead"
    within: float | str | None = None
    at_least: float | None = None
    pooled: bool | str = False
    where: str = ""
    evidence: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, data: Any) -> Any:
        """``left`` and ``right`` for one pair of sides, single names for lists."""
        if not isinstance(data, dict):
            return data
        data = {
            key: [value] if key in _LISTS and isinstance(value, str) else value
            for key, value in data.items()
        }
        if "left" in data:
            left = data.pop("left")
            data["sides"] = [(left, data.pop("right", left))]
        return data

    @model_validator(mode="after")
    def _complete(self) -> Claim:
        """Checks the fields against each other."""
        if self.sentence and self.reported:
            raise ValueError("a claim has the paper's sentence or what it reported, not both")
        if bool(self.statement) == (self.ours or not self.section):
            what = "the paper's sentence, or what it reported, and its section"
            raise ValueError(f"a claim has {what}, or says ours: true")
        if not self.function and not (self.claim and self.sides and self.metric):
            raise ValueError("a claim without a function needs claim, left and metric")
        if (self.every is not None or self.majority) and not self.each:
            raise ValueError("every and majority go with each: of what every or most must hold")
        ordered, plain = ("steps", "ends"), ("best", "first", "pairs")
        if self.compare in (plain if self.along else ordered):
            raise ValueError("along goes with compare: steps or ends, or with the paper's own")
        return self

    @property
    def statement(self) -> str:
        """The paper's words as a quotation, or their summary as one; "" where the claim is ours."""
        if self.reported:
            return f"reported, in a summary's words: {self.reported}"
        return f"“{self.sentence}”" if self.sentence else ""

    @property
    def key(self) -> str:
        """The column or part of the shorthand that ``along`` names."""
        return self.along.lstrip("-")


def read_claim(entry: Mapping[str, Any]) -> Claim:
    """A claim from its entry in a data file.

    Raises:
        ValueError: it is not written as one; names the claim, the key and the error.
    """
    return check(Claim, entry, of=f"claim {entry.get('claim') or entry.get('function')!r}")


_LISTS = ("experiments", "across", "same", "each", "metric", "evidence")


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str | bool | int | float) else value
