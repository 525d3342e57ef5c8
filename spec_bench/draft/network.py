"""What draft heads are: a small network on the target's hidden states, its files, its training.

Knows nothing about who drafts with it (``base``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from spec_bench.system.errors import UsageError


class PublicCheckpoint(NamedTuple):
    """What a public layout of draft heads has on disk."""

    file_name: str  # of the weights
    weights: dict[str, Tensor]
    config: dict[str, Any]  # `config.json`


class DraftHeads(nn.Module, ABC):
    """A small network on the target's last hidden state, and everything known about it."""

    kind: ClassVar[str]  # of the drafter that uses it
    starts_as_target: ClassVar[bool] = False  # whether its last layer can start as the target's
    bytes_per_slot: int = 0  # bytes that one token takes in a cache of its own; 0 if it has none
    shape: Any  # its sizes; `hidden` is the target's width, `vocab` its number of tokens

    @property
    def parameter_count(self) -> int:
        """Number of its own parameters, without the target's embeddings."""
        return sum(parameter.numel() for parameter in self.parameters())

    def allocate(self, rows: int, slots: int) -> Any:
        """Makes a cache of its own for ``rows`` sequences of up to ``slots`` tokens."""
        raise NotImplementedError

    def iter_guess_logits(self, hidden: Tensor, embeddings: Tensor) -> Iterator[Tensor]:
        """Yields the logits [N, V] of guess 1, 2, ..., K in training, from the target's last hidden
        states [N, D] and embeddings of the right tokens t + 1..t + K [N, K, D]. Heads that learn
        from whole sequences do without it.
        """
        raise NotImplementedError

    @classmethod
    @abstractmethod
    def make_untrained(
        cls,
        plan: HeadPlan,
        hidden: int,
        vocab: int,
        get_output_weight: Callable[[], Tensor],
    ) -> DraftHeads:
        """Makes untrained heads for a target of ``hidden`` width and ``vocab`` tokens;
        ``get_output_weight`` returns its last layer, [V, D] float32.
        """

    @classmethod
    @abstractmethod
    def make_smallest(cls, hidden: int, vocab: int) -> DraftHeads:
        """Makes the smallest heads that draft at least two tokens, for the audit."""

    @classmethod
    def find_weights_file(cls, folder: Path, config: Mapping[str, Any]) -> Path | None:
        """Finds the file of weights in a folder that holds heads of this kind; None in another."""
        return None

    @classmethod
    def load_weights_of_kind(
        cls,
        folder: Path,
        config: Mapping[str, Any],
    ) -> dict[str, Tensor] | None:
        """Loads the weights from a folder with heads of this kind, else returns None. Raises
        UsageError if they cannot be used.
        """
        path = cls.find_weights_file(folder, config)
        if path is None:
            return None
        if path.suffix == ".safetensors":
            return load_file(path)
        return dict(torch.load(path, map_location="cpu", weights_only=True))

    @classmethod
    @abstractmethod
    def from_weights(cls, weights: dict[str, Tensor], config: Mapping[str, Any]) -> DraftHeads:
        """Makes heads from a public checkpoint's weights and config. Raises UsageError if they do
        not fit.
        """

    @abstractmethod
    def to_public_checkpoint(self) -> PublicCheckpoint:
        """Returns the weights and the config under the public layout's names."""


AnyHeads = TypeVar("AnyHeads", bound=DraftHeads)


def load_weights(heads: AnyHeads, weights: Mapping[str, Tensor], assign: bool = False) -> AnyHeads:
    """Copies or ``assign``s weights to heads. Raises UsageError if some are missing, or there are
    extra ones.
    """
    try:
        heads.load_state_dict(weights, assign=assign)
    except RuntimeError as error:
        lines = " ".join(line.strip() for line in str(error).splitlines()[1:3])
        raise UsageError(f"draft heads and their config do not fit: {lines}") from None
    return heads


def scatter_to_vocabulary(
    values: Tensor,
    ids: Tensor | None,
    vocab: int,
    fill: float = -torch.inf,
) -> Tensor:
    """Scatters ``values`` [..., V'] of the tokens ``ids`` to [..., V]; the others get ``fill``.
    Cuts them to V if ``ids`` is None.
    """
    if ids is None:
        return values[..., :vocab]
    full = values.new_full((*values.shape[:-1], vocab), fill)
    return full.index_copy(-1, ids, values)


@dataclass(frozen=True)
class HeadPlan:
    """Which fresh heads a training asks for; explained in ``conf/head``."""

    guesses: int  # K, tokens guessed
    blocks: int  # residual blocks
    recurrent: bool = True  # whether a recurrent head has a learned state
    inner: int | None = None  # width of the residual blocks; None: the head's own
    init: str = "random"  # `target` starts the last layers as the target's
    # the target's config, for heads with blocks like its own
    target: Mapping[str, Any] = field(default_factory=dict)
    ids: tuple[int, ...] | None = None  # the target's tokens that the heads know; None: all
    fc_norm: bool = False  # whether EAGLE-3 norms each hidden state before it fuses them
    masks: bool = False  # whether an EAGLE-3 head guesses all levels at once (P-EAGLE)

    @property
    def mask_token(self) -> int:
        """A token of the target's that stands for one not known: what pads or ends its texts."""
        names = ("pad_token_id", "eos_token_id")
        token = next((self.target[key] for key in names if self.target.get(key)), 0)
        return token if isinstance(token, int) else int(token[0])


class ResidualBlock(nn.Module):
    """x + SiLU(linear(x)); starts as the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        torch.nn.init.zeros_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., width]."""
        return x + nn.functional.silu(self.linear(x))
