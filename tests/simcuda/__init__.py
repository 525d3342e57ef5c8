"""A simulated CUDA device: finds device mixing, counts copies and waits, replays graphs.

Tensors hold their values in CPU memory but report ``cuda:0``. A dispatch mode makes factories with
``device="cuda"`` and copies to the device return such tensors, refuses what CUDA refuses (operands
on two devices, but for 0-dim CPU operands of pointwise ops and CPU indices), and counts operations,
copies between host and device, and what makes the host wait, the latter two with the first source
line of a watched package. ``torch.cuda.CUDAGraph`` records what is dispatched and plays it again on
the memory that it was recorded on. It says nothing about time or rounding, and has no backward pass
(the autograd engine asks a driver), no second device and no torch.compile.

    with SimCuda(watch="my_package") as sim:
        model.to("cuda"); ...
        sim.reset(); step(); print(sim.waits, sim.h2d)
"""

from tests.simcuda.mode import SimCuda
from tests.simcuda.tensors import DEVICE, SimTensor

__all__ = ["DEVICE", "SimCuda", "SimTensor"]
