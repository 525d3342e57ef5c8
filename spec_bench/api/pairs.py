"""Models that decode a prompt: a target with what drafts for it, loaded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from spec_bench.api.answers import Writing
from spec_bench.api.prompts import Message, Prompt, prompt_id, prompts_of, shown, stops_of
from spec_bench.records.types import Request
from spec_bench.settings.configs import conf_dirs, read_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from spec_bench.api.stream import Stream
    from spec_bench.decode.config import AnyDecoder
    from spec_bench.engine.model import LanguageModel
    from spec_bench.engine.pool import CachePool
    from spec_bench.jobs.config.pair import Pair

    Model: TypeAlias = str | Path | PreTrainedModel
    Tokenizer: TypeAlias = str | Path | PreTrainedTokenizerBase

_MODEL = "a folder, a hub id, embedded:NAME, random:NAME or a loaded transformers model"
_TOKENIZER = "a folder, a hub id or a loaded tokenizer of transformers"


@dataclass
class LoadedPair:
    """A target with what drafts for it, loaded; ``load_pair`` makes one.

    Attributes:
        pair: which models.
        tokenizer: the target's.
        models: the target, then the drafts.
        overrides: what a job is told to decode with the same models; empty where they have no name.
    """

    pair: Pair
    tokenizer: Any
    models: Sequence[LanguageModel]
    overrides: tuple[str, ...] = ()
    _pool: CachePool | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        models = ", ".join([self.pair.target, *self.pair.drafts, *self.pair.heads])
        return f"LoadedPair({self.pair.name!r}: {models}; {self.models[0].device})"

    def decode(
        self,
        prompt: str | Iterable[str] | Sequence[Message] | Iterable[Sequence[Message]],
        decoder: str | Mapping[str, Any] = "rsd_s:4x3",
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        max_new_tokens: int = 128,
        seed: int = 0,
        chat: bool = False,
        stop: str | Sequence[str] = (),
        prompt_id: str | None = None,
    ) -> Any:  # a Decoded or a list of them
        """Decodes a prompt, or several one after another.

        Args:
            prompt: a text, or a conversation: a list of messages ``{"role": ..., "content": ...}``,
                the last one the user's. A list of either gives a list of answers in its order.
            decoder: ``NAME:SPEC`` or a mapping, as in a job's list of cells.
            temperature: 0 is greedy.
            top_k: keep the k largest logits; 0 keeps all.
            top_p: keep the smallest set of tokens with at least this mass; 1 keeps all.
            max_new_tokens: limit on the tokens of each answer.
            seed: with the prompt and the decoder it determines the answer, alone or in a list.
            chat: put a text into the tokenizer's chat template, as conversations always are.
            stop: texts that end an answer, looked for after each step. ``text`` ends before the
                first of them, ``tokens`` and ``steps`` with the step that brought it.
            prompt_id: of a job's row, to draw as the job did; None: from the prompt's letters.

        Returns:
            A ``Decoded``, for a list of prompts a list of them.

        Raises:
            ValueError: one line on what cannot be right.
        """
        prompts, several = prompts_of(prompt)
        if several and prompt_id is not None:
            raise ValueError("prompt_id is of one prompt, got a list of prompts")
        sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        built = self._built(decoder, {**sampling, "max_new_tokens": max_new_tokens}, self._pool)
        asked = [self._request(each, max_new_tokens, chat, prompt_id) for each in prompts]
        built.preflight(asked)
        stops = stops_of(stop)
        answers = [self._stream(built, each, seed, stops).answer for each in asked]
        return answers if several else answers[0]

    def stream(
        self,
        prompt: Prompt,
        decoder: str | Mapping[str, Any] = "rsd_s:4x3",
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        max_new_tokens: int = 128,
        seed: int = 0,
        chat: bool = False,
        stop: str | Sequence[str] = (),
        prompt_id: str | None = None,
    ) -> Stream:
        """Decodes one prompt step by step; the same answer as ``decode``'s.

        Args: as ``decode``'s.

        Returns:
            An iterator over steps: ``text`` is what each adds, ``seconds`` what it took, beside its
            ``nodes`` and ``accepted``. ``answer`` decodes what is left and gives the whole. What
            decodes beams or a whole answer at a time gives all its steps at the end.

        Raises:
            ValueError: one line on what cannot be right, before anything is decoded.
        """
        prompts, several = prompts_of(prompt)
        if several:
            raise ValueError("stream takes one prompt, got a list; decode takes several")
        sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        # Its own caches: other prompts may be decoded between two steps.
        built = self._built(decoder, {**sampling, "max_new_tokens": max_new_tokens}, None)
        request = self._request(prompts[0], max_new_tokens, chat, prompt_id)
        built.preflight([request])
        return self._stream(built, request, seed, stops_of(stop))

    def _built(
        self, decoder: str | Mapping[str, Any], told: Mapping[str, Any], pool: CachePool | None
    ) -> AnyDecoder:
        """The decoder over the pair's models."""
        from spec_bench.engine.pool import CachePool
        from spec_bench.jobs.config.cells import load_decoder, read_cell
        from spec_bench.jobs.config.fit import check_fit
        from spec_bench.jobs.config.fitted_trees import FittedTrees
        from spec_bench.jobs.config.settings import sampling_of
        from spec_bench.jobs.work.models import heads_of
        from spec_bench.settings.validation import check
        from spec_bench.tasks.generation import Generation as Asked

        sampling = sampling_of(check(Asked, dict(told), "decode"), Asked())
        cell = read_cell(decoder, partial(load_decoder, conf_dirs()), sampling)
        check_fit(cell, self.pair)
        cell = FittedTrees(self.pair, None, sampling).given(cell)
        target, drafts = self.models[0], self.models[1 : cell.drafts + 1]
        heads = heads_of(self.pair, cell.heads, target)
        return cell.config.build(target, drafts, sampling, 1, pool or CachePool(), heads)

    def _stream(
        self, decoder: AnyDecoder, request: Request, seed: int, stop: Sequence[str]
    ) -> Stream:
        from spec_bench.api.stream import Stream

        return Stream(decoder, request, seed, Writing(self.tokenizer, stop))

    def _request(self, prompt: Prompt, limit: int, chat: bool, name: str | None) -> Request:
        end = self.tokenizer.eos_token_id
        ends = () if end is None else (end,)
        return Request(name or prompt_id(prompt), self._encoded(prompt, chat), limit, ends)

    def _encoded(self, prompt: Prompt, chat: bool) -> tuple[int, ...]:
        if isinstance(prompt, str) and not chat:
            return tuple(self.tokenizer(prompt)["input_ids"])
        if not getattr(self.tokenizer, "chat_template", None):
            why = "chat is true" if isinstance(prompt, str) else "the prompt is a conversation"
            raise ValueError(f"{why} but the tokenizer has no chat template")
        own = {"role": "user", "content": prompt}
        messages = [own] if isinstance(prompt, str) else [dict(each) for each in prompt]
        text = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])


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
    own = {
        "target": str(target) if isinstance(target, Path) else target,
        "draft": named if listed else (named or [None])[0],
        "tokenizer": str(tokenizer) if isinstance(tokenizer, Path) else tokenizer,
        "heads": heads,
        "dtype": dtype,
    }
    told = {key: value for key, value in own.items() if value is not None}
    if any(is_model(each) for each in (target, *drafts)):
        if name is not None or target is None:
            raise ValueError("a loaded draft goes with target=..., and neither with a pair's name")
        return _of_modules([own["target"], *named], tokenizer, heads or {}, engine)
    return _of_names(name, told, engine)


