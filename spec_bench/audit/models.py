"""Audits pairs and servers against the target itself: greedy answers, and a server's samples.

At temperature 0 every exact decoder emits the autoregressive tokens, except for rounding: the
matrices of a tree pass have other shapes than those of a single token, so two nearly equal logits
can change places. At the first difference, a plain forward pass measures the gap between the two
tokens' logits; a gap below a bound counts as a near-tie. ``served_tokens`` tests the samples.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from spec_bench.audit import DEFAULT_DECODERS
from spec_bench.audit.catalogue import AuditLine, AuditPart, iter_audit_cases, iter_lines_or_failure
from spec_bench.audit.served_tokens import compute_answer_statistics, run_statistical_tests
from spec_bench.decode.config import DecoderConfig, apply_tree_shorthand, read_decoder
from spec_bench.engine.loading import ModelSpec, load_model, load_tokenizer, require_same_vocabulary
from spec_bench.engine.mapped_model import fit_draft_to_vocabulary, read_known_ids
from spec_bench.engine.model import LanguageModel
from spec_bench.engine.recorder import NEAR_TIE_GAP, near_tie_gap
from spec_bench.engine.tree_pass import compute_next_logits
from spec_bench.records.ends import find_end_token_ids
from spec_bench.records.sampling import SamplingSettings
from spec_bench.records.types import PromptError, Request
from spec_bench.server.endpoint import ServerClient
from spec_bench.settings.configs import list_conf_dirs
from spec_bench.system.errors import UsageError
from spec_bench.system.redaction import SERVER_KEY_VARIABLE
from spec_bench.vocabulary.decoders import load_decoder_settings

if TYPE_CHECKING:
    from spec_bench.tasks import Task


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
"""Prompts of an audit of a server without --prompts."""

log = logging.getLogger(__name__)
GREEDY = SamplingSettings(temperature=0.0)


class AnswerDifference(NamedTuple):
    """First token at which two greedy answers differ."""

    prompt_id: str
    position: int  # within the answer
    gap: float  # |difference| of the two tokens' logits in a plain forward pass
    near_tie: bool  # whether rounding in the logits' dtype can explain the gap


def find_first_difference(
    model: LanguageModel,
    request: Request,
    expected_tokens: Sequence[int],
    tokens: Sequence[int],
) -> AnswerDifference | None:
    """Finds the first difference between two answers to a request; None if they are equal. Raises
    UsageError if one answer is a proper prefix of the other, which rounding does not explain.
    """
    if list(expected_tokens) == list(tokens):
        return None
    for position, (want, have) in enumerate(zip(expected_tokens, tokens, strict=False)):
        if want != have:
            logits = compute_next_logits(model, [*request.prompt_ids, *expected_tokens[:position]])
            gap = (logits[want] - logits[have]).abs().item()
            is_near_tie = gap <= near_tie_gap(logits.dtype, float(logits[want]))
            return AnswerDifference(request.prompt_id, position, gap, is_near_tie)
    raise UsageError(
        f"prompt {request.prompt_id!r}: answers of {len(expected_tokens)} and {len(tokens)} tokens "
        "agree as far as the shorter one goes"
    )


def _make_greedy_line(
    subject: str,
    target: LanguageModel,
    requests: Sequence[Request],
    expected_answers: Sequence[Sequence[int] | None],
    answers: Sequence[Sequence[int] | None],
    bound: str = "",
    suffix: str | None = None,
) -> AuditLine:
    """Counts the greedy answers that equal the target's, that differ by a near-tie, and that differ
    otherwise. With a ``suffix`` the line also lists the first three of the last kind.
    """
    equal = 0
    near_ties = 0
    different = []
    for request, want, have in zip(requests, expected_answers, answers, strict=True):
        if want is None or have is None:
            different.append(f"prompt {request.prompt_id} cannot be decoded")
            continue
        try:
            difference = find_first_difference(target, request, want, have)
        except ValueError:
            different.append(f"prompt {request.prompt_id} ends at another place")
            continue
        if difference is None:
            equal += 1
        elif difference.near_tie:
            near_ties += 1
        else:
            different.append(f"prompt {request.prompt_id} from token {difference.position}")
    result = f"{equal} equal, {near_ties} near-ties{bound}, {len(different)} different"
    if suffix is not None:
        result += suffix + (f" ({', '.join(different[:3])})" if different else "")
    return AuditLine(subject, f"{len(requests)} prompts", result, not different)


def parse_decoders_without_heads(decoders: str) -> dict[str, DecoderConfig]:
    """Parses a list of decoders such as ``sd:3,rsd_s:4x3``; ``all`` means every tree with all rules
    and drafters that fit it. Raises UsageError if a decoder is unknown or needs heads.
    """
    if decoders == "all":
        cases = [case for case in iter_audit_cases("exact") if case.config.heads is None]
        drafting_cases = (c for c in cases if c.config.drafter.kind not in ("none", "pard"))
        return {case.name: case.config for case in drafting_cases if case.fits_settings(GREEDY)}
    configs = {}
    for text in filter(None, map(str.strip, decoders.split(","))):
        name, _, spec = text.partition(":")
        settings = load_decoder_settings(list_conf_dirs(), name)
        configs[text] = read_decoder(apply_tree_shorthand(settings, spec or None))
        if configs[text].heads:
            raise UsageError(f"decoder {name!r} needs heads: leave it out")
    return configs


def audit_pair(
    target_path: str,
    draft_path: str,
    prompts: Task | Sequence[str],
    max_new_tokens: int,
    decoders: str = DEFAULT_DECODERS,
) -> Iterator[AuditLine]:
    """Compares greedy answers of ``decoders`` with plain decoding on a pair of models.

    Reads the tokenizers immediately (ValueError if they differ), and loads the models when the
    first line is requested.
    """
    configs = parse_decoders_without_heads(decoders)
    tokenizer = load_tokenizer(target_path)
    if read_known_ids(Path(draft_path)) is None:
        vocab = require_same_vocabulary(tokenizer, load_tokenizer(draft_path))
    else:  # the draft's folder lists which of the target's tokens it has
        vocab = len(tokenizer)
    ids = _encode_prompts(prompts, tokenizer)
    requests = _make_requests(ids, max_new_tokens, find_end_token_ids(tokenizer))
    return _iter_decoder_agreement_lines(
        ModelSpec(target_path), ModelSpec(draft_path), vocab, requests, configs
    )


def _iter_decoder_agreement_lines(
    target_spec: ModelSpec,
    draft_spec: ModelSpec,
    vocab: int,
    requests: list[Request],
    decoders: Mapping[str, DecoderConfig],
) -> Iterator[AuditLine]:
    target = load_model(target_spec)
    draft_model = load_model(draft_spec)
    target.vocab_size = vocab = min(vocab, target.embedding_rows)
    draft = fit_draft_to_vocabulary(draft_model, draft_spec.path, vocab)

    def answers(config: DecoderConfig) -> list[tuple[int, ...] | None]:
        decoder = config.build(target, [draft, draft], GREEDY)
        return [_decode_greedily(decoder, request) for request in requests]

    def compare_greedy(name: str, config: DecoderConfig) -> Iterator[AuditLine]:
        subject = f"{name} is ar, greedy"
        bound = f" (gap <= {NEAR_TIE_GAP:g})"
        line = _make_greedy_line(subject, target, requests, baseline, answers(config), bound)
        mark = config.verifier.mark
        yield (
            line if mark == "exact" else replace(line, result=f"{mark}: {line.result}", passed=None)
        )

    baseline = answers(parse_decoders_without_heads("ar")["ar"])
    for name, config in decoders.items():
        yield from iter_lines_or_failure(AuditPart(name, partial(compare_greedy, name, config)))


def _decode_greedily(decoder: Any, request: Request) -> tuple[int, ...] | None:
    """Decodes a greedy answer; None, with a warning logged, if the prompt cannot be decoded."""
    try:
        return tuple(decoder.generate([request], seed=0)[0].tokens)
    except PromptError as error:
        log.warning("%s: %s", decoder.name, error)
        return None


@dataclass(frozen=True)
class ServerAuditRequests:
    """Requests of the audit of a server."""

    prompts: Sequence[tuple[int, ...]]  # token ids of each prompt
    max_tokens: int  # of an answer
    answers_per_prompt: int  # sampled answers per prompt, with consecutive seeds
    sampling: SamplingSettings  # of the sampled answers
    first_seed: int
    stop_ids: tuple[int, ...]  # tokens that end an answer


def _encode_prompts(prompts: Task | Sequence[str], tokenizer: Any) -> list[tuple[int, ...]]:
    """Encodes plain texts without a template, and a task's prompts as a job does."""
    if isinstance(prompts, Sequence):
        return [tuple(tokenizer(prompt)["input_ids"]) for prompt in prompts]
    return prompts.encode_asked_turns_but_failing(prompts.read_examples(), tokenizer)


