"""``spec-bench audit``: proves losslessness and prints the proof as a table."""

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from spec_bench.audit import AUDITED, models
from spec_bench.audit.beams import (
    audit_counts,
    audit_layers,
    beam_chi_square,
    enumerate_beam_error,
)
from spec_bench.audit.catalogue import (
    BEAM_SETTINGS,
    WARM,
    AuditCase,
    AuditLine,
    Part,
    beam_cases,
    format_case_pattern,
    list_audited,
    select_cases,
    tree_cases,
)
from spec_bench.audit.decoders import (
    FALSE_ALARM_RATE,
    chi_square_p_value,
    enumerate_error,
    total_variation,
)
from spec_bench.audit.models import audit_pair
from spec_bench.audit.rules import (
    MOST_CHILDREN,
    TOLERANCE,
    audit_path,
    audit_rule,
    list_path_cases,
    list_rule_cases,
)
from spec_bench.server.endpoint import ServerError
from spec_bench.settings.fields import print_error
from spec_bench.system.errors import UsageError

Audit = Callable[[], tuple[float, int]]


def rule_parts() -> Iterator[Part]:
    """Every node rule by enumeration over random and adversarial (p, q), then the path rules; of
    those that are not exact it is measured how far off they are.
    """
    audits: dict[str, Audit] = {case.name: partial(audit_rule, case) for case in list_rule_cases()}
    audits |= {name: partial(audit_path, judge, law) for name, judge, law in list_path_cases()}
    yield from (_part(f"rule: {name}", audit) for name, audit in audits.items())
    for case in list_rule_cases("approximate"):
        yield _part(f"rule: {case.name}", partial(audit_rule, case), "approximate; ")


def _part(name: str, audit: Audit, mark: str = "") -> Part:
    def lines() -> Iterator[AuditLine]:
        error, cases = audit()
        more = f" of up to {MOST_CHILDREN} children" if name.startswith("rule: ") else ""
        line = _run_enumeration(name, error, f"{cases} cases{more}")
        yield replace(line, check=mark + line.check, passed=None) if mark else line

    return Part(name, lines)


def decoder_parts(samples: int, seed: int) -> Iterator[Part]:
    """Every decoder on a Markov chain, exactly where enumeration reaches, else by chi-square."""
    for case in tree_cases("exact"):
        yield Part(case.name, partial(_decoder, case, samples, seed))


def _decoder(case: AuditCase, samples: int, seed: int) -> Iterator[AuditLine]:
    sampled = partial(chi_square_p_value, case.config, seed=seed, prompt=case.tree.prompt)
    for label, settings in case.settings():
        if case.enumerable(settings):
            error, count = enumerate_error(case.config, settings, **case.chain, seed=seed)
            yield _run_enumeration(f"{case.name}: {label}", error, f"{count} outcomes")
        else:
            p_value = sampled(settings, samples=10 * samples)
            yield _run_sampling(f"{case.name}: {label}", p_value, f"{10 * samples} continuations")
    p_value = sampled(WARM, samples=samples)
    yield _run_sampling(f"{case.name}: iterations in batches", p_value, f"{samples} continuations")


def approximate_parts(seed: int) -> Iterator[Part]:
    """Yields how far off rules are that claim no exactness."""
    for case in tree_cases("approximate"):
        yield Part(case.name, partial(_approximate, case, seed))


def _approximate(case: AuditCase, seed: int) -> Iterator[AuditLine]:
    distance = total_variation(case.config, WARM, **case.chain, seed=seed)
    how = "approximate; distance by enumeration"
    yield AuditLine(f"{case.name}: temperature 1", how, f"total variation {distance:.3f}", None)


def beam_parts(samples: int, seed: int) -> Iterator[Part]:
    """Beam verification by enumeration, the beam decoders on a Markov chain."""
    yield _part("beams: a layer's beams are i.i.d.", partial(audit_layers, seed=seed))
    yield _part("beams: width recursion", partial(audit_counts, seed=seed))
    for case in beam_cases():
        yield Part(case.name, partial(_beams, case, samples, seed))


