"""The target's hidden states where heads learn, computed in every step.

By default its last ones at the positions that are learned; heads that learn from whole sequences
ask for those of every token, and of several places. Knows nothing about heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.model import LAST, Layers
from spec_bench.train.dialogues import Dialogue, positions

Picked = Callable[[Dialogue], Sequence[int]]


def everywhere(dialogue: Dialogue) -> Sequence[int]:
    """All positions of a dialogue."""
    return range(len(dialogue.ids))


@torch.no_grad()
def hidden_states(
    model: HuggingFaceModel,
    dialogues: Sequence[Dialogue],
    layers: Layers = LAST,
    picked: Picked = positions,
) -> Tensor:
    """One pass of the target.

    Args:
        model: the target.
        dialogues: padded on the right to the longest of them.
        layers: which hidden states, side by side; by default those after the final norm.
        picked: at which positions of a dialogue.

    Returns:
        [N, D] in the target's dtype: what the engine calls ``hidden``.
    """
    longest = max(len(dialogue.ids) for dialogue in dialogues)
    rows = [[*dialogue.ids, *[0] * (longest - len(dialogue.ids))] for dialogue in dialogues]
    real = torch.arange(longest)[None] < torch.tensor([[len(d.ids)] for d in dialogues])
    output = model.module(
        input_ids=torch.tensor(rows, device=model.device),
        attention_mask=real.long().to(model.device),
        use_cache=False,
        logits_to_keep=1,
        output_hidden_states=True,
    )
    hidden = torch.cat([output.hidden_states[i].to(model.device) for i in layers], dim=-1)
    at = [torch.tensor(picked(d), dtype=torch.long, device=model.device) for d in dialogues]
    return torch.cat([hidden[row, where] for row, where in enumerate(at)])


class HiddenStates:
    """The hidden states of some dialogues."""

    def __init__(
        self,
        model: HuggingFaceModel,
        dialogues: Sequence[Dialogue],
        batch: int = 16,
        layers: Layers = LAST,
        picked: Picked = positions,
    ) -> None:
        self.model, self.dialogues, self.batch = model, dialogues, batch
        self.layers, self.picked = layers, picked

    def of(self, indices: Sequence[int]) -> Tensor:
        """[N, D] float32: those of these dialogues' positions, one dialogue after the other."""
        # Dialogues of similar length share a pass, so that little is padded.
        order = sorted(range(len(indices)), key=lambda i: len(self.dialogues[indices[i]].ids))
        parts: list[Tensor] = [torch.empty(0)] * len(indices)
        for start in range(0, len(order), self.batch):
            group = order[start : start + self.batch]
            chosen = [self.dialogues[indices[i]] for i in group]
            sizes = [len(self.picked(dialogue)) for dialogue in chosen]
            hidden = hidden_states(self.model, chosen, self.layers, self.picked).float()
            for place, part in zip(group, hidden.split(sizes), strict=True):
                parts[place] = part
        return torch.cat(parts)
