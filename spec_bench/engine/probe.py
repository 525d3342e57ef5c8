"""Checks that a model decodes correctly with cache, tree and commit, against plain passes.

A model that keeps other state, looks ahead, or masks by its own rule accepts the same calls and
gives wrong logits. So every loaded model is probed once, outside of measured time. Two rows of
unequal length run a prompt, some pending tokens, a tree, an accepted path and a second tree, and
the logits at every node are compared with those of one plain pass of the module over the node's
path. Windows and chunks are shortened to a few tokens meanwhile, so that the paths are longer; if a
module fixes its window at construction, the paths are as long as that takes.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spec_bench.core.tree import Tree, TreeShape
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.layer_masks import temporarily_shorten_windows
from spec_bench.engine.tree_pass import prefill, run_causal_tokens, run_nodes
from spec_bench.system.errors import UsageError

log = logging.getLogger(__name__)
SHORT = 4  # tokens of a shortened window
LONGEST = 4096  # longest window that is tried at its own length
_SHAPE = TreeShape(levels=(2, 2), children=(2, 1))
_PATHS = ((0, 1, 4), (0, 2, 3))  # nodes, from the root to each leaf
_DEPTH = 2
_PENDING = 2

# Largest |difference| of logits relative to their |deviation from the mean|, as norms over the
# vocabulary. A wrong mask moves some nodes' logits by a tenth, and at least one's by `CLEARLY`.
CLEARLY = 0.35
TOLERANCE = {
    torch.float64: 1e-5,  # some modules compute attention or norms in float32 whatever the dtype
    torch.float32: 1e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 5e-2,
}


def compute_relative_difference(logits: Tensor, reference: Tensor) -> Tensor:
    """Computes the distance [...] of logits [..., V] from a reference, relative to the reference's
    spread.
    """
    lowest = torch.finfo(logits.dtype).min
    logits, reference = (rows.nan_to_num(neginf=lowest).double() for rows in (logits, reference))
    spread = (reference - reference.mean(dim=-1, keepdim=True)).norm(dim=-1)
    return (logits - reference).norm(dim=-1) / spread.clamp(min=1e-30)


@dataclass(frozen=True)
class ProbedNode:
    """Logits after one token, and the stage of the probe."""

    where: str  # stage of the probe
    path: tuple[int, ...]  # all tokens up to and including this one
    logits: Tensor  # [V] after this token


def check_cached_answers(model: HuggingFaceModel) -> None:
    """Probes a model. Raises UsageError, without the model's name, if its logits differ from plain
    ones or are not finite.
    """
    config = model.module.config.get_text_config()
    with torch.inference_mode(), model.uncompiled_and_untimed():
        with temporarily_shorten_windows(config, SHORT):
            worst = _find_worst_node(model, SHORT)
        longest = model.mask_maker.longest_window
        if worst and longest and SHORT < longest <= LONGEST:
            # The module may not read its window at every pass, so its own length is tried.
            worst = _find_worst_node(model, longest)
    if worst and model.plain is not None:
        log.warning("its modules are called: %s plain blocks differ by %.2g", *worst[:2])
        model.plain = None
        return check_cached_answers(model)
    if worst:
        stage, error, tolerance = worst
        raise UsageError(
            f"{stage} its logits differ from those of one plain pass of the module by {error:.2g} "
            f"of their spread (allowed: {tolerance:.2g}), so its attention or its cache works "
            "otherwise than decoding with trees needs"
        )


def _find_worst_node(model: HuggingFaceModel, reach: int) -> tuple[str, float, float] | None:
    """Returns the stage where logits differ most after prompts longer than ``reach``, the
    difference, and the tolerance; None if all are within it. Raises UsageError if logits are not
    finite.
    """
    limit = model.max_positions or reach + 32
    longest = min(reach + 7, limit - 2 * (_DEPTH + 1))
    if longest <= _PENDING + 4:
        return None  # the context is too short for a probe
    nodes = _decode_probe_trees(model, (longest, longest - 3))
    plain = _compute_plain_logits(model, [node.path for node in nodes])
    _check_finite_logits(model, plain)
    errors = [
        float(compute_relative_difference(node.logits, logits))
        for node, logits in zip(nodes, plain, strict=True)
    ]
    error = max(errors)
    stage = nodes[errors.index(error)].where
    tolerance = TOLERANCE[model.dtype]
    if error <= tolerance:
        return None
    _check_causal(model, nodes[-1].path)
    # Low precision and a choice of experts can move a module's own logits further than that.
    rounding = _estimate_rounding_error(model, nodes, plain)
    tolerance = max(tolerance, min(2 * rounding, CLEARLY))
    return None if error <= tolerance else (stage, error, tolerance)


def _decode_probe_trees(model: HuggingFaceModel, lengths: Sequence[int]) -> list[ProbedNode]:
    """Runs a row per length as decoding does; returns every node with its logits."""
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> list[int]:
        return torch.randint(0, model.vocab_size, (count,), generator=generator).tolist()

    rows = [draw(length) for length in lengths]
    cache = model.allocate(len(rows), max(lengths) + _DEPTH + 1 + _SHAPE.size)
    for row, tokens in enumerate(rows):
        prefill(model, cache, row, tokens[: -_PENDING - 1])
    starts = [len(tokens) - _PENDING - 1 for tokens in rows]
    pending = torch.tensor([tokens[-_PENDING - 1 : -1] for tokens in rows], device=model.device)
    logits = run_causal_tokens(model, cache, starts, pending, logits_to_keep=0).logits
    nodes = [
        ProbedNode("behind a prompt", tuple(tokens[: start + 1 + step]), logits[row, step])
        for row, (tokens, start) in enumerate(zip(rows, starts, strict=True))
        for step in range(_PENDING)
    ]
    for stage in ("at the nodes of a tree", "behind an accepted path"):
        tree = _build_probe_tree(model, rows, draw)
        lengths_before = [len(tokens) - 1 for tokens in rows]
        logits = run_nodes(model, cache, tree, lengths_before, slice(0, _SHAPE.size)).logits
        for row, tokens in enumerate(rows):
            node_tokens = tree.tokens[row].tolist()
            for path in _PATHS:
                for end in range(1, len(path) + 1):
                    path_tokens = (*tokens, *(node_tokens[node] for node in path[1:end]))
                    nodes.append(ProbedNode(stage, path_tokens, logits[row, path[end - 1]]))
            accepted_path = _PATHS[1 - row % 2]
            cache.commit(row, lengths_before[row], accepted_path)
            tokens += [*(node_tokens[node] for node in accepted_path[1:]), *draw(1)]
    return nodes


def _build_probe_tree(model: HuggingFaceModel, rows: Sequence[Sequence[int]], draw: Any) -> Tree:
    """Builds a tree of two crossing branches after each row's last token."""
    tree = Tree(_SHAPE, torch.tensor([tokens[-1] for tokens in rows], device=model.device))
    for parents in ([0, 0], [1, 0]):
        tokens = torch.tensor([draw(len(parents)) for _ in rows], device=model.device)
        valid = torch.ones_like(tokens, dtype=torch.bool)
        tree.add_level(tokens, torch.tensor(parents, device=model.device), valid, None)
    return tree