def _beams(case: AuditCase, samples: int, seed: int) -> Iterator[AuditLine]:
    for label, (settings, stop_ids, vocab) in BEAM_SETTINGS.items():
        chain: dict[str, Any] = {"vocab": vocab or case.tree.vocab, "stop_ids": stop_ids}
        error, count = enumerate_beam_error(case.config, settings, **chain, seed=seed)
        yield _run_enumeration(f"{case.name}: {label}", error, f"{count} outcomes")
    p_value = beam_chi_square(case.config, WARM, samples=samples, seed=seed)
    yield _run_sampling(
        f"{case.name}: iterations in batches", p_value, f"{samples} times all beams"
    )


def list_parts(names: Sequence[str], samples: int, seed: int) -> list[Part]:
    """Returns the parts of ``AUDITED`` that are named."""
    makers = {
        "rules": rule_parts,
        "decoders": lambda: decoder_parts(samples, seed),
        "approximations": lambda: approximate_parts(seed),
        "beams": lambda: beam_parts(samples, seed),
    }
    return [part for name in names for part in makers[name]()]


def _run_enumeration(subject: str, error: float, counted: str) -> AuditLine:
    return AuditLine(subject, f"enumeration, {counted}", f"error {error:.1e}", error <= TOLERANCE)


def _run_sampling(subject: str, p_value: float, counted: str) -> AuditLine:
    passed = p_value >= FALSE_ALARM_RATE
    return AuditLine(subject, f"chi-square, {counted}", f"p = {p_value:.3g}", passed)


def run(options: argparse.Namespace, prompts: Any) -> int:
    """Audits a server, or else all rules and decoders and, if one is named, a pair, and prints the
    table; 0 if everything passed, 1 if a claim failed, 2 and one line if it cannot be made.
    """
    lines: list[AuditLine] = []
    try:
        if options.server:
            lines += models.server_lines(options, prompts)
            note = "false-alarm rate of the tests of a server's samples together "
            note += f"{models.FALSE_ALARM_RATE:g}"
        else:
            # What is wrong with the pair's tokenizers is reported before the minutes of the rules.
            given = (options.target, options.draft, prompts, options.max_new_tokens)
            of_pair = [audit_pair(*given, options.decoders)] if options.target else []
            parts = [Part("pair", partial(iter, lines)) for lines in of_pair]
            if options.all or options.only or not parts:
                parts = [*list_parts(AUDITED, options.samples, options.seed), *parts]
            for line in list_audited(select_cases(parts, options.only)):
                lines.append(line)
            note = f"tolerance of exact checks {TOLERANCE:g}, "
            note += f"false-alarm rate of each chi-square {FALSE_ALARM_RATE:g}"
            if of_pair and len(parts) == 1:
                note = "greedy answers beside plain decoding's; what is sampled is audited by\n"
                named = models.format_model_name(options.decoders).values()
                patterns = sorted({format_case_pattern(config) for config in named})
                note += "\n".join(f"  spec-bench audit --only '{each}'" for each in patterns)
    except (ServerError, UsageError) as error:
        print_error(f"spec-bench audit: {error}")
        return 2
    except KeyboardInterrupt:
        if lines:
            _print_table(lines)
        raise
    _print_table(lines)
    claims = [line for line in lines if line.passed is not None]
    failed = sum(not line.passed for line in claims)
    only = f", {len(lines) - len(claims)} only measured" * (len(lines) > len(claims))
    print(f"{len(claims) - failed} of {len(claims)} checks passed{only}; {note}")
    return 1 if failed else 0


def _print_table(lines: Sequence[AuditLine]) -> None:
    table = Table("subject", "check", "result", "")
    for line in lines:
        says = {True: "pass", False: "FAIL", None: "measured"}[line.passed]
        table.add_row(line.subject, line.check, line.result, says)
    console = Console()
    fixed = not console.is_terminal and "COLUMNS" not in os.environ
    console.print(table, width=130 if fixed else None)
