"""Growth, walk and message of a recorded iteration as one function, which Inductor compiles.

Between the models' passes an iteration is some hundred small operators, and on a GPU each of them
is a kernel. In a recording they are a function of buffers and shapes that never change, so make_fx
lists them and Inductor fuses them. A pass is one operator of that list, which calls the model as
every iteration does. The lengths of rows matter to passes alone, so one function serves all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from spec_bench.core.host_device import CommittedTokens, HostDeviceInts
from spec_bench.core.tree import Tree
from spec_bench.engine.model import ForwardOutput
from spec_bench.engine.plain import INDUCTOR_OPTIONS

if TYPE_CHECKING:
    from spec_bench.decode.decoder import Decoder, IterationResult
    from spec_bench.engine.tree_pass import TreeScorer

_PARTS = "tokens", "valid", "parent", "ancestors", "row_depths"  # what a pass reads of a tree


class CompiledIteration:
    """A decoder's iterations of R rows. While one is traced, this takes the place of drafter and
    scorer: each pass that they would run becomes the operator ``spec_bench::run_pass``.
    """

    running: ClassVar[Any] = None  # whose passes the operator runs

    def __init__(self, decoder: Decoder, scorer: TreeScorer) -> None:
        self._decoder = decoder
        self._scorer = scorer
        # what runs each pass, and the tree that it runs over
        self._passes: list[tuple[Callable[[Any], Tensor], Any]] = []
        # for each pass: makes a tensor like its logits
        self.make_logits: list[Callable[[], Tensor]] = []
        self._mask: Any = None  # what the passes over one tree share
        self._committed = CommittedTokens([])
        self._result: Any = None  # of the iteration that was traced
        self._function: Any = None

    def iterate(self, committed: CommittedTokens, numbers: Tensor) -> IterationResult:
        """Runs ``Decoder.run_iteration`` with these random numbers, compiled. The first call
        compiles; an iteration of this size must have run before, so that its constants exist.
        """
        self._committed, self._mask = committed, None
        tensors = numbers, committed.roots.get_tensor(numbers.device)
        CompiledIteration.running = self
        try:
            if self._function is None:
                graph = make_fx(lambda *tensors: self._trace(*tensors))(*tensors)
                options = INDUCTOR_OPTIONS
                self._function = torch.compile(
                    graph, fullgraph=True, dynamic=False, options=options
                )
                self._mask = None
            path, message = self._function(*tensors)
        finally:
            CompiledIteration.running = None
        result: IterationResult = self._result._replace(path=path, packed_verdicts=message)
        return result

    def _trace(self, numbers: Tensor, roots: Tensor) -> tuple[Tensor, Tensor]:
        committed = copy(self._committed)
        committed.roots = HostDeviceInts(committed.roots)
        committed.roots.read_from_buffer(roots, 0)
        result: Any = self._decoder.run_iteration(
            committed, self._decoder.make_predrawn_source(numbers), self
        )
        self._result = result._replace(path=None, packed_verdicts=None)
        return result.path, result.packed_verdicts

    def root_logits(self, committed: CommittedTokens) -> Tensor:
        """Traces the drafter's pass below the root."""
        drafting = self._decoder.drafting
        root = SimpleNamespace(tokens=committed.roots.get_tensor(self._decoder.target.device))
        return self._trace_pass(lambda _: drafting.root_logits(self._committed), root)

    def frontier_logits(self, tree: Tree, _: CommittedTokens) -> Tensor:
        """Traces the drafter's pass below a tree's frontier."""
        drafting = self._decoder.drafting
        return self._trace_pass(lambda tree: drafting.frontier_logits(tree, self._committed), tree)

    def score(self, tree: Tree, _: Sequence[int]) -> ForwardOutput:
        """Traces the target's pass over a tree."""
        score = self._scorer.score
        logits = self._trace_pass(lambda tree: score(tree, self._committed.lengths).logits, tree)
        return ForwardOutput(logits, None)

    def _trace_pass(self, model_pass: Callable[[Any], Tensor], tree: Any) -> Tensor:
        tensors = [part for name in _PARTS if (part := getattr(tree, name, None)) is not None]
        tree = copy(tree)
        tree.q = tree.log_q = []  # which are large
        self._passes.append((model_pass, tree))
        logits: Tensor = _run_pass(len(self._passes) - 1, tensors)
        layout = logits.shape, logits.stride()
        make = partial(torch.empty_strided, dtype=logits.dtype, device=logits.device)
        self.make_logits.append(partial(make, *layout))
        return logits

    def run_pass(self, pass_index: int, tensors: Sequence[Tensor]) -> Tensor:
        """Runs a pass over the tensors of a tree."""
        model_pass, tree = self._passes[pass_index]
        vars(tree).update(zip(_PARTS, tensors, strict=False), mask=self._mask)
        logits = model_pass(tree)
        self._mask = tree.mask
        return logits


@torch.library.custom_op(
    "spec_bench::run_pass",
    mutates_args=(),
    schema="(int pass_index, Tensor[] tensors) -> Tensor",
)
def _run_pass(pass_index: int, tensors: Sequence[Tensor]) -> Tensor:
    return CompiledIteration.running.run_pass(pass_index, tensors)


@_run_pass.register_fake
def _make_empty_logits(pass_index: int, tensors: Sequence[Tensor]) -> Tensor:
    return CompiledIteration.running.make_logits[pass_index]()
