"""Models and tokenizers that this process has loaded, shared by the jobs of a sweep."""

import json
import logging
from collections.abc import Callable, Sequence
from copy import copy
from functools import cache, partial
from math import inf
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from spec_bench.draft.cut_vocabulary import cut_output_layers
from spec_bench.draft.eagle_layers import describe_better_layers
from spec_bench.draft.eagle_network import Eagle3Head
from spec_bench.draft.heads import load_heads
from spec_bench.draft.network import DraftHeads
from spec_bench.engine.loading import (
    ModelSpec,
    choose_common_tokenizer,
    load_model,
    load_tokenizer_once,
    read_end_ids,
    set_answer_ends,
)
from spec_bench.engine.mapped_model import (
    VocabularyMappedModel,
    fit_draft_to_vocabulary,
    map_tokenizers,
    read_known_ids,
)
from spec_bench.engine.model import LanguageModel
from spec_bench.engine.model_spec import INTERSECTION, read_output_ids
from spec_bench.engine.products import dense_weight
from spec_bench.engine.random_model import TokenIds
from spec_bench.jobs.config.model_files import read_content_id, resolve_or_convert_model
from spec_bench.jobs.config.pair import Pair
from spec_bench.measure.provenance import format_device_count_and_model
from spec_bench.system import files

log = logging.getLogger(__name__)
_TOKENS = 8  # in a timed pass: between one token and a tree
_ROUNDS = 30  # enough that brief work of other programs does not change the median
_SECONDS = 1.0  # no further round begins after that
_models: dict[tuple[ModelSpec, str | None], LanguageModel] = {}
# (id of a loaded model, number of tokens) -> the model, and its copy with that vocabulary
_limited_models: dict[tuple[int, int], tuple[LanguageModel, LanguageModel]] = {}
_mapped_drafts: dict[tuple[int, int, str | int | None, str], LanguageModel] = {}
_heads: dict[tuple[str, str | None, str, str | int | None], DraftHeads] = {}
_usual_counts: dict[int, int] = {}  # chosen number of threads -> torch's number before
_checked_layers: set[tuple[int, tuple[int, ...]]] = set()  # id of heads, their target layers


def load_models(pair: Pair, token_count: int) -> list[LanguageModel]:
    """Loads the pair's models, the target first; ``token_count`` is the tokenizer's. Embedding rows
    beyond it are padding and are cut. Tokens that a model does not embed, such as an added padding
    token, only matter if a prompt has one, which is checked with the prompts.
    """
    models = [
        _load_model_once(spec, content_id)
        for spec, content_id in zip(pair.specs, pair.read_content_ids(), strict=True)
    ]
    is_intersection = pair.draft_vocabulary == INTERSECTION
    token_counts = [
        model.embedding_rows
        for model, spec in zip(models, pair.specs, strict=True)
        if model is models[0] or not (is_intersection or read_known_ids(Path(spec.path)))
    ]
    count = min(token_count, *token_counts)
    drafts = zip(
        models[1:], pair.specs[1:], pair.read_content_ids(with_weights=False)[1:], strict=True
    )
    return [
        _limit_vocabulary(models[0], count),
        *(_map_draft_to_target_tokens(pair, *draft, count) for draft in drafts),
    ]


def _limit_vocabulary(model: LanguageModel, count: int) -> LanguageModel:
    """Returns a copy of a model with ``count`` tokens, the same copy at every call; the loaded
    model, which other pairs use, is not changed.
    """
    key = (id(model), count)
    if key not in _limited_models:
        limited_model = copy(model)
        limited_model.vocab_size = count
        _limited_models[key] = model, limited_model
    return _limited_models[key][1]


