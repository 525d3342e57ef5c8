"""How tokens are sampled, as settings; imports torch only when one asks for a torch dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spec_bench.system.errors import UsageError

if TYPE_CHECKING:
    import torch

PROBABILITY_DTYPES = ("float32", "float64")
LEAST_TEMPERATURE = 1e-6  # above 0; logits over less could overflow float32


@dataclass(frozen=True)
class SamplingSettings:
    """How tokens are sampled, from target and draft alike; a ValueError names a value outside its
    range.
    """

    # 0 is greedy: the exact limit, with ties broken to the lowest token id
    temperature: float = 1.0
    top_k: int = 0  # keep the k largest logits; 0 keeps all
    top_p: float = 1.0  # keep the smallest set of tokens with at least this mass; 1 keeps all
    draft_temperature: float | None = None  # the draft's own temperature; None means the target's
    probability_dtype: str = "float32"  # `float32`, or `float64` for audits

    def __post_init__(self) -> None:
        for name in ("temperature", "draft_temperature"):
            value = getattr(self, name)
            if value is not None and not (value == 0 or LEAST_TEMPERATURE <= value < float("inf")):
                raise UsageError(
                    f"{name} must be 0 or a finite number >= {LEAST_TEMPERATURE:g}, got {value}"
                )
        if self.top_k < 0:
            raise UsageError(f"top_k must be >= 0 (0 keeps every token), got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p must lie in (0, 1], got {self.top_p}")
        if self.probability_dtype not in PROBABILITY_DTYPES:
            raise UsageError(
                f"probability_dtype must be one of {', '.join(PROBABILITY_DTYPES)}, "
                f"got {self.probability_dtype!r}"
            )

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype of every probability."""
        import torch

        return getattr(torch, self.probability_dtype)

    def get_draft_settings(self) -> SamplingSettings:
        """Returns the settings that the draft's logits are warped with."""
        if self.draft_temperature is None:
            return self
        return SamplingSettings(
            self.draft_temperature, self.top_k, self.top_p, None, self.probability_dtype
        )
