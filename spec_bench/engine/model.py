"""Interface of causal language models for the decoders: tokens at slots in, logits out.

``LanguageModel`` is the interface, ``hugging_face`` its implementation. The engine knows nothing
about tokenisation, sampling or drafting.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor


class ForwardTimer:
    """Adds up the seconds of forward passes, from ``start`` to ``stop``.

    On CUDA it records events and reads them only when the total is requested, so timing adds no
    synchronisation to the decoding loop; it skips passes while a graph is recorded. Elsewhere it
    reads the clock.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        self._total_s = 0.0
        self._started_s = 0.0
        self._began: torch.cuda.Event | None = None
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def start(self) -> None:
        """Starts an interval."""
        if self._cuda:
            self._began = self._record_event()
        else:
            self._started_s = time.perf_counter()

    def stop(self) -> None:
        """Ends the interval."""
        if not self._cuda:
            self._total_s += time.perf_counter() - self._started_s
        elif self._began is not None and (end_event := self._record_event()) is not None:
            self._events.append((self._began, end_event))

    def _record_event(self) -> torch.cuda.Event | None:
        """Records an event; None while a graph is recorded."""
        if torch.cuda.is_current_stream_capturing():
            return None
        event = torch.cuda.Event(enable_timing=True)
        # the passes' stream; without it the event would be recorded on the first GPU
        event.record(torch.cuda.current_stream(self._device))
        return event

    def take_s(self) -> float:
        """Returns the seconds since the last call; waits for the device."""
        if self._events:
            self._events[-1][1].synchronize()
            self._total_s += sum(a.elapsed_time(b) for a, b in self._events) / 1e3
            self._events.clear()
        total = self._total_s
        self._total_s = 0.0
        return total


def wait_for_device(device: torch.device) -> None:
    """Waits until the device has finished all its work; needed before clock readings."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def set_cuda_precision_flags() -> None:
    """Turns off cuDNN's attention, TF32 and sums in half precision; a CPU's passes do not change.

    cuDNN's attention builds a plan for every pair of lengths, tens of milliseconds each, and
    decoding meets new lengths in nearly every pass. TF32 and sums in half precision make a token's
    logits depend on how many tokens a pass holds by more than the weights' own rounding does.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


Layers = tuple[int, ...]
"""Which entries of transformers' ``hidden_states`` are wanted: 0 is the embedding, i the input of
block i, the last one is after the final norm."""
LAST: Layers = (-1,)


class ForwardOutput(NamedTuple):
    """Output of a pass."""

    logits: Tensor  # [R, T', V], T' = T or the last `logits_to_keep`
    # [R, T, D] hidden states, concatenated if several are requested; None if none are
    hidden: Tensor | None


class LanguageModel(Protocol):
    """Interface of a target or draft model."""

    vocab_size: int  # V, number of tokens that exist, without padded rows of the embedding
    embedding_rows: int  # with padded rows
    parameters: int  # exact parameter count, with shared tensors counted once
    max_positions: int | None  # longest sequence, or None if there is no limit
    device: torch.device  # of tokens and logits
    timer: ForwardTimer  # seconds in forward passes
    bytes_per_slot: int  # bytes of a token's keys and values
    hidden_size: int  # D, the width of the hidden states
    blocks: int  # L, number of blocks between the embedding and the final norm
    dtype: torch.dtype  # of weights and logits
    recorder: Any  # records iterations on a GPU; None if they cannot be recorded
    split_from: int | None  # slots from which attention is split, which no graph does; None: never

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeds tokens [...]; returns [..., D]."""

    def project(self, hidden: Tensor) -> Tensor:
        """Computes logits [..., V] from hidden states after the final norm [..., D], with the last
        layer.
        """

    def allocate(self, rows: int, slots: int) -> Any:
        """Allocates a cache for ``rows`` sequences of up to ``slots`` tokens."""

    def forward(
        self,
        cache: Any,
        starts: Sequence[int],
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor,
        *,
        row: int = 0,
        logits_to_keep: int = 0,
        needs_hidden: Layers = (),
        prefill: bool = False,
        shared: int = 0,
    ) -> ForwardOutput:
        """Runs T tokens [R, T] in R rows of the cache, from ``row`` on, and stores them at slots
        starts[r], starts[r] + 1, ... ``positions`` are [R, T]; ``visible`` [R, T, S] marks the
        slots to which each token attends.

        Returns the logits of the last ``logits_to_keep`` tokens (0: of all T), and hidden states if
        ``needs_hidden`` names some. ``prefill`` marks a prompt's pass, whose shape is not repeated.
        Windows aside, every token attends to the ``shared`` leading slots.
        """
