"""Models that decode a prompt: a target with what drafts for it, loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from spec_bench.api.answers import Writing
from spec_bench.api.prompts import Message, Prompt, prompt_id, prompts_of, stops_of
from spec_bench.records.types import Request
from spec_bench.settings.configs import conf_dirs
from spec_bench.tasks.template import chat_text

if TYPE_CHECKING:
    from spec_bench.api.stream import Stream
    from spec_bench.decode.config import AnyDecoder
    from spec_bench.engine.model import LanguageModel
    from spec_bench.engine.pool import CachePool
    from spec_bench.jobs.config.pair import Pair


@dataclass
class LoadedPair:
    """A target with what drafts for it, loaded; ``load_pair`` makes one.

    Attributes:
        pair: which models.
        tokenizer: the target's.
        models: the target, then the drafts.
        overrides: what makes a job decode with the same models; empty where they have no name.
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
        # Separate caches: other prompts may be decoded between two steps.
        built = self._built(decoder, {**sampling, "max_new_tokens": max_new_tokens}, None)
        request = self._request(prompts[0], max_new_tokens, chat, prompt_id)
        built.preflight([request])
        return self._stream(built, request, seed, stops_of(stop))

    def _built(
        self,
        decoder: str | Mapping[str, Any],
        generation: Mapping[str, Any],
        pool: CachePool | None,
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

        sampling = sampling_of(check(Asked, dict(generation), "decode"), Asked())
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
        message = {"role": "user", "content": prompt}
        messages = [message] if isinstance(prompt, str) else [dict(each) for each in prompt]
        text = chat_text(self.tokenizer, messages)
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])
