"""Is what a server samples the target's law? Tests of served tokens against the target itself.

Given the tokens before it, a served token y has under the target a log-probability log p(y), whose
expectation is minus the entropy of p whatever came before. So the sum over all served tokens of
log p(y) + H(p) has expectation 0 and, as a martingale, the sum of the variances of log p(y): a
drafting server that leaves the target's law for less probable tokens, or for more probable ones,
shows in a z-score. A wrong law with the right entropy shows elsewhere: ordered by falling
probability, u = P(rank < rank of y) + U P(y), with U uniform, is uniform on [0, 1] and independent
of all before it, exactly (Rosenblatt 1952). Uniformity is tested for all tokens, for the first ones
of the answers, which the prompt's pass gives, and for those that drafts took part in; independence
by the correlation of neighbours. Holm's correction keeps the chance of any false alarm at the
stated rate. Where the target runs in another number format than the server, rounding alone is a
difference of laws: many thousands of tokens will find it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spec_bench.audit import USUAL
from spec_bench.audit.catalogue import AuditLine, Part, iter_audit_lines, tree_cases
from spec_bench.core.sampling import SamplingSettings
from spec_bench.core.warp import log_probs
from spec_bench.decode.config import DecoderConfig, read_decoder, resolve_spec
from spec_bench.engine.loading import ModelSpec, check_vocabularies, load_model, load_tokenizer
from spec_bench.engine.mapped_model import map_draft_vocabulary, read_ids
from spec_bench.engine.model import LanguageModel
from spec_bench.engine.recorder import NEAR_TIE_GAP, near_tie_gap
from spec_bench.engine.tree_pass import next_logits, run_pending
from spec_bench.records.ends import end_ids
from spec_bench.records.types import PromptError, Request
from spec_bench.server.endpoint import Server
from spec_bench.settings.configs import conf_dirs
from spec_bench.system.errors import UsageError
from spec_bench.system.redaction import KEY
from spec_bench.vocabulary.decoders import load_decoder

if TYPE_CHECKING:
    from spec_bench.tasks import Task

FALSE_ALARM_RATE = 1e-3
"""Chance that a lossless server fails, all tests together."""
_FEWEST = 20  # tokens that a test is made of


class TokenLaw(NamedTuple):
    """Served tokens under the target, one entry a token."""

    log_p: np.ndarray  # log-probability of the token; -inf where the law excludes it
    entropy: np.ndarray  # of the law, in nats
    variance: np.ndarray  # of log p(y) for y drawn from the law
    below: np.ndarray  # mass of the tokens before it when ordered by falling probability
    first: np.ndarray  # whether it is the first of its answer


class AuditFinding(NamedTuple):
    """One test."""

    name: str  # what is tested
    tokens: int  # how many served tokens it looked at
    p_value: float  # chance of what was seen, or more, from a lossless server
    statistic: str  # the result in words
    passed: bool  # after Holm's correction over all tests made


def token_law(logits: Tensor, tokens: Tensor, settings: SamplingSettings) -> TokenLaw:
    """One answer, tokens [T], under the target, whose logits [T, V] stand before each token."""
    log_law = log_probs(logits.double(), settings).double()
    law = log_law.exp()
    safe = log_law.masked_fill(law == 0, 0.0)
    entropy = -(law * safe).sum(dim=-1)
    variance = ((law * safe.square()).sum(dim=-1) - entropy.square()).clamp(min=0)
    log_p = log_law.gather(-1, tokens.unsqueeze(-1))
    earlier = torch.arange(law.shape[-1]) < tokens.unsqueeze(-1)
    before = (log_law > log_p) | ((log_law == log_p) & earlier)
    below = law.masked_fill(~before, 0.0).sum(dim=-1)
    columns = (log_p.squeeze(-1), entropy, variance, below, torch.arange(len(tokens)) == 0)
    return TokenLaw(*(column.numpy() for column in columns))


@torch.inference_mode()
def law_of_answers(
    target: LanguageModel,
    answers: Sequence[tuple[Sequence[int], Sequence[int]]],
    settings: SamplingSettings,
) -> TokenLaw:
    """All answers under the target, each by one teacher-forced pass; an answer is the token ids of
    its prompt and of what was served, the end token included.
    """
    laws = []
    for prompt, answer in answers:
        sequence = [*prompt, *answer]
        cache = target.allocate(1, len(sequence))
        passed = torch.tensor([sequence[:-1]], device=target.device)
        logits = run_pending(target, cache, [0], passed, logits_to_keep=0).logits
        assert logits is not None
        kept = logits[0, len(prompt) - 1 :].cpu()
        laws.append(token_law(kept, torch.tensor(answer), settings))
    return TokenLaw(*map(np.concatenate, zip(*laws, strict=True)))


def findings(law: TokenLaw, seed: int = 0, rate: float = FALSE_ALARM_RATE) -> list[AuditFinding]:
    """The tests that there are tokens enough for; ``rate`` is the chance that a lossless server
    fails any of them.
    """
    from scipy import stats  # not everywhere where torch is

    count = len(law.log_p)
    impossible = int(np.isneginf(law.log_p).sum())
    if impossible:
        statistic = f"{impossible} tokens that the target gives no probability"
        return [AuditFinding("within the support", count, 0.0, statistic, False)]
    total = float((law.log_p + law.entropy).sum())
    deviation = float(np.sqrt(law.variance.sum()))
    # A law of one token at every place leaves nothing to chance.
    z = total / deviation if deviation > 0 else 0.0
    said = f"mean {law.log_p.mean():.3f}, expected {-law.entropy.mean():.3f} nats, z = {z:.2f}"
    chance = float(2 * stats.norm.sf(abs(z)))
    tests = {"log-probability against entropy": (count, chance, said)}
    uniform = law.below + np.random.default_rng(seed).random(count) * np.exp(law.log_p)
    for name, chosen in {"first tokens": law.first, "later tokens": ~law.first}.items():
        if (some := int(chosen.sum())) >= _FEWEST:
            test = stats.kstest(uniform[chosen].clip(0, 1), "uniform")
            said = f"largest distance {test.statistic:.3f}"
            tests[f"uniform ranks, {name}"] = (some, float(test.pvalue), said)
    later = np.flatnonzero(~law.first)
    if len(later) >= _FEWEST:
        test = stats.spearmanr(uniform[later - 1], uniform[later])
        said = f"correlation of neighbours {test.statistic:.3f}"
        tests["independent ranks"] = (len(later), float(test.pvalue), said)
    return _holm_corrected(tests, rate)


def _holm_corrected(tests: Mapping[str, tuple[int, float, str]], rate: float) -> list[AuditFinding]:
    """Holm's step-down: the k-th smallest p-value is held against rate / (tests left)."""
    order = sorted(tests, key=lambda name: tests[name][1])
    held = [tests[name][1] > rate / (len(order) - k) for k, name in enumerate(order)]
    failed = order[: held.index(True)] if True in held else order
    return [AuditFinding(name, *test, name not in failed) for name, test in tests.items()]


