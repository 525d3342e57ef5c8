"""What is audited: every registered policy's smallest trees, with every drafter and rule that fit.

Nothing is listed here. A policy names its audit cases, a drafter what it takes part with, a rule
the ways of drawing siblings that it claims to be exact for; all combinations are audited. Each part
of the audit has a name and fails alone: the others go on after a fault of a plugged drafter.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from fnmatch import filter as fitting
from functools import partial
from itertools import product
from traceback import extract_tb
from typing import Any, NamedTuple

from tqdm import tqdm

from spec_bench.audit.rules import SAID
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import DecoderConfig, can_verify, is_compatible
from spec_bench.draft.base import drafter
from spec_bench.settings.fields import describe_error
from spec_bench.system.errors import UsageError
from spec_bench.tree.base import AuditTree, GrownTree, Policy, policy
from spec_bench.verify.base import BeamVerifier, Verifier, rule

_in_double = partial(SamplingSettings, probability_dtype="float64")
SETTINGS = {
    "temperature 1": _in_double(),
    "temperature 1.5, top-p 0.9": _in_double(1.5, top_p=0.9),
    "temperature 1, top-k 2": _in_double(top_k=2),
    "temperature 1, draft at 0": _in_double(draft_temperature=0.0),
}
WARM = SETTINGS["temperature 1"]
BEAM_SETTINGS: dict[str, tuple[SamplingSettings, tuple[int, ...], int | None]] = {
    "temperature 1": (WARM, (), None),
    "top-k 3, top-p 0.9, a stop token": (_in_double(top_k=3, top_p=0.9), (2,), 3),
    "temperature 1.5, top-k 2, a stop token": (_in_double(1.5, top_k=2), (1,), 3),
}
"""Of all beams together: how they are sampled, tokens that end one, V of the chain or the case."""


@dataclass(frozen=True)
class AuditCase:
    """One decoder to audit."""

    config: DecoderConfig
    tree: AuditTree  # its tree, with what the audit must know of it

    @property
    def name(self) -> str:
        """For the table."""
        return self.config.name

    @property
    def chain(self) -> dict[str, Any]:
        """What it is enumerated on."""
        return {"vocab": self.tree.vocab, "prompt": self.tree.prompt}

    def settings(self) -> Iterator[tuple[str, SamplingSettings]]:
        """Yields the sampling settings under which the rule fits the tree, with their names."""
        for label, settings in SETTINGS.items():
            if self.fits(settings):
                yield label, settings

    def fits(self, settings: SamplingSettings) -> bool:
        """Returns whether the rule fits how the tree draws siblings under sampling settings."""
        try:
            self.config.check_under(settings)
        except UsageError:
            return False
        return True

    def enumerable(self, settings: SamplingSettings) -> bool:
        """Returns whether every random choice is discrete; a draft at temperature 0 makes none."""
        return self.tree.enumerable or settings.get_draft_settings().temperature == 0


def tree_cases(mark: str) -> Iterator[AuditCase]:
    """The decoders whose output bears a mark: ``exact``; ``exact_beam``, several sequences from the
    beam law; ``approximate``, then with the trees that the rule is meant for.
    """
    trees = (tree for kind in policy.values() for tree in kind.audit_cases())
    for tree, known in product(trees, drafter.values()):
        if not is_compatible(known, type(tree.policy)):
            continue
        for drafting in known.audit_cases(tree.drafts):
            for verifier in _verifiers(tree.policy, mark):
                name = f"{_describe_audit_tree(tree, known.kind)} + {verifier.description}"
                try:
                    config = DecoderConfig(name, drafting, tree.policy, verifier)
                except UsageError:
                    continue
                if (case := AuditCase(config, tree)).fits(WARM):
                    yield case


def beam_cases() -> Iterator[AuditCase]:
    """The decoders of several sequences that draw their beams from the beam law."""
    return tree_cases("exact_beam")


def _verifiers(tree: Policy, mark: str) -> Iterator[Verifier]:
    """The rules for a tree, each with every choice of settings that its exactness hangs on."""
    verifiers = []
    for kind in rule.values():
        if kind.declared != mark or not can_verify(kind, type(tree)):
            continue
        if issubclass(kind, BeamVerifier) and kind.searches:
            continue  # draws nothing: held against another program's beam search, not a law
        taken: set[str] = {field.name for field in fields(kind)} if is_dataclass(kind) else set()
        shared = {key: getattr(tree, key) for key in tree.shared if key in taken}
        made = [kind(**needed, **shared) for needed in kind.laws.values()] or [kind(**shared)]
        if isinstance(tree, GrownTree) and mark != "exact":
            made = [each for each in made if tree.siblings(WARM) in each.siblings]
        verifiers += [each for index, each in enumerate(made) if each not in made[:index]]
    # Without a draft there is nothing to accept, and all rules are one.
    alone = isinstance(tree, GrownTree) and tree.shape.depth == 0
    yield from verifiers[:1] if alone else verifiers


def _describe_audit_tree(tree: AuditTree, kind: str) -> str:
    """Returns a tree in words: who drafts, the shorthand, how siblings are drawn."""
    words = [f"{tree.policy.name} {tree.policy.spec}"]
    if isinstance(tree.policy, GrownTree) and max(tree.policy.shape.children, default=0) > 1:
        words.append(SAID[tree.policy.siblings(WARM)])
    if tree.drafts > 1:
        words.append(f"{tree.drafts} drafts")
    return _format_drafter_prefix(kind) + ", ".join(words)


def _format_drafter_prefix(kind: str) -> str:
    return "" if kind in ("language_model", "none") else f"{kind}: "


def format_case_pattern(config: DecoderConfig) -> str:
    """Returns a pattern of the parts that audit a decoder's drafter, policy and rule together."""
    by = _format_drafter_prefix(config.drafter.kind)
    return f"{by}{config.tree.name} * + {config.verifier.description}"


