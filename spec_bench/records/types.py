"""Plain dataclasses that layers exchange. A metric is a pure function of these records.

Knows nothing about torch, Hydra or transformers: every layer may import this module.

* **target call** -- one forward pass of the target that verifies a tree (autoregressive: a root).
  The prompt's prefill is no target call.
* **accepted** -- draft tokens that a target call confirmed. Each target call emits
  ``accepted + 1`` tokens: the accepted ones and one residual or bonus token.
* **residual token** -- drawn after all children of a node were rejected.
* **bonus token** -- drawn at a leaf where everything was accepted.
* **exact_beam** -- exact, but for the distribution of beam decoding and not that of single samples.
* **unaudited** -- decoded by another engine, whose distribution was not enumerated here.
* **delivered** -- emitted tokens up to and including the end-of-sequence token, within the length
  limit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from spec_bench.records.ends import StopCriteria
from spec_bench.records.sampling import SamplingSettings
from spec_bench.settings.former import FormerMembers
from spec_bench.system.errors import UsageError

_REASON = re.compile(r"([a-z]\w*): (.*)", re.DOTALL)
_TIMING_DOUBT = re.compile(r"\bspeedup: ((?:stalled|disturbed): [^;]*)")
_MISSING_DATA = re.compile(r"(?:prompts_failed|quality_signature): ([^;]*)")
_TRACE = " (trace: "
Lossless = Literal["exact", "exact_beam", "approximate", "simulated", "unaudited"]
Finish = Literal["stop", "length"]
Baseline = Literal["same job", "earlier job"]
Stage = Literal["", "screen", "confirm"]
Counted = Literal["requests", "counters", "stream"]


@dataclass(frozen=True)
class Reason:
    """Why a column of a cell is empty, a caveat about it, or why the cell failed."""

    column: str  # "" if the cell failed
    text: str  # for people
    trace: str = ""  # file with a failure's traceback, or ""

    def __str__(self) -> str:
        """Formats the reason for a row; ``parse_reasons`` inverts it."""
        if not self.column:
            return f"{self.text}{_TRACE}{self.trace})" if self.trace else self.text
        return f"{self.column}: {self.text.replace('; ', ', ')}"


def format_reasons(reasons: Iterable[Reason]) -> str:
    """Joins a row's reasons: ``column: why; column: why``, or a failure's message."""
    return "; ".join(map(str, reasons))


def parse_reasons(text: str) -> tuple[Reason, ...]:
    """Parses the text of ``format_reasons``; a text without columns is a failure's message."""
    if not text:
        return ()
    matches = [_REASON.fullmatch(match) for match in text.split("; ")]
    reasons = [Reason(match[1], match[2]) for match in matches if match]
    if len(reasons) == len(matches):
        return tuple(reasons)
    message, _, trace = text.partition(_TRACE)
    return (Reason("", message, trace.removesuffix(")")),)


def explain_timing_doubt(reasons_text: str) -> str:
    """Returns why a row's times are unreliable (stalled windows, other programs); "" if not."""
    return "".join(_TIMING_DOUBT.findall(reasons_text)[:1])


def explain_missing_data(reasons_text: str) -> str:
    """Returns why a row lacks prompts or a score; "" if it lacks neither."""
    return "".join(f"partial: {text}" for text in _MISSING_DATA.findall(reasons_text)[:1])


BUSY = 0.2
"""Share of time waiting for a core above which other programs are taken to use the machine."""
ENGINE = 2
"""Version of the code that decodes. Raise it when the same settings give different tokens, when
different work is timed, or when the speed changes by 5%. It is part of the run id, so that tables
never mix cells of two engines; rows without a version are of engine 0. If only the trees of one
policy change, raise its ``revision`` instead."""


