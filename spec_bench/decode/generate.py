"""Decodes with another engine: transformers' ``generate`` as one step of the loop.

So clock, meter, latency and stop rule are the loop's own, the same as for other decoders. The
prompt's seconds, as ``engine.generate`` reports them, are moved from decoding to prefill.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from spec_bench.core.draws import derive_row_seed
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.loop import DecodingLoop
from spec_bench.decode.rows import AnswerRow
from spec_bench.draft.base import Drafter
from spec_bench.draft.lookup import Lookup
from spec_bench.engine.generate import (
    Assistance,
    TargetPassSize,
    compute_log_likelihood,
    run_generate,
)
from spec_bench.engine.mapped_model import VocabularyMappedModel
from spec_bench.engine.model import LanguageModel
from spec_bench.records.types import Finish, Generation, Lossless, Request, StepRecord, TokenCount
from spec_bench.settings.fields import format_value
from spec_bench.system.errors import UsageError
from spec_bench.tree.base import GrownTree, Policy
from spec_bench.verify.base import TransformersDecoding

if TYPE_CHECKING:
    from spec_bench.engine.hugging_face import HuggingFaceModel


@dataclass
class GeneratedRow(AnswerRow):
    """A sequence that is decoded in one step."""

    request: Request
    seed: int  # of its draws
    target: HuggingFaceModel  # scores the answer
    answer: tuple[int, ...] = ()
    steps: list[StepRecord] = field(default_factory=list)
    finish: Finish | None = None
    # (draft, target) seconds of its share of the prompts' passes
    prompt_s: tuple[float, float] = (0.0, 0.0)

    @property
    def log_likelihood(self) -> float:  # type: ignore[override]
        """Log-likelihood of the answer, scored on demand, outside the measured time."""
        return compute_log_likelihood(self.target, self.request.prompt_ids, self.answer)

    def make_generation(
        self,
        prefill_s: float,
        decode_s: float,
        draft_s: float,
        target_s: float,
    ) -> Generation:
        """Makes the record, with the row's share of the prompts' passes moved to prefill."""
        draft, target = self.prompt_s
        record = super().make_generation(prefill_s, decode_s, draft_s, target_s)
        return replace(
            record,
            prefill_s=prefill_s + draft + target,
            decode_s=max(0.0, decode_s - draft - target),
            draft_s=max(0.0, draft_s - draft),
            target_s=max(0.0, target_s - target),
        )


@dataclass
class GenerateDecoder(DecodingLoop[GeneratedRow]):
    """Decoder that calls transformers' ``generate`` with one target."""

    name: str
    target: HuggingFaceModel
    drafts: Sequence[LanguageModel]  # the assistant, if there is one
    assistance: Assistance  # drafts
    settings: SamplingSettings
    rows: int
    lossless: Lossless
    sequential_draft_calls: int  # L of MBSU

    def __post_init__(self) -> None:
        self._forward_s = (0.0, 0.0)

    @property
    def depth(self) -> int:
        return self.assistance.draft_tokens

    nodes = depth

    @property
    def draft_calls(self) -> int:
        return self.sequential_draft_calls

    def count_slots_per_row(self, longest_prompt: int, max_new_tokens: int) -> int:
        """Counts the slots of the library's own cache: the text, the root and the proposals after
        it, as for our own decoders.
        """
        return longest_prompt + max_new_tokens + 1 + self.assistance.draft_tokens

    def reserve(self, slots: int) -> None:
        """Does nothing: the library makes a new cache for every text."""

    def join(self, index: int, request: Request, seed: int) -> GeneratedRow:
        return GeneratedRow(request, derive_row_seed(seed, request.prompt_id), self.target)

    def step(self, active: Sequence[GeneratedRow]) -> TokenCount:
        """Decodes the rows' whole answers."""
        requests = [row.request for row in active]
        result = run_generate(self.target, requests, self.settings, active[0].seed, self.assistance)
        draft_s, target_s = (seconds / len(active) for seconds in result.prompt_s)
        for row, tokens in zip(active, result.answers, strict=True):
            row.prompt_s = draft_s, target_s
            row.answer = tuple(tokens)
            row.steps = build_step_records(
                result.calls,
                len(row.request.prompt_ids),
                tokens,
                self.assistance,
            )
            row.finish = "length" if row.request.count_tokens_to_end(tokens) is None else "stop"
        drafting_s, verifying_s = self._forward_s
        self._forward_s = drafting_s + result.forward_s[0], verifying_s + result.forward_s[1]
        return sum(len(tokens) for tokens in result.answers)

    def sum_target_calls(self, active: Sequence[GeneratedRow]) -> int:
        """Sums the target's passes for the rows' whole answers."""
        return sum(len(row.steps) for row in active)

    def move_row(self, row: GeneratedRow, source: int, target: int) -> None:
        """Does nothing: all rows end in the step in which they began."""

    def take_forward_s(self) -> tuple[float, float]:
        seconds = self._forward_s
        self._forward_s = (0.0, 0.0)
        return seconds


