"""Sampling settings, declared once for configs, decoders, servers, rows and run ids.

A new setting needs a field here, a rule in ``core/warp.py``, a key in ``conf/generation`` and a
column in ``vocabulary/columns.csv``. Imports torch only for a torch dtype.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Interval, Predicate

from spec_bench.settings.fields import Requirement, describe_unknown_setting, format_value
from spec_bench.settings.validation import read_settings, require_valid_fields
from spec_bench.system.errors import UsageError

if TYPE_CHECKING:
    import torch

LEAST_TEMPERATURE = 1e-6  # logits divided by less could overflow float32
Temperature = Annotated[
    float,
    Predicate(lambda value: value == 0 or value >= LEAST_TEMPERATURE),
    Requirement(f"a number >= {LEAST_TEMPERATURE:g}, or 0"),
]
MAX_NEW_TOKENS = 128
"""Limit on an answer's tokens if neither the run nor its task sets a limit."""
# Settings that transformers and servers have under the same names.
_PORTABLE_SETTINGS = ("temperature", "top_k", "top_p", "min_p")
_OWN_SETTINGS = ("draft_temperature", "probability_dtype")  # do not concern other engines' targets
# Settings in every run id. Settings that were added later are in a run id only if they differ from
# their defaults, so that earlier measurements keep their run ids.
_IN_EVERY_ID = ("temperature", "top_k", "top_p", *_OWN_SETTINGS)


@dataclass(frozen=True)
class SamplingSettings:
    """Settings for sampling tokens, from target and draft alike. Raises UsageError if a value is
    outside its range.
    """

    # 0 is greedy: the exact limit, with ties broken to the lowest token id
    temperature: Temperature = 1.0
    top_k: Annotated[int, Interval(ge=0)] = 0  # keep the k largest logits; 0 keeps all
    # keep the smallest set of tokens with at least this mass; 1 keeps all
    top_p: Annotated[float, Interval(gt=0, le=1)] = 1.0
    # the draft's own temperature; None means the target's
    draft_temperature: Temperature | None = None
    probability_dtype: Literal["float32", "float64"] = "float32"  # `float64` for audits
    # keep the tokens with at least this fraction of the largest probability; 0 keeps all
    min_p: Annotated[float, Interval(ge=0, le=1)] = 0.0

    def __post_init__(self) -> None:
        require_valid_fields(self)

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype of every probability."""
        import torch

        return getattr(torch, self.probability_dtype)

    def get_draft_settings(self) -> SamplingSettings:
        """Returns the settings that the draft's logits are warped with."""
        if self.draft_temperature is None:
            return self
        return replace(self, temperature=self.draft_temperature, draft_temperature=None)

    def get_portable_options(self) -> dict[str, float]:
        """Returns the settings that transformers and servers have under the same names. Raises
        UsageError if a setting that they lack is not at its default.
        """
        for field in fields(SamplingSettings):
            value = getattr(self, field.name)
            if field.name not in (*_PORTABLE_SETTINGS, *_OWN_SETTINGS) and value != field.default:
                raise UsageError(
                    f"generation.{field.name} must be {field.default} where another engine "
                    f"decodes, which has no such setting; got {value}"
                )
        return {name: getattr(self, name) for name in _PORTABLE_SETTINGS}

    def get_columns(self) -> dict[str, float | str]:
        """Returns the settings as columns of a row. A setting of ``LATER`` is "" at its default,
        and the draft's temperature is "" if it is the target's.
        """
        values = self.get_run_id_settings()
        del values["probability_dtype"]
        if values["draft_temperature"] in (None, self.temperature):
            values["draft_temperature"] = ""
        names = (
            field.name for field in fields(SamplingSettings) if field.name not in _OWN_SETTINGS
        )
        return {**dict.fromkeys(names, ""), **values}

    def get_run_id_settings(self) -> dict[str, Any]:
        """Returns the settings by name, as a run id hashes them."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(SamplingSettings)
            if field.name in _IN_EVERY_ID or getattr(self, field.name) != field.default
        }


EMPTY_AT_DEFAULT = tuple(f.name for f in fields(SamplingSettings) if f.name not in _IN_EVERY_ID)
"""Settings with an empty column at their default, which keeps every token."""


def describe_sampling(row: Mapping[str, Any]) -> str:
    """Describes a row's temperature and its other settings that are not at their defaults:
    ``temperature 0.3, top-p 0.95``.
    """
    texts = []
    for field in fields(SamplingSettings):
        value = row.get(field.name)
        is_number = isinstance(value, Real) and not math.isnan(value)
        if is_number and (field.name == "temperature" or value != field.default):
            texts.append(f"{field.name.replace('_', '-')} {value:g}")
    return ", ".join(texts)


@dataclass(frozen=True)
class AnswerLimit:
    """Limit on the length of an answer."""

    max_new_tokens: Annotated[int, Interval(ge=1)] = MAX_NEW_TOKENS


GENERATION = tuple(field.name for kind in (SamplingSettings, AnswerLimit) for field in fields(kind))
"""Keys of the config group ``generation``, and of a task's own ``generation``."""


def parse_generation_settings(settings: Mapping[str, Any] | None, where: str) -> dict[str, Any]:
    """Returns the settings that are not null. Raises UsageError, which names their place ``where``,
    such as ``task.generation``, if a setting is unknown or out of range.
    """
    if not isinstance(settings, Mapping | None):
        raise UsageError(f"{where} must be a mapping of settings, got {format_value(settings)}")
    for name in settings or {}:
        if name not in GENERATION:
            raise UsageError(describe_unknown_setting(f"{where}.{name}", str(name), GENERATION))
    values = {name: value for name, value in (settings or {}).items() if value is not None}
    limit = {name: value for name, value in values.items() if name == "max_new_tokens"}
    read_settings(AnswerLimit, limit, where)
    read_settings(SamplingSettings, {k: v for k, v in values.items() if k not in limit}, where)
    return values


def merge_sampling(*mappings: Mapping[str, Any]) -> SamplingSettings:
    """Merges checked mappings into sampling settings; later mappings override earlier ones."""
    values: dict[str, Any] = {}
    for mapping in mappings:
        values.update(mapping)
    values.pop("max_new_tokens", None)
    if "temperature" in values:
        values["temperature"] = float(values["temperature"])
    return SamplingSettings(**values)
