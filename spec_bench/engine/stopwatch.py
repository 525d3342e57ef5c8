"""Seconds spent in forward passes, without stopping the device to ask."""

from __future__ import annotations

import time

import torch


class ForwardTimer:
    """Adds up the seconds between ``start`` and ``stop``.

    On CUDA it records events and reads them when asked for the total, so timing adds no
    synchronisation inside the decoding loop; elsewhere it reads the clock.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda, self._device = device.type == "cuda", device
        self._total_s = 0.0
        self._started_s = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def start(self) -> None:
        """Begins an interval."""
        if self._cuda:
            pair = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            pair[0].record(self._stream())
            self._events.append(pair)
        else:
            self._started_s = time.perf_counter()

    def stop(self) -> None:
        """Ends the interval."""
        if self._cuda:
            self._events[-1][1].record(self._stream())
        else:
            self._total_s += time.perf_counter() - self._started_s

    def _stream(self) -> torch.cuda.Stream:
        """Where the passes run; without it an event would be recorded on the first GPU."""
        return torch.cuda.current_stream(self._device)

    def take_s(self) -> float:
        """Seconds since the last call; waits for the device."""
        if self._events:
            self._events[-1][1].synchronize()
            self._total_s += sum(a.elapsed_time(b) for a, b in self._events) / 1e3
            self._events.clear()
        total, self._total_s = self._total_s, 0.0
        return total


def synchronise(device: torch.device) -> None:
    """Waits until the device has done all its work; before every clock reading."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# torch's process-wide switches that move a number or a time of a pass on a GPU, set in one place.
#
# cuDNN's attention builds a plan for every pair of lengths, tens of milliseconds each, and decoding
# meets new lengths in nearly every pass. TF32 and sums in half precision make a token's logits
# depend on how many tokens a pass holds by more than the weights' own rounding does.


def set_switches() -> None:
    """Sets them; a CPU's passes do not change."""
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
