"""Products of a model's matrices, faster: packed or laid out for a CPU, joined where they share an
input, and modules called without the checks that ``torch.nn.Module`` makes at each call.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

LEAST_BYTES = 1 << 26  # of all matrices together; fewer stay in a cache
_LEAST_ROWS = 4  # one to three are slower than four
_LAYOUT = 8  # rows that a matrix is packed for; it hardly matters
SMALLEST = 2**19  # 2 MiB of float32, more than a core's cache; laid by columns less gains nothing


class _Packed(nn.Linear):
    """A linear layer over a packed copy; ``weight`` keeps its shape and no values of its own."""

    packed: Tensor

    def forward(self, input: Tensor) -> Tensor:
        if torch.is_grad_enabled() and input.requires_grad:  # as a head that is trained needs it
            return linear(input, self.packed.to_dense(), self.bias)
        rows = input.reshape(-1, self.in_features)
        count = len(rows)
        if count < _LEAST_ROWS:
            rows = pad(rows, (0, 0, 0, _LEAST_ROWS - count))
        output = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
        return output[:count].view(*input.shape[:-1], self.out_features)


def pack_products(module: nn.Module) -> int:
    """Packs the matrices of a large float32 model on a CPU, in place, those of a group as one;
    returns how many it packed.

    A matrix that another part of the model reads, as the embedding does, keeps its own values too.
    """
    if not torch.backends.mkldnn.is_available():
        return 0
    layers: list[Any] = [p for p in module.modules() if type(p) is nn.Linear and _suits(p)]
    if sum(layer.weight.nbytes for layer in layers) < LEAST_BYTES:
        return 0
    users = Counter(id(w) for part in module.modules() for w in part._parameters.values())
    alone = [users[id(layer.weight)] == 1 for layer in layers]
    fuse_products(module)
    for layer, emptied in zip(layers, alone, strict=True):
        whole = layer.together.whole if isinstance(layer, _Part) else layer
        if not isinstance(whole, _Packed):
            whole.packed = torch.ops.mkldnn._reorder_linear_weight(whole.weight.detach(), _LAYOUT)
            whole.__class__ = _Packed
        for each in {layer, whole} if emptied else ():
            nothing = torch.full((), torch.nan).expand(each.weight.shape)
            each.weight = nn.Parameter(nothing, requires_grad=False)
    return len(layers)


def dense_weight(layer: Any) -> Tensor:
    """Returns the matrix [out, in] of a linear layer, packed or not."""
    return layer.packed.to_dense() if isinstance(layer, _Packed) else layer.weight


def _suits(layer: nn.Linear) -> bool:
    """Returns whether this is a plain float32 matrix on the CPU that nobody watches."""
    return _plain_on_cpu(layer.weight) and "forward" not in vars(layer) and not layer._forward_hooks


def _plain_on_cpu(weight: Tensor) -> bool:
    return type(weight.data) is Tensor and weight.is_cpu and weight.dtype == torch.float32


def lay_by_columns(module: nn.Module) -> int:
    """Lays out the large float32 matrices of a model's linear layers by columns, in place; how many
    changed.

    At the 4 to 15 tokens of a tree MKL multiplies by a matrix stored row by row up to two times
    slower than by one stored column by column. A single token and a prompt take the same time
    either way, and 2 or 3 tokens a quarter more by columns. Values stay as they are; only the
    rounding of products changes. A matrix shared with the embedding stays shared. Nothing is done
    off the CPU, without MKL, or to a split model.
    """
    if not torch.backends.mkl.is_available():
        return 0
    weights = [part.weight for part in module.modules() if isinstance(part, nn.Linear)]
    large = {
        id(weight): weight
        for weight in weights
        if _plain_on_cpu(weight) and weight.is_contiguous() and weight.numel() >= SMALLEST
    }
    for weight in large.values():
        weight.data = weight.data.t().contiguous().t()
    return len(large)


# Products of one input with several matrices as one product with all of them.
#
# Query, key and value multiply one input, and so do gate and up. Small matrices reach 60 to 75% of
# a GPU's bandwidth; one product over all reads as much in fewer, larger pieces. The modules stay
# where they are and keep their weights, as parts of the one matrix: the first that is called
# multiplies for all of them.


GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class _Together:
    """The layer of a whole group, and what its product with the last input left for the others."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self.sizes = [layer.out_features for layer in layers]
        biased = layers[0].bias is not None
        self.whole = nn.Linear(layers[0].in_features, sum(self.sizes), biased, device="meta")
        for name in ("weight", "bias")[: 1 + biased]:
            joined = torch.cat([getattr(layer, name).data for layer in layers])
            setattr(self.whole, name, nn.Parameter(joined, requires_grad=False))
        self.input: Tensor | None = None
        self.left: tuple[Tensor, ...] = ()

    def products(self, input: Tensor) -> tuple[Tensor, ...]:
        """Multiplies for every layer."""
        return self.whole.forward(input).split(self.sizes, dim=-1)


