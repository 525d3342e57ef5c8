"""Whether a model can be decoded here: its passes over cache, tree and commit against a plain one.

A model that keeps a state, looks ahead, or masks by a rule of its own runs through the same calls
and answers wrongly. So every loaded model is tried once, off the clock: two rows of unequal length
take a prompt, some pending tokens, a tree, an accepted path and a second tree, and the logits at
every node are compared with those of one pass of the module over the node's path. Windows and
chunks are shortened meanwhile to a few tokens, so that the paths reach beyond them; where a module
fixes its window at construction, the paths are as long as that takes.
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
LONGEST = 4096  # no window longer than this is tried at its own length
_SHAPE = TreeShape(levels=(2, 2), children=(2, 1))
_PATHS = ((0, 1, 4), (0, 2, 3))  # nodes, from the root to each leaf
_DEPTH = 2
_PENDING = 2

# How far apart logits may be: |difference| over |deviation from their mean|, over the vocabulary.
# A wrong mask moves those of single nodes by a tenth, and some node's beyond `CLEARLY`.
CLEARLY = 0.35
TOLERANCE = {
    torch.float64: 1e-5,  # some modules compute attention or norms in float32 whatever the dtype
    torch.float32: 1e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 5e-2,
}


def compute_relative_difference(logits: Tensor, reference: Tensor) -> Tensor:
    """Computes the distance [...] of rows of logits [..., V] over the reference's spread."""
    lowest = torch.finfo(logits.dtype).min
    logits, reference = (rows.nan_to_num(neginf=lowest).double() for rows in (logits, reference))
    spread = (reference - reference.mean(dim=-1, keepdim=True)).norm(dim=-1)
    return (logits - reference).norm(dim=-1) / spread.clamp(min=1e-30)


@dataclass(frozen=True)
class ProbedNode:
    """Logits after one token, and the stage of the probe."""

    where: str  # at which stage
    path: tuple[int, ...]  # all tokens up to it
    logits: Tensor  # [V] after it


def check_cached_answers(model: HuggingFaceModel) -> None:
    """Tries a model; a ValueError says what differs, or which logits are not numbers, without the
    model's name.
    """
    config = model.module.config.get_text_config()
    with (
        torch.inference_mode(),
        model.uncompiled_and_untimed(),
        temporarily_shorten_windows(config, SHORT),
    ):
        worst = _find_worst_node(model, SHORT)
    longest = model.masks.longest_window
    if worst and longest and SHORT < longest <= LONGEST:
        # Perhaps this module does not read its window at every pass.
        with torch.inference_mode(), model.uncompiled_and_untimed():
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
    """Returns where logits differ most after prompts longer than ``reach``, by how much and how
    much is allowed; None if all are equal enough. A ValueError for logits that are no numbers.
    """
    limit = model.max_positions or reach + 32
    longest = min(reach + 7, limit - 2 * (_DEPTH + 1))
    if longest <= _PENDING + 4:
        return None  # nothing of use fits into so short a context
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
    """Runs one row per length as decoding does; returns every node with its logits."""
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
    """Returns a tree of two crossing branches behind each row's last token."""
    tree = Tree(_SHAPE, torch.tensor([tokens[-1] for tokens in rows], device=model.device))
    for parents in ([0, 0], [1, 0]):
        tokens = torch.tensor([draw(len(parents)) for _ in rows], device=model.device)
        valid = torch.ones_like(tokens, dtype=torch.bool)
        tree.add_level(tokens, torch.tensor(parents, device=model.device), valid, None)
    return tree


def _compute_plain_logits(
    model: HuggingFaceModel, paths: Sequence[tuple[int, ...]]
) -> list[Tensor]:
    """Returns logits after each path, of one pass of the module without cache, mask or positions.

    Paths that begin alike share a row; shorter ones are filled up behind, which a model that does
    not look ahead cannot notice.
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
    """Raises a ValueError where logits depend on a token that comes later."""
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
    """Returns how far the module's plain logits move if its embeddings are rounded otherwise, on
    any device and whatever its masks, as another kernel's rounding moves them.
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
    """Raises a ValueError where a plain pass gives no numbers, naming the tensor to blame."""
    if bool(torch.stack([row.amax() for row in logits]).isfinite().all()):
        return
    for name, parameter in model.module.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise UsageError(f"its tensor {name!r} holds values that are not finite (NaN or inf)")
    raise UsageError("its logits are not finite (NaN or inf), though its weights are")
