"""A job's prompts: encodes the task's examples as requests, decodes answers to texts for scoring.

Also checks from the models' configs that the prompts fit; reads no weights.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec_bench.engine.model_spec import ModelSpec
from spec_bench.jobs.config.pair import Pair
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.records.ends import decode_without_end_token
from spec_bench.records.sampling import describe_sampling
from spec_bench.records.types import Generation, PromptError, Request
from spec_bench.system.errors import UsageError
from spec_bench.system.files import hash_json
from spec_bench.system.groups import group_by_key
from spec_bench.tasks import Example, RandomPromptTask, Task
from spec_bench.tasks.example import TREE_LEVELS, fit_to_context
from spec_bench.vocabulary.numbers import format_count

if TYPE_CHECKING:
    from spec_bench.decode.config import DecoderConfig

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobPrompts:
    """A job's requests, with the data that scores need."""

    task: Task | RandomPromptTask
    tokenizer: Any
    examples: tuple[Example, ...]  # overlong examples are cut or left out
    # A request per requested turn of each example. A later turn continues either fixed answers, so
    # that all decoders continue the same text, or the cell's own answers: then the prompt here has
    # the maximum length, and `fill_in_own_answers` builds the real prompt.
    requests: tuple[Request, ...]
    truncated_count: int = 0  # number of examples that were cut
    skipped_count: int = 0  # number of examples that were left out
    # errors of prompts that cannot be encoded or do not fit, by prompt id
    error_by_prompt_id: Mapping[str, Exception] = field(default_factory=dict)

    @classmethod
    def from_settings(cls, settings: JobSettings, tokenizer: Any) -> JobPrompts:
        """Encodes the job's examples. Raises ValueError if none can be encoded, or none fits the
        models.
        """
        task = settings.task
        max_tokens = settings.max_new_tokens
        example_requests = list[tuple[Example, list[Request]]]()
        failures = dict[str, Exception]()
        cut_count = skipped_count = 0
        room = None
        if task.overlong != "fail":
            context = find_prompt_and_answer_room(settings)
            room = None if context is None else context - max_tokens

        def measure(cut_example: Example) -> int:
            return _count_longest_prompt_tokens(
                _encode_example(settings, tokenizer, cut_example), max_tokens
            )

        for example in settings.examples:
            try:
                requests = _encode_example(settings, tokenizer, example)
                longest = _count_longest_prompt_tokens(requests, max_tokens)
                if isinstance(task, Task) and room is not None and longest > room:
                    if task.overlong == "skip":
                        skipped_count += 1
                        continue
                    example = fit_to_context(example, room, task.cut_texts_to, measure)
                    requests = _encode_example(settings, tokenizer, example)
                    cut_count += 1
            except TimeoutError as error:
                raise UsageError(f"prompt {example.id!r}: {error}") from None
            except ValueError as error:  # such as a chat template's
                failures |= dict.fromkeys(list_asked_prompt_ids(task, example), error)
                continue
            example_requests.append((example, requests))
        if failures and not example_requests:
            raise next(iter(failures.values()))
        if not example_requests:
            raise UsageError(
                f"task {task.name}: all {skipped_count} prompts are longer than {room} tokens"
            )
        all_requests = tuple(request for _, requests in example_requests for request in requests)
        failures |= find_overlong_prompts(settings, all_requests)
        all_requests = tuple(
            request for request in all_requests if request.prompt_id not in failures
        )
        if cut_count or skipped_count:
            log.warning(
                "%s: of %d prompts longer than %d tokens are cut %d, left out %d",
                task.name,
                len(settings.examples),
                room,
                cut_count,
                skipped_count,
            )
        examples = tuple(example for example, _ in example_requests)
        prompts = cls(task, tokenizer, examples, all_requests, cut_count, skipped_count, failures)
        prompts.log_data_sampling_and_warnings(settings)
        return prompts

    def log_data_sampling_and_warnings(self, settings: JobSettings) -> None:
        """Logs data, ends, template and sampling, and warns about the prompts."""
        name = self.task.name
        if self.error_by_prompt_id:
            failure = next(iter(self.error_by_prompt_id.values()))
            log.error(
                "%s: %d prompts cannot be asked: %s", name, len(self.error_by_prompt_id), failure
            )
        max_tokens = settings.max_new_tokens
        for request in self.requests[:3]:  # shown with hydra.verbose=true
            log.debug("%r, %s", self.tokenizer.decode(request.prompt_ids), request.prompt_ids)
        is_plain = isinstance(self.task, Task) and not self.task.uses_chat_template(self.tokenizer)
        if is_plain and any(example.system for example in self.examples):
            log.warning("%s: no chat template: the system's text stands before prompts", name)
        if (min_tokens := min(request.max_new_tokens for request in self.requests)) < max_tokens:
            log.warning(
                "%s: room for %d to %d new tokens of later turns",
                name,
                min_tokens,
                max_tokens,
            )
        self.warn_of_special_tokens_in_texts()
        sampling = describe_sampling(vars(settings.sampling))
        summary = (
            f"{self.describe_data_ends_and_template(settings.pair)}; {sampling}, at most "
            f"{max_tokens} new tokens{'; fresh prompts' * (settings.stage == 'confirm')}"
        )
        log.info("%s", summary)
        if not log.isEnabledFor(logging.INFO):  # for example in a Python session
            print(summary, file=sys.stderr)
        if isinstance(self.task, Task):
            warn_of_heads_for_other_prompts(settings, is_plain)
        if self.turn_count_not_asked:
            log.warning(
                "%s: %d later turn(s) not asked, which have no fixed answer to continue: give "
                "task.answers, or task.later_turns=own continues each decoder's own",
                name,
                self.turn_count_not_asked,
            )

    def warn_of_special_tokens_in_texts(self) -> None:
        """Warns of prompts with special tokens in their texts."""
        added_tokens = getattr(self.tokenizer, "added_tokens_decoder", {}).values()
        special = [str(token) for token in added_tokens if token.special]
        marked_examples = [
            (example, found_tokens)
            for example in self.examples
            if (
                found_tokens := [
                    token
                    for token in special
                    if token in "\n".join((*example.turns, example.system))
                ]
            )
        ]
        if marked_examples:
            first_example, found_tokens = marked_examples[0]
            log.warning(
                "the texts of %s hold special tokens, which a template writes: %r (%s) has %s",
                format_count(len(marked_examples), "prompt"),
                first_example.id,
                getattr(first_example.row, "place", ""),
                ", ".join(found_tokens),
            )

    def describe_data_ends_and_template(self, pair: Pair) -> str:
        """Describes the data, the ends of answers and the chat template in one line."""
        task = self.task
        ends = ", ".join(task.make_stop_criteria(self.tokenizer).token_and_text_names) or "none"
        template = "none"
        if isinstance(task, Task) and task.uses_chat_template(self.tokenizer):
            template = "pair.chat_template" if pair.chat_template else "the tokenizer's"
        if pair.template_arguments:
            template += f" with {dict(pair.template_arguments)}"
        data = task.data_label
        if isinstance(task, Task):
            data = task.describe_data(self.examples)
        return f"data: {data}; ends: {ends}; template: {template}"

    @cached_property
    def _turn_by_prompt_id(self) -> dict[str, tuple[Example, int]]:
        """Prompt id -> its example and turn, counted from 0."""
        example_ids = (
            (example, list_asked_prompt_ids(self.task, example)) for example in self.examples
        )
        return {
            name: (example, turn)
            for example, names in example_ids
            for turn, name in enumerate(names)
        }

    @property
    def prompt_count_with_failed(self) -> int:
        """Number of prompts, with those that cannot be encoded or do not fit."""
        return len(self.requests) + len(self.error_by_prompt_id)

    @property
    def turn_count_not_asked(self) -> int:
        """Number of turns that are left out because there is no fixed answer to continue."""
        has_fixed_answers = self.task.later_turns == "fixed"
        return (
            sum(len(example.turns) for example in self.examples) - len(self._turn_by_prompt_id)
            if has_fixed_answers
            else 0
        )

    @cached_property
    def references(self) -> dict[str, list[str]]:
        """The reference answers by prompt id."""
        return {
            name: [*example.references[turn]]
            for name, (example, turn) in self._turn_by_prompt_id.items()
        }

    @cached_property
    def categories(self) -> dict[str, str]:
        """The task's categories by prompt id."""
        return {name: example.category for name, (example, _) in self._turn_by_prompt_id.items()}

    @cached_property
    def token_ids_digest(self) -> str:
        """The digest of all requests' token ids."""
        return self.digest_token_ids(self.requests)

    @staticmethod
    def digest_token_ids(requests: Iterable[Request]) -> str:
        """Computes the digest of the requests' token ids."""
        return hash_json([[request.prompt_id, request.prompt_ids] for request in requests], 16)

    def select_requests(self, examples: Collection[Example]) -> list[Request]:
        """Selects the requests of some examples, in order."""
        example_ids = {example.id for example in examples}
        turns = self._turn_by_prompt_id
        return [
            request for request in self.requests if turns[request.prompt_id][0].id in example_ids
        ]

    def split_into_waves(self) -> list[tuple[Request, ...]]:
        """Splits the requests into groups; a group needs only answers of earlier groups."""
        continues_own = self.task.later_turns == "own"
        turns = group_by_key(
            (self._turn_by_prompt_id[request.prompt_id][1] if continues_own else 0, request)
            for request in self.requests
        )
        return [tuple(turns[turn]) for turn in sorted(turns)]

    def fill_in_own_answers(
        self, requests: Sequence[Request], generations: Mapping[str, Generation]
    ) -> list[Request]:
        """Fills a cell's own earlier answers into the later turns of requests. Raises PromptError
        if an answer is missing.
        """
        resolved_requests = []
        for request in requests:
            example, turn = self._turn_by_prompt_id[request.prompt_id]
            if turn and self.task.later_turns == "own":
                if (
                    missing_ids := {*list_asked_prompt_ids(self.task, example)[:turn]}
                    - generations.keys()
                ):
                    raise PromptError(request.prompt_id, f": {min(missing_ids)!r} has no answer")
                answers = self.decode_scored_texts(
                    generations[prompt_id]
                    for prompt_id in list_asked_prompt_ids(self.task, example)[:turn]
                )
                ids = self.task.encode(example, self.tokenizer, turn, list(answers.values()))
                request = replace(request, prompt_ids=ids)
            resolved_requests.append(request)
        return resolved_requests

    def decode_scored_texts(self, generations: Iterable[Generation]) -> dict[str, str]:
        """Decodes the scored part of the answers' texts by prompt id; counts are of token ids."""
        return {
            generation.prompt_id: self.task.extract_scored_text(
                decode_without_end_token(self.tokenizer, generation.tokens)
            )
            for generation in generations
        }