@dataclass(frozen=True)
class Request:
    """One prompt to decode."""

    prompt_id: str  # unique within a task; with the seed it determines the random generator
    prompt_ids: tuple[int, ...]  # token ids of the prompt, at least one
    max_new_tokens: int  # limit on delivered tokens
    stop_ids: tuple[int, ...] = ()  # token ids that end the generation; delivered
    # also texts that end it: delivered up to the token that completes a text
    stop_criteria: StopCriteria = field(default=StopCriteria(), compare=False, repr=False)

    def count_tokens_to_end(self, tokens: Sequence[int], checked_count: int = 0) -> int | None:
        """Counts the tokens up to and including an answer's first end; None if it has not ended.
        The first ``checked_count`` tokens must contain no end.
        """
        places = enumerate(tokens[checked_count:], start=checked_count + 1)
        end = next((place for place, token in places if token in self.stop_ids), None)
        return self.stop_criteria.count_tokens_to_stop_text(tokens[:end], checked_count) or end


class PromptError(UsageError):
    """Error about a single prompt that cannot be decoded; other prompts are not affected."""

    def __init__(self, prompt_id: str, reason: str) -> None:
        super().__init__(f"prompt {prompt_id!r}{reason}")
        self.prompt_id = prompt_id


Progress = Callable[[int, int], None]
"""Called with the numbers of new target calls and tokens."""
TokenCount = int
"""A number of tokens that a step emitted."""


class Meter(Protocol):
    """Energy meter for one batch; the device is synchronised at the window's start and end."""

    def begin_window(self) -> None:
        """Opens the window when decoding starts."""

    def end_window(self) -> None:
        """Closes the window when decoding is over."""


@dataclass(frozen=True)
class StepRecord:
    """Counts of one target call for one row."""

    nodes: int  # tree nodes that were verified, the root not counted (autoregressive: 0)
    depth: int  # levels of the tree = sequential draft calls
    accepted: int  # draft tokens accepted on the walk, 0..depth
    delivered: int  # tokens of this call that were delivered, at most `accepted + 1`
    widths: tuple[int, ...] = ()  # beams after each of `accepted + 1` layers; empty without beams


@dataclass(frozen=True)
class ServerChunks:
    """Chunks of a server's answer as they arrived."""

    seconds: tuple[float, ...]  # from sending the request to each chunk's arrival
    tokens: tuple[int, ...]  # count of each chunk; the first chunk comes from the prefill
    counted: Counted = "stream"  # source of the target calls: its counts, counters, or the chunks
    proposed: bool = False  # whether the number of tokens that each call verified is known
    attempts: int = 1  # requests that the answer took