class _Part(nn.Linear):
    """One layer of a group; the group's layers are called in turn with the same tensor."""

    together: _Together
    place: int

    def forward(self, input: Tensor) -> Tensor:
        group = self.together
        if self.place == 0:
            group.input, group.left = input, group.products(input)
            return group.left[0]
        if group.input is not input:
            return group.products(input)[self.place]
        output = group.left[self.place]
        if self.place == len(group.sizes) - 1:
            group.input = None
            group.left = ()
        return output


def fuse_products(module: nn.Module) -> int:
    """Joins the groups of a model's plain linear layers, in place, which gives up their own memory;
    returns how many there are.
    """
    joined = 0
    for block in module.modules():
        for names in GROUPS:
            layers: list[Any] = [getattr(block, name, None) for name in names]
            if not _alike(layers):
                continue
            joined += 1
            together = _Together(layers)
            for name, whole in together.whole.named_parameters():
                for layer, part in zip(layers, whole.split(together.sizes), strict=True):
                    setattr(layer, name, nn.Parameter(part, requires_grad=False))
            for place, layer in enumerate(layers):
                layer.__class__ = _Part
                layer.together = together
                layer.place = place
    if joined:
        torch.cuda.empty_cache()  # what the parts held is free to all; on a CPU nothing happens
    return joined


def _alike(layers: Sequence[Any]) -> bool:
    """Returns whether they are plain layers of one input, all with a bias or none."""
    if any(type(layer) is not nn.Linear or layer._forward_hooks for layer in layers):
        return False
    kinds = {
        (layer.in_features, layer.weight.dtype, layer.weight.device, layer.bias is None)
        for layer in layers
    }
    plain = all(is_plain(layer.weight) and "forward" not in vars(layer) for layer in layers)
    return plain and len(kinds) == 1


def is_plain(weight: Tensor) -> bool:
    """Returns whether a weight is not quantised, split over processes or still to be loaded."""
    return type(weight.data) is Tensor and not weight.is_meta


# Calls of a model's modules without the checks that `torch.nn.Module` makes at each of them.
#
# A forward pass of a small model calls hundreds of modules. Each call looks for seven kinds of hook
# and for a tracer before it reaches the module's own code; each part or weight is looked up in
# three tables after Python has not found its name. On a CPU that is some 8% of a pass. Here only a
# module's own hooks are looked for, and its parts and weights are where Python looks first.
# Numbers, parameters and names stay as they are.


def call_directly(model: nn.Module) -> None:
    """Makes every module of a model be called directly, if its class adds nothing to a call.

    Not for a model that is traced, trained, pickled or moved: backward hooks and process-wide hooks
    are not looked for. Buffers stay where they are, since rotary embeddings make theirs anew; so do
    all weights if a module has been given a ``forward`` of its own: accelerate and tensor
    parallelism exchange weights around it.
    """
    moved = any("forward" in vars(module) for module in model.modules())
    for module in model.modules():
        vars(module).update(module._modules)
        if not moved:
            vars(module).update(module._parameters)
        kind: Any = type(module)
        if kind.__call__ is nn.Module.__call__ and not isinstance(module, nn.ModuleList):
            module.__class__ = _direct(kind)


@cache
def _direct(kind: Any) -> Any:
    """Returns the same class with a shorter way to ``forward``."""

    def call(self: Any, *args: Any, **given: Any) -> Any:
        if self._forward_hooks or self._forward_pre_hooks:
            return kind.__call__(self, *args, **given)
        return self.forward(*args, **given)

    same = {"__call__": call, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), {**same, "__doc__": kind.__doc__})
