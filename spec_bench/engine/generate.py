"""Runs transformers' own ``generate`` with our sampling settings; counts and times its passes.

The installed library decodes; this module only wraps it. The modules' own generation settings are
replaced meanwhile, since they would change the distribution (a repetition penalty) or the draft's
length (a schedule).

The library and its assistant read the prompt in the first pass that decodes. The time that this
pass takes beyond the model's mean later pass counts as the prompt's, so that seconds are split into
prefill and decoding as for our own decoders. A text of a single pass has no later passes, so all
its time is decoding.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from spec_bench.records.sampling import SamplingSettings
from spec_bench.records.types import Request
from spec_bench.system.errors import UsageError

if TYPE_CHECKING:  # transformers is slow to import, and settings are checked without it
    from transformers import GenerationConfig, PreTrainedModel

    from spec_bench.engine.hugging_face import HuggingFaceModel

_log = logging.getLogger("transformers")


class Assistance(NamedTuple):
    """Drafting arguments of ``generate``; by default nothing drafts."""

    draft: HuggingFaceModel | None = None  # the assistant
    draft_tokens: int = 0  # most tokens proposed per call
    ngram_size: int = 0  # length of the n-gram looked up in the text so far; 0: no look-up
    confidence: float = 0.0  # the assistant stops after a token less probable than this; 0: never

    @property
    def generate_arguments(self) -> dict[str, Any]:
        """Keyword arguments of ``generate``."""
        if self.draft is not None:
            return {"assistant_model": self.draft.module}
        if self.ngram_size:
            sizes = {"max_matching_ngram_size": self.ngram_size}
            return {"prompt_lookup_num_tokens": self.draft_tokens, **sizes}
        return {}


class TargetPassSize(NamedTuple):
    """Size of a pass of the target."""

    tokens: int  # tokens per row, in the first pass the prompt's too
    cached_tokens: int  # tokens in the cache before the pass


class GenerateResult(NamedTuple):
    """The result of one ``generate``."""

    answers: list[list[int]]  # per request the delivered tokens, up to its end
    calls: list[TargetPassSize]  # passes of the target
    # (draft, target) seconds that the prompt's passes took beyond a mean later pass
    prompt_s: tuple[float, float]
    forward_s: tuple[float, float]  # (draft, target) seconds in all passes, the prompt's included


def run_generate(
    target: HuggingFaceModel,
    requests: Sequence[Request],
    settings: SamplingSettings,
    seed: int,
    assistance: Assistance,
) -> GenerateResult:
    """Decodes requests together, padded on the left. All must have the same stop tokens. The
    settings apply to target and assistant. Raises UsageError if the library refuses the models.
    """
    from transformers import GenerationConfig

    models = [target, *([assistance.draft] if assistance.draft else [])]
    devices = [model.device for model in models if model.device.type == "cuda"]
    recorders = [_PassRecorder(model) for model in models]
    with ExitStack() as contexts:
        contexts.enter_context(torch.random.fork_rng(devices))
        torch.manual_seed(seed)
        contexts.enter_context(_replaced_generation_settings(target.module, GenerationConfig()))
        if assistance.draft is not None:
            constant_length = GenerationConfig(  # the library's default length varies
                num_assistant_tokens=max(1, assistance.draft_tokens),
                num_assistant_tokens_schedule="constant",
                assistant_confidence_threshold=assistance.confidence,
            )
            contexts.enter_context(
                _replaced_generation_settings(assistance.draft.module, constant_length)
            )
        for recorder in recorders:
            contexts.enter_context(recorder.record_calls())
        ids, mask = _pad_requests(requests, target.device)
        prompt = ids.shape[1]

        def find_ended(texts: torch.Tensor, *args: Any) -> torch.Tensor:
            rows = zip(requests, texts[:, prompt:].tolist(), strict=True)
            ends = [request.count_tokens_to_end(answer) is not None for request, answer in rows]
            return torch.tensor(ends, device=texts.device)

        try:
            texts = target.module.generate(
                input_ids=ids,
                attention_mask=mask,
                generation_config=_make_generation_config(target, requests, settings),
                stopping_criteria=[find_ended] * any(r.stop_criteria.stop_texts for r in requests),
                **assistance.generate_arguments,
            )[:, prompt:].tolist()
        except ValueError as error:  # for example vocabularies of different sizes
            raise UsageError(f"transformers' own generate refuses: {error}") from error
    seconds = [recorder.get_prompt_and_total_s() for recorder in recorders]
    target_s, draft_s, *_ = *seconds, (0.0, 0.0)
    answers = [  # up to the first stop or the limit; what follows is padding
        answer[: request.count_tokens_to_end(answer)][: request.max_new_tokens]
        for answer, request in zip(texts, requests, strict=True)
    ]
    return GenerateResult(answers, recorders[0].calls, *zip(draft_s, target_s, strict=True))


@dataclass
class _PassRecorder:
    """Counts and times a module's passes."""

    model: HuggingFaceModel
    calls: list[TargetPassSize] = field(default_factory=list)  # in order
    _first_s: float = 0.0

    @contextmanager
    def record_calls(self) -> Iterator[None]:
        """Records the library's calls of the module in this block."""
        module = self.model.module
        with (  # leaving a handle's block removes its hook
            module.register_forward_pre_hook(self._record_call, with_kwargs=True),
            module.register_forward_hook(self._stop_timer),
        ):
            yield

    def get_prompt_and_total_s(self) -> tuple[float, float]:
        """Returns the prompt's own seconds, and the seconds of all passes."""
        later_s = self.model.timer.take_s()
        later = len(self.calls) - 1
        return compute_prompt_s(self._first_s, later_s, later), self._first_s + later_s

    def _record_call(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        past = kwargs.get(self.model.cache_name)
        past_length = 0 if past is None else int(past.get_seq_length())
        self.calls.append(TargetPassSize(kwargs["input_ids"].shape[1], past_length))
        self.model.timer.start()

    def _stop_timer(self, *args: Any) -> None:
        self.model.timer.stop()
        if len(self.calls) == 1:
            self._first_s = self.model.timer.take_s()


def compute_prompt_s(first_s: float, later_s: float, later: int) -> float:
    """Computes how much longer the first pass, over the prompt, took than the mean of the ``later``
    passes, in seconds; 0 if there are none.
    """
    return max(0.0, first_s - later_s / later) if later > 0 else 0.0


@contextmanager
def _replaced_generation_settings(
    module: PreTrainedModel, settings: GenerationConfig
) -> Iterator[None]:
    """Replaces a module's generation settings in this block, and silences warnings about them."""
    old_settings = module.generation_config
    level = _log.level
    module.generation_config = settings
    _log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        module.generation_config = old_settings
        _log.setLevel(level)


def _make_generation_config(
    target: HuggingFaceModel,
    requests: Sequence[Request],
    settings: SamplingSettings,
) -> GenerationConfig:
    """Converts the target's sampling settings to the library's."""
    from transformers import GenerationConfig

    warm = settings.temperature > 0
    # The library adds a processor for any min-p, even for a value that keeps all tokens.
    sampling = {**settings.get_portable_options(), "min_p": settings.min_p or None}
    padding = range(target.vocab_size, target.embedding_rows)
    return GenerationConfig(
        do_sample=warm,
        max_new_tokens=max(request.max_new_tokens for request in requests),
        eos_token_id=list(requests[0].stop_ids) or None,
        suppress_tokens=list(padding) or None,
        **(sampling if warm else {}),
    )


def _pad_requests(
    requests: Sequence[Request], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pads prompts on the left to [R, T]; also returns a mask of the text's tokens, [R, T]."""
    texts = [torch.tensor(request.prompt_ids) for request in requests]
    pad_left = partial(pad_sequence, batch_first=True, padding_side="left")
    return pad_left(texts).to(device), pad_left(list(map(torch.ones_like, texts))).to(device)


@torch.inference_mode()
def compute_log_likelihood(
    target: HuggingFaceModel, prompt: Sequence[int], answer: Sequence[int]
) -> float:
    """Computes ln P(answer) under the target at temperature 1 in one pass."""
    ids = torch.tensor([[*prompt, *answer]], device=target.device)
    logits = target.module(input_ids=ids[:, :-1], use_cache=False).logits
    answer_logits = logits[0, -len(answer) :, : target.vocab_size].to(target.device)
    log_p = answer_logits.log_softmax(
        dim=-1, dtype=torch.promote_types(answer_logits.dtype, torch.float32)
    )
    return float(log_p.gather(1, ids[0, -len(answer) :, None]).double().sum())