@dataclass(frozen=True)
class AuditLine:
    """What was checked and how it ended: a line of the audit's table."""

    subject: str  # rule, decoder or server
    check: str  # how, and over how much
    result: str  # in words
    passed: bool | None  # None where nothing is claimed, only measured


class Part(NamedTuple):
    """What is audited together."""

    name: str  # rule or decoder, as it stands in the table
    lines: Callable[[], Iterable[AuditLine]]


def select_cases(parts: Sequence[Part], pattern: str | None) -> list[Part]:
    """The parts whose names, or what follows ``rule:`` in them, fit a pattern with wildcards as
    file names have them; None: all. Raises ValueError: none fits, naming those that are near.
    """
    if pattern is None:
        return list(parts)
    names = [(part.name, part.name.removeprefix("rule: ")) for part in parts]
    matching = [part for part, own in zip(parts, names, strict=True) if fitting(own, pattern)]
    if not matching:
        known = dict.fromkeys(re.findall(r"[a-z]\w+", " ".join(part.name for part in parts)))
        near = ", ".join(get_close_matches(pattern.strip("*"), known, n=5) or sorted(known))
        raise UsageError(f"--only {pattern!r} fits no part; in their names are {near}")
    return matching


def list_audited(parts: Sequence[Part]) -> Iterator[AuditLine]:
    """Yields the lines of all parts. Standard error has each of them as soon as it is known, and a
    bar that names the part at work.
    """
    with tqdm(parts, file=sys.stderr, unit="part", disable=None) as bar:
        for part in bar:
            bar.set_description(part.name)
            for line in iter_audit_lines(part):
                bar.write(f"audited {line.subject}: {line.result}", file=sys.stderr)
                yield line


def iter_audit_lines(part: Part) -> Iterator[AuditLine]:
    """Yields a part's lines; a failure of it is one."""
    try:
        yield from part.lines()
    except Exception as error:  # a plugged part may fail in any way
        told = describe_error if isinstance(error, ValueError) else describe_failure
        yield AuditLine(part.name, "failed", told(error), False)


def describe_failure(error: Exception) -> str:
    """Returns an error of somebody's code in one line, with where it was raised."""
    *_, at = extract_tb(error.__traceback__)
    return f"{describe_error(error)} ({at.filename}:{at.lineno})"