def _compute_plain_logits(
    model: HuggingFaceModel, paths: Sequence[tuple[int, ...]]
) -> list[Tensor]:
    """Computes logits after each path in one pass of the module, without cache, mask or positions.

    A path that begins a longer one shares its row. Rows are padded at the end, which does not
    affect a model that does not look ahead.
    """
    inner = {path[:end] for path in paths for end in range(1, len(path))}
    full_paths = [path for path in dict.fromkeys(paths) if path not in inner]
    length = max(map(len, full_paths))
    shortest = min(map(len, paths))
    padded = [[*path, *[0] * (length - len(path))] for path in full_paths]
    ids = torch.tensor(padded, device=model.device)
    keep = length - shortest + 1
    logits = model.module(input_ids=ids, use_cache=False, logits_to_keep=keep).logits
    at_ends = []
    for path in paths:
        row = next(i for i, candidate in enumerate(full_paths) if candidate[: len(path)] == path)
        at_ends.append(logits[row, len(path) - shortest, : model.vocab_size].to(model.device))
    return at_ends


def _check_causal(model: HuggingFaceModel, path: tuple[int, ...]) -> None:
    """Raises UsageError if logits depend on later tokens."""
    changed = (*path[:-1], (path[-1] + 1) % model.vocab_size)
    ids = torch.tensor([path, changed], device=model.device)
    original, altered = model.module(input_ids=ids, use_cache=False).logits[
        :, -2, : model.vocab_size
    ]
    if float(compute_relative_difference(original, altered)) > TOLERANCE[model.dtype]:
        raise UsageError(
            "its logits depend on tokens that come later, so it cannot draft or decode"
        )


def _estimate_rounding_error(
    model: HuggingFaceModel,
    nodes: Sequence[ProbedNode],
    plain: Sequence[Tensor],
) -> float:
    """Estimates how far rounding moves the module's plain logits, by perturbing its embeddings with
    noise of half a rounding unit.
    """
    generator = torch.Generator().manual_seed(0)
    eps = torch.finfo(model.dtype).eps

    def add_rounding(_: Any, __: Any, embedded: Tensor) -> Tensor:
        noise = torch.randn(embedded.shape, generator=generator).to(embedded)
        return embedded + embedded * noise * eps / 2

    hook = model.module.get_input_embeddings().register_forward_hook(add_rounding)
    noisy = _compute_plain_logits(model, [node.path for node in nodes])
    hook.remove()
    return max(
        float(compute_relative_difference(noisy_logits, plain_logits))
        for noisy_logits, plain_logits in zip(noisy, plain, strict=True)
    )


def _check_finite_logits(model: HuggingFaceModel, logits: Sequence[Tensor]) -> None:
    """Raises UsageError if plain logits are not finite, with the name of a tensor that is not
    finite.
    """
    if bool(torch.stack([row.amax() for row in logits]).isfinite().all()):
        return
    for name, parameter in model.module.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise UsageError(f"its tensor {name!r} holds values that are not finite (NaN or inf)")
    raise UsageError("its logits are not finite (NaN or inf), though its weights are")