# Greedy answers of a pair and of a server. At temperature 0 every exact decoder emits the
# autoregressive tokens. Floating point makes one honest exception possible. A tree pass multiplies
# matrices of another shape than a single token's, so two logits that are equal to the last bits
# can change places. Such a near-tie is not skipped: the gap between the two tokens' logits at the
# first difference is measured with a plain forward pass, reported, and only accepted if it is
# below a stated bound.

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

log = logging.getLogger(__name__)
GREEDY = SamplingSettings(temperature=0.0)


class Difference(NamedTuple):
    """The first token at which two greedy outputs part."""

    prompt_id: str
    position: int  # within the answer
    gap: float  # |difference| of the two tokens' logits in a plain forward pass
    near_tie: bool  # whether rounding alone explains it: a gap within the logits' dtype's bound


def first_difference(
    model: LanguageModel, request: Request, expected: Sequence[int], got: Sequence[int]
) -> Difference | None:
    """Compares two answers to one request; None if they are equal. The gap is the target's, without
    a tree. A ValueError if one is a proper prefix of the other: no rounding explains that.
    """
    if list(expected) == list(got):
        return None
    for position, (want, have) in enumerate(zip(expected, got, strict=False)):
        if want != have:
            logits = next_logits(model, [*request.prompt_ids, *expected[:position]])
            gap = (logits[want] - logits[have]).abs().item()
            near = gap <= near_tie_gap(logits.dtype, float(logits[want]))
            return Difference(request.prompt_id, position, gap, near)
    raise UsageError(
        f"prompt {request.prompt_id!r}: answers of {len(expected)} and {len(got)} tokens agree as "
        "far as the shorter one goes"
    )


