"""RSD's Figure 1: how often two candidates for one Bernoulli token are accepted, exactly.

Draft Ber(p), target Ber(q) as in the paper, K = 2 candidates (RSD, arXiv:2402.14160, Section 3.1;
the example is SpecTr's, arXiv:2310.15141). Multi-round rejection, K-SEQ and recursive rejection are
the project's own node rules, summed over every draw of the two candidates; OTM is the optimum over
all rules for two i.i.d. candidates, a linear program. No model and no sampling.

``python experiments/rsd/bernoulli.py`` writes the grid that the figure is drawn from.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import linprog

from spec_bench.audit.rules import Law, enumerate_children
from spec_bench.settings.arguments import OneLineErrorParser, parse_output_file
from spec_bench.system import signals
from spec_bench.system.files import write_csv
from spec_bench.verify.rules import k_seq, recursive_rejection
from spec_bench.verify.walk import NodeRule

OUTPUT = Path("results/embedded/rsd-fig1/acceptance.csv")
POINTS = 51
TOLERANCE = 1e-9
# A draft with no mass on a token has one candidate, not two: the square's edges p = 0 and p = 1 are
# drawn as their limit from inside, which differs from the value there by about this much.
INSIDE = 2.0**-40


def acceptance_of(rule: NodeRule, law: Law, p: float, q: float) -> float:
    """P(one of two candidates is accepted), summed over all draws of the candidates; p and q are
    the draft's and the target's probabilities of token 1, p strictly between 0 and 1.
    """
    draft, target = torch.tensor([[1 - p, p], [1 - q, q]], dtype=torch.float64)
    tokens, valid, chance = enumerate_children(draft.expand(3, -1), 2, law)
    verdict = rule(target.expand(len(tokens), -1), draft.expand(len(tokens), 1, -1), tokens, valid)
    return float((chance * (1 - (1 - verdict.acceptance).prod(dim=-1))).sum())


def optimal_transport(p: float, q: float) -> float:
    """The most that any rule can accept of two i.i.d. candidates: SpecTr's OTM, solved as a LP.

    Variables are the joint probabilities of (output token, pair of candidates) with the target's
    and the candidates' laws as marginals; the mass on outputs among the candidates is maximised.
    Raises RuntimeError: the solver found no optimum.
    """
    pairs, draft = list(product((0, 1), repeat=2)), (1 - p, p)
    gain = np.array([[float(token in pair) for pair in pairs] for token in range(2)])
    cells = np.eye(2 * len(pairs)).reshape(-1, 2, len(pairs))
    marginals = np.array([*cells.sum(axis=2).T, *cells.sum(axis=1).T])
    law = [1 - q, q, *(draft[first] * draft[second] for first, second in pairs)]
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    # One marginal follows from the others; without it rounding cannot make the program infeasible.
    optimum = linprog(
        -gain.ravel(), A_eq=marginals[1:], b_eq=law[1:], method="highs", options=tight
    )
    if not optimum.success:
        raise RuntimeError(f"no optimum for p = {p}, q = {q}: {optimum.message}")
    return float(-optimum.fun)


_REPEATED, _DISTINCT = (partial(recursive_rejection, replacement=kept) for kept in (True, False))
RULES: dict[str, Callable[[float, float], float]] = {
    "multi_round": partial(acceptance_of, _REPEATED, "iid"),
    "k_seq": partial(acceptance_of, k_seq, "iid"),
    "otm": optimal_transport,
    "recursive_rejection": partial(acceptance_of, _DISTINCT, "without_replacement"),
}
"""Columns of the grid and how each is computed from (p, q)."""


def closed_form(rule: str, p: float, q: float) -> float | None:
    """Returns what the rule accepts by formula; None for K-SEQ, whose rho is a root.

    Multi-round: 1 - |p - q| (1 - a), a the draft's mass on the token that the target prefers more.
    OTM: 1 + min over token sets A of q(A) - p(A)^2 (SpecTr, arXiv:2310.15141, Section 4).
    Recursive rejection: 1, as the second candidate is the token that the residual is made of.
    """
    if rule == "multi_round":
        return 1 - abs(p - q) * (1 - (p if q > p else 1 - p))
    if rule == "otm":
        return 1 + min(0.0, q - p**2, (1 - q) - (1 - p) ** 2)
    return 1.0 if rule == "recursive_rejection" else None


def grid(points: int = POINTS) -> list[dict[str, float]]:
    """Returns one row per (p, q) of a square of ``points`` by ``points``, edges included. Raises
    ValueError: fewer than two points a side; RuntimeError: a value differs from its closed form by
    more than ``TOLERANCE``.
    """
    if points < 2:
        raise ValueError(f"a grid needs at least 2 points a side, got {points}")
    rows = []
    for p, q in product(np.linspace(0, 1, points).tolist(), repeat=2):
        inside = min(max(p, INSIDE), 1 - INSIDE)
        row = {"p": p, "q": q}
        for name, rule in RULES.items():
            row[name] = rule(inside, q)
            formula = closed_form(name, inside, q)
            if formula is not None and abs(row[name] - formula) > TOLERANCE:
                said = f"{row[name]!r}, by formula {formula!r}"
                raise RuntimeError(f"{name} at p = {p}, q = {q}: {said}")
        rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the grid as CSV."""
    parser = OneLineErrorParser(
        prog="python experiments/rsd/bernoulli.py", description="RSD's Figure 1, exactly"
    )
    parser.add_argument(
        "--out", type=parse_output_file, default=OUTPUT, help="default: %(default)s"
    )
    parser.add_argument("--points", type=int, default=POINTS, help="per side; default: %(default)s")
    options = parser.parse_args(arguments)
    try:
        rows = grid(options.points)
    except ValueError as error:
        print(f"bernoulli.py: {error}", file=sys.stderr)
        return 2
    written = [{name: f"{value:.10g}" for name, value in row.items()} for row in rows]
    write_csv(options.out, written, ["p", "q", *RULES])
    print(f"{len(rows)} points, equal to the closed forms within {TOLERANCE:g}: {options.out}")
    return 0


if __name__ == "__main__":
    with signals.exits_in_one_line("interrupted; what was written is whole"):
        sys.exit(main())
