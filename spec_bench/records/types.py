"""The plain dataclasses that pass between layers. A metric is a pure function of these records.

Knows nothing about torch, Hydra or transformers: every layer may import this module.

* **target call** -- one forward pass of the target that verifies a tree (autoregressive: a root).
  The prompt's prefill is not one.
* **accepted** -- draft tokens that a target call confirmed. Each target call emits
  ``accepted + 1`` tokens: the accepted ones and one residual or bonus token.
* **residual token** -- drawn after all children of a node were rejected.
* **bonus token** -- drawn at a leaf where everything was accepted.
* **exact_beam** -- exact, but for the distribution of beam decoding and not that of single samples.
* **unaudited** -- decoded by another engine, whose distribution was not enumerated here.
* **delivered** -- emitted tokens that lie before the end-of-sequence token's end and within the
  length limit; the end-of-sequence token itself is delivered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from spec_bench.records.ends import StopCriteria
from spec_bench.system.errors import UsageError

_REASON = re.compile(r"([a-z]\w*): (.*)", re.DOTALL)
_DOUBT = re.compile(r"\bspeedup: ((?:stalled|disturbed): [^;]*)")
_LOST = re.compile(r"(?:prompts_failed|quality_signature): ([^;]*)")
_TRACE = " (trace: "
Lossless = Literal["exact", "exact_beam", "approximate", "simulated", "unaudited"]
Finish = Literal["stop", "length"]
Baseline = Literal["same job", "earlier job"]
Stage = Literal["", "screen", "confirm"]
Counted = Literal["requests", "counters", "stream"]


@dataclass(frozen=True)
class Reason:
    """Why a column of a cell is empty, what to mind about it, or why the cell has no numbers."""

    column: str  # which; "" where the cell failed
    text: str  # for people
    trace: str = ""  # the file with a failure's traceback; "" where there is none

    def __str__(self) -> str:
        """Returns one reason as a row has it; ``parse_reasons`` reads it."""
        if not self.column:
            return f"{self.text}{_TRACE}{self.trace})" if self.trace else self.text
        return f"{self.column}: {self.text.replace('; ', ', ')}"


def format_reasons(reasons: Iterable[Reason]) -> str:
    """All reasons of a row in one text: ``column: why; column: why``, or a failure's message."""
    return "; ".join(map(str, reasons))


def parse_reasons(text: str) -> tuple[Reason, ...]:
    """Inverts ``format_reasons``; what names no column is a failure's message."""
    if not text:
        return ()
    parts = [_REASON.fullmatch(part) for part in text.split("; ")]
    named = [Reason(part[1], part[2]) for part in parts if part]
    if len(named) == len(parts):
        return tuple(named)
    message, _, trace = text.partition(_TRACE)
    return (Reason("", message, trace.removesuffix(")")),)


def find_doubt(reasons: str) -> str:
    """Returns why a row's times decide nothing: windows stalled, others used the machine; or ""."""
    return "".join(_DOUBT.findall(reasons)[:1])


def find_loss(reasons: str) -> str:
    """Returns why a row lacks prompts or a score that were asked for; ""."""
    return "".join(f"partial: {text}" for text in _LOST.findall(reasons)[:1])


BUSY = 0.2
"""Where a thread waits for a core so much of its time, others need more cores than there are."""
ENGINE = 2
"""The number of the code that decodes. Raised by one when the same settings give other tokens, or
when what is timed changes, or how fast by a twentieth. It is part of a run id, so that cells
of an older engine are decoded again and never stand beside those of a newer one; rows without one
are of engine 0. Where the trees of one policy alone change, its ``revision`` is raised instead."""


@dataclass(frozen=True)
class Request:
    """One prompt to decode."""

    prompt_id: str  # unique within a task; with the seed it determines the random generator
    prompt_ids: tuple[int, ...]  # token ids of the prompt, at least one
    max_new_tokens: int  # limit on delivered tokens
    stop_ids: tuple[int, ...] = ()  # end the generation: delivered, then nothing more
    # has texts that end it, too: delivered up to the token that makes one whole
    ends: StopCriteria = field(default=StopCriteria(), compare=False, repr=False)

    def find_end(self, tokens: Sequence[int], before: int = 0) -> int | None:
        """Returns how many tokens of an answer are delivered up to its first end; None if it has
        not ended. The first ``before`` tokens are known to hold no end.
        """
        places = enumerate(tokens[before:], start=before + 1)
        end = next((place for place, token in places if token in self.stop_ids), None)
        return self.ends.find_text(tokens[:end], before) or end


