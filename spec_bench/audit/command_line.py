"""``spec-bench check decoders``: checks losslessness and prints a table of the checks."""

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from spec_bench.audit import AUDIT_PARTS, models, served_tokens
from spec_bench.audit.beams import (
    enumerate_accepted_counts_error,
    enumerate_beam_error,
    enumerate_beam_layers_error,
    sample_beam_p_value,
)
from spec_bench.audit.catalogue import (
    BEAM_SETTINGS,
    WARM,
    AuditCase,
    AuditLine,
    AuditPart,
    format_case_pattern,
    iter_audit_cases,
    run_parts_with_progress,
    select_parts,
)
from spec_bench.audit.decoders import (
    FALSE_ALARM_RATE,
    enumerate_decoder_error,
    enumerate_total_variation,
    sample_decoder_p_value,
)
from spec_bench.audit.models import audit_pair
from spec_bench.audit.path_rules import enumerate_path_rule_error, iter_path_rule_cases
from spec_bench.audit.rules import (
    MAX_CHILDREN,
    TOLERANCE,
    EnumeratedError,
    enumerate_rule_error,
    iter_rule_cases,
)
from spec_bench.server.endpoint import ServerError
from spec_bench.settings.fields import print_wrapped_error
from spec_bench.system.errors import UsageError

Audit = Callable[[], EnumeratedError]


def iter_node_and_path_rule_parts() -> Iterator[AuditPart]:
    """Yields the exact node rules, enumerated over random and adversarial (p, q), the exact path
    rules, and the approximate node rules, whose error is only measured.
    """
    audits: dict[str, Audit] = {
        case.name: partial(enumerate_rule_error, case) for case in iter_rule_cases()
    }
    audits |= {
        name: partial(enumerate_path_rule_error, judge, law)
        for name, judge, law in iter_path_rule_cases()
    }
    yield from (_make_enumeration_part(f"rule: {name}", audit) for name, audit in audits.items())
    for case in iter_rule_cases("approximate"):
        yield _make_enumeration_part(
            f"rule: {case.name}", partial(enumerate_rule_error, case), "approximate; "
        )


def _make_enumeration_part(name: str, audit: Audit, mark: str = "") -> AuditPart:
    def lines() -> Iterator[AuditLine]:
        error, cases = audit()
        suffix = f" of up to {MAX_CHILDREN} children" if name.startswith("rule: ") else ""
        line = _make_enumeration_line(name, error, f"{cases} cases{suffix}")
        yield replace(line, check=mark + line.check, passed=None) if mark else line

    return AuditPart(name, lines)


def iter_exact_decoder_parts(samples: int, seed: int) -> Iterator[AuditPart]:
    """Yields every exact decoder on a Markov chain: enumerated if possible, else tested by
    chi-square.
    """
    for case in iter_audit_cases("exact"):
        yield AuditPart(case.name, partial(_iter_decoder_lines, case, samples, seed))


def _iter_decoder_lines(case: AuditCase, samples: int, seed: int) -> Iterator[AuditLine]:
    get_p_value = partial(sample_decoder_p_value, case.config, seed=seed, prompt=case.tree.prompt)
    for label, settings in case.iter_fitting_settings():
        if case.has_only_discrete_draws(settings):
            error, count = enumerate_decoder_error(
                case.config, settings, **case.markov_chain_options, seed=seed
            )
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


def iter_approximate_decoder_parts(seed: int) -> Iterator[AuditPart]:
    """Yields the approximate decoders; their distance from the target's law is only measured."""
    for case in iter_audit_cases("approximate"):
        yield AuditPart(case.name, partial(_iter_approximate_lines, case, seed))


def _iter_approximate_lines(case: AuditCase, seed: int) -> Iterator[AuditLine]:
    distance = enumerate_total_variation(case.config, WARM, **case.markov_chain_options, seed=seed)
    check = "approximate; distance by enumeration"
    yield AuditLine(f"{case.name}: temperature 1", check, f"total variation {distance:.3f}", None)


