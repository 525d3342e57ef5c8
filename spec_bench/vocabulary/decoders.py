"""Styles of decoders: title, colour, marker, and a line in the table of decoders.

A decoder of ``conf/decoder`` has its style in its own YAML, under ``display``. If a recipe's cell
replaces a decoder's drafter or rule, the style is combined from those of the parts, or is read from
``decoders`` in the paper's ``paper.yaml``. Folders of other packages are read too. Of a decoder's
settings this module knows only the names of its drafter, tree and rule.

    python -m spec_bench.vocabulary.decoders     # prints the table of decoders
"""

import ast
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from spec_bench.settings.configs import (
    find_configs,
    get_conf_dir,
    list_conf_dirs,
    list_experiments_dirs,
    read_yaml,
)
from spec_bench.settings.fields import format_suggestion, format_value, to_one_line, warn_once
from spec_bench.settings.registry import scan_registrations
from spec_bench.settings.validation import read_settings
from spec_bench.system.errors import UsageError
from spec_bench.vocabulary.spec import parse_tree_spec

ColourName = Literal["blue", "vermillion", "green", "purple", "orange", "sky", "black"]
Marker = Literal["o", "s", "^", "D", "v", "P", "X"]


class ColourPair(NamedTuple):
    """A colour for light pages and its counterpart for dark pages."""

    light: str
    dark: str


# Okabe & Ito: distinguishable with any colour vision.
COLOURS: dict[ColourName, ColourPair] = {
    "blue": ColourPair("#0072B2", "#4AA8E0"),
    "vermillion": ColourPair("#D55E00", "#F08A3C"),
    "green": ColourPair("#009E73", "#2FC294"),
    "purple": ColourPair("#CC79A7", "#E29AC4"),
    "orange": ColourPair("#E69F00", "#E69F00"),
    "sky": ColourPair("#56B4E9", "#56B4E9"),
    "black": ColourPair("#000000", "#98A2AD"),
}
PALETTE = tuple(COLOURS.values())
MARKERS: tuple[Marker, ...] = ("o", "s", "^", "D", "v", "P", "X")

DISPLAY = "display"
DECODERS = "decoders"
_KINDS = {
    "drafter": "kind",
    "tree": "policy",
    "verifier": "rule",
}
_BASELINE = "ar"
_DRAFT_MODEL = "language_model"
# Drafters that use a draft model; "" is an unknown drafter.
DRAFT_MODELS = ("", _DRAFT_MODEL, "lookup_or_model", "pard")


@dataclass(frozen=True)
class DisplaySettings:
    """The block ``display`` of a decoder's YAML."""

    title: str  # in tables and figures
    colour: ColourName  # in figures and on pages
    marker: Marker = "o"  # matplotlib's letter
    tree: str = ""  # in words, for the table of decoders
    rule: str = ""  # in words, for that table
    source: str = ""  # paper or program, for that table
    same_as: str = ""  # another name of the same configuration


@dataclass(frozen=True)
class DecoderStyle:
    """A decoder's title, colour and marker (matplotlib's letter, filled or hollow)."""

    title: str
    colour: ColourPair
    marker: Marker = "o"
    hollow: bool = False


def find_decoder(name: str) -> DecoderStyle | None:
    """Finds a decoder's style in the YAMLs; None if no YAML has one. Raises UsageError, with file,
    key, value and choices, if a YAML is wrong.
    """
    decoder_name, _, settings = name.partition(" ")  # settings that differ from its YAML
    style = _find_style(decoder_name, *_list_config_and_paper_folders())
    return style and replace(style, title=f"{style.title} {settings}".rstrip())


def find_canonical_name(name: str) -> str:
    """Returns a decoder's canonical name; names of the same configuration share it."""
    files = _find_decoder_files(_list_config_and_paper_folders()[0])
    block = _read_mapping_or_empty(files[name]) if name in files else {}
    display = block.get(DISPLAY)
    return str(display.get("same_as") or name) if isinstance(display, Mapping) else name