class PromptError(UsageError):
    """One prompt cannot be decoded, whatever becomes of the others."""

    def __init__(self, prompt_id: str, why: str) -> None:
        super().__init__(f"prompt {prompt_id!r}{why}")
        self.prompt_id = prompt_id


Progress = Callable[[int, int], None]
"""Takes (target calls, tokens) as they come."""


class Meter(Protocol):
    """What measures energy around the decoding of one batch; the device is synchronised."""

    def begin(self) -> None:
        """Decoding starts now."""

    def end(self) -> None:
        """Decoding is over."""


@dataclass(frozen=True)
class StepRecord:
    """What one target call did for one row."""

    nodes: int  # tree nodes that were verified, the root not counted (autoregressive: 0)
    depth: int  # levels of the tree = sequential draft calls
    accepted: int  # draft tokens accepted on the walk, 0..depth
    delivered: int  # tokens of this call that were delivered, at most `accepted + 1`
    widths: tuple[int, ...] = ()  # beams after each of `accepted + 1` layers; empty without beams


@dataclass(frozen=True)
class Delivery:
    """How an answer came over a connection, of a decoding that runs in a server."""

    seconds: tuple[float, ...]  # after the request was sent, at which each chunk came, one a chunk
    tokens: tuple[int, ...]  # of each chunk. The first chunk is the prompt's pass.
    counted: Counted = "stream"  # what tells the target calls: its counts, counters, or the chunks
    proposed: bool = False  # whether it is known how many tokens each call verified
    attempts: int = 1  # requests that the answer took


@dataclass(frozen=True)
class Generation:
    """Everything measured while one prompt was decoded.

    Seconds are wall seconds with the device synchronised at both ends. Where several rows were
    decoded in one batch, each row carries its equal share of the batch's seconds, so that a sum
    over generations is the time that really passed.
    """

    prompt_id: str  # the request's
    tokens: tuple[int, ...]  # delivered token ids, the end-of-sequence token included
    finish: Finish  # `stop` or `length`
    steps: tuple[StepRecord, ...]  # one record a target call
    prefill_s: float  # seconds for the prompt's prefill, target and draft together
    decode_s: float  # seconds from the end of the prefill to the last token
    draft_s: float  # of `decode_s`, seconds inside draft forward passes
    target_s: float  # of `decode_s`, seconds inside target forward passes
    energy_j: float | None = None  # joules over the decode window; None where nothing meters them
    log_likelihood: float | None = None  # nats, under the target at temperature 1, not truncated
    energy_note: str = ""  # why there is no energy, or what to mind about it
    latency_s: float | None = None  # from the prefill's start to the last token, others included
    repeat: int = 0  # which time the prompt was decoded, from 0; tokens are the same every time
    load_average: float | None = None  # `os.getloadavg`'s of 1 minute, when the batch had ended
    clock_mhz: float | None = None  # the device's clock at the same moment
    # share of the batch's time in which its thread that waited longest for a core did; 0: untold
    core_wait: float | None = None
    sitting: str = ""  # which session of a job decoded it; what one decoded was interleaved
    # Unix seconds when its batch had ended; None in records from before
    ended_at: float | None = None
    category: str = ""  # what kind of prompt it is, as the task's rows say; "" where they do not
    prompt_tokens: int | None = None  # tokens of the prompt; None in records from before
    # How a server's answer came; None where it was decoded here. The tokens of its first chunk are
    # the prompt's pass: they are in no step and not in `decode_s`.
    delivery: Delivery | None = None

    @property
    def decoded(self) -> int:
        """Tokens that came within ``decode_s``: all but those of a server's first chunk."""
        return len(self.tokens) - (self.delivery.tokens[0] if self.delivery else 0)

    # What sums of these are made of has the same names in ``windows.MeasuredLines``, of many lines.
    delivered = property(lambda self: len(self.tokens))
    calls = property(lambda self: len(self.steps))  # the prefill is not one
    accepted = property(lambda self: sum(s.accepted for s in self.steps))
    # A walk that accepts a of L levels reached depths 0..a and could have left each except L.
    walked = property(lambda self: sum(min(s.accepted + 1, s.depth) for s in self.steps))
    beams = property(lambda self: sum(sum(s.widths) for s in self.steps))
    layers = property(lambda self: sum(len(s.widths) for s in self.steps))

    def repeats(self, first: Generation) -> bool:
        """Returns whether it is ``first`` over again: the same target calls and tokens."""
        return self.tokens == first.tokens and self.steps == first.steps

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary; ``from_json`` inverts it."""
        fields = asdict(self)
        return fields if self.delivery else {k: v for k, v in fields.items() if k != "delivery"}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Generation:
        """Rebuilds a generation from ``to_json``'s dictionary."""
        steps = ({**step, "widths": tuple(step.get("widths", ()))} for step in data["steps"])
        values = {**data, "tokens": tuple(data["tokens"])}
        values["steps"] = tuple(StepRecord(**step) for step in steps)
        if came := data.get("delivery"):
            lists = {key: tuple(came[key]) for key in ("seconds", "tokens")}
            values["delivery"] = Delivery(**{**came, **lists})
        return cls(**values)