def audit_named_server(
    options: argparse.Namespace, prompts: Task | Sequence[str]
) -> Iterator[AuditLine]:
    """Audits the server that the command line names, with the key from the environment. Sends one
    request before it loads the target, so that a wrong address fails early.
    """
    tokenizer = load_tokenizer(options.target)
    ids = _encode_prompts(prompts or PROMPTS, tokenizer)
    settings = ServerAuditRequests(
        prompts=[prompt_ids for prompt_ids in ids if prompt_ids],
        max_tokens=options.max_new_tokens,
        answers_per_prompt=options.answers,
        sampling=SamplingSettings(temperature=options.temperature),
        first_seed=options.seed,
        stop_ids=find_end_token_ids(tokenizer),
    )
    key = os.environ.get(SERVER_KEY_VARIABLE, "").strip()
    server = ServerClient(options.server, options.served_model, key, kind=options.server_kind)
    server.complete(settings.prompts[0], 1)
    target = load_model(ModelSpec(options.target))
    target.vocab_size = min(target.vocab_size, require_same_vocabulary(tokenizer, tokenizer))
    yield from audit_server(server, target, settings)


def audit_server(
    server: ServerClient,
    target: LanguageModel,
    settings: ServerAuditRequests,
) -> Iterator[AuditLine]:
    """Compares the server's greedy answers with the target's, then tests its sampled answers.
    Raises ServerError if the server does not answer.
    """
    plain = parse_decoders_without_heads("ar")["ar"].build(target, [], GREEDY)
    requests = _make_requests(settings.prompts, settings.max_tokens, settings.stop_ids)
    expected_answers = [_decode_greedily(plain, request) for request in requests]
    served_answers = [server.complete(prompt, settings.max_tokens) for prompt in settings.prompts]
    steps = sum(len(answer.chunks) - 1 for answer in served_answers)
    later_tokens = sum(len(answer.tokens) - 1 for answer in served_answers)
    per_step = f"; {later_tokens / steps:.2f} tokens a step" if steps else ""
    subject = "server, greedy: equals the target"
    served_tokens = [answer.tokens for answer in served_answers]
    yield _make_greedy_line(
        subject, target, requests, expected_answers, served_tokens, suffix=per_step
    )
    answers = [
        (
            prompt,
            server.complete(
                prompt, settings.max_tokens, settings.sampling, seed=settings.first_seed + number
            ).tokens,
        )
        for prompt in settings.prompts
        for number in range(settings.answers_per_prompt)
    ]
    answers_law = compute_answer_statistics(target, answers, settings.sampling)
    for test in run_statistical_tests(answers_law, settings.first_seed):
        yield AuditLine(
            f"server, temperature {settings.sampling.temperature:g}: {test.name}",
            f"{test.tokens} tokens, p = {test.p_value:.2g}",
            test.statistic,
            test.passed,
        )


def _make_requests(
    prompts: Sequence[tuple[int, ...]],
    max_tokens: int,
    stop_ids: tuple[int, ...],
) -> list[Request]:
    return [Request(str(i), prompt, max_tokens, stop_ids) for i, prompt in enumerate(prompts)]