def _map_draft_to_target_tokens(
    pair: Pair, model: LanguageModel, spec: ModelSpec, content_id: str | None, count: int
) -> LanguageModel:
    """Maps a draft to the target's tokens; returns the same object at every call."""
    key = (id(model), count, pair.draft_vocabulary, pair.target)
    if key not in _mapped_drafts:
        if pair.draft_vocabulary == INTERSECTION:
            target = pair.specs[0]
            target_tokenizer = load_tokenizer_once(
                target.path, target.revision, pair.read_content_ids(with_weights=False)[0]
            )
            draft_tokenizer = load_tokenizer_once(spec.path, spec.revision, content_id)
            vocabulary = map_tokenizers(target_tokenizer, draft_tokenizer, count)
            log.info(
                "%s proposes %d of the target's tokens", spec.path, vocabulary.proposable_count
            )
            _mapped_drafts[key] = VocabularyMappedModel(model, vocabulary, count)
        else:
            kept_ids = None if spec.outputs is None else read_output_ids(spec.outputs)
            _mapped_drafts[key] = fit_draft_to_vocabulary(model, spec.path, count, kept_ids)
    return _mapped_drafts[key]


def load_pair_heads(pair: Pair, kind: str | None, target: LanguageModel) -> DraftHeads | None:
    """Loads the pair's draft heads of a kind once, on the target's device and in its dtype; None if
    ``kind`` is None.
    """
    if kind is None:
        return None
    path = resolve_or_convert_model(pair.heads[kind])
    revision = read_content_id(pair.heads[kind], pair.head_commits.get(kind))
    vocabulary = None if pair.draft_vocabulary == INTERSECTION else pair.draft_vocabulary
    key = (path, revision, str(target.device), vocabulary)
    if key not in _heads:
        log.info("loading %s", path)
        dtype = target.embed(torch.zeros(1, dtype=torch.long, device=target.device)).dtype
        heads = load_heads(path, target.device, dtype, pair.head_commits.get(kind))
        if vocabulary is not None:
            output_weight = dense_weight(target.module.get_output_embeddings())  # type: ignore[attr-defined]
            cut_output_layers(heads, read_output_ids(vocabulary), output_weight)
        _heads[key] = heads
    return _heads[key]


def warn_of_better_eagle_layers(decoder: Any, prompt: Sequence[int]) -> None:
    """Warns if an EAGLE-3 head would draft better from other hidden states than
    those it is given.
    """
    heads = getattr(decoder, "heads", None)
    if not isinstance(heads, Eagle3Head):
        return
    layers = decoder.drafter.get_target_layers(heads, decoder.target.blocks)
    if (id(heads), layers) not in _checked_layers:
        _checked_layers.add((id(heads), layers))
        if warning := describe_better_layers(heads, decoder.target, layers, prompt):
            log.warning("%s", warning)


def load_pair_tokenizer(pair: Pair) -> tuple[Any, int]:
    """Loads the target's tokenizer and checks that the drafts' agree with it; returns the tokenizer
    and its number of tokens.

    A tokenizer that the pair names is used for all models, and their own are not read. A pair with
    a chat template gets a copy with that template. Raises ValueError, with the first token that
    differs, if two vocabularies differ.
    """
    places = [
        (spec.path, spec.revision, content_id)
        for spec, content_id in zip(
            pair.specs, pair.read_content_ids(with_weights=False), strict=True
        )
        if spec is pair.specs[0] or not read_known_ids(Path(spec.path))
    ]
    if pair.tokenizer is not None:
        places = [(pair.tokenizer, None, read_content_id(pair.tokenizer, None))]
    if pair.draft_vocabulary == INTERSECTION:
        places = places[:1]
    tokenizer, tokens = choose_common_tokenizer([load_tokenizer_once(*place) for place in places])
    return copy_tokenizer_for_pair(tokenizer, pair), tokens


def copy_tokenizer_for_pair(tokenizer: Any, pair: Pair) -> Any:
    """Copies a tokenizer and sets a pair's chat template and arguments, and its target's end
    tokens.
    """
    if isinstance(tokenizer, TokenIds):
        return tokenizer
    target = pair.specs[0]
    tokenizer_copy = set_answer_ends(copy(tokenizer), read_end_ids(target.path, target.revision))
    if pair.chat_template is not None:
        tokenizer_copy.chat_template = pair.chat_template
    if pair.template_arguments:
        tokenizer_copy.apply_chat_template = partial(
            tokenizer_copy.apply_chat_template, **pair.template_arguments
        )
    return tokenizer_copy