def require_decoder(name: str) -> None:
    """Raises UsageError, with the choices, if no YAML defines the decoder or its parts."""
    if find_decoder(name) is None:
        load_decoder_settings(list_conf_dirs(), name)


@functools.cache
def refuse_unfit_tree(decoder: str, policy: str, spec: str) -> None:
    """Raises UsageError if the tree policy is built in and does not accept the shorthand."""
    facts = scan_registrations("spec_bench.tree", "policy").get(policy)
    if facts and (not spec or parse_tree_spec(spec).form not in ast.literal_eval(facts["forms"])):
        raise UsageError(
            f"decoder {format_value(decoder)}: spec {format_value(spec)} does not fit its tree "
            f"policy {policy!r}, which takes {ast.literal_eval(facts['takes'])}"
        )


class DecoderParts(NamedTuple):
    """Names of a decoder's parts; "" for a part that no YAML names."""

    drafter: str
    tree_policy: str
    rule: str


def get_decoder_parts(name: str) -> DecoderParts:
    """Returns a decoder's parts; for a composed name, those of its longest prefix that is a
    decoder.
    """
    files = _find_decoder_files(_list_config_and_paper_folders()[0])
    words = name.partition(" ")[0].split("_")
    candidates = ("_".join(words[:n]) for n in range(len(words), 0, -1))
    paths = (files[candidate] for candidate in candidates if candidate in files)
    block = next(map(_read_mapping_or_empty, paths), {})
    return DecoderParts(
        *(_get_part_name_or_empty(block, key) for key in ("drafter", "tree", "verifier"))
    )


def strip_display(decoder: Mapping[str, Any], file: str = "") -> dict[str, Any]:
    """Returns a decoder's settings without its ``display`` block, which is validated. The decoder
    is from ``file``, or from the job's settings if that is "".
    """
    settings = dict(decoder)
    if DISPLAY in settings:
        _check_display(settings.pop(DISPLAY), DISPLAY if file else f"decoder.{DISPLAY}", file)
    return settings


def load_decoder_settings(folders: Sequence[Path], name: str) -> dict[str, Any]:
    """Reads ``decoder/NAME.yaml`` from the first config folder that has it, without its
    ``display``. Raises UsageError if there is none.
    """
    paths = find_configs("decoder", folders)
    if name not in paths:
        known_names = sorted(paths)
        suggestion = format_suggestion(name.replace("-", "_"), known_names)
        choices = "spec-bench ls decoders" if suggestion else ", ".join(known_names)
        raise UsageError(f"unknown decoder {name!r}{suggestion}; known: {choices}")
    decoder = read_yaml(paths[name])
    if not isinstance(decoder, dict):
        raise UsageError(f"decoder config {paths[name]} is no mapping")
    return strip_display(decoder, str(paths[name]))


def render_decoders_table() -> str:
    """Renders our decoders as Markdown: the baseline, those with a draft model, the rest by
    drafter.
    """
    blocks = {
        name: _read_mapping_or_empty(path)
        for name, path in _find_decoder_files((get_conf_dir(),)).items()
    }
    drafters = {name: _get_part_name_or_empty(block, "drafter") for name, block in blocks.items()}

    def place(name: str) -> tuple[bool, bool, str, str]:
        return name != _BASELINE, drafters[name] != _DRAFT_MODEL, drafters[name], name

    lines = ["| decoder | drafter | tree | rule | from |", "| --- | --- | --- | --- | --- |"]
    for name in sorted(blocks, key=place):
        display = _check_display(blocks[name].get(DISPLAY), DISPLAY, f"{name}.yaml")
        cells = (f"`{name}`", f"`{drafters[name]}`", display.tree, display.rule, display.source)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


