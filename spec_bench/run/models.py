"""Models and tokenizers that this process has loaded, for the jobs of a sweep to share."""

from __future__ import annotations

import logging
from copy import copy
from typing import Any

from spec_bench.engine.loading import ModelSpec, common_tokenizer, load_model, load_tokenizer
from spec_bench.engine.model import LanguageModel
from spec_bench.engine.random_weights import TokenIds
from spec_bench.run.pair import Pair

log = logging.getLogger(__name__)

_models: dict[tuple[ModelSpec, str | None], LanguageModel] = {}
_tokenizers: dict[tuple[str, str | None, str | None], Any] = {}


def models_of(pair: Pair, tokens: int) -> list[LanguageModel]:
    """The pair's models, the target first.

    Args:
        pair: which.
        tokens: how many tokens exist; embedding rows beyond them are padding and are cut.

    Raises:
        ValueError: a model cannot be loaded, or has fewer embedding rows than there are tokens.
    """
    models = [_model(spec, mark) for spec, mark in zip(pair.specs, pair.revisions, strict=True)]
    for spec, model in zip(pair.specs, models, strict=True):
        if model.vocab_size < tokens:
            raise ValueError(
                f"{spec.path!r} embeds {model.vocab_size} tokens, its tokenizer has {tokens}"
            )
        model.vocab_size = tokens
    return models


def tokenizer_of(pair: Pair) -> tuple[Any, int]:
    """The target's tokenizer, after checking that every draft's agrees, and how many tokens exist.

    A pair with a chat template of its own gets a copy that bears it.

    Raises:
        ValueError: naming the first token on which two vocabularies differ.
    """
    tokenizer, tokens = common_tokenizer(
        [_tokenizer(spec, mark) for spec, mark in zip(pair.specs, pair.revisions, strict=True)]
    )
    if pair.chat_template is not None and not isinstance(tokenizer, TokenIds):
        tokenizer = copy(tokenizer)
        tokenizer.chat_template = pair.chat_template
    return tokenizer, tokens


def _model(spec: ModelSpec, mark: str | None) -> LanguageModel:
    """Loads a model once a process; ``mark`` tells apart what lay in one folder over time."""
    if (spec, mark) in _models:
        log.info("reusing %s", spec.path)
    else:
        log.info("loading %s (%s, %s)", spec.path, spec.dtype, spec.device)
        _models[spec, mark] = load_model(spec)
    return _models[spec, mark]


def _tokenizer(spec: ModelSpec, mark: str | None) -> Any:
    key = (spec.path, spec.revision, mark)
    if key not in _tokenizers:
        _tokenizers[key] = load_tokenizer(spec.path, spec.revision)
    return _tokenizers[key]
