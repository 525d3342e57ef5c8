"""What is refused before torch is imported, which takes longer than all else that a refusal needs.

Names, ranges, folders and small files: a decoder's file, the names of its drafter, tree policy and
rule, the form of its tree's shorthand, models' and heads' folders, room for an answer. Everything
else is refused where decoders are read and models described, and only there.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from spec_bench.engine.architectures import longest_sequence
from spec_bench.engine.model_spec import INTERSECTION, kept_tokens
from spec_bench.jobs.config.cells import DecoderLoader, WrittenCell, written_cells
from spec_bench.jobs.config.config import RunSettings
from spec_bench.jobs.config.model_files import model_path
from spec_bench.settings.fields import shown
from spec_bench.settings.registry import names_of_others, written
from spec_bench.vocabulary.spec import parse

_BLOCKS = {
    "drafter": ("kind", "drafter", "spec_bench.draft", "spec_bench.drafters"),
    "tree": ("policy", "policy", "spec_bench.tree", "spec_bench.policies"),
    "verifier": ("rule", "rule", "spec_bench.verify", "spec_bench.rules"),
}
"""Of a decoder's blocks: the key that names a kind, the decorator that registers one, our package
of such modules, and the entry points of others'."""


def check_early(asked: RunSettings, load: DecoderLoader) -> list[WrittenCell]:
    """Checks what names, folders and small files tell; the cells as they are written, the baseline
    first. A server has its own.
    """
    pair = asked.pair
    folders = [model_path(name) for name in (pair.target, *pair.drafts)]
    if pair.tokenizer is not None:
        model_path(pair.tokenizer)
    if asked.engine.served:
        return []
    for name in (*folders, *(heads for heads in (pair.heads or {}).values() if heads)):
        _json(Path(name).expanduser() / "config.json")
    if pair.draft_vocabulary not in (None, INTERSECTION):
        kept_tokens(pair.draft_vocabulary)
    limit, positions = asked.generation.max_new_tokens, read_positions(folders[0])
    if limit is not None and positions is not None and limit >= positions:
        raise ValueError(
            f"generation.max_new_tokens={limit} leaves no room for a prompt: {pair.target!r} has "
            f"{positions} positions"
        )
    cells = written_cells(asked.decoder, asked.spec, asked.cells, load)
    for key in _BLOCKS:
        _check_names(cells, key)
    return cells


def _check_names(cells: Sequence[WrittenCell], key: str) -> None:
    """Checks the names in decoders' blocks and the forms of their trees' shorthand, unless other
    packages register some too.
    """
    kind, decorator, package, group = _BLOCKS[key]
    if names_of_others(group):
        return
    known = written(package, decorator)
    for decoder, spec in cells:
        title = f"decoder {shown(decoder.get('name'))}"
        block = decoder.get(key)
        name = block.get(kind) if isinstance(block, Mapping) else block
        if not isinstance(name, str):
            continue  # reading it says what is wrong
        if name not in known:
            choices = ", ".join(sorted(known))
            raise ValueError(f"{title}: {key}.{kind} must be one of {choices}, got {shown(name)}")
        if key == "tree" and spec is not None:
            facts = {each: ast.literal_eval(node) for each, node in known[name].items()}
            if not (text := str(spec).strip()) or parse(text).form not in facts["forms"]:
                raise ValueError(
                    f"{title}: spec {shown(text)} does not fit its tree policy {name!r}, which "
                    f"takes {facts['takes']}"
                )


def read_positions(path: str) -> int | None:
    """The longest sequence that a model folder's ``config.json`` states; None if it states none, or
    the model is the hub's. Raises ValueError: the file cannot be read.
    """
    config = _json(Path(path) / "config.json")
    try:
        return longest_sequence(SimpleNamespace(**(config.get("text_config") or config)))
    except (AttributeError, TypeError):
        return None


def _json(file: Path) -> dict[str, Any]:
    """A file's JSON object; empty where there is no file."""
    try:
        known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"cannot read {str(file)!r}: {error}") from error
    if not isinstance(known, dict):
        raise ValueError(f"{str(file)!r} holds no JSON object")
    return known
