"""Tests whether a server's sampled tokens follow the target's law.

Given the tokens before it, a served token y has the log-probability log p(y) under the target; its
expectation is minus the entropy H(p). So the sum of log p(y) + H(p) over all served tokens has
expectation 0, and as a martingale its variance is the sum of the variances of log p(y): a z-score
shows a server whose tokens are less probable, or more probable, than the target's. A wrong law with
the right entropy needs another test: with tokens ordered by falling probability, u = P(rank < rank
of y) + U P(y), with U uniform, is uniform on [0, 1] and independent of all earlier tokens, exactly
(Rosenblatt 1952). Uniformity is tested separately for the first tokens of the answers, which come
from the prompt's pass, and for the later ones, which involve drafts; independence is tested by the
correlation of neighbours. Holm's correction keeps the probability of any false alarm at the stated
rate. If the target runs in another number format than the server, rounding alone makes the laws
differ; many thousands of tokens show that difference.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spec_bench.core.warp import warped_log_probs
from spec_bench.engine.model import LanguageModel
from spec_bench.engine.tree_pass import run_causal_tokens
from spec_bench.records.sampling import SamplingSettings

FALSE_ALARM_RATE = 1e-3
"""Probability that a lossless server fails any of the tests."""
_MIN_TOKENS = 20  # minimum number of tokens of a test


class ServedTokenStatistics(NamedTuple):
    """Statistics of served tokens under the target's law, one entry per token."""

    log_p: np.ndarray  # log-probability of the token; -inf if impossible
    entropy: np.ndarray  # of the law, in nats
    variance: np.ndarray  # of log p(y) for y drawn from the law
    mass_before: np.ndarray  # mass of the tokens before it in order of falling probability
    is_first: np.ndarray  # whether the token is the first of its answer


class StatisticalTestResult(NamedTuple):
    """Result of one statistical test."""

    name: str
    tokens: int  # served tokens tested
    p_value: float
    statistic: str  # the result in words
    passed: bool  # after Holm's correction over all tests


def compute_token_statistics(
    logits: Tensor, tokens: Tensor, settings: SamplingSettings
) -> ServedTokenStatistics:
    """Computes the statistics of one answer's tokens [T] from the target's logits [T, V]."""
    log_law = warped_log_probs(logits.double(), settings).double()
    law = log_law.exp()
    safe = log_law.masked_fill(law == 0, 0.0)
    entropy = -(law * safe).sum(dim=-1)
    variance = ((law * safe.square()).sum(dim=-1) - entropy.square()).clamp(min=0)
    log_p = log_law.gather(-1, tokens.unsqueeze(-1))
    earlier = torch.arange(law.shape[-1]) < tokens.unsqueeze(-1)
    is_before = (log_law > log_p) | ((log_law == log_p) & earlier)
    mass_before = law.masked_fill(~is_before, 0.0).sum(dim=-1)
    columns = (log_p.squeeze(-1), entropy, variance, mass_before, torch.arange(len(tokens)) == 0)
    return ServedTokenStatistics(*(column.numpy() for column in columns))


@torch.inference_mode()
def compute_answer_statistics(
    target: LanguageModel,
    answers: Sequence[tuple[Sequence[int], Sequence[int]]],
    settings: SamplingSettings,
) -> ServedTokenStatistics:
    """Computes the statistics of all answers, with one teacher-forced pass each. An answer is a
    pair: the token ids of the prompt, and the served ones with the end token.
    """
    laws = []
    for prompt, answer in answers:
        sequence = [*prompt, *answer]
        cache = target.allocate(1, len(sequence))
        inputs = torch.tensor([sequence[:-1]], device=target.device)
        logits = run_causal_tokens(target, cache, [0], inputs, logits_to_keep=0).logits
        assert logits is not None
        answer_logits = logits[0, len(prompt) - 1 :].cpu()
        laws.append(compute_token_statistics(answer_logits, torch.tensor(answer), settings))
    return ServedTokenStatistics(*map(np.concatenate, zip(*laws, strict=True)))


def run_statistical_tests(
    statistics: ServedTokenStatistics,
    seed: int = 0,
    false_alarm_rate: float = FALSE_ALARM_RATE,
) -> list[StatisticalTestResult]:
    """Runs all tests that have enough tokens.

    ``false_alarm_rate`` is the probability that a lossless server fails any test.
    """
    from scipy import stats  # may not be installed

    count = len(statistics.log_p)
    impossible = int(np.isneginf(statistics.log_p).sum())
    if impossible:
        statistic = f"{impossible} tokens that the target gives no probability"
        return [StatisticalTestResult("within the support", count, 0.0, statistic, False)]
    total = float((statistics.log_p + statistics.entropy).sum())
    deviation = float(np.sqrt(statistics.variance.sum()))
    # The deviation is 0 if every token was certain.
    z = total / deviation if deviation > 0 else 0.0
    summary = (
        f"mean {statistics.log_p.mean():.3f}, "
        f"expected {-statistics.entropy.mean():.3f} nats, z = {z:.2f}"
    )
    chance = float(2 * stats.norm.sf(abs(z)))
    tests = {"log-probability against entropy": (count, chance, summary)}
    uniform = statistics.mass_before + np.random.default_rng(seed).random(count) * np.exp(
        statistics.log_p
    )
    is_first = statistics.is_first
    for name, selection in {"first tokens": is_first, "later tokens": ~is_first}.items():
        if (token_count := int(selection.sum())) >= _MIN_TOKENS:
            test = stats.kstest(uniform[selection].clip(0, 1), "uniform")
            summary = f"largest distance {test.statistic:.3f}"
            tests[f"uniform ranks, {name}"] = (token_count, float(test.pvalue), summary)
    later = np.flatnonzero(~is_first)
    if len(later) >= _MIN_TOKENS:
        test = stats.spearmanr(uniform[later - 1], uniform[later])
        summary = f"correlation of neighbours {test.statistic:.3f}"
        tests["independent ranks"] = (len(later), float(test.pvalue), summary)
    return _correct_by_holm(tests, false_alarm_rate)


def _correct_by_holm(
    tests: Mapping[str, tuple[int, float, str]], rate: float
) -> list[StatisticalTestResult]:
    """Applies Holm's step-down correction: compares the k-th smallest p-value (from 0) with rate /
    (number of tests - k).
    """
    order = sorted(tests, key=lambda name: tests[name][1])
    passes = [tests[name][1] > rate / (len(order) - k) for k, name in enumerate(order)]
    failures = order[: passes.index(True)] if True in passes else order
    return [
        StatisticalTestResult(name, *test, name not in failures) for name, test in tests.items()
    ]
