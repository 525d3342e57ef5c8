"""How decoders are shown: title, colour, marker, and a line in the table of decoders.

A decoder of ``conf/decoder`` has them in its own YAML, under ``display``. A cell of a recipe that
replaces a decoder's drafter or rule is shown by its parts, or as its paper's ``paper.yaml`` says
under ``decoders``. Other packages' folders are read too. Of a decoder's settings this module knows
the names of its drafter and its rule, nothing else.

    python -m spec_bench.vocabulary.decoders     # that table
"""

import ast
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from spec_bench.settings.configs import (
    conf_dir,
    conf_dirs,
    experiments_dirs,
    find_configs,
    read_yaml,
)
from spec_bench.settings.fields import format_value, one_line, read, suggest, warn
from spec_bench.settings.registry import scan_registrations
from spec_bench.system.errors import UsageError
from spec_bench.vocabulary.spec import parse

ColourName = Literal["blue", "vermillion", "green", "purple", "orange", "sky", "black"]
Marker = Literal["o", "s", "^", "D", "v", "P", "X"]


class Colour(NamedTuple):
    """A colour on white and on a dark page."""

    light: str
    dark: str


# Okabe & Ito: distinguishable with any colour vision.
COLOURS: dict[ColourName, Colour] = {
    "blue": Colour("#0072B2", "#4AA8E0"),
    "vermillion": Colour("#D55E00", "#F08A3C"),
    "green": Colour("#009E73", "#2FC294"),
    "purple": Colour("#CC79A7", "#E29AC4"),
    "orange": Colour("#E69F00", "#E69F00"),
    "sky": Colour("#56B4E9", "#56B4E9"),
    "black": Colour("#000000", "#98A2AD"),
}
PALETTE = tuple(COLOURS.values())
MARKERS: tuple[Marker, ...] = ("o", "s", "^", "D", "v", "P", "X")

DISPLAY = "display"
DECODERS = "decoders"
_KINDS = {"drafter": "kind", "tree": "policy", "verifier": "rule"}
_BASELINE = "ar"
_DRAFT_MODEL = "language_model"
# Drafters that are models, or unknown.
DRAFT_MODELS = ("", _DRAFT_MODEL, "lookup_or_model", "pard")


@dataclass(frozen=True)
class Display:
    """A block ``display`` of a decoder's YAML."""

    title: str  # in tables and figures
    colour: ColourName  # in figures and on pages
    marker: Marker = "o"  # matplotlib's letter
    tree: str = ""  # in words, for the table of decoders
    rule: str = ""  # likewise
    source: str = ""  # where the decoder is from, likewise
    same_as: str = ""  # another name of the same configuration


@dataclass(frozen=True)
class DecoderStyle:
    """A decoder for people: title, colour, matplotlib's letter of a marker, which may be hollow."""

    title: str
    colour: Colour
    marker: Marker = "o"
    hollow: bool = False


def find_decoder(name: str) -> DecoderStyle | None:
    """How a decoder is shown; None for one of which no YAML says it. Raises ValueError: a YAML says
    it wrong; the file, the key, the value and what is allowed.
    """
    own, _, settings = name.partition(" ")  # settings that are not those of its YAML
    found = _find(own, *_folders())
    return found and replace(found, title=f"{found.title} {settings}".rstrip())


def find_configuration(name: str) -> str:
    """Returns the name that stands for a decoder's configuration: of two decoders that are one
    under two names, the same.
    """
    files = _files(_folders()[0])
    block = _read(files[name]) if name in files else {}
    display = block.get(DISPLAY)
    return str(display.get("same_as") or name) if isinstance(display, Mapping) else name


def check_decoder(name: str) -> None:
    """Raises ValueError: no YAML is of that decoder, nor of its parts; with the choices."""
    if find_decoder(name) is None:
        load_decoder(conf_dirs(), name)


@functools.cache
def check_tree(decoder: str, policy: str, spec: str) -> None:
    """Raises ValueError: a decoder's tree policy, if it is one of ours, takes no such shorthand."""
    facts = scan_registrations("spec_bench.tree", "policy").get(policy)
    if facts and (not spec or parse(spec).form not in ast.literal_eval(facts["forms"])):
        raise UsageError(
            f"decoder {format_value(decoder)}: spec {format_value(spec)} does not fit its tree "
            f"policy {policy!r}, which takes {ast.literal_eval(facts['takes'])}"
        )


def decoder_parts(name: str) -> tuple[str, str, str]:
    """Returns a decoder's drafter, tree policy and rule, of a composed name those of the decoder
    that it begins with; empty texts where no YAML tells.
    """
    files = _files(_folders()[0])
    words = name.partition(" ")[0].split("_")
    known = ("_".join(words[:n]) for n in range(len(words), 0, -1))
    block = next((_read(files[each]) for each in known if each in files), {})
    return _part(block, "drafter"), _part(block, "tree"), _part(block, "verifier")


