"""``python -m spec_bench.audit --server URL --target FOLDER``: is a running server lossless?"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from spec_bench.audit.greedy import first_difference
from spec_bench.audit.lines import Line
from spec_bench.audit.served import FALSE_ALARM_RATE, findings, law_of_answers
from spec_bench.core.sampling import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.engine.model import LanguageModel
from spec_bench.records.types import Request
from spec_bench.server.endpoint import KEY, Server
from spec_bench.server.stream import Served

PROMPTS = (
    "The harbour was closed because",
    "Once there was a king who",
    "The report of the committee says that",
    "Two trains leave at noon, and",
    "To bake bread one needs",
    "The capital of the country is",
    "After the storm the village",
    "A good teacher knows",
)
"""What is asked where no file of prompts is named."""

_PLAIN = {
    "name": "ar",
    "drafter": {"kind": "none"},
    "tree": {"policy": "root"},
    "verifier": {"rule": "recursive_rejection", "replacement": False},
}


@dataclass(frozen=True)
class Asked:
    """What the audit of a server asks for.

    Attributes:
        prompts: token ids of each prompt.
        max_tokens: of an answer.
        answers: sampled answers of each prompt, of seeds that follow one another.
        sampling: of these.
        seed: the first one.
        stop_ids: tokens that end an answer.
    """

    prompts: Sequence[tuple[int, ...]]
    max_tokens: int
    answers: int
    sampling: SamplingSettings
    seed: int
    stop_ids: tuple[int, ...]


def server_of(url: str, model: str) -> Server:
    """The server at an address, with the key that the environment holds.

    Raises:
        ValueError: it is no address, or httpx is not installed.
    """
    return Server(url, model, os.environ.get(KEY, "").strip())


def audit_server(server: Server, target: LanguageModel, asked: Asked) -> Iterator[Line]:
    """Greedy equality, then tests of sampled answers.

    Args:
        server: what is audited.
        target: the model that it claims to serve.
        asked: prompts and settings.

    Raises:
        ServerError: the server gives no answers.
    """
    yield _greedy(server, target, asked)
    answers = [
        (prompt, _served(server, prompt, asked, asked.seed + number).tokens)
        for prompt in asked.prompts
        for number in range(asked.answers)
    ]
    law = law_of_answers(target, answers, asked.sampling)
    for finding in findings(law, asked.seed):
        yield Line(
            f"server, temperature {asked.sampling.temperature:g}: {finding.name}",
            f"{finding.tokens} tokens, p = {finding.p_value:.2g}",
            finding.said,
            finding.passed,
        )


def _greedy(server: Server, target: LanguageModel, asked: Asked) -> Line:
    """Every greedy answer equal to the target's own, or different at a near-tie."""
    plain = build_decoder(_PLAIN, target, [], SamplingSettings(temperature=0.0))
    requests = [
        Request(str(index), prompt, asked.max_tokens, asked.stop_ids)
        for index, prompt in enumerate(asked.prompts)
    ]
    equal, ties, different, steps, later = 0, 0, [], 0, 0
    for request in requests:
        want = plain.generate([request], seed=0)[0].tokens
        served = server.complete(request.prompt_ids, asked.max_tokens)
        steps, later = steps + served.steps, later + len(served.tokens) - 1
        if tuple(served.tokens) == tuple(want):
            equal += 1
            continue
        try:
            difference = first_difference(target, request, want, served.tokens)
        except ValueError:
            different.append(f"prompt {request.prompt_id} ends at another place")
            continue
        assert difference is not None
        if difference.near_tie:
            ties += 1
        else:
            different.append(f"prompt {request.prompt_id} from token {difference.position}")
    per_step = f"; {later / steps:.2f} tokens a step" if steps else ""
    said = f"{equal} equal, {ties} near-ties, {len(different)} different{per_step}"
    where = f" ({', '.join(different[:3])})" if different else ""
    return Line(
        "server, greedy: equals the target", f"{len(requests)} prompts", said + where, not different
    )


def _served(server: Server, prompt: tuple[int, ...], asked: Asked, seed: int) -> Served:
    return server.complete(
        prompt,
        asked.max_tokens,
        temperature=asked.sampling.temperature,
        top_p=asked.sampling.top_p,
        seed=seed,
    )


def asked_of(tokenizer: Any, options: Any, prompts: Sequence[str]) -> Asked:
    """What the command line asks for, as token ids."""
    stop = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    ids = [tuple(tokenizer(prompt)["input_ids"]) for prompt in prompts or PROMPTS]
    return Asked(
        [each for each in ids if each],
        options.max_new_tokens,
        options.answers,
        SamplingSettings(temperature=options.temperature),
        options.seed,
        stop,
    )


NOTE = f"false-alarm rate of the tests of a server's samples together {FALSE_ALARM_RATE:g}"
