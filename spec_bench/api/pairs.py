"""Models that decode: a target with what drafts for it, by name or loaded; and what is asked.

The random draws of a prompt come from one generator, seeded by SHA-256 of the seed and the prompt's
id (``core.draws.row_seed``). In a job the id is the row's (``question_id``, with ``/TURN`` where a
row has several turns); a text without an id has one that follows from its letters, here and in the
file that ``run(prompts=[...])`` writes. So a text has one answer per seed and decoder, whatever it
is decoded beside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from weakref import ReferenceType, ref

from spec_bench.api.answers import AnswerText, Stream
from spec_bench.records.ends import StopCriteria
from spec_bench.records.types import Request
from spec_bench.settings.configs import conf_dirs, find_configs, read_config
from spec_bench.settings.words import describe_value, quote_value
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
_PLAINLY = "set tokenizer.chat_template of the tokenizer, or ask a text with chat=False"
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
        device: of models that are loaded here: ``cpu``, ``cuda``, ``cuda:1``; ``auto``: a GPU
            where torch can use one and the models are not the embedded ones.
        dtype: likewise: ``float32``, ``bfloat16``, ...; None: the pair's own, else float32, on a
            GPU bfloat16.
        compile: how the forward pass is captured: ``none``, ``static``, ``static_inductor``,
            ``dynamo`` or ``inductor``; ``auto``: ``static`` on a GPU, else ``none``.
        threads: of the CPU, for this whole process; None: one or torch's number, the faster one.
    """
    from spec_bench.engine.loading import is_model, is_tokenizer
    from spec_bench.jobs.config.pair import EngineSettings
    from spec_bench.jobs.work.models import use_threads
    from spec_bench.settings.validation import check

    listed = isinstance(draft, list | tuple)
    drafts: list[Any] = [] if draft is None else [*cast(Any, draft)] if listed else [draft]
    for key, value in (("target", target), *(("draft", each) for each in drafts)):
        if not (value is None or isinstance(value, str | Path) or is_model(value)):
            raise UsageError(f"{key} must be {_MODEL}, got {describe_value(value)}")
    if not (tokenizer is None or isinstance(tokenizer, str | Path) or is_tokenizer(tokenizer)):
        raise UsageError(f"tokenizer must be {_TOKENIZER}, got {describe_value(tokenizer)}")
    engine = {"device": device, "dtype": dtype, "compile": compile, "threads": threads}
    asked = check(EngineSettings, engine, "engine")
    named = [str(each) if isinstance(each, Path) else each for each in drafts]
    stated = {
        "target": str(target) if isinstance(target, Path) else target,
        "draft": named if listed else (named or [None])[0],
        "tokenizer": str(tokenizer) if isinstance(tokenizer, Path) else tokenizer,
        "heads": heads,
    }
    if any(is_model(each) for each in (target, *drafts)):
        if name is not None or target is None:
            raise UsageError("a loaded draft goes with target=..., and neither with a pair's name")
        pair = _wrap_loaded_modules([stated["target"], *named], tokenizer, heads or {}, asked)
    else:
        pair = _load_named_pair(name, {k: v for k, v in stated.items() if v is not None}, asked)
    use_threads(threads, str(pair.models[0].device), pair.models[0])
    return pair


def _load_named_pair(
    name: str | None, stated: dict[str, Any], engine: EngineSettings
) -> LoadedPair:
    """Returns a pair of ``conf/pair``, or of models by name; its tokenizer may be a loaded one."""
    from spec_bench.engine.cache import CachePool
    from spec_bench.engine.loading import common_tokenizer, is_tokenizer
    from spec_bench.jobs.config.pair import PairSettings, build_pair, drop_borrowed_name
    from spec_bench.jobs.work.models import configure_tokenizer, load_models, load_pair_tokenizer
    from spec_bench.settings.fields import suggest
    from spec_bench.settings.validation import check

    given = stated.pop("tokenizer") if is_tokenizer(stated.get("tokenizer")) else None
    values: dict[str, Any] = {"draft": None}
    if name is not None or "target" not in stated:
        wanted = "embedded" if name is None else name
        known = find_configs("pair")
        if wanted not in known:
            near = suggest(wanted, sorted(known)) or "; known: spec-bench ls pairs"
            raise UsageError(f"unknown pair {wanted!r}{near}")
        values = read_config(known[wanted])
    settings = drop_borrowed_name(check(PairSettings, values | stated, "pair"), conf_dirs())
    pair = build_pair(settings, engine)
    tokenizer, tokens = (
        common_tokenizer([given]) if given is not None else load_pair_tokenizer(pair)
    )
    tokenizer = tokenizer if given is None else configure_tokenizer(tokenizer, pair)
    words = [f"pair={name}"] if name or "target" not in stated else []
    words += [f"pair.{key}={quote_value(value)}" for key, value in stated.items()]
    chosen = {key: getattr(engine, key) for key in ("device", "dtype", "compile", "threads")}
    words += [f"engine.{key}={value}" for key, value in chosen.items() if value is not None]
    overrides = () if given is not None else tuple(each for each in words if each != "pair=None")
    return LoadedPair(pair, tokenizer, load_models(pair, tokens), overrides, CachePool())