def warn_of_heads_for_other_prompts(settings: JobSettings, is_plain: bool) -> None:
    """Warns if heads were trained on prompts in a chat template and these prompts are plain, or the
    reverse.
    """
    head_kinds = {cell.config.heads for cell in settings.cells}
    for kind, heads in settings.pair.heads.items():
        file = Path(heads, "training.json")
        if kind in head_kinds and file.is_file():
            data_kind = json.loads(file.read_text("utf-8"))["settings"]["data"]["kind"]
            if data_kind != "task" and (data_kind == "prompts") is not is_plain:
                message = (
                    "%s heads learned prompts of another form, data.kind=%s: task.chat=%s has it"
                )
                log.warning(message, kind, data_kind, str(is_plain).lower())


def _encode_example(settings: JobSettings, tokenizer: Any, example: Example) -> list[Request]:
    """Encodes an example as requests, one per requested turn. If turns continue the cell's own
    answers, a later turn's limit is the models' room after earlier answers of full length, so that
    1024 tokens per turn fit into 2048.
    """
    task = settings.task
    limit = settings.max_new_tokens
    names = list_asked_prompt_ids(task, example)
    ends = task.make_stop_criteria(tokenizer)
    requests = list[Request]()
    continues_own = len(names) > 1 and task.later_turns == "own"
    room = find_prompt_and_answer_room(settings) if continues_own else None
    for turn, prompt_id in enumerate(names):
        new_tokens = limit
        if turn and continues_own:
            ids = task.encode(example, tokenizer, turn, [""] * turn)
            ids += ids[-1:] * (turn * limit)
            if room is not None and room > len(ids):
                new_tokens = min(limit, room - len(ids))  # else the prompt is refused later
        else:
            ids = task.encode(example, tokenizer, turn)
        requests.append(Request(prompt_id, ids, new_tokens, ends.stop_ids, ends))
    return requests