@dataclass(frozen=True)
class Generation(FormerMembers):
    """Everything measured while one prompt was decoded.

    Seconds are wall seconds with the device synchronised at both ends. Rows of one batch share its
    seconds equally, so that the sum over generations is the elapsed time.
    """

    former_members: ClassVar = {"decoded": "tokens_in_decode_s"}
    prompt_id: str  # the request's
    tokens: tuple[int, ...]  # delivered token ids, the end-of-sequence token included
    finish: Finish  # `stop` or `length`
    steps: tuple[StepRecord, ...]  # one record a target call
    prefill_s: float  # seconds for the prompt's prefill, target and draft together
    decode_s: float  # seconds from the end of the prefill to the last token
    draft_s: float  # of `decode_s`, seconds inside draft forward passes
    target_s: float  # of `decode_s`, seconds inside target forward passes
    energy_j: float | None = None  # joules over the decode window; None without a meter
    log_likelihood: float | None = None  # nats, under the target at temperature 1, not truncated
    energy_note: str = ""  # why there is no energy, or a caveat
    latency_s: float | None = None  # prefill's start to last token, with other rows' work
    repeat: int = 0  # number of the prompt's repeat, from 0; all repeats have the same tokens
    load_average: float | None = None  # 1-minute value of `os.getloadavg` at the batch's end
    clock_mhz: float | None = None  # the device's clock at the batch's end
    # longest wait of a thread for a core, as a share of the batch's time; 0 if unknown
    core_wait: float | None = None
    session: str = ""  # session of a job that decoded it; cells of one session take turns
    ended_at: float | None = None  # Unix seconds at the batch's end; None in older records
    category: str = ""  # the task's category of the prompt, or ""
    prompt_tokens: int | None = None  # tokens of the prompt; None in older records
    # Chunks of a server's answer; None if it was decoded here. The tokens of its first chunk are
    # the prompt's pass: they are in no step and not in `decode_s`.
    delivery: ServerChunks | None = None

    @property
    def tokens_in_decode_s(self) -> int:
        """Number of tokens emitted within ``decode_s``: all but those of a server's first chunk."""
        return len(self.tokens) - (self.delivery.tokens[0] if self.delivery else 0)

    # Terms of metrics; ``arrays.GenerationArrays`` has them as arrays under the same names.
    delivered = property(lambda self: len(self.tokens))
    calls = property(lambda self: len(self.steps))  # the prefill is not one
    accepted = property(lambda self: sum(s.accepted for s in self.steps))
    # A walk that accepts a of L levels tests children at min(a + 1, L) depths.
    walked = property(lambda self: sum(min(s.accepted + 1, s.depth) for s in self.steps))
    beams = property(lambda self: sum(sum(s.widths) for s in self.steps))
    layers = property(lambda self: sum(len(s.widths) for s in self.steps))

    def has_same_steps_and_tokens(self, first_run: Generation) -> bool:
        """Returns whether it has the same target calls and tokens as ``first_run``."""
        return self.tokens == first_run.tokens and self.steps == first_run.steps

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-ready dictionary; ``from_json`` inverts it."""
        fields = asdict(self)
        return fields if self.delivery else {k: v for k, v in fields.items() if k != "delivery"}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Generation:
        """Inverts ``to_json``."""
        steps = ({**step, "widths": tuple(step.get("widths", ()))} for step in content["steps"])
        values = {**content, "tokens": tuple(content["tokens"])}
        # Version 0.2 called a session ``sitting``; the oldest lines have a second meter's joules.
        if "sitting" in values:
            values["session"] = values.pop("sitting")
        values.pop("energy_check_j", None)
        values["steps"] = tuple(StepRecord(**step) for step in steps)
        if delivery := content.get("delivery"):
            lists = {key: tuple(delivery[key]) for key in ("seconds", "tokens")}
            values["delivery"] = ServerChunks(**{**delivery, **lists})
        return cls(**values)


@dataclass(frozen=True)
class CellFacts:
    """Facts of a cell that are known before it runs. The fields, and those of ``sampling``, are
    columns of the results table, see ``vocabulary/columns.csv``; unknown ones are empty.
    """

    pair: str
    target: str
    draft: tuple[str, ...]
    task: str
    decoder: str
    spec: str
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
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
    code_digest: str = ""
    tree_revision: str = ""
    device: str = ""
    dtype: str = ""
    weights: str = ""
    attention: str = ""
    products: str = ""
    compile: str = ""
    threads: int | None = None
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
    facts: CellFacts
    status: Literal["complete", "partial", "failed"]
    lossless: Lossless | None = None  # its relation to the target's distribution
    reasons: tuple[Reason, ...] = ()  # why the cell failed or columns are empty
    metrics: dict[str, float | str | None] = field(default_factory=dict)  # by column; None: empty
    baseline: Baseline | None = None  # job of its speed-up's plain decoding; None: no speed-up

    @property
    def reason(self) -> str:
        """All reasons in one text."""
        return format_reasons(self.reasons)

    def with_stage(self, stage: Stage) -> CellResult:
        """Returns a copy of the result as a row of the given stage of a search."""
        return replace(self, facts=replace(self.facts, stage=stage))


class ProgramTests(str):
    """Source text of a program's tests, which defines ``check``; tasks read it, metrics run it."""

    prompt: str  # the program's beginning, which the answer completes
    entry_point: str  # the function that `check` is called with

    def __new__(cls, tests: str, prompt: str, entry_point: str) -> ProgramTests:
        """Creates the tests of a program."""
        reference = super().__new__(cls, tests)
        reference.prompt = prompt
        reference.entry_point = entry_point
        return reference


class SqlReference(str):
    """A reference answer in SQL, with the database that metrics query."""

    database: Path  # the SQLite file

    def __new__(cls, sql: str, database: Path) -> SqlReference:
        """Creates a reference answer on a database."""
        reference = super().__new__(cls, sql)
        reference.database = database
        return reference
