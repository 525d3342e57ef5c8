"""Lists the decoders to audit: every policy's smallest trees with every drafter and rule that fit.

Policies declare their audit trees, drafters their audit settings, and rules the kinds of siblings
for which they claim to be exact; all combinations are audited. Each part of the audit has a name.
An error in one part, for example of a plug-in, does not stop the others.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from fnmatch import filter as filter_names
from functools import partial
from itertools import product
from traceback import extract_tb
from typing import Any, NamedTuple

from tqdm import tqdm

from spec_bench.audit.rules import LAW_NAMES
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import DecoderConfig, are_compatible, can_verify
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
    "temperature 1, min-p 0.1": _in_double(min_p=0.1),
    "temperature 1, draft at 0": _in_double(draft_temperature=0.0),
}
WARM = SETTINGS["temperature 1"]
BEAM_SETTINGS: dict[str, tuple[SamplingSettings, tuple[int, ...], int | None]] = {
    "temperature 1": (WARM, (), None),
    "top-k 3, top-p 0.9, a stop token": (_in_double(top_k=3, top_p=0.9), (2,), 3),
    "temperature 1.5, top-k 2, a stop token": (_in_double(1.5, top_k=2), (1,), 3),
}
"""Sampling settings of beams, stop tokens, and V of the chain (None: the case's), by name."""


@dataclass(frozen=True)
class AuditCase:
    """One decoder to audit."""

    config: DecoderConfig
    tree: AuditTree

    @property
    def name(self) -> str:
        """Name in the audit's table."""
        return self.config.name

    @property
    def markov_chain_options(self) -> dict[str, Any]:
        """Options of ``enumerate_law_differences``: the size of the chain's vocabulary and the
        prompt.
        """
        return {"vocab": self.tree.vocab, "prompt": self.tree.prompt}

    def iter_fitting_settings(self) -> Iterator[tuple[str, SamplingSettings]]:
        """Yields the name and value of each sampling setting under which the rule fits the tree."""
        for label, settings in SETTINGS.items():
            if self.fits_settings(settings):
                yield label, settings

    def fits_settings(self, settings: SamplingSettings) -> bool:
        """Checks whether the rule fits the tree's siblings under these sampling settings."""
        try:
            self.config.refuse_unfit_siblings(settings)
        except UsageError:
            return False
        return True

    def has_only_discrete_draws(self, settings: SamplingSettings) -> bool:
        """Checks whether every random choice is discrete; a draft at temperature 0 has no random
        choice.
        """
        return self.tree.enumerable or settings.get_draft_settings().temperature == 0


def iter_audit_cases(mark: str) -> Iterator[AuditCase]:
    """Yields the decoders whose rule has a mark: ``exact``; ``exact_beam`` for beams drawn from the
    beam law; ``approximate``, only with trees that the rule is meant for.
    """
    trees = (tree for kind in policy.values() for tree in kind.audit_cases())
    for tree, drafter_class in product(trees, drafter.values()):
        if not are_compatible(drafter_class, type(tree.policy)):
            continue
        for drafting in drafter_class.audit_cases(tree.drafts):
            for verifier in _iter_fitting_verifiers(tree.policy, mark):
                name = _describe_tree_and_drafter(tree, drafter_class.kind)
                name += f" + {verifier.name_with_settings}"
                try:
                    config = DecoderConfig(name, drafting, tree.policy, verifier)
                except UsageError:
                    continue
                if (case := AuditCase(config, tree)).fits_settings(WARM):
                    yield case


def _iter_fitting_verifiers(tree: Policy, mark: str) -> Iterator[Verifier]:
    """Yields the rules that fit a tree, with each choice of the settings on which exactness
    depends.
    """
    verifiers = []
    for kind in rule.values():
        if kind.declared != mark or not can_verify(kind, type(tree)):
            continue
        if issubclass(kind, BeamVerifier) and kind.searches:
            continue  # not random; tests compare it with another program's beam search
        field_names: set[str] = (
            {field.name for field in fields(kind)} if is_dataclass(kind) else set()
        )
        shared_settings = {key: getattr(tree, key) for key in tree.shared if key in field_names}
        variants = [kind(**settings, **shared_settings) for settings in kind.laws.values()] or [
            kind(**shared_settings)
        ]
        if isinstance(tree, GrownTree) and mark != "exact":
            tree_kind = tree.siblings(WARM)
            variants = [variant for variant in variants if tree_kind in variant.exact_sibling_kinds]
        verifiers += [
            variant for index, variant in enumerate(variants) if variant not in variants[:index]
        ]
    # Without a draft there is nothing to accept, and all rules are the same.
    is_root_alone = isinstance(tree, GrownTree) and tree.shape.depth == 0
    yield from verifiers[:1] if is_root_alone else verifiers


def _describe_tree_and_drafter(tree: AuditTree, kind: str) -> str:
    """Describes a tree by its drafter, its shorthand and its kind of siblings."""
    words = [f"{tree.policy.name} {tree.policy.spec}"]
    if isinstance(tree.policy, GrownTree) and max(tree.policy.shape.children, default=0) > 1:
        words.append(LAW_NAMES[tree.policy.siblings(WARM)])
    if tree.drafts > 1:
        words.append(f"{tree.drafts} drafts")
    return _format_drafter_prefix(kind) + ", ".join(words)


def _format_drafter_prefix(kind: str) -> str:
    return "" if kind in ("language_model", "none") else f"{kind}: "


def format_case_pattern(config: DecoderConfig) -> str:
    """Formats a pattern that selects the parts with a decoder's drafter, policy and rule."""
    prefix = _format_drafter_prefix(config.drafter.kind)
    return f"{prefix}{config.tree.name} * + {config.verifier.name_with_settings}"


@dataclass(frozen=True)
class AuditLine:
    """One check and its result: a line of the audit's table."""

    subject: str  # rule, decoder or server
    check: str  # method and number of cases
    result: str  # in words
    passed: bool | None  # None if it was only measured


class AuditPart(NamedTuple):
    """Checks that are run together."""

    name: str  # rule or decoder, as in the table
    iter_lines: Callable[[], Iterable[AuditLine]]


def select_parts(parts: Sequence[AuditPart], pattern: str | None) -> list[AuditPart]:
    """Selects the parts whose names, with or without ``rule: ``, match a pattern with wildcards;
    without a pattern all. Raises UsageError with suggestions if no part matches.
    """
    if pattern is None:
        return list(parts)
    names = [(part.name, part.name.removeprefix("rule: ")) for part in parts]
    selection = [
        part
        for part, part_names in zip(parts, names, strict=True)
        if filter_names(part_names, pattern)
    ]
    if not selection:
        words = dict.fromkeys(re.findall(r"[a-z]\w+", " ".join(part.name for part in parts)))
        suggestions = ", ".join(get_close_matches(pattern.strip("*"), words, n=5) or sorted(words))
        raise UsageError(f"--only {pattern!r} fits no part; in their names are {suggestions}")
    return selection


def run_parts_with_progress(parts: Sequence[AuditPart]) -> Iterator[AuditLine]:
    """Runs all parts and yields their lines; prints them and a progress bar to standard error."""
    with tqdm(parts, file=sys.stderr, unit="part", disable=None) as bar:
        for part in bar:
            bar.set_description(part.name)
            for line in iter_lines_or_failure(part):
                bar.write(f"audited {line.subject}: {line.result}", file=sys.stderr)
                yield line


def iter_lines_or_failure(part: AuditPart) -> Iterator[AuditLine]:
    """Yields a part's lines; turns an error into a line that failed."""
    try:
        yield from part.iter_lines()
    except Exception as error:  # a plug-in may raise anything
        describe = describe_error if isinstance(error, ValueError) else describe_error_with_location
        yield AuditLine(part.name, "failed", describe(error), False)


def describe_error_with_location(error: Exception) -> str:
    """Describes an error of a plug-in in one line, with the file and line that raised it."""
    *_, frame = extract_tb(error.__traceback__)
    return f"{describe_error(error)} ({frame.filename}:{frame.lineno})"