def build_step_records(
    calls: Sequence[TargetPassSize],
    prompt: int,
    tokens: Sequence[int],
    assistance: Assistance,
) -> list[StepRecord]:
    """Builds a row's step records from the target's passes; the first of them ran the prompt.

    Without proposals each pass gives a token, until the row has ended. Otherwise the length of the
    text follows from a pass's number of cached tokens. The library drops tokens accepted after an
    end, which our own decoders count: at most one block per text.
    """
    if not assistance.draft_tokens:
        return [StepRecord(0, 0, 0, 1) for _ in tokens]
    roots = [max(call.cached_tokens, prompt - 1) for call in calls]
    ends = [call.cached_tokens + call.tokens for call in calls]
    gains = [next_root - start for start, next_root in pairwise([*roots, prompt + len(tokens) - 1])]
    return [
        StepRecord(end - root - 1, end - root - 1, count - 1, count)
        for root, end, count in zip(roots, ends, gains, strict=True)
    ]


_DRAFTERS = ("none", "language_model", "lookup")


def describe_unsupported(drafter: Drafter, tree: Policy, tree_attention: bool) -> Iterator[str]:
    """Yields a message for each setting that transformers does not support."""
    if drafter.kind not in _DRAFTERS:
        names = ", ".join(_DRAFTERS)
        yield f"rule 'transformers' goes with drafter.kind {names}, got {drafter.kind!r}"
    if not tree_attention:
        yield "transformers runs no trees, so tree_attention must be true"
    if isinstance(drafter, Lookup):
        required_values = {"shortest": 1, "share": 0.0, "per_match": None}
        for key, value in required_values.items():
            if (actual := getattr(drafter, key)) != value:
                shown_value = format_value(actual)
                yield f"transformers has drafter.{key} {format_value(value)}, got {shown_value}"
        if (width := getattr(tree, "width", 1)) != 1:
            yield f"transformers looks up one chain, tree.width is {width}"


def refuse_unsupported_sampling(settings: SamplingSettings) -> None:
    """Raises UsageError if transformers cannot sample with these settings: the draft's temperature
    differs from the target's, or the library lacks a setting.
    """
    settings.get_portable_options()
    temperature = settings.draft_temperature
    if temperature not in (None, settings.temperature):
        raise UsageError(
            "transformers samples target and assistant at one temperature, draft_temperature must "
            f"be {settings.temperature:g} or null, got {temperature:g}"
        )


def make_assistance(
    drafter: Drafter,
    tree: GrownTree,
    rule: TransformersDecoding,
    drafts: Sequence[LanguageModel],
) -> Assistance:
    """Makes the drafting arguments of ``generate``. Raises UsageError if the draft has another
    vocabulary.
    """
    depth = tree.shape.depth
    if isinstance(drafter, Lookup):
        return Assistance(draft_tokens=depth, ngram_size=drafter.longest)
    if not drafts:
        return Assistance()
    module: Any = drafts[0]
    if isinstance(module, VocabularyMappedModel):
        raise UsageError("transformers drafts with the target's tokens; the draft has others")
    return Assistance(module, depth, confidence=rule.confidence)


def require_transformers_module(title: str, target: LanguageModel) -> HuggingFaceModel:
    """Returns the target as a module that transformers can run. Raises UsageError if it is none."""
    from spec_bench.engine.hugging_face import HuggingFaceModel

    if not isinstance(target, HuggingFaceModel):
        raise UsageError(f"{title}: transformers runs its own modules, got {type(target).__name__}")
    return target