def _wrap_loaded_modules(
    models: Sequence[Any], tokenizer: Any, heads: Mapping[str, str], engine: EngineSettings
) -> LoadedPair:
    """Returns a pair in which a model, or all of them, are loaded already."""
    from spec_bench.engine import loading
    from spec_bench.engine.cache import CachePool
    from spec_bench.engine.loading import is_model
    from spec_bench.engine.model_spec import resolve_compile
    from spec_bench.jobs.config.model_files import model_path
    from spec_bench.jobs.config.pair import Pair, check_head_kinds, resolve_device

    if tokenizer is None and is_model(models[0]):
        raise UsageError(f"a loaded target comes with its tokenizer: tokenizer= {_TOKENIZER}")
    asked = engine.compile
    engine = resolve_device(engine, "")
    place = models[0] if tokenizer is None else tokenizer
    common = (
        loading.load_tokenizer(model_path(str(place))) if isinstance(place, str | Path) else place
    )
    common, tokens = loading.common_tokenizer([common])
    names = []
    loaded = []
    for model in models:
        if is_model(model):
            names.append(model.name_or_path or type(model).__name__)
            how = resolve_compile(asked, str(model.device))
            loaded.append(loading.wrap_loaded_model(model, names[-1], how))
        else:
            names.append(model)
            dtype = engine.dtype or engine.usual_dtype
            path = model_path(model)
            spec = loading.ModelSpec(path, dtype, engine.device, compile=engine.compile)
            loaded.append(loading.load_model(spec))
    count = min(tokens, *(each.embedded for each in loaded))
    for name, model in zip(names, loaded, strict=True):
        least = getattr(common, "vocab_size", 0)  # without added tokens, which may go unused
        if model.embedded < least:
            raise UsageError(
                f"{describe_value(name)} embeds {model.embedded} tokens, and the tokenizer has "
                f"{least}: speculative decoding needs the same tokens in all models"
            )
    for each in loaded:
        each.vocab_size = count
    label = "+".join(name.rstrip("/").rsplit("/", 1)[-1] for name in names)
    unknown = (None,) * len(names)
    common = loading.set_answer_ends(copy(common), loaded[0].module.generation_config.eos_token_id)
    pair = Pair(label, names[0], tuple(names[1:]), (), unknown, heads=check_head_kinds(heads))
    return LoadedPair(pair, common, loaded, (), CachePool())