def _greedy_line(
    subject: str,
    target: LanguageModel,
    requests: Sequence[Request],
    expected: Sequence[Sequence[int] | None],
    got: Sequence[Sequence[int] | None],
    bound: str = "",
    more: str | None = None,
) -> AuditLine:
    """How many greedy answers equal the target's, how many differ by rounding; where others do, if
    ``more`` is to be said.
    """
    equal = 0
    near_ties = 0
    different = []
    for request, want, have in zip(requests, expected, got, strict=True):
        if want is None or have is None:
            different.append(f"prompt {request.prompt_id} cannot be decoded")
            continue
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
    result = f"{equal} equal, {near_ties} near-ties{bound}, {len(different)} different"
    if more is not None:
        result += more + (f" ({', '.join(different[:3])})" if different else "")
    return AuditLine(subject, f"{len(requests)} prompts", result, not different)


def format_model_name(decoders: str) -> dict[str, DecoderConfig]:
    """Returns decoders of a list such as ``sd:3,rsd_s:4x3``, or with ``all`` every tree with all
    rules and drafters that fit it. Raises ValueError: one is unknown, or needs heads.
    """
    if decoders == "all":
        cases = [case for case in tree_cases("exact") if case.config.heads is None]
        drafted = (c for c in cases if c.config.drafter.kind not in ("none", "pard"))
        return {case.name: case.config for case in drafted if case.fits(GREEDY)}
    found = {}
    for each in filter(None, map(str.strip, decoders.split(","))):
        name, _, spec = each.partition(":")
        settings = load_decoder(conf_dirs(), name)
        found[each] = read_decoder(resolve_spec(settings, spec or None))
        if found[each].heads:
            raise UsageError(f"decoder {name!r} needs heads: leave it out")
    return found


def audit_pair(
    target_path: str,
    draft_path: str,
    prompts: Task | Sequence[str],
    max_new_tokens: int,
    decoders: str = USUAL,
) -> Iterator[AuditLine]:
    """Greedy equality of decoders, see ``named``, with the autoregressive one on a real pair.

    Tokenizers are read at once, a ValueError if they cannot be or differ; models with the first
    line.
    """
    known = format_model_name(decoders)
    tokenizer = load_tokenizer(target_path)
    if read_ids(Path(draft_path)) is None:
        vocab = check_vocabularies(tokenizer, load_tokenizer(draft_path))
    else:  # which of the target's tokens it knows is written beside it
        vocab = len(tokenizer)
    ids = _encode_prompts(prompts, tokenizer)
    requests = _requests(ids, max_new_tokens, end_ids(tokenizer))
    return _pair_lines(ModelSpec(target_path), ModelSpec(draft_path), vocab, requests, known)


def _pair_lines(
    target_spec: ModelSpec,
    draft_spec: ModelSpec,
    vocab: int,
    requests: list[Request],
    decoders: Mapping[str, DecoderConfig],
) -> Iterator[AuditLine]:
    target = load_model(target_spec)
    loaded = load_model(draft_spec)
    target.vocab_size = vocab = min(vocab, target.embedded)
    draft = map_draft_vocabulary(loaded, draft_spec.path, vocab)

    def answers(config: DecoderConfig) -> list[tuple[int, ...] | None]:
        built = config.build(target, [draft, draft], GREEDY)
        return [_answer(built, request) for request in requests]

    def compared(name: str, config: DecoderConfig) -> Iterator[AuditLine]:
        subject = f"{name} is ar, greedy"
        bound = f" (gap <= {NEAR_TIE_GAP:g})"
        line = _greedy_line(subject, target, requests, baseline, answers(config), bound)
        mark = config.verifier.mark
        yield (
            line if mark == "exact" else replace(line, result=f"{mark}: {line.result}", passed=None)
        )

    baseline = answers(format_model_name("ar")["ar"])
    for name, config in decoders.items():
        yield from iter_audit_lines(Part(name, partial(compared, name, config)))


