"""What can be refused from names and small files, before torch is imported.

Reads model folders' JSON, decoder files and nothing else. It refuses only what is certain to be
refused later; whatever these files leave open is checked again where everything is known.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

from spec_bench.engine.architectures import PREFIX as RANDOM
from spec_bench.engine.context_length import longest_sequence
from spec_bench.engine.vocabularies import INTERSECTION, kept_tokens, parsed, refuse_different_files
from spec_bench.jobs.config.cells import DecoderLoader, expand_grid, parse_cell
from spec_bench.jobs.config.config import RunSettings
from spec_bench.jobs.config.model_files import model_path
from spec_bench.jobs.config.pair import PairSettings


def check_early(asked: RunSettings, load: DecoderLoader) -> None:
    """Checks models' and heads' folders, decoders' names, vocabularies and the limit on answers.

    Raises:
        ValueError: in one line that names what is wrong.
    """
    pair = asked.pair
    folders = [model_path(name) for name in (pair.target, *pair.drafts)]
    if pair.tokenizer is not None:
        model_path(pair.tokenizer)
    if asked.engine.served:
        return
    for name in (*folders, *(heads for heads in (pair.heads or {}).values() if heads)):
        check_config(name)
    for item in asked.cells:
        for each in expand_grid(item):
            parse_cell(each, load)
    check_vocabularies(pair)
    limit = asked.generation.max_new_tokens
    positions = read_positions(folders[0])
    if limit is not None and positions is not None and limit >= positions:
        raise ValueError(
            f"generation.max_new_tokens={limit} leaves no room for a prompt: {pair.target!r} has "
            f"{positions} positions"
        )


def check_config(name: str) -> None:
    """Checks that a folder's ``config.json`` can be read.

    Raises:
        ValueError: naming the file and what is wrong with it.
    """
    file = Path(name).expanduser() / "config.json"
    try:
        known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"cannot read {str(file)!r}: {error}") from error
    if not isinstance(known, dict):
        raise ValueError(f"{str(file)!r} holds no JSON object")


def check_vocabularies(pair: PairSettings) -> None:
    """Checks that the drafts have the target's tokens, where files alone tell.

    Raises:
        ValueError: naming the first token that differs.
    """
    if pair.draft_vocabulary not in (None, INTERSECTION):
        kept_tokens(pair.draft_vocabulary)
    if pair.tokenizer is not None or pair.draft_vocabulary == INTERSECTION:
        return
    names = [model_path(name) for name in (pair.target, *pair.drafts)]
    local = [Path(name) for name in names if not name.startswith(RANDOM)]
    local = [folder for folder in local if folder.is_dir()]
    if local and str(local[0]) == names[0]:
        for draft in local[1:]:
            refuse_different_files(local[0], draft)


def read_positions(path: str) -> int | None:
    """The longest sequence that a model folder's ``config.json`` states; None if it states none, or
    the model is the hub's.
    """
    config = parsed(Path(path) / "config.json")
    try:
        return longest_sequence(SimpleNamespace(**(config.get("text_config") or config)))
    except (AttributeError, TypeError):
        return None
