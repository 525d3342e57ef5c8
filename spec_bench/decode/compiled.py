"""Compiles a recorded iteration's growth, walk and packing as one function, with Inductor.

Between the models' passes an iteration runs some hundred small operators, each a kernel on a GPU.
In a recording they are a function of buffers and shapes that never change, so make_fx lists them
and Inductor fuses them. A model's pass is one operator of that list, which calls the model as an
eager iteration does. Only passes depend on the rows' lengths, so one function serves all lengths.
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

_PARTS = "tokens", "valid", "parent", "ancestors", "row_depths"  # of a tree, read by passes


class CompiledIteration:
    """A decoder's compiled iterations of R rows. While an iteration is traced, this object replaces
    drafter and scorer: each of their passes becomes the operator ``spec_bench::run_pass``.
    """

    running: ClassVar[Any] = None  # the instance that runs the operator's passes

    def __init__(self, decoder: Decoder, scorer: TreeScorer) -> None:
        self._decoder = decoder
        self._scorer = scorer
        # function and tree of each pass
        self._passes: list[tuple[Callable[[Any], Tensor], Any]] = []
        # for each pass, a function that makes an empty tensor like its logits
        self.make_logits: list[Callable[[], Tensor]] = []
        self._mask_parts: Any = None  # the mask that the passes over one tree share
        self._committed = CommittedTokens([])
        self._result: Any = None  # of the traced iteration, without tensors
        self._function: Any = None

    def iterate(self, committed: CommittedTokens, numbers: Tensor) -> IterationResult:
        """Runs ``Decoder.run_iteration`` with these random numbers, compiled. The first call
        compiles; an iteration of this size must have run before, so that its constants exist.
        """
        self._committed, self._mask_parts = committed, None
        tensors = numbers, committed.roots.get_tensor(numbers.device)
        CompiledIteration.running = self
        try:
            if self._function is None:
                graph = make_fx(lambda *tensors: self._trace(*tensors))(*tensors)
                self._function = torch.compile(
                    graph, fullgraph=True, dynamic=False, options=INDUCTOR_OPTIONS
                )
                self._mask_parts = None
            path, packed_verdicts = self._function(*tensors)
        finally:
            CompiledIteration.running = None
        return self._result._replace(path=path, packed_verdicts=packed_verdicts)

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
        draft_state = self._decoder.draft_state
        root = SimpleNamespace(tokens=committed.roots.get_tensor(self._decoder.target.device))
        return self._trace_pass(lambda _: draft_state.root_logits(self._committed), root)

    def frontier_logits(self, tree: Tree, _: CommittedTokens) -> Tensor:
        """Traces the drafter's pass below a tree's frontier."""
        draft_state = self._decoder.draft_state
        return self._trace_pass(
            lambda tree: draft_state.frontier_logits(tree, self._committed), tree
        )

    def score(self, tree: Tree, _: Sequence[int]) -> ForwardOutput:
        """Traces the target's pass over a tree."""
        score = self._scorer.score
        logits = self._trace_pass(lambda tree: score(tree, self._committed.lengths).logits, tree)
        return ForwardOutput(logits, None)

    def _trace_pass(self, model_pass: Callable[[Any], Tensor], tree: Any) -> Tensor:
        tensors = [part for name in _PARTS if (part := getattr(tree, name, None)) is not None]
        tree = copy(tree)
        tree.q = tree.log_q = []  # large, and no pass reads them
        self._passes.append((model_pass, tree))
        logits = _run_pass(len(self._passes) - 1, tensors)
        self.make_logits.append(
            partial(
                torch.empty_strided,
                logits.shape,
                logits.stride(),
                dtype=logits.dtype,
                device=logits.device,
            )
        )
        return logits

    def run_pass(self, pass_index: int, tensors: Sequence[Tensor]) -> Tensor:
        """Runs pass number ``pass_index`` over a tree with these tensors; returns its logits."""
        model_pass, tree = self._passes[pass_index]
        vars(tree).update(zip(_PARTS, tensors, strict=False), mask_parts=self._mask_parts)
        logits = model_pass(tree)
        self._mask_parts = tree.mask_parts
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