def _count_longest_prompt_tokens(requests: Sequence[Request], limit: int) -> int:
    """Counts the tokens that the longest prompt needs, if each answer takes ``limit``
    tokens; a request with a lower limit needs that much less.
    """
    return max(
        (len(request.prompt_ids) + request.max_new_tokens - limit for request in requests),
        default=0,
    )


def list_asked_prompt_ids(task: Task | RandomPromptTask, example: Example) -> tuple[str, ...]:
    """Lists the prompt ids of an example's requested turns: the example's id, with ``/TURN`` if it
    has several turns.
    """
    return example.prompt_ids[: task.count_asked_turns(example) if isinstance(task, Task) else 1]


def get_tree_depth(config: DecoderConfig) -> int:
    """Returns the depth of the decoder's draft tree, the number of positions that it needs after
    the text; 0 without a tree.
    """
    from spec_bench.tree.base import GrownTree  # imports torch

    tree: Any = config.tree
    return int(tree.shape.depth if isinstance(tree, GrownTree) else getattr(tree, "depth", 0))


def estimate_cache_slots(config: DecoderConfig, prompt_tokens: int, new_tokens: int) -> int:
    """Estimates the cache slots of a prompt of ``prompt_tokens`` tokens, as
    ``count_slots_per_row`` does.
    """
    from spec_bench.tree.base import GrownTree

    tree: Any = config.tree
    if isinstance(tree, GrownTree):
        return prompt_tokens + new_tokens + tree.cache_slots
    branches = 1 if getattr(config.verifier, "one_cache", False) else tree.width
    return prompt_tokens + branches * (new_tokens + 2) + getattr(tree, "depth", 0) * tree.width


