"""Decoders by function, for callers that hold settings as mappings; see ``decode.config``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import AnyDecoder as AnyDecoder
from spec_bench.decode.config import read_decoder, read_tree
from spec_bench.decode.config import resolve_spec as resolve_spec
from spec_bench.draft.base import Heads
from spec_bench.engine.model import LanguageModel
from spec_bench.engine.pool import CachePool
from spec_bench.tree.base import GrownTree


def validate_decoder(decoder: Mapping[str, Any], settings: SamplingSettings | None = None) -> None:
    """Checks a decoder's settings without loading anything; errors as ``read_decoder``'s."""
    read_decoder(decoder, settings)


def spec_of(decoder: Mapping[str, Any]) -> str:
    """The shorthand of a decoder's tree, as it stands in the ``spec`` column."""
    return read_tree(decoder).spec


def drafts_used(decoder: Mapping[str, Any]) -> int:
    """How many draft models the decoder needs."""
    return read_decoder(decoder).drafts


def build_policy(decoder: Mapping[str, Any], settings: SamplingSettings) -> GrownTree:
    """The tree policy of a single sequence."""
    tree = read_tree(decoder)
    assert isinstance(tree, GrownTree)
    return tree


def build_decoder(
    decoder: Mapping[str, Any],
    target: LanguageModel,
    drafts: Sequence[LanguageModel],
    settings: SamplingSettings,
    rows: int = 1,
    pool: CachePool | None = None,
    heads: Heads | None = None,
) -> AnyDecoder:
    """Builds a decoder over loaded models; arguments and errors as ``DecoderConfig.build``'s."""
    config = read_decoder(decoder, settings)
    return config.build(target, drafts, settings, rows, pool, heads)
