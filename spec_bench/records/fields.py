"""The columns of ``records.parquet``, once: name, what it holds, definition, unit.

Knows nothing about how the file is written (``parquet``).
"""

from __future__ import annotations

from dataclasses import dataclass

from spec_bench.system import files

STEP = "step_"
SCORE = "score_"
PARTS = "parts_"
AGAIN = "/again"
CATEGORY = "category"
SERVED = "served_"
LISTED = (f"{SERVED}s", f"{SERVED}tokens")


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
    Field("energy_check_j", "number", "the same by the meter's second way", "J"),
    Field("energy_note", "text", "why there is no energy, or what to mind about it"),
    Field("load_average", "number", "the machine's 1-minute load when the batch had ended"),
    Field("clock_mhz", "number", "the device's clock at the same moment", "MHz"),
    Field("sitting", "text", "what one sitting of a job decoded was decoded in turn"),
    Field(CATEGORY, "text", "the prompt's, as the task's rows say; only where some prompt has one"),
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
OPTIONAL = (CATEGORY, *(each.name for each in FIELDS if each.name.startswith(SERVED)))
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