@functools.cache
def _list_config_and_paper_folders() -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Returns the folders of configs and of papers; cached after the first call."""
    return tuple(list_conf_dirs()), tuple(list_experiments_dirs())


@functools.cache
def _find_style(
    name: str,
    confs: tuple[Path, ...],
    papers: tuple[Path, ...],
) -> DecoderStyle | None:
    path = _find_decoder_files(confs).get(name)
    if path is not None:
        display = _read_mapping_or_empty(path).get(DISPLAY)
        return None if display is None else _make_style(_check_display(display, DISPLAY, str(path)))
    return _read_paper_styles(papers).get(name) or _combine_styles_of_parts(name, confs, papers)


def _combine_styles_of_parts(
    name: str,
    confs: tuple[Path, ...],
    papers: tuple[Path, ...],
) -> DecoderStyle | None:
    """Combines the styles of a composed name's parts; None if the parts have no styles.

    ``DRAFTER_DECODER`` has the decoder's style, ``DECODER_RULE`` the decoder's with the rule's
    marker. The title of a drafter or a rule is that of the decoder of the same name.
    """
    words = name.split("_")
    files = _find_decoder_files(confs)
    splits = [("_".join(words[:n]), "_".join(words[n:])) for n in range(1, len(words))]
    for part in ("drafter", "verifier"):
        for head_name, tail_name in splits:
            part_name = head_name if part == "drafter" else tail_name
            if part_name not in files:
                continue
            if _get_part_name_or_empty(_read_mapping_or_empty(files[part_name]), part) != part_name:
                continue
            head = _find_style(head_name, confs, papers)
            tail = _find_style(tail_name, confs, papers)
            if head and tail and part == "drafter":
                return replace(tail, title=f"{head.title}, {tail.title}")
            if head and tail:
                return replace(head, title=f"{head.title}, {tail.title}", marker=tail.marker)
    return None


@functools.cache
def _find_decoder_files(confs: tuple[Path, ...]) -> dict[str, Path]:
    return find_configs("decoder", confs)


@functools.cache
def _read_paper_styles(folders: tuple[Path, ...]) -> dict[str, DecoderStyle]:
    """Reads the styles of decoders in the papers' YAMLs; where two folders define the same decoder,
    the first folder takes precedence.
    """
    decoders: dict[str, DecoderStyle] = {}
    for path in (path for top in reversed(folders) for path in top.glob("*/paper.yaml")):
        try:
            content = _read_mapping_or_empty(path)
        except UsageError:  # reading the paper itself reports the error
            continue
        prefix = f"{path}: {DECODERS}"
        display_by_name = content.get(DECODERS, {})
        try:
            if not isinstance(display_by_name, Mapping):
                raise UsageError(f"{prefix} must be a mapping, got {format_value(display_by_name)}")
            decoders |= {
                name: _make_style(_check_display(display, f"{DECODERS}.{name}", str(path)))
                for name, display in display_by_name.items()
            }
        except UsageError as error:
            warn_once(to_one_line(error))
    return decoders


@functools.cache
def _read_mapping_or_empty(path: Path) -> Mapping[str, Any]:
    """Reads a YAML file's mapping; returns an empty mapping if its content is something else."""
    content = read_yaml(path)
    return content if isinstance(content, Mapping) else {}


def _get_part_name_or_empty(block: Mapping[str, Any], name: str) -> str:
    """Returns the name of a decoder's drafter, tree or verifier; "" if the YAML has none."""
    part = block.get(name)
    kind = part.get(_KINDS[name]) if isinstance(part, Mapping) else part
    return str(kind or "")


def _check_display(display: Any, key: str, file: str = "") -> DisplaySettings:
    return read_settings(DisplaySettings, display, key, file, owner="how a decoder is shown")


def _make_style(display: DisplaySettings) -> DecoderStyle:
    return DecoderStyle(display.title, COLOURS[display.colour], display.marker)


if __name__ == "__main__":
    print(render_decoders_table())