def strip_display(decoder: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns a decoder's settings alone: how it is shown is checked and left out."""
    settings = dict(decoder)
    if DISPLAY in settings:
        _check_display(settings.pop(DISPLAY), f"{where}{DISPLAY}")
    return settings


def load_decoder(folders: Sequence[Path], name: str) -> dict[str, Any]:
    """Reads ``decoder/NAME.yaml`` of the first config folder that has it, but for its display."""
    paths = find_configs("decoder", folders)
    if name not in paths:
        known = sorted(paths)
        near = suggest(name.replace("-", "_"), known)
        choices = "spec-bench ls decoders" if near else ", ".join(known)
        raise UsageError(f"unknown decoder {name!r}{near}; known: {choices}")
    decoder = read_yaml(paths[name])
    if not isinstance(decoder, dict):
        raise UsageError(f"decoder config {paths[name]} is no mapping")
    return strip_display(decoder, f"{paths[name]}: ")


def decoders_table() -> str:
    """Our decoders in Markdown: the baseline, those on a draft model, others by drafter."""
    blocks = {name: _read(path) for name, path in _files((conf_dir(),)).items()}
    drafters = {name: _part(block, "drafter") for name, block in blocks.items()}

    def place(name: str) -> tuple[bool, bool, str, str]:
        return name != _BASELINE, drafters[name] != _DRAFT_MODEL, drafters[name], name

    lines = ["| decoder | drafter | tree | rule | from |", "| --- | --- | --- | --- | --- |"]
    for name in sorted(blocks, key=place):
        display = _check_display(blocks[name].get(DISPLAY), f"{name}.yaml: {DISPLAY}")
        cells = (f"`{name}`", f"`{drafters[name]}`", display.tree, display.rule, display.source)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


@functools.cache
def _folders() -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Of configs and of papers, as they are when first asked for."""
    return tuple(conf_dirs()), tuple(experiments_dirs())


@functools.cache
def _find(name: str, confs: tuple[Path, ...], papers: tuple[Path, ...]) -> DecoderStyle | None:
    path = _files(confs).get(name)
    if path is not None:
        display = _read(path).get(DISPLAY)
        return (
            None
            if display is None
            else _make_decoder_style(_check_display(display, f"{path}: {DISPLAY}"))
        )
    return _display_of_papers(papers).get(name) or _display_of_parts(name, confs, papers)


def _display_of_parts(
    name: str, confs: tuple[Path, ...], papers: tuple[Path, ...]
) -> DecoderStyle | None:
    """``DRAFTER_DECODER`` looks like the decoder, ``DECODER_RULE`` has the marker of the rule.

    A drafter and a rule are titled as the decoder that bears their name.
    """
    words = name.split("_")
    files = _files(confs)
    cuts = [("_".join(words[:n]), "_".join(words[n:])) for n in range(1, len(words))]
    for part in ("drafter", "verifier"):
        for first, rest in cuts:
            named = first if part == "drafter" else rest
            if named not in files or _part(_read(files[named]), part) != named:
                continue
            head = _find(first, confs, papers)
            tail = _find(rest, confs, papers)
            if head and tail and part == "drafter":
                return replace(tail, title=f"{head.title}, {tail.title}")
            if head and tail:
                return replace(head, title=f"{head.title}, {tail.title}", marker=tail.marker)
    return None


@functools.cache
def _files(confs: tuple[Path, ...]) -> dict[str, Path]:
    return find_configs("decoder", confs)


@functools.cache
def _display_of_papers(folders: tuple[Path, ...]) -> dict[str, DecoderStyle]:
    """Returns what the papers' YAMLs say of decoders, the first folder's before all others'."""
    decoders: dict[str, DecoderStyle] = {}
    for path in (path for top in reversed(folders) for path in top.glob("*/paper.yaml")):
        try:
            content = _read(path)
        except UsageError:  # said where the paper is asked for
            continue
        where = f"{path}: {DECODERS}"
        listed = content.get(DECODERS, {})
        try:
            if not isinstance(listed, Mapping):
                raise UsageError(f"{where} must be a mapping, got {format_value(listed)}")
            decoders |= {
                name: _make_decoder_style(_check_display(each, f"{where}.{name}"))
                for name, each in listed.items()
            }
        except UsageError as error:
            warn(one_line(error))
    return decoders


@functools.cache
def _read(path: Path) -> Mapping[str, Any]:
    """Returns a YAML's mapping, empty for any other."""
    data = read_yaml(path)
    return data if isinstance(data, Mapping) else {}


def _part(block: Mapping[str, Any], name: str) -> str:
    """Returns what a decoder's drafter, tree or verifier is: by itself, or under its key."""
    part = block.get(name)
    kind = part.get(_KINDS[name]) if isinstance(part, Mapping) else part
    return str(kind or "")


def _check_display(display: Any, where: str) -> Display:
    if not isinstance(display, Mapping):
        raise UsageError(f"{where} must be a mapping, got {format_value(display)}")
    return read(Display, display, where, "how a decoder is shown")


def _make_decoder_style(display: Display) -> DecoderStyle:
    return DecoderStyle(display.title, COLOURS[display.colour], display.marker)


if __name__ == "__main__":
    print(decoders_table())