@dataclass(frozen=True)
class CellFacts:
    """What a cell is, known before it runs. The fields are columns of the results table, which
    ``vocabulary/columns.csv`` explains; what is not known, or is not there, is empty.
    """

    pair: str
    target: str
    draft: tuple[str, ...]
    task: str
    decoder: str
    spec: str
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    batch_size: int = 1
    batching: str = "static"
    max_new_tokens: int = 128
    tree_attention: bool = True
    simulated_acceptance: tuple[float, ...] = ()
    later_turns: str | None = None
    stage: Stage = ""
    data_source: str = ""
    data_file: str = ""
    data_revision: str = ""
    prompts_digest: str = ""
    target_revision: str = ""
    draft_revision: tuple[str, ...] = ()
    target_digest: str = ""
    draft_digest: tuple[str, ...] = ()
    token_ids_digest: str = ""
    tree_revision: str = ""
    device: str = ""
    dtype: str = ""
    weights: str = ""
    attention: str = ""
    products: str = ""
    compile: str = ""
    threads: int | None = None
    draft_temperature: float | None = None
    stop_rule: str = ""
    tokenize: str = ""
    protocol: str = ""
    machine: str = ""
    engine: int = 0
    library: str = ""


@dataclass(frozen=True)
class CellResult:
    """One row of the results table. A failed cell has a status, a reason and no numbers."""

    run_id: str  # hash of the resolved settings that change the numbers
    facts: CellFacts  # what the cell is
    status: Literal["complete", "partial", "failed"]
    lossless: Lossless | None = None  # how it relates to the target's distribution
    reasons: tuple[Reason, ...] = ()  # why the cell failed or columns are empty
    metrics: dict[str, float | str | None] = field(default_factory=dict)  # by column; None: empty
    baseline: Baseline | None = None  # plain decoding interleaved with it; None: so no speed-up

    @property
    def reason(self) -> str:
        """All reasons in one text, as a row has them."""
        return format_reasons(self.reasons)

    def replace_stage(self, stage: Stage) -> CellResult:
        """The result as a row of that stage: a cell is the same whichever job asked for it."""
        return replace(self, facts=replace(self.facts, stage=stage))


class CodeReference(str):
    """A program's tests, a text that defines ``check``: tasks read them, metrics run them."""

    prompt: str  # the program's beginning, which the answer completes
    entry_point: str  # the function that `check` is called with

    def __new__(cls, tests: str, prompt: str, entry_point: str) -> CodeReference:
        """Returns the tests with their program."""
        reference = super().__new__(cls, tests)
        reference.prompt = prompt
        reference.entry_point = entry_point
        return reference


class SqlReference(str):
    """A reference answer in SQL, a text that knows which database metrics ask."""

    database: Path  # the SQLite file

    def __new__(cls, sql: str, database: Path) -> SqlReference:
        """Returns the text with its database."""
        reference = super().__new__(cls, sql)
        reference.database = database
        return reference
