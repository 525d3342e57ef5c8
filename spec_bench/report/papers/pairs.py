"""Model pairs of ``conf/pair``: their names in the papers, stand-ins and sizes."""

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
    """Facts from a pair's config that the report uses."""

    name: str  # the config's name, which results have in their column ``pair``
    target: str  # the target model
    drafts: tuple[str, ...]  # the models that draft
    # (target, draft) as papers print them; empty if no paper has the pair. The draft is "" if only
    # heads draft.
    printed_pairs: frozenset[tuple[str, str]]
    # the paper's draft that the pair's draft replaces, because it was never published
    stand_in: str | None = None
    target_parameters: int | None = None  # None if the config has no number
    draft_parameters: int | None = None  # likewise
    paper_draft_parameters: int | None = None  # of the replaced draft
    chat_tuned: bool = False  # whether the target was tuned on conversations
    # task -> share of our sample's prompts that the models were trained on
    seen_in_training: Mapping[str, float] = field(default_factory=dict)
    # kind -> folder or hub id of the target's draft heads
    heads: Mapping[str, str] = field(default_factory=dict)


def read_pair_configs() -> dict[str, PairConfig]:
    """Reads all pair configs by name, ours and those of other packages."""
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
        values["heads"] = {
            kind: str(source) for kind, source in values.get("heads", {}).items() if source
        }
        configs[name] = PairConfig(**{**values, "name": name})
    return configs


def is_embedded(config: PairConfig) -> bool:
    """Returns whether a pair's target ships with the package."""
    return config.target.startswith(_EMBEDDED_PREFIX)


@functools.cache
def find_pair_config(target: str, draft: str) -> str | None:
    """Finds the name of the config of a pair that a paper prints; None if it has no config."""
    matches = (
        config.name
        for config in read_pair_configs().values()
        if (target, draft) in config.printed_pairs
    )
    return next(matches, None)


def format_drafter_size(row: Mapping[str, Any]) -> str | None:
    """Formats the number of parameters that drafted, ``0.74B`` or ``1.87M``; None if unknown."""
    if row["decoder"] == "ar":
        return "0"
    config = read_pair_configs().get(str(row["pair"]))
    ratio = row.get("parameter_ratio")
    if config is not None and config.target_parameters and ratio and not pd.isna(ratio):
        return format_parameter_count(round(float(ratio) * config.target_parameters))
    count = read_head_training(str(row.get("draft", ""))).get("parameters")
    return None if count is None else format_parameter_count(int(count))


def format_parameter_count(count: int) -> str:
    """Formats a number of parameters in billions, as papers do; below 0.1 billion in millions."""
    return f"{count / 1e9:.2f}B" if count >= 1e8 else f"{count / 1e6:.2f}M"


@functools.cache
def read_head_training(draft: str) -> Mapping[str, Any]:
    """Reads ``training.json`` of a folder of heads, or of embedded heads; {} if there is none."""
    folder = Path(draft)
    if draft.startswith(_EMBEDDED_PREFIX):
        folder = Path(__file__).parents[2] / "embedded" / draft.removeprefix(_EMBEDDED_PREFIX)
    file = folder / "training.json"
    exists = bool(draft) and file.is_file()
    return json.loads(file.read_text(encoding="utf-8")) if exists else {}
