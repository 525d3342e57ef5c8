"""Loads a target with its drafts, by name or from loaded models, and decodes prompts.

A prompt's random numbers come from one generator, seeded by SHA-256 of the seed and the prompt's id
(``core.draws.derive_row_seed``). In a job it is the row's ``question_id``, with ``/TURN`` if a row
has several turns. A text without an id gets its digest as id, here and in the file that
``run(prompts=[...])`` writes. So a text has one answer per seed and decoder, in any batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast
from weakref import ReferenceType, ref

from spec_bench.api.answers import Stream, StreamedText
from spec_bench.records.ends import StopCriteria
from spec_bench.records.sampling import SamplingSettings, merge_sampling, parse_generation_settings
from spec_bench.records.types import Request
from spec_bench.settings.configs import find_configs, list_conf_dirs, read_composed_config
from spec_bench.settings.override_values import describe_type_and_value, quote_value
from spec_bench.system import files
from spec_bench.system.errors import UsageError
from spec_bench.tasks.example import read_turns
from spec_bench.tasks.template import render_chat

if TYPE_CHECKING:
    from spec_bench.decode.config import AnyDecoder
    from spec_bench.engine.cache import CachePool
    from spec_bench.engine.model import LanguageModel
    from spec_bench.jobs.config.pair import EngineSettings, Pair

Message = Mapping[str, str]
Prompt = str | Sequence[Message]
Model: TypeAlias = str | Path | Any  # a name, or transformers' object, which only the engine knows
Tokenizer: TypeAlias = str | Path | Any

_MODEL = "a folder, a hub id, embedded:NAME, random:NAME or a loaded transformers model"
_TOKENIZER = "a folder, a hub id or a loaded tokenizer of transformers"
_NO_TEMPLATE_REMEDY = "set tokenizer.chat_template of the tokenizer, or ask a text with chat=False"
_PROMPTS = (
    "a text that is not empty, a list of texts, a conversation (a list of messages with role and "
    "content) or a list of conversations (of token ids pair.tokenizer.decode(ids) makes a text)"
)


def load_pair(
    name: str | None = None,
    *,
    target: Model | None = None,
    draft: Model | Sequence[Model] | None = None,
    tokenizer: Tokenizer | None = None,
    heads: Mapping[str, str] | None = None,
    device: str = "auto",
    dtype: str | None = None,
    compile: str = "auto",
    threads: int | None = None,
) -> LoadedPair:
    """Loads a target and its drafts by name, or wraps loaded models.

    A loaded model keeps its device and dtype, and is set to eval mode. All models share the given
    tokenizer; without it, the tokenizers of named models must agree.

    Args:
        name: a file of ``conf/pair``; None: the models given below, or ``embedded``.
        target: a folder, hub id, ``embedded:NAME`` or ``random:NAME``, in place of the pair's; or
            a loaded transformers model, with its tokenizer.
        draft: one or several draft models, given as ``target`` is.
        tokenizer: tokenizer of all models: a folder, hub id or loaded tokenizer; None: the named
            target's own.
        heads: draft heads by kind: ``{"medusa": FOLDER}``.
        device: of models that are loaded here: ``cpu``, ``cuda``, ``cuda:1``; ``auto``: a GPU if
            torch can use one and the models are not the embedded ones.
        dtype: of models that are loaded here: ``float32``, ``bfloat16``, ...; None: the pair's
            own, else float32, on a GPU bfloat16.
        compile: capture of the forward pass: ``none``, ``static``, ``static_inductor``, ``dynamo``
            or ``inductor``; ``auto``: ``static`` on a GPU, else ``none``.
        threads: CPU threads of the whole process; None: one or torch's number, the faster one.
    """
    from spec_bench.engine.loading import is_transformers_model
    from spec_bench.jobs.config.pair import EngineSettings
    from spec_bench.jobs.work.models import set_thread_count
    from spec_bench.settings.validation import read_settings

    is_list = isinstance(draft, list | tuple)
    drafts: list[Any] = [] if draft is None else [*cast(Any, draft)] if is_list else [draft]
    _require_each_name_or_model(target, drafts, tokenizer)
    engine = {"device": device, "dtype": dtype, "compile": compile, "threads": threads}
    engine_settings = read_settings(EngineSettings, engine, "engine")
    draft_names = [_path_to_text(model) for model in drafts]
    pair_settings = {
        "target": _path_to_text(target),
        "draft": draft_names if is_list else (draft_names or [None])[0],
        "tokenizer": _path_to_text(tokenizer),
        "heads": heads,
    }
    if any(is_transformers_model(model) for model in (target, *drafts)):
        if name is not None or target is None:
            raise UsageError("a loaded draft goes with target=..., and neither with a pair's name")
        models = [pair_settings["target"], *draft_names]
        pair = _wrap_or_load_models(models, tokenizer, heads or {}, engine_settings)
    else:
        known_settings = {k: v for k, v in pair_settings.items() if v is not None}
        pair = _load_named_pair(name, known_settings, engine_settings)
    set_thread_count(threads, str(pair.models[0].device), pair.models[0])
    return pair


def _path_to_text(value: Any) -> Any:
    """Converts a path to text; returns anything else as it is."""
    return str(value) if isinstance(value, Path) else value


def _require_each_name_or_model(target: Any, drafts: Sequence[Any], tokenizer: Any) -> None:
    """Raises UsageError unless each argument is a name or a loaded model or tokenizer."""
    from spec_bench.engine.loading import is_transformers_model, is_transformers_tokenizer

    for key, value in (("target", target), *(("draft", model) for model in drafts)):
        if not (value is None or isinstance(value, str | Path) or is_transformers_model(value)):
            raise UsageError(f"{key} must be {_MODEL}, got {describe_type_and_value(value)}")
    if not (
        tokenizer is None
        or isinstance(tokenizer, str | Path)
        or is_transformers_tokenizer(tokenizer)
    ):
        raise UsageError(
            f"tokenizer must be {_TOKENIZER}, got {describe_type_and_value(tokenizer)}"
        )


def _load_named_pair(
    name: str | None,
    pair_settings: dict[str, Any],
    engine: EngineSettings,
) -> LoadedPair:
    """Loads a pair of ``conf/pair``, or models by name; the tokenizer may be a loaded one."""
    from spec_bench.engine.cache import CachePool
    from spec_bench.engine.loading import choose_common_tokenizer, is_transformers_tokenizer
    from spec_bench.jobs.config.pair import PairSettings, build_pair, drop_name_of_other_pair
    from spec_bench.jobs.work.models import (
        copy_tokenizer_for_pair,
        load_models,
        load_pair_tokenizer,
    )
    from spec_bench.settings.fields import format_suggestion
    from spec_bench.settings.validation import read_settings

    loaded_tokenizer = (
        pair_settings.pop("tokenizer")
        if is_transformers_tokenizer(pair_settings.get("tokenizer"))
        else None
    )
    values: dict[str, Any] = {"draft": None}
    if name is not None or "target" not in pair_settings:
        pair_name = "embedded" if name is None else name
        paths = find_configs("pair")
        if pair_name not in paths:
            suggestion = (
                format_suggestion(pair_name, sorted(paths)) or "; known: spec-bench ls pairs"
            )
            raise UsageError(f"unknown pair {pair_name!r}{suggestion}")
        values = read_composed_config(paths[pair_name])
    settings = drop_name_of_other_pair(
        read_settings(PairSettings, values | pair_settings, "pair"), list_conf_dirs()
    )
    pair = build_pair(settings, engine)
    tokenizer, tokens = (
        choose_common_tokenizer([loaded_tokenizer])
        if loaded_tokenizer is not None
        else load_pair_tokenizer(pair)
    )
    tokenizer = tokenizer if loaded_tokenizer is None else copy_tokenizer_for_pair(tokenizer, pair)
    words = [f"pair={name}"] if name or "target" not in pair_settings else []
    words += [f"pair.{key}={quote_value(value)}" for key, value in pair_settings.items()]
    engine_values = {key: getattr(engine, key) for key in ("device", "dtype", "compile", "threads")}
    words += [f"engine.{key}={value}" for key, value in engine_values.items() if value is not None]
    overrides = (
        tuple(word for word in words if word != "pair=None") if loaded_tokenizer is None else ()
    )
    return LoadedPair(pair, tokenizer, load_models(pair, tokens), overrides, CachePool())


def _wrap_or_load_models(
    models: Sequence[Any],
    tokenizer: Any,
    heads: Mapping[str, str],
    engine: EngineSettings,
) -> LoadedPair:
    """Wraps loaded models and loads named ones into a pair; at least one is loaded."""
    from spec_bench.engine import loading
    from spec_bench.engine.cache import CachePool
    from spec_bench.engine.loading import is_transformers_model
    from spec_bench.engine.model_spec import resolve_compile_choice
    from spec_bench.jobs.config.model_files import resolve_or_convert_model
    from spec_bench.jobs.config.pair import Pair, resolve_device_and_compile, validate_heads_by_kind

    if tokenizer is None and is_transformers_model(models[0]):
        raise UsageError(f"a loaded target comes with its tokenizer: tokenizer= {_TOKENIZER}")
    compile_mode = engine.compile
    engine = resolve_device_and_compile(engine, "")
    place = models[0] if tokenizer is None else tokenizer
    common = (
        loading.load_tokenizer(resolve_or_convert_model(str(place)))
        if isinstance(place, str | Path)
        else place
    )
    common, tokens = loading.choose_common_tokenizer([common])
    names = []
    language_models = []
    for model in models:
        if is_transformers_model(model):
            names.append(model.name_or_path or type(model).__name__)
            resolved_mode = resolve_compile_choice(compile_mode, str(model.device))
            language_models.append(loading.wrap_loaded_model(model, names[-1], resolved_mode))
        else:
            names.append(model)
            dtype = engine.dtype or engine.default_dtype
            path = resolve_or_convert_model(model)
            spec = loading.ModelSpec(path, dtype, engine.device, compile=engine.compile)
            language_models.append(loading.load_model(spec))
    count = min(tokens, *(language_model.embedding_rows for language_model in language_models))
    for name, model in zip(names, language_models, strict=True):
        tokenizer_size = getattr(common, "vocab_size", 0)  # without added tokens
        if model.embedding_rows < tokenizer_size:
            raise UsageError(
                f"{describe_type_and_value(name)} embeds {model.embedding_rows} tokens, and the "
                f"tokenizer has {tokenizer_size}: speculative decoding needs the same tokens in "
                "all models"
            )
    for language_model in language_models:
        language_model.vocab_size = count
    label = "+".join(name.rstrip("/").rsplit("/", 1)[-1] for name in names)
    unknown = (None,) * len(names)
    common = loading.set_answer_ends(
        copy(common), language_models[0].module.generation_config.eos_token_id
    )
    pair = Pair(label, names[0], tuple(names[1:]), (), unknown, heads=validate_heads_by_kind(heads))
    return LoadedPair(pair, common, language_models, (), CachePool())


@dataclass
class LoadedPair:
    """A loaded target with its drafts; ``load_pair`` creates it."""

    pair: Pair
    tokenizer: Any  # the target's
    models: Sequence[LanguageModel]  # the target, then the drafts
    # a job's overrides for the same models; empty if they have no names
    overrides: tuple[str, ...] = ()
    _cache_pool: CachePool | None = field(default=None, repr=False)
    # Decoders with recorded GPU graphs, each with its last stream, which may still use it.
    _recorded_decoders: dict[str, tuple[AnyDecoder, ReferenceType[Stream]]] = field(
        default_factory=dict, repr=False
    )

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
        sampling: SamplingSettings | None = None,
        max_new_tokens: int = 128,
        seed: int = 0,
        chat: bool = False,
        stop: str | Sequence[str] = (),
        prompt_id: str | None = None,
    ) -> Any:  # an Answer or a list of them
        """Decodes one prompt, or several in turn.

        Args:
            prompt: a text, or a conversation: a list of messages ``{"role": ..., "content": ...}``,
                the last one the user's. A list of either gives a list of answers in its order.
            decoder: ``NAME:SPEC`` or a mapping, as in a job's list of cells.
            temperature: 0 is greedy.
            top_k: keep the k largest logits; 0 keeps all.
            top_p: keep the smallest set of tokens with at least this mass; 1 keeps all.
            sampling: all sampling settings at once, in place of these three: ``min_p`` and
                ``draft_temperature`` too.
            max_new_tokens: limit on the tokens of each answer.
            seed: with the prompt and the decoder it determines the answer, alone or in a list.
            chat: put a text into the tokenizer's chat template, as conversations always are.
            stop: texts that end an answer. ``text`` ends before the first of them, ``tokens`` with
                the token that completes it.
            prompt_id: of a job's row, for the job's random numbers; None: the prompt's digest.

        Returns:
            An ``Answer``, for a list of prompts a list of them.
        """
        prompts, is_list = parse_prompts(prompt)
        if is_list and prompt_id is not None:
            raise UsageError("prompt_id is of one prompt, got a list of prompts")
        sampling = _choose_sampling(
            sampling,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            max_new_tokens=max_new_tokens,
        )
        built_decoder, key = self._get_or_build_decoder(decoder, sampling, self._cache_pool)
        requests = self._build_requests(prompts, max_new_tokens, chat, prompt_id, stop)
        answers = [
            stream.answer
            for stream in self._create_streams_and_record_graphs(built_decoder, key, requests, seed)
        ]
        return answers if is_list else answers[0]

    def stream(
        self,
        prompt: Prompt,
        decoder: str | Mapping[str, Any] = "rsd_s:4x3",
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        sampling: SamplingSettings | None = None,
        max_new_tokens: int = 128,
        seed: int = 0,
        chat: bool = False,
        stop: str | Sequence[str] = (),
        prompt_id: str | None = None,
    ) -> Stream:
        """Decodes one prompt step by step; the same answer as ``decode``'s.

        Args: as ``decode``'s.

        Returns:
            An iterator over steps with the added ``text``, ``seconds``, ``nodes`` and ``accepted``.
            ``answer`` decodes the rest and returns the whole. Decoders of beams or whole answers
            yield all steps at the end.
        """
        prompts, is_list = parse_prompts(prompt)
        if is_list:
            raise UsageError("stream takes one prompt, got a list; decode takes several")
        sampling = _choose_sampling(
            sampling,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            max_new_tokens=max_new_tokens,
        )
        # Separate caches: other prompts may be decoded between two steps.
        built_decoder, key = self._get_or_build_decoder(decoder, sampling, None)
        requests = self._build_requests(prompts, max_new_tokens, chat, prompt_id, stop)
        return self._create_streams_and_record_graphs(built_decoder, key, requests, seed)[0]

    def _get_or_build_decoder(
        self,
        decoder: str | Mapping[str, Any],
        sampling: SamplingSettings,
        pool: CachePool | None,
    ) -> tuple[AnyDecoder, str]:
        """Builds a decoder over the pair's models, or reuses a decoder with recorded GPU graphs
        that no stream uses; returns the decoder and its key.
        """
        from spec_bench.engine.cache import CachePool
        from spec_bench.jobs.config.cells import build_cell, parse_cell
        from spec_bench.jobs.config.fitting import FittedTrees, require_drafts_and_heads
        from spec_bench.jobs.work.models import load_pair_heads

        if not isinstance(decoder, str | Mapping):
            raise UsageError(
                f"decoder must be NAME:SPEC or a mapping, got {describe_type_and_value(decoder)}"
            )
        cell = build_cell(parse_cell(decoder, list_conf_dirs()), sampling)
        require_drafts_and_heads(cell, self.pair)
        cell = FittedTrees(self.pair, None, sampling).fill_in_tree(cell)
        target = self.models[0]
        drafts = self.models[1 : cell.config.drafts + 1]
        heads = load_pair_heads(self.pair, cell.config.heads, target)
        key = f"{cell.config} {sampling} {pool is None}"
        if key in self._recorded_decoders:
            recorded_decoder, last_stream = self._recorded_decoders[key]
            stream = last_stream()
            if stream is None or stream.has_ended:
                return recorded_decoder, key
        return cell.config.build(target, drafts, sampling, 1, pool or CachePool(), heads), key

    def _create_streams_and_record_graphs(
        self,
        decoder: AnyDecoder,
        key: str,
        requests: Sequence[Request],
        seed: int,
    ) -> list[Stream]:
        """Creates the answers' streams without starting them; on a GPU, records the decoder's
        graphs and keeps the decoder.
        """
        decoder.refuse_unfit_prompts(requests)
        has_recorder = getattr(self.models[0], "recorder", None) is not None
        if has_recorder and requests:
            longer_requests = self._extend_requests_to_graph_length(decoder, requests)
            decoder.check_and_reserve(longer_requests)
            decoder.record_graphs(longer_requests)
        streams = [
            Stream(decoder, request, seed, StreamedText(self.tokenizer, request.stop_criteria))
            for request in requests
        ]
        if has_recorder and requests:
            self._recorded_decoders[key] = decoder, ref(streams[-1])
        return streams

    def _extend_requests_to_graph_length(
        self, decoder: AnyDecoder, requests: Sequence[Request]
    ) -> list[Request]:
        """Raises the requests' limits to a graph's length, so that the graph fits later requests
        too.
        """
        from spec_bench.decode.recording import round_up_to_bucket

        limits = [model.max_positions for model in (decoder.target, *decoder.drafts)]
        max_tokens = min((limit - decoder.depth for limit in limits if limit), default=1 << 30)
        longer_requests = []
        for request in requests:
            count = len(request.prompt_ids)
            tokens = min(round_up_to_bucket(count + request.max_new_tokens), max_tokens)
            longer_requests.append(replace(request, max_new_tokens=tokens - count))
        return longer_requests

    def _build_requests(
        self,
        prompts: Iterable[Prompt],
        max_new_tokens: int,
        chat: bool,
        prompt_id: str | None,
        stop: Any,
    ) -> list[Request]:
        ends = StopCriteria(self.tokenizer, parse_stops(stop))
        requests = []
        for prompt in prompts:
            if isinstance(prompt, str) and not chat:
                ids = self.tokenizer(prompt)["input_ids"]
            else:
                message = {"role": "user", "content": prompt}
                messages = [message] if isinstance(prompt, str) else [dict(turn) for turn in prompt]
                text = render_chat(self.tokenizer, messages, remedy=_NO_TEMPLATE_REMEDY)
                ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            request_id = prompt_id or derive_prompt_id(prompt)
            request = Request(request_id, tuple(ids), max_new_tokens, ends.stop_ids, ends)
            requests.append(request)
        return requests


def _choose_sampling(sampling: SamplingSettings | None, **values: Any) -> SamplingSettings:
    """Returns a call's sampling settings, given as one object or one by one. Raises UsageError if
    both are given.
    """
    given_sampling = merge_sampling(parse_generation_settings(values, "decode"))
    if sampling is None:
        return given_sampling
    if not isinstance(sampling, SamplingSettings):
        raise UsageError(
            f"sampling must be SamplingSettings, got {describe_type_and_value(sampling)}"
        )
    if given_sampling != SamplingSettings():
        raise UsageError("sampling has temperature, top_k and top_p: set them there, not beside it")
    return sampling


def parse_stops(stop: Any) -> tuple[str, ...]:
    """Returns the texts that end an answer as a tuple. Raises UsageError if one is empty or no
    text.
    """
    stops = tuple(stop) if isinstance(stop, list | tuple) else (stop,)
    for text in stops:
        if not isinstance(text, str) or not text:
            raise UsageError(f"stop must be texts that are not empty, got {text!r}")
    return stops


class ParsedPrompts(NamedTuple):
    """An argument's prompts."""

    prompts: list[Prompt]
    is_list: bool  # whether the argument was a list of prompts


