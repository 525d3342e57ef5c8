"""What a decoder's blocks ask of another engine, and what it cannot do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spec_bench.core.sampling import SamplingSettings
from spec_bench.draft.base import Drafter
from spec_bench.draft.lookup import Lookup
from spec_bench.engine.generate import Aid
from spec_bench.engine.mapped_model import MappedModel
from spec_bench.engine.model import LanguageModel
from spec_bench.settings.fields import shown
from spec_bench.tree.base import GrownTree, Policy
from spec_bench.verify.elsewhere import Transformers

if TYPE_CHECKING:  # it needs transformers, which a refusal does not
    from spec_bench.engine.hugging_face import HuggingFaceModel

_DRAFTERS = ("none", "language_model", "lookup")


def check_elsewhere(title: str, drafter: Drafter, tree: Policy, tree_attention: bool) -> None:
    """Checks that transformers can decode this; a ValueError names the decoder, ``title``, and what
    it cannot do.
    """
    if drafter.kind not in _DRAFTERS:
        raise ValueError(
            f"{title}: rule 'transformers' goes with drafter.kind {', '.join(_DRAFTERS)}, got "
            f"{drafter.kind!r}"
        )
    if not tree_attention:
        raise ValueError(f"{title}: transformers runs no trees, so tree_attention must be true")
    if not isinstance(drafter, Lookup):
        return
    fixed = {"shortest": 1, "share": 0.0, "per_match": None}
    for key, value in fixed.items():
        if getattr(drafter, key) != value:
            given = shown(getattr(drafter, key))
            raise ValueError(f"{title}: transformers has drafter.{key} {shown(value)}, got {given}")
    width = getattr(tree, "width", 1)
    if width != 1:
        raise ValueError(f"{title}: transformers looks up one chain, tree.width is {width}")


def check_settings(title: str, settings: SamplingSettings) -> None:
    """Checks that transformers can sample that way; a ValueError if the draft has a temperature of
    its own.
    """
    temperature = settings.draft_temperature
    if temperature not in (None, settings.temperature):
        raise ValueError(
            f"{title}: transformers samples target and assistant at one temperature, "
            f"draft_temperature must be {settings.temperature:g} or null, got {temperature:g}"
        )


def aid_of(
    drafter: Drafter, tree: GrownTree, rule: Transformers, drafts: Sequence[LanguageModel]
) -> Aid:
    """What drafts, as ``generate`` takes it."""
    depth = tree.shape.depth
    if isinstance(drafter, Lookup):
        return Aid(tokens=depth, longest=drafter.longest)
    if not drafts:
        return Aid()
    module: Any = drafts[0]
    if isinstance(module, MappedModel):
        raise ValueError("transformers drafts with the target's tokens; the draft has others")
    return Aid(module, depth, confidence=rule.confidence)


def as_module(title: str, target: LanguageModel) -> HuggingFaceModel:
    """Returns the target as a module that transformers can run; a ValueError if it is not one."""
    from spec_bench.engine.hugging_face import HuggingFaceModel

    if not isinstance(target, HuggingFaceModel):
        raise ValueError(f"{title}: transformers runs its own modules, got {type(target).__name__}")
    return target
