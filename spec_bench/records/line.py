"""A line of ``records.parquet``: its columns and their types, from a generation and back.

Each column stands here once: name, what it holds, definition, unit. Knows pyarrow, which it loads
only when it is asked for a type; nothing about files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from spec_bench.records.types import Delivery, Generation, StepRecord
from spec_bench.system import files

if TYPE_CHECKING:
    import pyarrow as pa

STEP = "step_"
SCORE = "score_"
PARTS = "parts_"
AGAIN = "/again"
CATEGORY = "category"
PROMPT_TOKENS = "prompt_tokens"
SERVED = "served_"
LISTED = (f"{SERVED}s", f"{SERVED}tokens")
UNKNOWN_TOKEN = -1
Scored = float | Sequence[float]
"""A number, of which the score is the mean, or numbers that make the score by their sums."""
Scores = Mapping[str, Mapping[str, Scored]]
"""What each prompt's answer scored: name of the score -> prompt id -> number or numbers."""
_NAMED = re.compile(f"^(?:{SCORE}|{PARTS})")


@dataclass(frozen=True)
class Field:
    """One column of the file.

    Attributes:
        name: in the file; what begins with ``step_`` is a list with an entry per target call, and
            ``LISTED`` are lists with an entry per chunk of a server's answer.
        holds: ``text``, ``count`` or ``number``.
        definition: one line.
        unit: of a number.
    """

    name: str
    holds: str
    definition: str
    unit: str = ""


FIELDS = (
    Field("run_id", "text", f"which line of the table; RUN_ID{AGAIN}: a baseline's, timed again"),
    Field("repeat", "count", "which time the prompt was decoded, from 0"),
    Field("prompt_id", "text", "which prompt of the task"),
    Field("finish", "text", "stop: by an end-of-sequence token; length: by the limit"),
    Field("tokens", "count", "delivered tokens, the end-of-sequence token included"),
    Field("prefill_s", "number", "the prompt's prefill, target and draft together", "s"),
    Field("decode_s", "number", "from the end of the prefill to the last token", "s"),
    Field("draft_s", "number", "of these, inside draft forward passes", "s"),
    Field("target_s", "number", "of these, inside target forward passes", "s"),
    Field("latency_s", "number", "from the start of the prefill to the last token", "s"),
    Field("energy_j", "number", "over the decode window; empty without a meter", "J"),
    Field("energy_note", "text", "why there is no energy, or what to mind about it"),
    Field("load_average", "number", "the machine's 1-minute load when the batch had ended"),
    Field("clock_mhz", "number", "the device's clock at the same moment", "MHz"),
    Field("sitting", "text", "what one sitting of a job decoded was decoded in turn"),
    Field(CATEGORY, "text", "the prompt's, as the task's rows say; only where some prompt has one"),
    Field(PROMPT_TOKENS, "count", "tokens of the prompt; only where they are known"),
    Field("log_likelihood", "number", "of the tokens under the target at temperature 1", "nat"),
    Field("step_nodes", "count", "tree nodes verified, the root not counted"),
    Field("step_depth", "count", "levels of the tree"),
    Field("step_accepted", "count", "draft tokens accepted"),
    Field("step_delivered", "count", "tokens delivered, at most accepted + 1"),
    Field("step_widths", "count", "beams after each layer of the call; empty without beams"),
    Field(
        LISTED[0], "number", "arrival of each chunk of a server's answer, after the request", "s"
    ),
    Field(LISTED[1], "count", "tokens of each chunk; the first is the prompt's pass and no step"),
    Field(f"{SERVED}counted", "text", "where the steps are known from: requests, counters, stream"),
    Field(f"{SERVED}proposed", "count", "1: it is known how many tokens each call verified"),
    Field(f"{SERVED}attempts", "count", "requests that the answer took"),
)
OPTIONAL = (
    CATEGORY,
    PROMPT_TOKENS,
    *(each.name for each in FIELDS if each.name.startswith(SERVED)),
)
"""Columns that a file has where some line says something in them."""
_SCORED = "what the answer scored, where the table's score is the mean; empty in later repeats"
_PARTS = "the numbers whose sums over prompts make the table's score: sacrebleu's counts of BLEU"
_ABOUT = f"""## Records by prompt

`<name>/{files.RECORDS}` is what intervals, and differences paired by prompt, are made of: with it,
pages and verdicts come out the same where `{files.RUNS}` is not there. It holds no text, no token
ids. Columns that begin with `{STEP}` are lists with an entry per target call; those that begin with
`{SERVED}` are there where a server decoded. Where cells were added to a finished job, the baseline
was timed again beside them: these lines are none of its own speed, and stand below
`RUN_ID{AGAIN}`, by `sitting`. The file's metadata holds its SHA-256, taken with
zeros in its place: a file of which one bit was changed is refused. Other tools need not look at it.

```python
records = pandas.read_parquet("results/NAME/{files.RECORDS}")
rates = records.groupby("run_id")[["tokens", "decode_s"]].sum().eval("tokens / decode_s")
```

| column | unit | what it is |
| --- | --- | --- |
"""