def iter_beam_parts(samples: int, seed: int) -> Iterator[AuditPart]:
    """Yields the parts that enumerate beam verification, then beam decoders on a Markov chain."""
    yield _make_enumeration_part(
        "beams: a layer's beams are i.i.d.", partial(enumerate_beam_layers_error, seed=seed)
    )
    yield _make_enumeration_part(
        "beams: width recursion", partial(enumerate_accepted_counts_error, seed=seed)
    )
    for case in iter_audit_cases("exact_beam"):
        yield AuditPart(case.name, partial(_iter_beam_lines, case, samples, seed))


def _iter_beam_lines(case: AuditCase, samples: int, seed: int) -> Iterator[AuditLine]:
    for label, (settings, stop_ids, vocab) in BEAM_SETTINGS.items():
        chain: dict[str, Any] = {"vocab": vocab or case.tree.vocab, "stop_ids": stop_ids}
        error, count = enumerate_beam_error(case.config, settings, **chain, seed=seed)
        yield _make_enumeration_line(f"{case.name}: {label}", error, f"{count} outcomes")
    p_value = sample_beam_p_value(case.config, WARM, samples=samples, seed=seed)
    yield _make_sampling_line(
        f"{case.name}: iterations in batches", p_value, f"{samples} times all beams"
    )


def list_parts_of_groups(groups: Sequence[str], samples: int, seed: int) -> list[AuditPart]:
    """Lists the parts of the given ``AUDIT_PARTS``."""
    makers = {
        "rules": iter_node_and_path_rule_parts,
        "decoders": lambda: iter_exact_decoder_parts(samples, seed),
        "approximations": lambda: iter_approximate_decoder_parts(seed),
        "beams": lambda: iter_beam_parts(samples, seed),
    }
    return [part for group in groups for part in makers[group]()]


def _make_enumeration_line(subject: str, error: float, amount: str) -> AuditLine:
    return AuditLine(subject, f"enumeration, {amount}", f"error {error:.1e}", error <= TOLERANCE)


def _make_sampling_line(subject: str, p_value: float, amount: str) -> AuditLine:
    has_passed = p_value >= FALSE_ALARM_RATE
    return AuditLine(subject, f"chi-square, {amount}", f"p = {p_value:.3g}", has_passed)


def run_audit(options: argparse.Namespace, prompts: Any) -> int:
    """Audits a server, or all rules and decoders, or a pair of models, and prints the table.

    Returns the exit status: 0 if every check passed, 1 if one failed, 2, with one line printed, if
    the audit cannot run.
    """
    lines: list[AuditLine] = []
    try:
        if options.server:
            lines += models.audit_named_server(options, prompts)
            note = "false-alarm rate of the tests of a server's samples together "
            note += f"{served_tokens.FALSE_ALARM_RATE:g}"
        else:
            # Reads the pair's tokenizers first, as the rules take minutes.
            pair = (options.target, options.draft, prompts, options.max_new_tokens)
            pair_lines = [audit_pair(*pair, options.decoders)] if options.target else []
            parts = [AuditPart("pair", partial(iter, lines)) for lines in pair_lines]
            if options.all or options.only or not parts:
                parts = [*list_parts_of_groups(AUDIT_PARTS, options.samples, options.seed), *parts]
            for line in run_parts_with_progress(select_parts(parts, options.only)):
                lines.append(line)
            note = (
                f"tolerance of exact checks {TOLERANCE:g}, "
                f"false-alarm rate of each chi-square {FALSE_ALARM_RATE:g}"
            )
            if pair_lines and len(parts) == 1:
                note = "greedy answers beside plain decoding's; what is sampled is audited by\n"
                configs = models.parse_decoders_without_heads(options.decoders).values()
                patterns = sorted({format_case_pattern(config) for config in configs})
                note += "\n".join(
                    f"  spec-bench check decoders --only '{pattern}'" for pattern in patterns
                )
    except (ServerError, UsageError) as error:
        print_wrapped_error(f"spec-bench check decoders: {error}")
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
