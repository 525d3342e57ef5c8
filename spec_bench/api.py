r"""What a notebook needs: models that decode a prompt, and jobs whose rows come as a table.

    >>> import spec_bench
    >>> pair = spec_bench.load_pair("embedded")
    >>> answer = pair.decode("Article: The harbour was closed.\nSummary:", "rsd_s:4x3", seed=1)
    >>> len(answer.tokens) == sum(len(step.tokens) for step in answer.steps)
    True
    >>> all(step.nodes == 12 and step.accepted <= step.depth == 3 for step in answer.steps)
    True
    >>> rows = spec_bench.run("task=xsum", "cells=[sd:3]", prompts=2, results=folder)
    >>> list(rows.decoder)
    ['ar', 'sd']

Takes what the command line takes and refuses what it refuses, by a ``ValueError`` of one line.
Models and Hydra are imported by the calls, not by the module.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from spec_bench.records.types import Generation, Request, StepRecord
from spec_bench.settings.configs import conf_dirs, read_config

if TYPE_CHECKING:
    import pandas as pd

    from spec_bench.engine.model import LanguageModel
    from spec_bench.engine.pool import CachePool
    from spec_bench.jobs.config.pair import Pair

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Step:
    """One target call.

    Attributes:
        record: nodes and levels of its tree, tokens accepted and delivered, widths of beams.
        tokens: what it delivered: accepted tokens, then the residual or bonus token.
        text: the same as text.
    """

    record: StepRecord
    tokens: tuple[int, ...]
    text: str

    @property
    def nodes(self) -> int:
        """Tokens that were proposed: nodes of the tree, the root not counted."""
        return self.record.nodes

    @property
    def depth(self) -> int:
        """Levels of the tree."""
        return self.record.depth

    @property
    def accepted(self) -> int:
        """Proposed tokens that were accepted."""
        return self.record.accepted


@dataclass(frozen=True)
class Decoded:
    """An answer and how it came about.

    Attributes:
        text: the answer.
        tokens: its token ids, the end-of-sequence token included.
        steps: one per target call, in order.
        lossless: how its law relates to the target's: ``exact``, ``approximate``, ...
        generation: the record with its seconds, as a job writes it.
    """

    text: str
    tokens: tuple[int, ...]
    steps: tuple[Step, ...]
    lossless: str
    generation: Generation = field(repr=False)

    @property
    def block_efficiency(self) -> float:
        """Tokens per target call."""
        return sum(step.accepted + 1 for step in self.steps) / len(self.steps)


@dataclass
class LoadedPair:
    """A target with what drafts for it, loaded; ``load_pair`` makes one.

    Attributes:
        pair: which models.
        tokenizer: the target's.
        models: the target, then the drafts.
    """

    pair: Pair
    tokenizer: Any
    models: Sequence[LanguageModel]
    _pool: CachePool

    def decode(
        self,
        prompt: str,
        decoder: str | Mapping[str, Any] = "rsd_s:4x3",
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        max_new_tokens: int = 128,
        seed: int = 0,
        chat: bool = False,
    ) -> Decoded:
        """Decodes one prompt.

        Args:
            prompt: the text.
            decoder: ``NAME:SPEC`` or a mapping, as in a job's list of cells.
            temperature: 0 is greedy.
            top_k: keep the k largest logits; 0 keeps all.
            top_p: keep the smallest set of tokens with at least this mass; 1 keeps all.
            max_new_tokens: limit on the answer.
            seed: with the prompt and the decoder it determines the answer.
            chat: put the prompt into the tokenizer's chat template.

        Raises:
            ValueError: one line on what cannot be right.
        """
        from spec_bench.jobs.config.cells import load_decoder, read_cell
        from spec_bench.jobs.config.fit import check_fit
        from spec_bench.jobs.config.fitted_trees import FittedTrees
        from spec_bench.jobs.config.settings import sampling_of
        from spec_bench.jobs.work.models import heads_of
        from spec_bench.settings.validation import check
        from spec_bench.tasks.generation import Generation as Asked

        told = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        asked = check(Asked, {**told, "max_new_tokens": max_new_tokens}, "decode")
        sampling = sampling_of(asked, Asked())
        cell = read_cell(decoder, partial(load_decoder, conf_dirs()), sampling)
        check_fit(cell, self.pair)
        cell = FittedTrees(self.pair, None, sampling).given(cell)
        target, drafts = self.models[0], self.models[1 : cell.drafts + 1]
        heads = heads_of(self.pair, cell.heads, target)
        built = cell.config.build(target, drafts, sampling, 1, self._pool, heads)
        ends = self.tokenizer.eos_token_id
        stop_ids = () if ends is None else (ends,)
        request = Request("prompt", self._encoded(prompt, chat), max_new_tokens, stop_ids)
        built.preflight([request])
        (generation,) = built.generate([request], seed)
        return self._decoded(generation, built.lossless)

    def _encoded(self, prompt: str, chat: bool) -> tuple[int, ...]:
        if not chat:
            return tuple(self.tokenizer(prompt)["input_ids"])
        if not self.tokenizer.chat_template:
            raise ValueError("chat is true but the tokenizer has no chat template")
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
        )
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _decoded(self, generation: Generation, lossless: str) -> Decoded:
        steps, start = [], 0
        for record in generation.steps:
            tokens = generation.tokens[start : start + record.delivered]
            steps.append(Step(record, tokens, self._text(tokens)))
            start += record.delivered
        text = self._text(generation.tokens)
        return Decoded(text, generation.tokens, tuple(steps), lossless, generation)

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))


def load_pair(
    name: str | None = None,
    *,
    target: str | None = None,
    draft: str | Sequence[str] | None = None,
    heads: Mapping[str, str] | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    compile: str = "none",
) -> LoadedPair:
    """Loads a target and what drafts for it.

    Args:
        name: a file of ``conf/pair``; None: the models that follow, or ``embedded``.
        target: a folder, hub id, ``embedded:NAME`` or ``random:NAME``, in place of the pair's.
        draft: likewise, one or several.
        heads: draft heads by kind: ``{"medusa": FOLDER}``.
        device: ``cpu``, ``cuda``, ``cuda:1``.
        dtype: ``float32``, ``bfloat16``, ...; None: the pair's own, else float32.
        compile: how the forward pass is captured: ``none``, ``static``, ``dynamo`` or ``inductor``.

    Raises:
        ValueError: one line on what cannot be right.
    """
    from spec_bench.engine.pool import CachePool
    from spec_bench.jobs.config.engine_settings import EngineSettings
    from spec_bench.jobs.config.pair import PairSettings, build_pair, with_own_name
    from spec_bench.jobs.work.models import models_of, tokenizer_of
    from spec_bench.settings.validation import check

    values = {"draft": None} if target and name is None else _pair_file(name or "embedded")
    own = {"target": target, "draft": draft, "heads": heads, "dtype": dtype}
    values |= {key: value for key, value in own.items() if value is not None}
    engine = {"device": device, "dtype": dtype or "float32", "compile": compile}
    settings = with_own_name(check(PairSettings, values, "pair"), conf_dirs())
    pair = build_pair(settings, check(EngineSettings, engine, "engine"))
    tokenizer, tokens = tokenizer_of(pair)
    return LoadedPair(pair, tokenizer, models_of(pair, tokens), CachePool())


def run(*overrides: str, **settings: Any) -> pd.DataFrame:
    """Runs a job and gives its rows, as ``results.csv`` has them; again resumes or reads it.

    Args:
        overrides: as on the command line: ``task=xsum``, ``cells=[sd:3,rsd_s:4x3]``.
        settings: the same by keyword: ``prompts=5``.

    Returns:
        One row per cell, the baseline first.

    Raises:
        ValueError: one line on what cannot be right.
    """
    import pandas as pd
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from spec_bench.jobs.app import run_config
    from spec_bench.jobs.config.compose import one_line, recipe_arguments, register
    from spec_bench.sinks.rows import row_of

    told = [*overrides, *(f"{key}={_as_override(value)}" for key, value in settings.items())]
    if not any(each.lstrip("+").startswith(("sink=", "sink.")) for each in told):
        told.append("sink=quiet")
    register()
    try:
        with initialize_config_dir(str(conf_dirs()[0]), version_base="1.3"):
            config = compose("config", overrides=recipe_arguments(told))
        results = run_config(config)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(one_line(error)) from None
    return pd.DataFrame([row_of(result) for result in results])


def _pair_file(name: str) -> dict[str, Any]:
    """A file of ``conf/pair``, ours or another package's."""
    known = {file.stem: file for folder in conf_dirs() for file in folder.glob("pair/*.yaml")}
    if name not in known:
        raise ValueError(f"pair must be one of {', '.join(sorted(known))}, got {name!r}")
    return read_config(known[name])


def _as_override(value: Any) -> str:
    """A value in the words of the command line."""
    if isinstance(value, str) and _WORD.fullmatch(value):
        return value
    plain = (
        value if isinstance(value, str | int | float | list | tuple | dict | None) else str(value)
    )
    return json.dumps(plain)
