"""A causal language model as the decoders see it: tokens at slots in, logits out.

``LanguageModel`` is the interface, ``hugging_face`` its implementation. The engine knows nothing
about tokenisation, sampling or drafting.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

# Seconds spent in forward passes, without stopping the device to ask.


class ForwardTimer:
    """Adds up the seconds between ``start`` and ``stop``.

    On CUDA it records events and reads them when asked for the total, so timing adds no
    synchronisation inside the decoding loop, and none while a graph is recorded; elsewhere it reads
    the clock.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        self._total_s = 0.0
        self._started_s = 0.0
        self._began: torch.cuda.Event | None = None
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def start(self) -> None:
        """Begins an interval."""
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
        """Returns an event; none while a graph is recorded."""
        if torch.cuda.is_current_stream_capturing():
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._get_current_stream())
        return event

    def _get_current_stream(self) -> torch.cuda.Stream:
        """Returns where the passes run; without it an event would be recorded on the first GPU."""
        return torch.cuda.current_stream(self._device)

    def take_s(self) -> float:
        """Returns seconds since the last call; waits for the device."""
        if self._events:
            self._events[-1][1].synchronize()
            self._total_s += sum(a.elapsed_time(b) for a, b in self._events) / 1e3
            self._events.clear()
        total = self._total_s
        self._total_s = 0.0
        return total


def wait_for_device(device: torch.device) -> None:
    """Waits until the device has done all its work; before every clock reading."""
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
    """What a pass returns."""

    logits: Tensor  # [R, T', V], T' = T or the last `logits_to_keep`
    # [R, T, D] hidden states, those of several places side by side; None unless asked for
    hidden: Tensor | None


class LanguageModel(Protocol):
    """Anything that can be drafted with or verified against."""

    vocab_size: int  # V, the tokens that exist (padded embedding rows are cut)
    embedded: int  # rows of the embedding, padded ones too
    parameters: int  # exact parameter count, shared tensors once
    max_positions: int | None  # longest sequence, or None if there is no limit
    device: torch.device  # where tokens go in and logits come out
    timer: ForwardTimer  # seconds in forward passes
    bytes_per_slot: int  # bytes that one token's keys and values take
    hidden_size: int  # D, the width of the hidden states
    blocks: int  # L, how many there are between the embedding and the final norm
    dtype: torch.dtype  # of weights and logits
    recorder: Any  # where a GPU's iterations are recorded; None where they are not
    split_from: int | None  # slots from which attention is split, as no graph does; None: never

    def embed(self, tokens: Tensor) -> Tensor:
        """Input embeddings. tokens [...] -> [..., D]."""

    def project(self, hidden: Tensor) -> Tensor:
        """The last layer alone. Hidden states after the final norm [..., D] -> logits [..., V]."""

    def allocate(self, rows: int, slots: int) -> Any:
        """Returns a cache for ``rows`` sequences of up to ``slots`` tokens."""

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
        """Runs T tokens [R, T] in each of R rows of the cache, from ``row`` on, and stores them at
        slots starts[r], starts[r] + 1, ...; ``positions`` are [R, T], and ``visible`` [R, T, S]
        says which slots each token attends to.

        Returns logits, of the last ``logits_to_keep`` (0: all T), and hidden states if asked for. A
        prompt's pass, ``prefill``, is repeated by no other; but for windows every token attends to
        the ``shared`` leading slots.
        """
