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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from spec_bench.core.sampling import SamplingSettings
from spec_bench.core.warp import log_probs
from spec_bench.engine.model import LanguageModel
from spec_bench.engine.tree_pass import run_pending

FALSE_ALARM_RATE = 1e-3
"""Chance that a lossless server fails, all tests together."""
_FEWEST = 20  # tokens that a test is made of


@dataclass(frozen=True)
class TokenLaw:
    """Served tokens under the target, one entry a token."""

    log_p: np.ndarray  # log-probability of the token; -inf where the law excludes it
    entropy: np.ndarray  # of the law, in nats
    variance: np.ndarray  # of log p(y) for y drawn from the law
    below: np.ndarray  # mass of the tokens before it when ordered by falling probability
    first: np.ndarray  # whether it is the first of its answer


@dataclass(frozen=True)
class Finding:
    """One test."""

    name: str  # what is tested
    tokens: int  # how many served tokens it looked at
    p_value: float  # chance of what was seen, or more, from a lossless server
    statistic: str  # the result in words
    passed: bool  # after Holm's correction over all tests made


def token_law(logits: Tensor, tokens: Tensor, settings: SamplingSettings) -> TokenLaw:
    """One answer under the target.

    Args:
        logits: [T, V] the target's before each token.
        tokens: [T] what was served.
        settings: how it was sampled.
    """
    log_law = log_probs(logits.double(), settings).double()
    law = log_law.exp()
    safe = log_law.masked_fill(law == 0, 0.0)
    entropy = -(law * safe).sum(dim=-1)
    variance = (law * safe.square()).sum(dim=-1) - entropy.square()
    log_of_token = log_law.gather(-1, tokens.unsqueeze(-1))
    ids = torch.arange(law.shape[-1])
    before = (log_law > log_of_token) | ((log_law == log_of_token) & (ids < tokens.unsqueeze(-1)))
    below = law.masked_fill(~before, 0.0).sum(dim=-1)
    first = np.arange(len(tokens)) == 0
    columns = (log_of_token.squeeze(-1), entropy, variance.clamp(min=0), below)
    log_p, spread, variances, mass = (column.numpy() for column in columns)
    return TokenLaw(log_p, spread, variances, mass, first)


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
    columns = (field.name for field in fields(TokenLaw))
    return TokenLaw(*(np.concatenate([getattr(law, name) for law in laws]) for name in columns))


def findings(law: TokenLaw, seed: int = 0, rate: float = FALSE_ALARM_RATE) -> list[Finding]:
    """The tests that there are tokens enough for; ``rate`` is the chance that a lossless server
    fails any of them.
    """
    impossible = int(np.isneginf(law.log_p).sum())
    if impossible:
        statistic = f"{impossible} tokens that the target gives no probability"
        return [Finding("within the support", len(law.log_p), 0.0, statistic, False)]
    tests = {"log-probability against entropy": _surprise(law)}
    uniform = law.below + np.random.default_rng(seed).random(len(law.below)) * np.exp(law.log_p)
    for name, chosen in {"first tokens": law.first, "later tokens": ~law.first}.items():
        if chosen.sum() >= _FEWEST:
            tests[f"uniform ranks, {name}"] = _uniformity(uniform[chosen])
    neighbours = np.flatnonzero(~law.first)
    if len(neighbours) >= _FEWEST:
        tests["independent ranks"] = _independence(uniform[neighbours - 1], uniform[neighbours])
    return _corrected(tests, rate)


def _surprise(law: TokenLaw) -> tuple[int, float, str]:
    count, total = len(law.log_p), float((law.log_p + law.entropy).sum())
    deviation = float(np.sqrt(law.variance.sum()))
    # A law of one token at every place leaves nothing to chance.
    z = total / deviation if deviation > 0 else 0.0
    statistic = f"mean {law.log_p.mean():.3f}, expected {-law.entropy.mean():.3f} nats, z = {z:.2f}"
    return count, float(2 * stats.norm.sf(abs(z))), statistic


def _uniformity(uniform: np.ndarray) -> tuple[int, float, str]:
    test = stats.kstest(uniform.clip(0, 1), "uniform")
    return len(uniform), float(test.pvalue), f"largest distance {test.statistic:.3f}"


def _independence(before: np.ndarray, after: np.ndarray) -> tuple[int, float, str]:
    test = stats.spearmanr(before, after)
    return len(after), float(test.pvalue), f"correlation of neighbours {test.statistic:.3f}"


def _corrected(tests: Mapping[str, tuple[int, float, str]], rate: float) -> list[Finding]:
    """Holm's step-down: the k-th smallest p-value is held against rate / (tests left)."""
    order = sorted(tests, key=lambda name: tests[name][1])
    failed: set[str] = set()
    for left, name in zip(range(len(order), 0, -1), order, strict=True):
        if tests[name][1] > rate / left:
            break
        failed.add(name)
    return [
        Finding(name, count, p_value, statistic, name not in failed)
        for name, (count, p_value, statistic) in tests.items()
    ]