def parse_prompts(prompt: Any, name: str = "prompt") -> ParsedPrompts:
    """Parses a text, a list of messages, or a list (or frame's column) of either into prompts.

    ``name`` is the argument's name in errors. Raises UsageError for anything else, and for messages
    that do not take turns.
    """
    if isinstance(prompt, str) and prompt.strip():
        return ParsedPrompts([prompt], False)
    is_list = isinstance(prompt, Iterable) and not isinstance(prompt, Mapping | str | bytes)
    elements = list(prompt) if is_list else None
    if elements is None:
        raise UsageError(f"{name} must be {_PROMPTS}, got {describe_type_and_value(prompt)}")
    if elements and isinstance(elements[0], Mapping):
        return ParsedPrompts([_validate_conversation(elements, name)], False)
    prompts: list[Prompt] = []
    for place, element in enumerate(elements):
        if isinstance(element, str) and element.strip():
            prompts.append(element)
        elif isinstance(element, list | tuple) and element and isinstance(element[0], Mapping):
            prompts.append(_validate_conversation(element, f"{name}[{place}]"))
        else:
            raise UsageError(
                f"{name} must be {_PROMPTS}, got {describe_type_and_value(element)} in the list"
            )
    return ParsedPrompts(prompts, True)


def _validate_conversation(messages: Sequence[Any], name: str) -> Sequence[Message]:
    turns = read_turns(messages, name)
    if len(turns.answers) == len(turns.questions):
        raise UsageError(f"{name}: the last message must be the user's, for there to be an answer")
    return messages


def derive_prompt_id(prompt: Prompt) -> str:
    """Derives the id of a prompt that has none from the prompt's content."""
    plain = prompt if isinstance(prompt, str) else [dict(message) for message in prompt]
    return f"text-{files.hash_json(plain, 12)}"