def _load_model_once(spec: ModelSpec, content_id: str | None) -> LanguageModel:
    """Loads a model once per process; ``content_id`` distinguishes models that were in the same
    folder.
    """
    if (spec, content_id) in _models:
        log.info("reusing %s", spec.path)
    else:
        compile_note = f", {spec.compile}" if spec.compile != "none" else ""
        log.info("loading %s (%s, %s%s)", spec.path, spec.dtype, spec.device, compile_note)
        _models[spec, content_id] = load_model(spec)
    return _models[spec, content_id]


def set_thread_count(
    requested_count: int | None,
    device: str,
    target: LanguageModel,
    stored_choice: tuple[Path, str] | None = None,
) -> Callable[[], float]:
    """Sets torch's number of threads to the requested one, else, on a CPU, to the faster one.

    Passes of a small model are faster on one thread than on many, which wait for each other; passes
    of a large model are faster on all threads. So passes of the target are timed on one thread and
    on torch's default number, in turn. The choice is stored in the results folder, by machine and
    target, so that the cells of a sweep, and of its later jobs, use the same number:
    ``stored_choice`` has the file and the target's name; None stores nothing.

    Returns:
        A function that times the passes once more and returns their seconds relative to those of
        the choice.
    """
    current_count = torch.get_num_threads()
    module = getattr(target, "module", None)
    usual_count = _usual_counts.get(
        current_count, current_count
    )  # torch's number before our choice
    count = requested_count or usual_count
    slowdown: Callable[[], float] = partial(float, 1)
    if requested_count is None:
        if usual_count == 1 or module is None or device != "cpu":
            return slowdown
        tokens = torch.zeros(1, _TOKENS, dtype=torch.long)

        def run_pass() -> None:
            with torch.inference_mode():
                module(tokens, use_cache=False)

        if stored_choice is None:
            timings = time_by_thread_count(usual_count, run_pass)
            seconds, count = min(zip(timings.values(), timings, strict=True))
        else:
            machine = format_device_count_and_model("cpu")
            count, seconds = time_and_choose_thread_count(
                stored_choice[0],
                f"{stored_choice[1]}, {machine}, {usual_count} threads",
                usual_count,
                run_pass,
            )
        slowdown = cache(lambda: time_by_thread_count(usual_count, run_pass)[count] / seconds)
    _usual_counts.clear()
    _usual_counts[count] = usual_count
    torch.set_num_threads(count)
    return slowdown


def time_and_choose_thread_count(
    path: Path, key: str, usual_count: int, run_pass: Callable[[], object]
) -> tuple[int, float]:
    """Chooses the faster number of threads, one or ``usual_count``; returns it and a pass's
    seconds.

    The file stores both. If a pass now takes less than half or more than twice the stored seconds,
    the number is chosen again, and the shorter time becomes this job's reference.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.open_regular_to_write(path.with_suffix(".lock")) as lock:
        files.lock_file(lock, may_wait=True)
        try:
            choices = json.loads(path.read_text())
        except (OSError, ValueError):
            choices = None
        choices = choices if isinstance(choices, dict) else {}
        timings = time_by_thread_count(usual_count, run_pass)
        stored_s = inf
        match choices.get(key):
            case [int(count), float(stored_s)] if count in timings:
                if 0.5 < timings[count] / stored_s < 2:
                    return count, stored_s
                log.warning(
                    "a pass of the target takes %.2g s, and took %.2g s when the number of threads "
                    "was chosen: it is chosen again",
                    timings[count],
                    stored_s,
                )
        seconds, count = min(zip(timings.values(), timings, strict=True))
        choices[key] = count, seconds
        files.write_redacted_json(path, choices)
        return count, min(seconds, stored_s)


def time_by_thread_count(usual_count: int, run_pass: Callable[[], object]) -> dict[int, float]:
    """Times a pass on one thread and on ``usual_count`` threads in turn; returns count -> median
    seconds.
    """
    timings = {1: list[float](), usual_count: list[float]()}
    previous_count = torch.get_num_threads()
    began = perf_counter()
    try:
        for round_ in range(_ROUNDS + 1):
            for count, seconds in timings.items():
                torch.set_num_threads(count)
                start = perf_counter()
                run_pass()
                if round_:  # the first warms up
                    seconds.append(perf_counter() - start)
            if round_ and perf_counter() - began > _SECONDS:
                break
    finally:
        torch.set_num_threads(previous_count)
    return {count: median(seconds) for count, seconds in timings.items()}
