"""The plain dataclasses that pass between layers.

Knows nothing about torch, Hydra or transformers: every layer may import this module and it
imports none of them. A metric is a pure function of these records.

Vocabulary, used everywhere in the project:

* **target call** -- one forward pass of the target that verifies a tree (autoregressive: a root).
  The prompt's prefill is not one.
* **accepted** -- draft tokens that a target call confirmed. Each target call emits
  ``accepted + 1`` tokens: the accepted ones and one residual or bonus token.
* **residual token** -- drawn after all children of a node were rejected.
* **bonus token** -- drawn at a leaf where everything was accepted.
* **exact_beam** -- exact, but for the law of beam decoding and not that of single samples.
* **unaudited** -- decoded by another engine, whose law was not enumerated here.
* **delivered** -- emitted tokens that lie before the end-of-sequence token's end and within the
  length limit; the end-of-sequence token itself is delivered.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from spec_bench.records.reasons import Reason, written_reasons

Lossless = Literal["exact", "exact_beam", "approximate", "simulated", "unaudited"]
Finish = Literal["stop", "length"]
Baseline = Literal["same job", "earlier job"]
Stage = Literal["", "screen", "confirm"]

ENGINE = 2
"""The number of the code that decodes. Raised by one when the same settings give other tokens, or
when what is timed changes, or how fast by a twentieth. It is part of a run id, so that cells
of an older engine are decoded again and never stand beside those of a newer one; rows without one
are of engine 0. Where the trees of one policy alone change, its ``revision`` is raised instead."""


@dataclass(frozen=True)
class Request:
    """One prompt to decode.

    Attributes:
        prompt_id: unique within a task; with the seed it determines the random generator.
        prompt_ids: token ids of the prompt, at least one.
        max_new_tokens: limit on delivered tokens.
        stop_ids: token ids that end the generation (delivered, then nothing more).
    """

    prompt_id: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    stop_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class StepRecord:
    """What one target call did for one row.

    Attributes:
        nodes: tree nodes that were verified, the root not counted (autoregressive: 0).
        depth: levels of the tree = sequential draft calls.
        accepted: draft tokens accepted on the walk, 0..depth.
        delivered: tokens of this call that were delivered, at most ``accepted + 1``.
        widths: beams after each of the call's ``accepted + 1`` layers; empty where one sequence is
            decoded.
    """

    nodes: int
    depth: int
    accepted: int
    delivered: int
    widths: tuple[int, ...] = ()


Counted = Literal["requests", "counters", "stream"]


@dataclass(frozen=True)
class Delivery:
    """How an answer came over a connection, of a decoding that runs in a server.

    Attributes:
        seconds: after the request was sent, at which each chunk came, one a chunk.
        tokens: of each chunk. The first chunk is the prompt's pass.
        counted: where the target calls are known from: the server's counts of the request, its
            counters before and after, or the chunks alone.
        proposed: whether it is known how many tokens each call verified.
        attempts: requests that the answer took.
    """

    seconds: tuple[float, ...]
    tokens: tuple[int, ...]
    counted: Counted = "stream"
    proposed: bool = False
    attempts: int = 1


@dataclass(frozen=True)
class Generation:
    """Everything measured while one prompt was decoded.

    Seconds are wall seconds with the device synchronised at both ends. Where several rows were
    decoded in one batch, each row carries its equal share of the batch's seconds, so that a sum
    over generations is the time that really passed.

    Attributes:
        prompt_id: the request's.
        tokens: delivered token ids, the end-of-sequence token included.
        finish: ``stop`` or ``length``.
        steps: one record a target call.
        prefill_s: seconds for the prompt's prefill, target and draft together.
        decode_s: seconds from the end of the prefill to the last token.
        draft_s: of ``decode_s``, seconds inside draft forward passes.
        target_s: of ``decode_s``, seconds inside target forward passes.
        energy_j: joules over the decode window, or None where nothing meters them.
        energy_note: why there is no energy, or what to mind about it; "" where there is nothing.
        log_likelihood: natural log of the probability of ``tokens`` under the target at temperature
            1, nothing truncated; None in records from before it was kept.
        latency_s: seconds from the start of the prompt's prefill to its last token, whatever else
            was decoded meanwhile; None in records from before it was kept.
        repeat: which time the prompt was decoded, from 0; tokens are the same every time.
        load_average: the machine's 1-minute load (``os.getloadavg``) when the batch had ended; None
            where the system tells none.
        clock_mhz: the device's clock in MHz at the same moment; None where nothing tells it.
        sitting: which process of a job decoded it; what one sitting decoded was decoded in turn.
        category: what kind of prompt it is, as the task's rows say; "" where they do not.
        prompt_tokens: tokens of the prompt; None in records from before it was kept.
        delivery: how a server's answer came; None where it was decoded here. The tokens of its
            first chunk are the prompt's pass: they are in no step and not in ``decode_s``.
    """

    prompt_id: str
    tokens: tuple[int, ...]
    finish: Finish
    steps: tuple[StepRecord, ...]
    prefill_s: float
    decode_s: float
    draft_s: float
    target_s: float
    energy_j: float | None = None
    log_likelihood: float | None = None
    energy_note: str = ""
    latency_s: float | None = None
    repeat: int = 0
    load_average: float | None = None
    clock_mhz: float | None = None
    sitting: str = ""
    category: str = ""
    prompt_tokens: int | None = None
    delivery: Delivery | None = None

    @property
    def decoded(self) -> int:
        """Tokens that came within ``decode_s``: all but those of a server's first chunk."""
        return len(self.tokens) - (self.delivery.tokens[0] if self.delivery else 0)

    def repeats(self, first: Generation) -> bool:
        """Whether it is ``first`` over again: the same target calls and tokens."""
        return self.tokens == first.tokens and self.steps == first.steps

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary; ``from_json`` inverts it."""
        fields = asdict(self)
        return fields if self.delivery else {k: v for k, v in fields.items() if k != "delivery"}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Generation:
        """Rebuilds a generation from ``to_json``'s dictionary."""
        steps = tuple(
            StepRecord(**{**step, "widths": tuple(step.get("widths", ()))})
            for step in data["steps"]
        )
        values = {**data, "tokens": tuple(data["tokens"]), "steps": steps}
        if came := data.get("delivery"):
            lists = {key: tuple(came[key]) for key in ("seconds", "tokens")}
            values["delivery"] = Delivery(**{**came, **lists})
        values.pop("energy_check_j", None)  # of earlier versions
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
    tree_revision: str = ""
    device: str = ""
    dtype: str = ""
    attention: str = ""
    compile: str = ""
    threads: int | None = None
    draft_temperature: float | None = None
    stop_rule: str = ""
    machine: str = ""
    engine: int = 0
    library: str = ""


@dataclass(frozen=True)
class CellResult:
    """One row of the results table.

    A failed cell has a status, a reason and no numbers.

    Attributes:
        run_id: hash of the resolved settings that change the numbers.
        facts: what the cell is.
        status: ``complete``, ``partial`` or ``failed``.
        lossless: how the output's law relates to the target's; None for a failed cell.
        reasons: why the cell failed or columns are empty.
        metrics: column name -> value; None is an empty cell.
        baseline: whether the autoregressive cell was timed in turn with this one, prompt by
            prompt; None where it was not, so that there is no speed-up.
    """

    run_id: str
    facts: CellFacts
    status: Literal["complete", "partial", "failed"]
    lossless: Lossless | None = None
    reasons: tuple[Reason, ...] = ()
    metrics: dict[str, float | str | None] = field(default_factory=dict)
    baseline: Baseline | None = None

    @property
    def reason(self) -> str:
        """All reasons in one text, as a row has them."""
        return written_reasons(self.reasons)

    def at_stage(self, stage: Stage) -> CellResult:
        """The result as a row of that stage: a cell is the same whichever job asked for it."""
        return replace(self, facts=replace(self.facts, stage=stage))
