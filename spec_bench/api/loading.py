"""From names or loaded modules to a pair that decodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from spec_bench.api.pairs import LoadedPair
from spec_bench.api.prompts import shown
from spec_bench.api.words import in_words
from spec_bench.settings.configs import conf_dirs, read_config

Model: TypeAlias = str | Path | Any  # a name, or transformers' object, which only the engine knows
Tokenizer: TypeAlias = str | Path | Any

_MODEL = "a folder, a hub id, embedded:NAME, random:NAME or a loaded transformers model"
_TOKENIZER = "a folder, a hub id or a loaded tokenizer of transformers"


def load_pair(
    name: str | None = None,
    *,
    target: Model | None = None,
    draft: Model | Sequence[Model] | None = None,
    tokenizer: Tokenizer | None = None,
    heads: Mapping[str, str] | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    compile: str = "none",
) -> LoadedPair:
    """Loads a target and what drafts for it, or takes models that are loaded.

    A loaded model stays where it is and as it is, but for eval mode. All models are taken to share
    the tokenizer that is passed; without one, those of named models are compared.

    Args:
        name: a file of ``conf/pair``; None: the models that follow, or ``embedded``.
        target: a folder, hub id, ``embedded:NAME`` or ``random:NAME``, in place of the pair's; or
            a loaded transformers model, with its tokenizer.
        draft: likewise, one or several.
        tokenizer: of all models, a folder, hub id or loaded one; None: the named target's own.
        heads: draft heads by kind: ``{"medusa": FOLDER}``.
        device: of models that are loaded here: ``cpu``, ``cuda``, ``cuda:1``.
        dtype: likewise: ``float32``, ``bfloat16``, ...; None: the pair's own, else float32.
        compile: how the forward pass is captured: ``none``, ``static``, ``dynamo`` or ``inductor``.

    Raises:
        ValueError: one line on what cannot be right.
    """
    from spec_bench.engine.loading import is_model, is_tokenizer

    given: Any = draft
    listed = isinstance(given, list | tuple)
    drafts = [] if given is None else list(given) if listed else [given]
    for key, value in (("target", target), *(("draft", each) for each in drafts)):
        if not (value is None or isinstance(value, str | Path) or is_model(value)):
            raise ValueError(f"{key} must be {_MODEL}, got {shown(value)}")
    if not (tokenizer is None or isinstance(tokenizer, str | Path) or is_tokenizer(tokenizer)):
        raise ValueError(f"tokenizer must be {_TOKENIZER}, got {shown(tokenizer)}")
    engine = {"device": device, "dtype": dtype or "float32", "compile": compile}
    named = [str(each) if isinstance(each, Path) else each for each in drafts]
    stated = {
        "target": str(target) if isinstance(target, Path) else target,
        "draft": named if listed else (named or [None])[0],
        "tokenizer": str(tokenizer) if isinstance(tokenizer, Path) else tokenizer,
        "heads": heads,
        "dtype": dtype,
    }
    settings = {key: value for key, value in stated.items() if value is not None}
    if any(is_model(each) for each in (target, *drafts)):
        if name is not None or target is None:
            raise ValueError("a loaded draft goes with target=..., and neither with a pair's name")
        return _of_modules([stated["target"], *named], tokenizer, heads or {}, engine)
    return _of_names(name, settings, engine)


def _of_names(name: str | None, stated: dict[str, Any], engine: dict[str, str]) -> LoadedPair:
    """A pair of ``conf/pair``, or of models by name; its tokenizer may be a loaded one."""
    from spec_bench.engine.loading import common_tokenizer, is_tokenizer
    from spec_bench.engine.pool import CachePool
    from spec_bench.jobs.config.engine_settings import EngineSettings
    from spec_bench.jobs.config.pair import PairSettings, build_pair, with_own_name
    from spec_bench.jobs.work.models import models_of, tokenizer_of
    from spec_bench.settings.validation import check

    given = stated.pop("tokenizer") if is_tokenizer(stated.get("tokenizer")) else None
    values = {"draft": None} if "target" in stated and name is None else _pair_file(name)
    settings = with_own_name(check(PairSettings, values | stated, "pair"), conf_dirs())
    pair = build_pair(settings, check(EngineSettings, engine, "engine"))
    tokenizer, tokens = common_tokenizer([given]) if given is not None else tokenizer_of(pair)
    words = [f"pair={name}"] if name or "target" not in stated else []
    words += [f"pair.{key}={in_words(value)}" for key, value in stated.items()]
    words += [f"engine.{key}={engine[key]}" for key in ("device", "compile")]
    overrides = () if given is not None else tuple(each for each in words if each != "pair=None")
    return LoadedPair(pair, tokenizer, models_of(pair, tokens), overrides, CachePool())


def _of_modules(
    models: Sequence[Any], tokenizer: Any, heads: Mapping[str, str], engine: Mapping[str, str]
) -> LoadedPair:
    """A pair in which a model, or all of them, are loaded already."""
    from spec_bench.engine.loading import (
        adopt_model,
        common_tokenizer,
        is_model,
        load_model,
        load_tokenizer,
    )
    from spec_bench.engine.model_spec import ModelSpec
    from spec_bench.engine.pool import CachePool
    from spec_bench.jobs.config.model_files import model_path
    from spec_bench.jobs.config.pair import Pair, named_heads

    if tokenizer is None and is_model(models[0]):
        raise ValueError(f"a loaded target comes with its tokenizer: tokenizer= {_TOKENIZER}")
    place = models[0] if tokenizer is None else tokenizer
    common = load_tokenizer(model_path(str(place))) if isinstance(place, str | Path) else place
    common, tokens = common_tokenizer([common])
    names, loaded = [], []
    for model in models:
        if is_model(model):
            names.append(model.name_or_path or type(model).__name__)
            loaded.append(adopt_model(model, names[-1], engine["compile"]))
        else:
            names.append(model)
            loaded.append(load_model(ModelSpec(model_path(model), **engine)))  # type: ignore[arg-type]
    count = min(tokens, *(each.embedded for each in loaded))
    for each in loaded:
        each.vocab_size = count
    label = "+".join(name.rstrip("/").rsplit("/", 1)[-1] for name in names)
    pair = Pair(
        *(label, names[0], tuple(names[1:])),
        specs=(),
        revisions=(None,) * len(names),
        heads=named_heads(heads),
    )
    return LoadedPair(pair, common, loaded, (), CachePool())


def _pair_file(name: str | None) -> dict[str, Any]:
    """A file of ``conf/pair``, ours or another package's."""
    wanted = "embedded" if name is None else name
    known = {file.stem: file for folder in conf_dirs() for file in folder.glob("pair/*.yaml")}
    if wanted not in known:
        raise ValueError(f"pair must be one of {', '.join(sorted(known))}, got {wanted!r}")
    return read_config(known[wanted])
