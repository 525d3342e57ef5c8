"""``python -m spec_bench.audit``: proves losslessness and prints the proof as a table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from spec_bench.audit.beams import (
    BEAM_SETTINGS,
    audit_counts,
    audit_layers,
    beam_chi_square,
    enumerated_beam_error,
)
from spec_bench.audit.catalogue import WARM, AuditCase, beam_cases, tree_cases
from spec_bench.audit.decoders import (
    FALSE_ALARM_RATE,
    chi_square,
    enumerated_error,
    total_variation,
)
from spec_bench.audit.models import FALSE_ALARM_RATE as SERVED_FALSE_ALARM_RATE
from spec_bench.audit.models import audit_pair, server_lines
from spec_bench.audit.parts import Line, Part, audited, chosen
from spec_bench.audit.paths import audit_path, path_cases
from spec_bench.audit.rules import TOLERANCE, audit_rule, rule_cases
from spec_bench.server.endpoint import ServerError


def rule_parts() -> Iterator[Part]:
    """Every node rule by enumeration over random and adversarial (p, q), then the path rules."""
    for case in rule_cases():
        yield Part(f"rule: {case.name}", partial(_rule, f"rule: {case.name}", audit_rule, case))
    for name, judge, law in path_cases():
        yield Part(f"rule: {name}", partial(_rule, f"rule: {name}", audit_path, judge, law))


def _rule(name: str, audit: Callable[..., tuple[float, int]], *case: Any) -> Iterator[Line]:
    error, cases = audit(*case)
    yield _enumerated(name, error, f"{cases} cases")


def decoder_parts(samples: int, seed: int) -> Iterator[Part]:
    """Every decoder on a Markov chain, exactly where enumeration reaches, else by chi-square."""
    for case in tree_cases("exact"):
        yield Part(case.name, partial(_decoder, case, samples, seed))


def _decoder(case: AuditCase, samples: int, seed: int) -> Iterator[Line]:
    for label, settings in case.settings():
        if case.enumerable(settings):
            error, count = enumerated_error(case.config, settings, **case.chain, seed=seed)
            yield _enumerated(f"{case.name}: {label}", error, f"{count} outcomes")
        else:
            p_value = chi_square(
                case.config, settings, samples=10 * samples, seed=seed, prompt=case.tree.prompt
            )
            yield _sampled(f"{case.name}: {label}", p_value, f"{10 * samples} continuations")
    p_value = chi_square(case.config, WARM, samples=samples, seed=seed, prompt=case.tree.prompt)
    yield _sampled(f"{case.name}: iterations in batches", p_value, f"{samples} continuations")


def approximate_parts(seed: int) -> Iterator[Part]:
    """How far off rules are that claim no exactness."""
    for case in tree_cases("approximate"):
        yield Part(case.name, partial(_approximate, case, seed))


def _approximate(case: AuditCase, seed: int) -> Iterator[Line]:
    distance = total_variation(case.config, WARM, **case.chain, seed=seed)
    how = "approximate; distance by enumeration"
    yield Line(f"{case.name}: temperature 1", how, f"TV {distance:.3f}", None)


def beam_parts(samples: int, seed: int) -> Iterator[Part]:
    """Beam verification by enumeration, the beam decoders on a Markov chain."""
    audits: dict[str, Callable[..., tuple[float, int]]] = {
        "a layer's beams are i.i.d.": audit_layers,
        "width recursion": audit_counts,
    }
    for label, audit in audits.items():
        name = f"beams: {label}"
        yield Part(name, partial(_rule, name, partial(audit, seed=seed)))
    for case in beam_cases():
        yield Part(case.name, partial(_beams, case, samples, seed))


def _beams(case: AuditCase, samples: int, seed: int) -> Iterator[Line]:
    for label, (settings, stop_ids, vocab) in BEAM_SETTINGS.items():
        chain: dict[str, Any] = {"vocab": vocab or case.tree.vocab, "stop_ids": stop_ids}
        error, count = enumerated_beam_error(case.config, settings, **chain, seed=seed)
        yield _enumerated(f"{case.name}: {label}", error, f"{count} outcomes")
    p_value = beam_chi_square(case.config, WARM, samples=samples, seed=seed)
    yield _sampled(f"{case.name}: iterations in batches", p_value, f"{samples} times all beams")


def _enumerated(subject: str, error: float, counted: str) -> Line:
    result = f"error {error:.1e}"
    return Line(subject, f"enumeration, {counted}", result, error <= TOLERANCE)


def _sampled(subject: str, p_value: float, counted: str) -> Line:
    result = f"p = {p_value:.3g}"
    return Line(subject, f"chi-square, {counted}", result, p_value >= FALSE_ALARM_RATE)


def run(options: argparse.Namespace, prompts: list[str]) -> int:
    """Audits a server, or else all rules and decoders and, if one is named, a pair, and prints the
    table; 0 if everything passed, 1 if a claim failed, 2 and one line if it cannot be made.
    """
    try:
        if options.server:
            lines = list(server_lines(options, prompts))
            note = "false-alarm rate of the tests of a server's samples together "
            note += f"{SERVED_FALSE_ALARM_RATE:g}"
        else:
            parts = _parts(options, prompts)
            lines = list(audited(chosen(parts, options.only)))
            note = f"tolerance of exact checks {TOLERANCE:g}, "
            note += f"false-alarm rate of each chi-square {FALSE_ALARM_RATE:g}"
    except (ServerError, ValueError) as error:
        print(f"spec_bench.audit: {error}", file=sys.stderr)
        return 2
    table = Table("subject", "check", "result", "")
    for line in lines:
        says = {True: "pass", False: "FAIL", None: "measured"}[line.passed]
        table.add_row(line.subject, line.check, line.result, says)
    Console(width=130).print(table)
    claims = [line for line in lines if line.passed is not None]
    failed = sum(not line.passed for line in claims)
    print(f"{len(claims) - failed} of {len(claims)} checks passed; {note}")
    return 1 if failed else 0


def _parts(options: argparse.Namespace, prompts: list[str]) -> list[Part]:
    # What is wrong with the pair's tokenizers is reported before the minutes of the rules.
    named = (options.target, options.draft, prompts, options.max_new_tokens)
    of_pair = audit_pair(*named) if options.target else None
    return [
        *rule_parts(),
        *decoder_parts(options.samples, options.seed),
        *approximate_parts(options.seed),
        *beam_parts(options.samples, options.seed),
        *([] if of_pair is None else [Part("pair", lambda: of_pair)]),
    ]
