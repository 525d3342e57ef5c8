"""Generation settings of a task or a run; what neither sets has a default."""

from typing import Annotated, Literal

from pydantic import AfterValidator

from spec_bench.settings.validation import (
    FiniteFloat,
    Ge,
    Gt,
    IntOrFloat,
    Le,
    Requirement,
    StrictInt,
    require,
    settings,
)

LEAST_TEMPERATURE = 1e-6  # above 0; logits over less could overflow float32


def _greedy_or_warm(value: float) -> float:
    require(value == 0 or value >= LEAST_TEMPERATURE)
    return value


Temperature = Annotated[
    IntOrFloat,
    AfterValidator(_greedy_or_warm),
    Requirement(f"0 or a number >= {LEAST_TEMPERATURE:g}"),
]


@settings
class GenerationSettings:
    """The config group ``generation``, and a task's own ``generation``."""

    temperature: Temperature | None = None  # 0 is greedy
    top_k: Annotated[StrictInt, Ge(0)] | None = None  # keep the k largest logits; 0 keeps all
    # keep the smallest set of tokens with at least this mass; 1 keeps all
    top_p: Annotated[FiniteFloat, Gt(0), Le(1)] | None = None
    max_new_tokens: Annotated[StrictInt, Ge(1)] | None = None  # limit on the tokens of an answer
    draft_temperature: Temperature | None = None  # the draft's own temperature
    probability_dtype: Literal["float32", "float64"] | None = None  # ``float64`` for audits
