"""The pairs of ``conf/pair``: the config of a paper's pair, stand-ins, sizes."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.settings.configs import find_configs, list_conf_dirs, read_composed_config
from spec_bench.vocabulary.published import list_pair_spellings, wrap_in_list

_EMBEDDED_PREFIX = "embedded:"


@dataclass(frozen=True)
class PairConfig:
    """The facts of a pair's config for the report."""

    name: str  # the config's; results bear it as their label
    target: str  # the model
    drafts: tuple[str, ...]  # the models that draft
    # (target, draft) as papers print them; empty for a pair that no paper has. A target with heads
    # alone has "" for its draft.
    printed_pairs: frozenset[tuple[str, str]]
    # the paper's draft that the pair's replaces, where that was never published
    stand_in: str | None = None
    target_parameters: int | None = None  # None where the config has none
    draft_parameters: int | None = None  # likewise
    paper_draft_parameters: int | None = None  # of the draft that another stands in for
    chat_tuned: bool = False  # whether the target was tuned on conversations
    # task -> share of our sample's prompts that the models were trained on
    seen_in_training: Mapping[str, float] = field(default_factory=dict)
    # kind -> folder or hub id of the target's draft heads, where it has some
    heads: Mapping[str, str] = field(default_factory=dict)


def read_pair_configs() -> dict[str, PairConfig]:
    """Returns all pair configs by name, ours and those of other packages."""
    return _read_configs_of_pairs(tuple(list_conf_dirs()))


@functools.cache
def _read_configs_of_pairs(folders: tuple[Path, ...]) -> dict[str, PairConfig]:
    configs = {}
    for name, path in find_configs("pair", folders).items():
        data = read_composed_config(path)
        values: dict[str, Any] = {
            field.name: data[field.name] for field in fields(PairConfig) if data.get(field.name)
        }
        values["drafts"] = tuple(wrap_in_list(data.get("draft")))
        values["printed_pairs"] = frozenset(list_pair_spellings(data.get("paper")))
        values["heads"] = {kind: str(at) for kind, at in values.get("heads", {}).items() if at}
        configs[name] = PairConfig(**{**values, "name": name})
    return configs


def is_embedded(config: PairConfig) -> bool:
    """Returns whether a pair is one of those that ship."""
    return config.target.startswith(_EMBEDDED_PREFIX)


@functools.cache
def find_pair_config(target: str, draft: str) -> str | None:
    """Returns the config of a paper's pair; None where there is none."""
    matches = (
        config.name
        for config in read_pair_configs().values()
        if (target, draft) in config.printed_pairs
    )
    return next(matches, None)


def format_drafter_size(row: Mapping[str, Any]) -> str | None:
    """``0.74B`` or ``1.87M``; None where it is not known."""
    if row["decoder"] == "ar":
        return "0"
    config = read_pair_configs().get(str(row["pair"]))
    ratio = row.get("parameter_ratio")
    if config is not None and config.target_parameters and ratio and not pd.isna(ratio):
        return format_parameter_count(round(float(ratio) * config.target_parameters))
    count = read_head_training(str(row.get("draft", ""))).get("parameters")
    return None if count is None else format_parameter_count(int(count))


def format_parameter_count(count: int) -> str:
    """A count of parameters as the papers write it; millions where these would be 0.0 billions."""
    return f"{count / 1e9:.2f}B" if count >= 1e8 else f"{count / 1e6:.2f}M"


@functools.cache
def read_head_training(draft: str) -> Mapping[str, Any]:
    """Returns ``training.json`` of a folder of heads, or of heads that ship; or nothing."""
    folder = Path(draft)
    if draft.startswith(_EMBEDDED_PREFIX):
        folder = Path(__file__).parents[2] / "embedded" / draft.removeprefix(_EMBEDDED_PREFIX)
    file = folder / "training.json"
    exists = bool(draft) and file.is_file()
    return json.loads(file.read_text(encoding="utf-8")) if exists else {}