def _answer(decoder: Any, request: Request) -> tuple[int, ...] | None:
    """Returns a greedy answer; None where this prompt has none."""
    try:
        return tuple(decoder.generate([request], seed=0)[0].tokens)
    except PromptError as error:
        log.warning("%s: %s", decoder.name, error)
        return None


@dataclass(frozen=True)
class ServerAuditSettings:
    """What the audit of a server asks for."""

    prompts: Sequence[tuple[int, ...]]  # token ids of each
    max_tokens: int  # of an answer
    answers: int  # sampled answers of each prompt, of seeds that follow one another
    sampling: SamplingSettings  # of these
    seed: int  # the first one
    stop_ids: tuple[int, ...]  # tokens that end an answer


def _encode_prompts(prompts: Task | Sequence[str], tokenizer: Any) -> list[tuple[int, ...]]:
    """Token ids of texts as they are, of a file's prompts as a job encodes them."""
    if isinstance(prompts, Sequence):
        return [tuple(tokenizer(prompt)["input_ids"]) for prompt in prompts]
    return prompts.encode_all(prompts.examples(), tokenizer)


def server_lines(options: Any, prompts: Task | Sequence[str]) -> Iterator[AuditLine]:
    """The audit of the server that the command line names; the key is the environment's. The server
    is asked before the target is loaded: a wrong address, a ValueError or ServerError, costs no
    time.
    """
    tokenizer = load_tokenizer(options.target)
    ids = _encode_prompts(prompts or PROMPTS, tokenizer)
    asked = ServerAuditSettings(
        prompts=[each for each in ids if each],
        max_tokens=options.max_new_tokens,
        answers=options.answers,
        sampling=SamplingSettings(temperature=options.temperature),
        seed=options.seed,
        stop_ids=end_ids(tokenizer),
    )
    key = os.environ.get(KEY, "").strip()
    server = Server(options.server, options.served_model, key, kind=options.server_kind)
    server.complete(asked.prompts[0], 1)
    target = load_model(ModelSpec(options.target))
    target.vocab_size = min(target.vocab_size, check_vocabularies(tokenizer, tokenizer))
    yield from audit_server(server, target, asked)


def audit_server(
    server: Server, target: LanguageModel, asked: ServerAuditSettings
) -> Iterator[AuditLine]:
    """Greedy equality with the target that the server claims to serve, then tests of sampled
    answers; a ServerError if it gives none.
    """
    plain = format_model_name("ar")["ar"].build(target, [], GREEDY)
    requests = _requests(asked.prompts, asked.max_tokens, asked.stop_ids)
    expected = [_answer(plain, request) for request in requests]
    served = [server.complete(prompt, asked.max_tokens) for prompt in asked.prompts]
    steps = sum(len(answer.chunks) - 1 for answer in served)
    later = sum(len(answer.tokens) - 1 for answer in served)
    per_step = f"; {later / steps:.2f} tokens a step" if steps else ""
    subject = "server, greedy: equals the target"
    got = [answer.tokens for answer in served]
    yield _greedy_line(subject, target, requests, expected, got, more=per_step)
    law: Any = {"temperature": asked.sampling.temperature, "top_p": asked.sampling.top_p}
    answers = [
        (prompt, server.complete(prompt, asked.max_tokens, **law, seed=asked.seed + number).tokens)
        for prompt in asked.prompts
        for number in range(asked.answers)
    ]
    found = law_of_answers(target, answers, asked.sampling)
    for finding in findings(found, asked.seed):
        yield AuditLine(
            f"server, temperature {asked.sampling.temperature:g}: {finding.name}",
            f"{finding.tokens} tokens, p = {finding.p_value:.2g}",
            finding.statistic,
            finding.passed,
        )


def _requests(
    prompts: Sequence[tuple[int, ...]], max_tokens: int, stop_ids: tuple[int, ...]
) -> list[Request]:
    return [Request(str(i), prompt, max_tokens, stop_ids) for i, prompt in enumerate(prompts)]
