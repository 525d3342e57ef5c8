"""Which model judges, and how patiently it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from spec_bench.settings.validation import Ge, Gt, Number, Real, Text, Whole, check, settings


@settings
class JudgeSettings:
    """What ``judge`` in ``conf/config.yaml`` holds; address and key come from the environment.

    Attributes:
        model: the judge's name at the endpoint; None: nothing is judged.
        timeout_s: seconds until a request without its whole answer is given up.
        attempts: how often one judgement is asked for before it has failed.
        wait_s: seconds before the second attempt; doubles with each, 60 at most.
        parallel: judgements under way at a time.
        temperature: of the judge; None leaves it to the endpoint.
        max_tokens: limit on the judge's reply; None leaves it to the endpoint.
    """

    model: Text | None = None
    timeout_s: Annotated[Number, Gt(0)] = 120.0
    attempts: Annotated[Whole, Ge(1)] = 6
    wait_s: Annotated[Number, Ge(0)] = 1.0
    parallel: Annotated[Whole, Ge(1)] = 4
    temperature: Annotated[Real, Ge(0)] | None = 0.0
    max_tokens: Annotated[Whole, Ge(1)] | None = 2048


def judge_settings(config: Mapping[str, Any] | None) -> JudgeSettings:
    """From the mapping that the config holds.

    Raises:
        ValueError: an unknown key, or a value out of range.
    """
    return check(JudgeSettings, {} if config is None else config, "judge")
