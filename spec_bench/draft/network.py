"""Base class of draft heads, which are small networks on the target's hidden states, and their
plan.

Draft states, which run the heads, are in ``base``.
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

CheckpointConfig = Mapping[str, Any]
"""Content of a ``config.json``."""
TensorsByName = Mapping[str, Tensor]


class PublicCheckpoint(NamedTuple):
    """A checkpoint of draft heads in a public layout."""

    file_name: str  # of the weights
    weights: TensorsByName
    config: CheckpointConfig


class DraftHeads(nn.Module, ABC):
    """Base class of draft heads on the target's hidden states."""

    kind: ClassVar[str]  # of the drafter that uses it
    starts_as_target: ClassVar[bool] = False  # whether its last layer can start as the target's
    bytes_per_slot: int = 0  # bytes of a token in the heads' own cache; 0 if they have none
    shape: Any  # its sizes; `hidden` is the target's width, `vocab` its number of tokens

    @property
    def parameter_count(self) -> int:
        """Number of the heads' own parameters, without embeddings."""
        return sum(parameter.numel() for parameter in self.parameters())

    def allocate(self, rows: int, slots: int) -> Any:
        """Allocates the heads' own cache for ``rows`` sequences of up to ``slots`` tokens."""
        raise NotImplementedError

    def iter_guess_logits(self, hidden: Tensor, embeddings: Tensor) -> Iterator[Tensor]:
        """Yields, in training, the logits [N, V] of guess 1, 2, ..., K, from the target's last
        hidden states [N, D] and the embeddings of the right tokens t + 1..t + K [N, K, D]. Heads
        that train on whole sequences do not implement it.
        """
        raise NotImplementedError

    @classmethod
    @abstractmethod
    def make_untrained(cls, plan: HeadPlan) -> DraftHeads:
        """Makes untrained heads as planned."""

    @classmethod
    @abstractmethod
    def make_smallest(cls, hidden: int, vocab: int) -> DraftHeads:
        """Makes the smallest heads that draft at least two tokens, for audits."""

    @classmethod
    def find_weights_file(cls, folder: Path, config: CheckpointConfig) -> Path | None:
        """Finds the file of weights in a folder with heads of this kind; None if there are none."""
        return None

    @classmethod
    def load_weights_of_kind(
        cls,
        folder: Path,
        config: CheckpointConfig,
    ) -> TensorsByName | None:
        """Loads the weights from a folder with heads of this kind; None if there are none. Raises
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
    def from_weights(cls, weights: TensorsByName, config: CheckpointConfig) -> DraftHeads:
        """Makes heads from a public checkpoint's weights and config. Raises UsageError if they do
        not fit.
        """

    @abstractmethod
    def to_public_checkpoint(self) -> PublicCheckpoint:
        """Converts the heads to the public layout of their kind."""


AnyHeads = TypeVar("AnyHeads", bound=DraftHeads)


def load_weights(heads: AnyHeads, weights: TensorsByName, assign: bool = False) -> AnyHeads:
    """Loads weights into heads by copying, or with ``assign`` by replacing. Raises UsageError if
    weights are missing or superfluous.
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
    """Scatters ``values`` [..., V'] of the tokens ``ids`` to [..., V]; other tokens get ``fill``.
    If ``ids`` is None, cuts the values to V.
    """
    if ids is None:
        return values[..., :vocab]
    full = values.new_full((*values.shape[:-1], vocab), fill)
    return full.index_copy(-1, ids, values)


@dataclass(frozen=True)
class HeadPlan:
    """Settings of new heads to train; ``conf/head`` explains them."""

    hidden: int  # D, width of the target's hidden states
    vocab: int  # V, the target's tokens
    get_output_weight: Callable[[], Tensor]  # returns the target's last layer, [V, D] float32
    guesses: int  # K, tokens guessed
    blocks: int  # residual blocks
    recurrent: bool = True  # whether a recurrent head has a learned state
    inner: int | None = None  # width of the residual blocks; None: the head's own
    init: str = "random"  # `target` copies the target's last layer to the heads'
    # the target's config, for heads with blocks of the target's sizes
    target: Mapping[str, Any] = field(default_factory=dict)
    ids: tuple[int, ...] | None = None  # the target's tokens that the heads know; None: all
    fc_norm: bool = False  # whether EAGLE-3 norms each hidden state before it fuses them
    masks: bool = False  # whether an EAGLE-3 head guesses all levels in one pass (P-EAGLE)

    @property
    def ids_tensor(self) -> Tensor | None:
        """The tokens that the heads know, [V'] int64; None: all."""
        return None if self.ids is None else torch.tensor(self.ids)

    def get_known_output_weight(self) -> Tensor:
        """Returns the rows of the target's last layer for the tokens that the heads know, [V', D]
        float32.
        """
        weight = self.get_output_weight()[: self.vocab]
        return weight if self.ids is None else weight[self.ids_tensor]

    @property
    def mask_token(self) -> int:
        """Placeholder of an unknown token: the target's padding token, else its
        end token, else 0.
        """
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
