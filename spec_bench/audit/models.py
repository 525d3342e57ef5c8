"""The audit of models: greedy answers of a pair, and whether a running server is lossless.

At temperature 0 every exact decoder emits the autoregressive tokens. Floating point makes one
honest exception possible. A tree pass multiplies matrices of another shape than a single token's,
so two logits that are equal to the last bits can change places. Such a near-tie is not skipped: the
gap between the two tokens' logits at the first difference is measured with a plain forward pass,
reported, and only accepted if it is below a stated bound.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from spec_bench.audit.catalogue import AuditCase, tree_cases
from spec_bench.audit.parts import Line, Part, audited
from spec_bench.audit.served import findings, law_of_answers
from spec_bench.core.sampling import SamplingSettings
from spec_bench.decode.config import DecoderConfig, build_decoder
from spec_bench.engine.agreement import NEAR_TIE_GAP, near_tie_gap
from spec_bench.engine.loading import ModelSpec, check_vocabularies, load_model, load_tokenizer
from spec_bench.engine.mapped_model import behind
from spec_bench.engine.model import LanguageModel
from spec_bench.engine.tree_pass import prefill, run_pending
from spec_bench.engine.vocabulary_map import read_ids
from spec_bench.records.types import Request
from spec_bench.server.endpoint import KEY, Server

PROMPTS = (
    "The harbour was closed because",
    "Once there was a king who",
    "The report of the committee says that",
    "Two trains leave at noon, and",
    "To bake bread one needs",
    "The capital of the country is",
    "After the storm the village",
    "A good teacher knows",
)
"""What is asked where no file of prompts is named."""

_PLAIN = {
    "name": "ar",
    "drafter": {"kind": "none"},
    "tree": {"policy": "root"},
    "verifier": {"rule": "recursive_rejection", "replacement": False},
}
GREEDY = SamplingSettings(temperature=0.0)


@dataclass(frozen=True)
class Difference:
    """The first token at which two greedy outputs part."""

    prompt_id: str
    position: int  # within the answer
    expected: int  # the reference's token
    got: int  # the decoder's token
    gap: float  # |difference| of the two tokens' logits in a plain forward pass
    bound: float = NEAR_TIE_GAP  # the largest gap that is a near-tie, by the dtype of the logits

    @property
    def near_tie(self) -> bool:
        """Whether rounding alone explains the difference."""
        return self.gap <= self.bound


@torch.inference_mode()
def next_logits(model: LanguageModel, tokens: Sequence[int]) -> torch.Tensor:
    """[V] logits after ``tokens``, without a tree."""
    cache = model.allocate(1, len(tokens))
    prefill(model, cache, 0, tokens[:-1])
    last = torch.tensor([tokens[-1:]], device=model.device)
    return run_pending(model, cache, [len(tokens) - 1], last).logits[0, -1]


def first_difference(
    model: LanguageModel, request: Request, expected: Sequence[int], got: Sequence[int]
) -> Difference | None:
    """Compares two answers to one request; None if they are equal. The gap is the target's.

    Raises:
        ValueError: if one is a proper prefix of the other: no rounding explains that.
    """
    if list(expected) == list(got):
        return None
    for position, (want, have) in enumerate(zip(expected, got, strict=False)):
        if want != have:
            logits = next_logits(model, [*request.prompt_ids, *expected[:position]])
            gap = (logits[want] - logits[have]).abs().item()
            bound = near_tie_gap(logits.dtype, float(logits[want]))
            return Difference(request.prompt_id, position, want, have, gap, bound)
    raise ValueError(
        f"prompt {request.prompt_id!r}: answers of {len(expected)} and {len(got)} tokens agree as "
        "far as the shorter one goes"
    )


class Agreement(NamedTuple):
    """How many greedy answers equal the target's, how many differ by rounding, where others do."""

    equal: int
    near_ties: int
    different: list[str]


def agreement(
    target: LanguageModel,
    requests: Sequence[Request],
    expected: Sequence[Sequence[int]],
    got: Sequence[Sequence[int]],
) -> Agreement:
    """Compares the answers to some requests with the target's."""
    equal, near_ties, different = 0, 0, []
    for request, want, have in zip(requests, expected, got, strict=True):
        try:
            difference = first_difference(target, request, want, have)
        except ValueError:
            different.append(f"prompt {request.prompt_id} ends at another place")
            continue
        if difference is None:
            equal += 1
        elif difference.near_tie:
            near_ties += 1
        else:
            different.append(f"prompt {request.prompt_id} from token {difference.position}")
    return Agreement(equal, near_ties, different)


def audit_pair(
    target_path: str, draft_path: str, prompts: Sequence[str], max_new_tokens: int
) -> Iterator[Line]:
    """Greedy equality of every decoder with the autoregressive one on a real pair.

    Tokenizers are read at once, the models with the first line.

    Raises:
        ValueError: a tokenizer that cannot be read, or two that differ.
    """
    tokenizer = load_tokenizer(target_path)
    if read_ids(Path(draft_path)) is None:
        vocab = check_vocabularies(tokenizer, load_tokenizer(draft_path))
    else:  # which of the target's tokens it knows is written beside it
        vocab = len(tokenizer)
    ids = [tuple(tokenizer(prompt)["input_ids"]) for prompt in prompts]
    requests = _requests(ids, max_new_tokens, _stop_ids(tokenizer))
    return _pair_lines(ModelSpec(target_path), ModelSpec(draft_path), vocab, requests)