def markdown() -> str:
    """What ``results/README.md`` says of the file."""
    score = Field(f"{SCORE}NAME", "number", _SCORED)
    parts = Field(f"{PARTS}NAME", "number", _PARTS)
    every = (*FIELDS, score, parts)
    lines = [f"| `{each.name}` | {each.unit} | {each.definition} |" for each in every]
    return _ABOUT + "\n".join(lines) + "\n"


def line_of(run_id: str, generation: Generation, scores: Scores) -> dict[str, Any]:
    """A generation as a line, with its scores by column."""
    line = {**vars(generation), "run_id": run_id, "tokens": len(generation.tokens)}
    for each in fields(StepRecord):
        line[f"{STEP}{each.name}"] = [getattr(step, each.name) for step in generation.steps]
    line |= {f"{SERVED}counted": "", f"{SERVED}proposed": 0, f"{SERVED}attempts": 0}
    if (came := generation.delivery) is not None:
        line |= {f"{SERVED}{name}": getattr(came, field) for name, field in _DELIVERY.items()}
        line[f"{SERVED}proposed"] = int(came.proposed)
    for column, by_prompt in scores.items():
        line[column] = None if generation.repeat else by_prompt.get(generation.prompt_id)
    return line


_DELIVERY = {"s" if each.name == "seconds" else each.name: each.name for each in fields(Delivery)}
_GENERATION = frozenset(each.name for each in fields(Generation))


def generation_of(line: Mapping[str, Any]) -> Generation:
    """Inverts ``line_of`` but for the token ids."""
    names = [each.name for each in fields(StepRecord)]
    columns = zip(*(line[f"{STEP}{name}"] for name in names), strict=True)
    steps = []
    for values in columns:
        step = dict(zip(names, values, strict=True))
        steps.append(StepRecord(**{**step, "widths": tuple(step["widths"])}))
    attributes = {name: value for name, value in line.items() if name in _GENERATION}
    attributes |= {"tokens": (UNKNOWN_TOKEN,) * line["tokens"], "steps": tuple(steps)}
    if line[LISTED[1]]:
        came = {field: line[f"{SERVED}{name}"] for name, field in _DELIVERY.items()}
        lists = {name: tuple(came[name]) for name in ("seconds", "tokens")}
        attributes["delivery"] = Delivery(**{**came, **lists, "proposed": bool(came["proposed"])})
    return Generation(**attributes)


def column_of(score: str, by_prompt: Mapping[str, Scored]) -> str:
    """The column of a score: of one number a prompt, or of several."""
    several = any(isinstance(value, Sequence) for value in by_prompt.values())
    return f"{PARTS if several else SCORE}{score}"


def scores_in(lines: pa.Table) -> list[str]:
    """The columns of scores."""
    return [name for name in lines.column_names if _NAMED.match(name)]


def score_of(column: str) -> str:
    """The score that a column holds."""
    return _NAMED.sub("", column)


def schema_of(scores: Iterable[str] = ()) -> pa.Schema:
    """The columns with their types, then those of scores, one number before several."""
    import pyarrow as pa

    columns = [pa.field(each.name, kind_of(each)) for each in FIELDS]
    parts = pa.list_(pa.field("element", pa.float64()))
    for name in sorted(scores, key=lambda name: (name.startswith(PARTS), name)):
        columns.append(pa.field(name, parts if name.startswith(PARTS) else pa.float64()))
    return pa.schema(columns)


def kind_of(field: Field) -> pa.DataType:
    """A column's type."""
    import pyarrow as pa

    kind = {"text": pa.string, "count": pa.int32, "number": pa.float64}[field.holds]()
    lists = field.name.startswith(STEP) + field.name.endswith("widths") + (field.name in LISTED)
    for _ in range(lists):
        kind = pa.list_(pa.field("element", kind))
    return kind


def leaf_of(schema: pa.Schema, name: str) -> str:
    """A column's place in the file's nesting."""
    kind, path = schema.field(name).type, name
    while hasattr(kind, "value_type"):
        kind, path = kind.value_type, f"{path}.list.element"
    return path
