"""Which model judges, and how patiently it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class JudgeSettings:
    """What ``judge`` in ``conf/config.yaml`` holds; address and key come from the environment.

    Attributes:
        model: the judge's name at the endpoint; None: nothing is judged.
        timeout_s: seconds until a request without an answer is given up.
        attempts: how often one judgement is asked for before it has failed.
        wait_s: seconds before the second attempt; doubles with each, 60 at most.
        parallel: judgements under way at a time.
        temperature: of the judge; None leaves it to the endpoint.
        max_tokens: limit on the judge's reply; None leaves it to the endpoint.
    """

    model: str | None = None
    timeout_s: float = 120.0
    attempts: int = 6
    wait_s: float = 1.0
    parallel: int = 4
    temperature: float | None = 0.0
    max_tokens: int | None = 2048

    def __post_init__(self) -> None:
        if self.model is not None and (not isinstance(self.model, str) or not self.model):
            raise ValueError(f"judge.model must be a model's name or null, got {self.model!r}")
        for name in ("attempts", "parallel"):
            _at_least(name, getattr(self, name), 1, whole=True)
        if self.max_tokens is not None:
            _at_least("max_tokens", self.max_tokens, 1, whole=True)
        if self.temperature is not None:
            _at_least("temperature", self.temperature, 0)
        _at_least("wait_s", self.wait_s, 0)
        _at_least("timeout_s", self.timeout_s, 0)
        if not self.timeout_s:
            raise ValueError("judge.timeout_s must be more than 0")


def judge_settings(config: Mapping[str, Any] | None) -> JudgeSettings:
    """From the mapping that the config holds.

    Raises:
        ValueError: an unknown key, or a value out of range.
    """
    values, known = dict(config or {}), JudgeSettings.__dataclass_fields__
    if unknown := sorted(set(values) - set(known)):
        raise ValueError(f"judge: unknown {', '.join(unknown)}; choose from {', '.join(known)}")
    return JudgeSettings(**values)


def _at_least(name: str, value: Any, least: int, whole: bool = False) -> None:
    kinds = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or value < least:
        number = "whole number" if whole else "number"
        raise ValueError(f"judge.{name} must be a {number} >= {least}, got {value!r}")