def find_prompt_and_answer_room(settings: JobSettings) -> int | None:
    """Returns the number of tokens that fit into all models for a prompt and its answer, next to a
    tree; None if no model has a limit.
    """
    lengths = [
        length for spec in settings.pair.specs if (length := _read_context_length(spec)) is not None
    ]
    return min(lengths) - TREE_LEVELS if lengths else None


def find_overlong_prompts(
    settings: JobSettings, requests: Sequence[Request]
) -> dict[str, Exception]:
    """Finds prompts that do not fit the models of some cell; returns errors by prompt id. Raises
    UsageError if no prompt fits.
    """
    if settings.server_settings:
        return {}  # the server knows its limit
    lengths = [(_read_context_length(spec), spec.path) for spec in settings.pair.specs]
    limits = [
        (length - levels, length, levels, path)
        for levels, drafts in {(get_tree_depth(c.config), c.config.drafts) for c in settings.cells}
        for length, path in lengths[: 1 + drafts]
        if length is not None
    ]
    if not limits:
        return {}
    room, length, levels, path = min(limits)
    overlong_requests = [
        request for request in requests if len(request.prompt_ids) + request.max_new_tokens > room
    ]
    failures = dict[str, Exception]()
    for request in overlong_requests:
        count = f"{len(overlong_requests)} of {len(requests)} prompts are too long"
        prompt_tokens = len(request.prompt_ids)
        new_tokens = request.max_new_tokens
        remedy = "make task.prompt_tokens or generation.max_new_tokens smaller"
        if isinstance(settings.task, Task):
            remedy = (
                "task.overlong=skip leaves such prompts out, task.overlong=truncate cuts the "
                "middle out of their texts, a smaller generation.max_new_tokens leaves more room"
            )
        failures[request.prompt_id] = UsageError(
            f"task {settings.task.name}: {count}: prompt {request.prompt_id!r} needs "
            f"{prompt_tokens + new_tokens + levels} positions ({prompt_tokens} prompt + "
            f"{new_tokens} new + {levels} tree levels), {path!r} has {length}; {remedy}"
        )
    if overlong_requests and len(overlong_requests) == len(requests):
        raise failures[overlong_requests[0].prompt_id]
    return failures


def _read_context_length(spec: ModelSpec) -> int | None:
    """Returns a model's longest sequence; None if it has no limit or its config cannot be read."""
    from spec_bench.engine.architectures import get_max_sequence_length
    from spec_bench.engine.loading import load_config

    try:
        return get_max_sequence_length(load_config(spec.path, spec.revision).get_text_config())
    except Exception:  # loading the model raises the same error later
        return None