def _of_names(name: str | None, told: dict[str, Any], engine: dict[str, str]) -> LoadedPair:
    """A pair of ``conf/pair``, or of models by name; its tokenizer may be a loaded one."""
    from spec_bench.engine.loading import common_tokenizer, is_tokenizer
    from spec_bench.engine.pool import CachePool
    from spec_bench.jobs.config.engine_settings import EngineSettings
    from spec_bench.jobs.config.pair import PairSettings, build_pair, with_own_name
    from spec_bench.jobs.work.models import models_of, tokenizer_of
    from spec_bench.settings.validation import check

    given = told.pop("tokenizer") if is_tokenizer(told.get("tokenizer")) else None
    values = {"draft": None} if "target" in told and name is None else _pair_file(name)
    settings = with_own_name(check(PairSettings, values | told, "pair"), conf_dirs())
    pair = build_pair(settings, check(EngineSettings, engine, "engine"))
    tokenizer, tokens = common_tokenizer([given]) if given is not None else tokenizer_of(pair)
    words = [f"pair={name}"] if name or "target" not in told else []
    words += [f"pair.{key}={json.dumps(value)}" for key, value in told.items()]
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
    own = load_tokenizer(model_path(str(place))) if isinstance(place, str | Path) else place
    own, tokens = common_tokenizer([own])
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
    return LoadedPair(pair, own, loaded, (), CachePool())


def _pair_file(name: str | None) -> dict[str, Any]:
    """A file of ``conf/pair``, ours or another package's."""
    wanted = "embedded" if name is None else name
    known = {file.stem: file for folder in conf_dirs() for file in folder.glob("pair/*.yaml")}
    if wanted not in known:
        raise ValueError(f"pair must be one of {', '.join(sorted(known))}, got {wanted!r}")
    return read_config(known[wanted])
