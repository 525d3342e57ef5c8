"""How the target answers the prompts that heads learn from, as settings; imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from spec_bench.settings.validation import Ge, MinLen, Number, Says, Whole, settings

Temperatures = Annotated[
    tuple[Annotated[Number, Ge(0)], ...],
    MinLen(1),
    BeforeValidator(lambda value: value if isinstance(value, list | tuple) else [value]),
    Says("a number >= 0 or a list of one or more"),
]


@settings
class AnswerSettings:
    """How the target answers.

    Attributes:
        temperatures: prompt i is answered at temperature i mod their number; 0 is greedy.
        max_new_tokens: limit.
        batch_size: prompts answered at a time.
        seed: of the first batch; the following ones count up.
    """

    temperatures: Temperatures = (0.0, 1.0)
    max_new_tokens: Annotated[Whole, Ge(1)] = 128
    batch_size: Annotated[Whole, Ge(1)] = 32
    seed: Annotated[Whole, Ge(0)] = 0
