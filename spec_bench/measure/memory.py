"""Peak memory of the accelerator."""

from __future__ import annotations


class PeakMemory:
    """The most memory that one cell's tensors took on CUDA, over all windows it was given.

    On a CPU the allocator keeps no peak and the process is shared by all cells: the value stays
    None rather than being some other cell's.
    """

    def __init__(self, device: str) -> None:
        self._cuda = device.startswith("cuda")
        self.peak_bytes: int | None = None

    def begin(self) -> None:
        """Opens a window: forgets peaks of other cells."""
        if self._cuda:
            import torch

            for index in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(index)

    def end(self) -> None:
        """Closes the window and keeps its peak, summed over devices, if it is the largest."""
        if self._cuda:
            import torch

            devices = range(torch.cuda.device_count())
            peak_bytes = sum(torch.cuda.max_memory_allocated(index) for index in devices)
            self.peak_bytes = max(self.peak_bytes or 0, peak_bytes)