def _pair_lines(
    target_spec: ModelSpec, draft_spec: ModelSpec, vocab: int, requests: list[Request]
) -> Iterator[Line]:
    target, loaded = load_model(target_spec), load_model(draft_spec)
    target.vocab_size = vocab = min(vocab, target.embedded)
    draft = behind(loaded, draft_spec.path, vocab)

    def answers(config: DecoderConfig) -> list[tuple[int, ...]]:
        built = config.build(target, [draft, draft], GREEDY)
        return [built.generate([request], seed=0)[0].tokens for request in requests]

    def compared(case: AuditCase) -> Iterator[Line]:
        result = agreement(target, requests, baseline, answers(case.config))
        yield Line(
            f"{case.name}: greedy equals autoregressive",
            f"{len(requests)} prompts",
            f"{result.equal} equal, {result.near_ties} near-ties "
            f"(gap <= {NEAR_TIE_GAP:g}), {len(result.different)} different",
            not result.different,
        )

    cases = [case for case in tree_cases("exact") if case.config.heads is None]
    baseline = answers(next(c.config for c in cases if c.config.drafter.kind == "none"))
    drafted = [c for c in cases if c.config.drafter.kind != "none" and c.fits(GREEDY)]
    yield from audited([Part(case.name, partial(compared, case)) for case in drafted])


@dataclass(frozen=True)
class Asked:
    """What the audit of a server asks for."""

    prompts: Sequence[tuple[int, ...]]  # token ids of each
    max_tokens: int  # of an answer
    answers: int  # sampled answers of each prompt, of seeds that follow one another
    sampling: SamplingSettings  # of these
    seed: int  # the first one
    stop_ids: tuple[int, ...]  # tokens that end an answer


def server_lines(options: Any, prompts: Sequence[str]) -> Iterator[Line]:
    """The audit of the server that the command line names; the key is the environment's.

    The server is asked before the target is loaded: a wrong address costs no time.

    Raises:
        ValueError: it is no address, or httpx is not installed.
        ServerError: the server gives no answers.
    """
    tokenizer = load_tokenizer(options.target)
    ids = [tuple(tokenizer(prompt)["input_ids"]) for prompt in prompts or PROMPTS]
    asked = Asked(
        [each for each in ids if each],
        options.max_new_tokens,
        options.answers,
        SamplingSettings(temperature=options.temperature),
        options.seed,
        _stop_ids(tokenizer),
    )
    server = Server(options.server, options.served_model, os.environ.get(KEY, "").strip())
    server.complete(asked.prompts[0], 1)
    target = load_model(ModelSpec(options.target))
    target.vocab_size = min(target.vocab_size, check_vocabularies(tokenizer, tokenizer))
    yield from audit_server(server, target, asked)


def audit_server(server: Server, target: LanguageModel, asked: Asked) -> Iterator[Line]:
    """Greedy equality with the target that the server claims to serve, then tests of sampled
    answers.

    Raises:
        ServerError: the server gives no answers.
    """
    yield _server_greedy(server, target, asked)
    law: Any = {"temperature": asked.sampling.temperature, "top_p": asked.sampling.top_p}
    answers = [
        (prompt, server.complete(prompt, asked.max_tokens, **law, seed=asked.seed + number).tokens)
        for prompt in asked.prompts
        for number in range(asked.answers)
    ]
    found = law_of_answers(target, answers, asked.sampling)
    for finding in findings(found, asked.seed):
        yield Line(
            f"server, temperature {asked.sampling.temperature:g}: {finding.name}",
            f"{finding.tokens} tokens, p = {finding.p_value:.2g}",
            finding.statistic,
            finding.passed,
        )


def _server_greedy(server: Server, target: LanguageModel, asked: Asked) -> Line:
    """Every greedy answer equal to the target's own, or different at a near-tie."""
    plain = build_decoder(_PLAIN, target, [], GREEDY)
    requests = _requests(asked.prompts, asked.max_tokens, asked.stop_ids)
    expected = [plain.generate([request], seed=0)[0].tokens for request in requests]
    served = [server.complete(prompt, asked.max_tokens) for prompt in asked.prompts]
    result = agreement(target, requests, expected, [answer.tokens for answer in served])
    steps = sum(answer.steps for answer in served)
    later = sum(len(answer.tokens) - 1 for answer in served)
    per_step = f"; {later / steps:.2f} tokens a step" if steps else ""
    where = f" ({', '.join(result.different[:3])})" if result.different else ""
    return Line(
        "server, greedy: equals the target",
        f"{len(requests)} prompts",
        f"{result.equal} equal, {result.near_ties} near-ties, "
        f"{len(result.different)} different{per_step}{where}",
        not result.different,
    )


def _requests(
    prompts: Sequence[tuple[int, ...]], max_tokens: int, stop_ids: tuple[int, ...]
) -> list[Request]:
    return [Request(str(i), prompt, max_tokens, stop_ids) for i, prompt in enumerate(prompts)]


def _stop_ids(tokenizer: Any) -> tuple[int, ...]:
    return () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