@dataclass
class LoadedPair:
    """A target with what drafts for it, loaded; ``load_pair`` makes one."""

    pair: Pair  # which models
    tokenizer: Any  # the target's
    models: Sequence[LanguageModel]  # the target, then the drafts
    # What makes a job decode with the same models; empty where they have no name.
    overrides: tuple[str, ...] = ()
    _pool: CachePool | None = field(default=None, repr=False)
    # Decoders that a GPU has recorded, each with its last answer, which may still use it.
    _recorded: dict[str, tuple[AnyDecoder, ReferenceType[Stream]]] = field(
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
            stop: texts that end an answer. ``text`` ends before the first of them, ``tokens`` with
                the token that makes it whole.
            prompt_id: of a job's row, to draw as the job did; None: from the prompt's letters.

        Returns:
            A ``Decoded``, for a list of prompts a list of them.
        """
        prompts, several = parse_prompts(prompt)
        if several and prompt_id is not None:
            raise UsageError("prompt_id is of one prompt, got a list of prompts")
        sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        built, key = self._build_decoder(
            decoder, {**sampling, "max_new_tokens": max_new_tokens}, self._pool
        )
        asked = self._requests(prompts, max_new_tokens, chat, prompt_id, stop)
        answers = [each.answer for each in self._start_streams(built, key, asked, seed)]
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
        """
        prompts, several = parse_prompts(prompt)
        if several:
            raise UsageError("stream takes one prompt, got a list; decode takes several")
        sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        # Separate caches: other prompts may be decoded between two steps.
        generation = {**sampling, "max_new_tokens": max_new_tokens}
        built, key = self._build_decoder(decoder, generation, None)
        asked = self._requests(prompts, max_new_tokens, chat, prompt_id, stop)
        return self._start_streams(built, key, asked, seed)[0]

    def _build_decoder(
        self, decoder: str | Mapping[str, Any], generation: dict[str, Any], pool: CachePool | None
    ) -> tuple[AnyDecoder, str]:
        """Returns the decoder over the pair's models, and the key that it is kept by: one of
        before, where a GPU has recorded it and no stream uses it.
        """
        from spec_bench.engine.cache import CachePool
        from spec_bench.jobs.config.cells import make_cell, parse_cell
        from spec_bench.jobs.config.fitting import FittedTrees, check_fit
        from spec_bench.jobs.config.settings import resolve_sampling
        from spec_bench.jobs.work.models import load_pair_heads
        from spec_bench.settings.validation import check
        from spec_bench.tasks.generation import GenerationSettings as Asked

        if not isinstance(decoder, str | Mapping):
            raise UsageError(
                f"decoder must be NAME:SPEC or a mapping, got {describe_value(decoder)}"
            )
        sampling = resolve_sampling(check(Asked, generation, "decode"), Asked())
        cell = make_cell(parse_cell(decoder, conf_dirs()), sampling)
        check_fit(cell, self.pair)
        cell = FittedTrees(self.pair, None, sampling).given(cell)
        target = self.models[0]
        drafts = self.models[1 : cell.config.drafts + 1]
        heads = load_pair_heads(self.pair, cell.config.heads, target)
        key = f"{cell.config} {sampling} {pool is None}"
        if key in self._recorded:
            kept, last = self._recorded[key]
            user = last()
            if user is None or user.ended:
                return kept, key
        return cell.config.build(target, drafts, sampling, 1, pool or CachePool(), heads), key

    def _start_streams(
        self, built: AnyDecoder, key: str, asked: Sequence[Request], seed: int
    ) -> list[Stream]:
        """Returns the answers, none of which has begun; a GPU's decoder is recorded and kept."""
        built.preflight(asked)
        records = getattr(self.models[0], "recorder", None) is not None
        if records and asked:
            longer = self._lengthen(built, asked)
            built.admit(longer)
            built.prepare(longer)
        streams = [
            Stream(built, each, seed, AnswerText(self.tokenizer, each.ends)) for each in asked
        ]
        if records and asked:
            self._recorded[key] = built, ref(streams[-1])
        return streams

    def _lengthen(self, built: AnyDecoder, asked: Sequence[Request]) -> list[Request]:
        """Returns requests of as many tokens as a graph serves, so that the next ones find room."""
        from spec_bench.decode.recording import round_up_length

        limits = [each.max_positions for each in (built.target, *built.drafts)]
        most = min((limit - built.depth for limit in limits if limit), default=1 << 30)
        longer = []
        for each in asked:
            count = len(each.prompt_ids)
            tokens = min(round_up_length(count + each.max_new_tokens), most)
            longer.append(replace(each, max_new_tokens=tokens - count))
        return longer

    def _requests(
        self, prompts: Iterable[Prompt], limit: int, chat: bool, name: str | None, stop: Any
    ) -> list[Request]:
        ends = StopCriteria(self.tokenizer, stops_asked(stop))
        requests = []
        for prompt in prompts:
            if isinstance(prompt, str) and not chat:
                ids = self.tokenizer(prompt)["input_ids"]
            else:
                message = {"role": "user", "content": prompt}
                messages = [message] if isinstance(prompt, str) else [dict(each) for each in prompt]
                text = render_chat(self.tokenizer, messages, otherwise=_PLAINLY)
                ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            asked = Request(name or prompt_id(prompt), tuple(ids), limit, ends.ids, ends)
            requests.append(asked)
        return requests


def stops_asked(stop: Any) -> tuple[str, ...]:
    """Returns the texts that end an answer, of which one may come alone. Raises ValueError: it is
    no text, or empty.
    """
    stops = tuple(stop) if isinstance(stop, list | tuple) else (stop,)
    for each in stops:
        if not isinstance(each, str) or not each:
            raise UsageError(f"stop must be texts that are not empty, got {each!r}")
    return stops


def parse_prompts(asked: Any, name: str = "prompt") -> tuple[list[Prompt], bool]:
    """The prompts that were asked, and whether they came as a list. Raises ValueError: anything
    else, or messages that do not take turns. What may be asked is a text, a list of messages, or a
    list (a column of a frame) of either; ``name`` is the argument's, for messages.
    """
    if isinstance(asked, str) and asked.strip():
        return [asked], False
    listed = isinstance(asked, Iterable) and not isinstance(asked, Mapping | str | bytes)
    items = list(asked) if listed else None
    if items is None:
        raise UsageError(f"{name} must be {_PROMPTS}, got {describe_value(asked)}")
    if items and isinstance(items[0], Mapping):
        return [_conversation(items, name)], False
    prompts: list[Prompt] = []
    for place, item in enumerate(items):
        if isinstance(item, str) and item.strip():
            prompts.append(item)
        elif isinstance(item, list | tuple) and item and isinstance(item[0], Mapping):
            prompts.append(_conversation(item, f"{name}[{place}]"))
        else:
            raise UsageError(f"{name} must be {_PROMPTS}, got {describe_value(item)} in the list")
    return prompts, True


def _conversation(messages: Sequence[Any], name: str) -> Sequence[Message]:
    turns = read_turns(messages, name)
    if len(turns.answers) == len(turns.asked):
        raise UsageError(f"{name}: the last message must be the user's, for there to be an answer")
    return messages


def prompt_id(prompt: Prompt) -> str:
    """Returns the id of a prompt that has none of its own."""
    plain = prompt if isinstance(prompt, str) else [dict(message) for message in prompt]
    return f"text-{files.digest(plain, 12)}"
