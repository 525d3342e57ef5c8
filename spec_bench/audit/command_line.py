"""``spec-bench check decoders``: checks losslessness and prints a table of the checks."""

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
    enumerate_beam_error,
    sample_beam_p_value,
)
from spec_bench.audit.catalogue import (
    BEAM_SETTINGS,
    WARM,
    AuditCase,
    AuditLine,
    Part,
    audit_parts,
    format_case_pattern,
    select_cases,
    tree_cases,
)
from spec_bench.audit.decoders import (
    FALSE_ALARM_RATE,
    compute_total_variation,
    enumerate_error,
    sample_p_value,
)
from spec_bench.audit.models import audit_pair
from spec_bench.audit.rules import (
    MAX_CHILDREN,
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
    """Yields the node rules, enumerated over random and adversarial (p, q), and the path rules;
    then the approximate rules, whose error is only measured.
    """
    audits: dict[str, Audit] = {case.name: partial(audit_rule, case) for case in list_rule_cases()}
    audits |= {name: partial(audit_path, judge, law) for name, judge, law in list_path_cases()}
    yield from (_make_part(f"rule: {name}", audit) for name, audit in audits.items())
    for case in list_rule_cases("approximate"):
        yield _make_part(f"rule: {case.name}", partial(audit_rule, case), "approximate; ")


def _make_part(name: str, audit: Audit, mark: str = "") -> Part:
    def lines() -> Iterator[AuditLine]:
        error, cases = audit()
        suffix = f" of up to {MAX_CHILDREN} children" if name.startswith("rule: ") else ""
        line = _make_enumeration_line(name, error, f"{cases} cases{suffix}")
        yield replace(line, check=mark + line.check, passed=None) if mark else line

    return Part(name, lines)


def decoder_parts(samples: int, seed: int) -> Iterator[Part]:
    """Yields every exact decoder on a Markov chain, enumerated if possible, else by chi-square."""
    for case in tree_cases("exact"):
        yield Part(case.name, partial(_audit_decoder, case, samples, seed))


def _audit_decoder(case: AuditCase, samples: int, seed: int) -> Iterator[AuditLine]:
    get_p_value = partial(sample_p_value, case.config, seed=seed, prompt=case.tree.prompt)
    for label, settings in case.settings():
        if case.enumerable(settings):
            error, count = enumerate_error(case.config, settings, **case.chain, seed=seed)
            yield _make_enumeration_line(f"{case.name}: {label}", error, f"{count} outcomes")
        else:
            p_value = get_p_value(settings, samples=10 * samples)
            yield _make_sampling_line(
                f"{case.name}: {label}", p_value, f"{10 * samples} continuations"
            )
    p_value = get_p_value(WARM, samples=samples)
    yield _make_sampling_line(
        f"{case.name}: iterations in batches", p_value, f"{samples} continuations"
    )


def approximate_parts(seed: int) -> Iterator[Part]:
    """Yields the approximate decoders, whose distance is only measured."""
    for case in tree_cases("approximate"):
        yield Part(case.name, partial(_audit_approximate, case, seed))


def _audit_approximate(case: AuditCase, seed: int) -> Iterator[AuditLine]:
    distance = compute_total_variation(case.config, WARM, **case.chain, seed=seed)
    check = "approximate; distance by enumeration"
    yield AuditLine(f"{case.name}: temperature 1", check, f"total variation {distance:.3f}", None)


def beam_parts(samples: int, seed: int) -> Iterator[Part]:
    """Yields beam verification by enumeration, and the beam decoders on a Markov chain."""
    yield _make_part("beams: a layer's beams are i.i.d.", partial(audit_layers, seed=seed))
    yield _make_part("beams: width recursion", partial(audit_counts, seed=seed))
    for case in tree_cases("exact_beam"):
        yield Part(case.name, partial(_audit_beams, case, samples, seed))


def _audit_beams(case: AuditCase, samples: int, seed: int) -> Iterator[AuditLine]:
    for label, (settings, stop_ids, vocab) in BEAM_SETTINGS.items():
        chain: dict[str, Any] = {"vocab": vocab or case.tree.vocab, "stop_ids": stop_ids}
        error, count = enumerate_beam_error(case.config, settings, **chain, seed=seed)
        yield _make_enumeration_line(f"{case.name}: {label}", error, f"{count} outcomes")
    p_value = sample_beam_p_value(case.config, WARM, samples=samples, seed=seed)
    yield _make_sampling_line(
        f"{case.name}: iterations in batches", p_value, f"{samples} times all beams"
    )


def list_parts(names: Sequence[str], samples: int, seed: int) -> list[Part]:
    """Lists the parts of the named entries of ``AUDITED``."""
    makers = {
        "rules": rule_parts,
        "decoders": lambda: decoder_parts(samples, seed),
        "approximations": lambda: approximate_parts(seed),
        "beams": lambda: beam_parts(samples, seed),
    }
    return [part for name in names for part in makers[name]()]


def _make_enumeration_line(subject: str, error: float, amount: str) -> AuditLine:
    return AuditLine(subject, f"enumeration, {amount}", f"error {error:.1e}", error <= TOLERANCE)


def _make_sampling_line(subject: str, p_value: float, amount: str) -> AuditLine:
    has_passed = p_value >= FALSE_ALARM_RATE
    return AuditLine(subject, f"chi-square, {amount}", f"p = {p_value:.3g}", has_passed)


def run(options: argparse.Namespace, prompts: Any) -> int:
    """Audits a server, or all rules and decoders and a named pair, and prints the table.

    Returns the exit status: 0 if every check passed, 1 if one failed, 2 after one line if the audit
    cannot run.
    """
    lines: list[AuditLine] = []
    try:
        if options.server:
            lines += models.iter_server_lines(options, prompts)
            note = "false-alarm rate of the tests of a server's samples together "
            note += f"{models.FALSE_ALARM_RATE:g}"
        else:
            # Errors of the pair's tokenizers are reported before the rules, which take minutes.
            pair = (options.target, options.draft, prompts, options.max_new_tokens)
            pair_lines = [audit_pair(*pair, options.decoders)] if options.target else []
            parts = [Part("pair", partial(iter, lines)) for lines in pair_lines]
            if options.all or options.only or not parts:
                parts = [*list_parts(AUDITED, options.samples, options.seed), *parts]
            for line in audit_parts(select_cases(parts, options.only)):
                lines.append(line)
            note = f"tolerance of exact checks {TOLERANCE:g}, "
            note += f"false-alarm rate of each chi-square {FALSE_ALARM_RATE:g}"
            if pair_lines and len(parts) == 1:
                note = "greedy answers beside plain decoding's; what is sampled is audited by\n"
                configs = models.parse_decoders(options.decoders).values()
                patterns = sorted({format_case_pattern(config) for config in configs})
                note += "\n".join(
                    f"  spec-bench check decoders --only '{pattern}'" for pattern in patterns
                )
    except (ServerError, UsageError) as error:
        print_error(f"spec-bench check decoders: {error}")
        return 2
    except KeyboardInterrupt:
        if lines:
            _print_table(lines)
        raise
    _print_table(lines)
    claims = [line for line in lines if line.passed is not None]
    failure_count = sum(not line.passed for line in claims)
    measured_note = f", {len(lines) - len(claims)} only measured" * (len(lines) > len(claims))
    print(f"{len(claims) - failure_count} of {len(claims)} checks passed{measured_note}; {note}")
    return 1 if failure_count else 0


def _print_table(lines: Sequence[AuditLine]) -> None:
    table = Table("subject", "check", "result", "")
    for line in lines:
        verdict = {True: "pass", False: "FAIL", None: "measured"}[line.passed]
        table.add_row(line.subject, line.check, line.result, verdict)
    console = Console()
    has_fixed_width = not console.is_terminal and "COLUMNS" not in os.environ
    console.print(table, width=130 if has_fixed_width else None)
