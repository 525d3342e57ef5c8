"""The target's hidden states where heads learn: computed, or cached on disk.

By default its last ones at the positions that are learned; heads that learn from whole sequences
ask for those of every token, and of several places.

A cache is one file of numbers, [N, D] over all dialogues in order, mapped into memory; its folder
bears the hash of the target and of the dialogues. Knows nothing about heads.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from tqdm import tqdm

from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.model import LAST, Layers
from spec_bench.system.disk import naming
from spec_bench.system.files import write_json
from spec_bench.train.dialogues import Dialogue, positions

log = logging.getLogger(__name__)
CACHE_DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}


class HiddenStates(Protocol):
    """Where the hidden states of dialogues come from."""

    def of(self, indices: Sequence[int]) -> Tensor:
        """[N, D] float32: those of these dialogues' positions, one dialogue after the other."""
        ...


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


class Computed:
    """Hidden states from the target, every time."""

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


class Cached:
    """Hidden states from a file, which is written first if it is not there."""

    def __init__(
        self,
        model: HuggingFaceModel,
        dialogues: Sequence[Dialogue],
        folder: Path,
        dtype: str = "float16",
        batch: int = 16,
        progress: bool = False,
        layers: Layers = LAST,
        picked: Picked = positions,
    ) -> None:
        sizes = torch.tensor([len(picked(dialogue)) for dialogue in dialogues])
        ends = sizes.cumsum(0).tolist()
        self.ranges = list(zip([0, *ends], ends, strict=False))
        self.device, rows = model.device, ends[-1]
        width = model.hidden_size * len(layers)
        file = folder / "hidden.bin"
        if not (folder / "hidden.json").is_file():
            folder.mkdir(parents=True, exist_ok=True)
            needed = rows * width * CACHE_DTYPES[dtype].itemsize
            if needed > (free := shutil.disk_usage(folder).free):
                raise ValueError(
                    f"data.hidden=cached needs {needed / 1e9:.1f} GB below {folder}, "
                    f"{free / 1e9:.1f} GB are free; use data.hidden=computed"
                )
            with naming(file), file.open("wb") as stream:
                # Not a file with holes: where another process takes the room, a write to memory
                # that has none behind it ends this process by a signal.
                os.posix_fallocate(stream.fileno(), 0, needed)
            states = self._mapped(file, rows, width, dtype, True)
            source = Computed(model, dialogues, batch, layers, picked)
            self._fill(states, source, batch, progress)
            facts = {"rows": rows, "width": width, "dtype": dtype}
            write_json(folder / "hidden.json", facts)
        self.states = self._mapped(file, rows, width, dtype, False)

    @staticmethod
    def _mapped(file: Path, rows: int, width: int, dtype: str, writes: bool) -> Tensor:
        numbers = torch.from_file(
            str(file), shared=writes, size=rows * width, dtype=CACHE_DTYPES[dtype]
        )
        return numbers.view(rows, width)

    def _fill(self, states: Tensor, source: Computed, batch: int, progress: bool) -> None:
        """Goes through the dialogues by length, some passes at a time."""
        lengths = [len(dialogue.ids) for dialogue in source.dialogues]
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        starts = tqdm(
            range(0, len(order), batch), desc="hidden states", unit="batch", disable=not progress
        )
        for start in starts:
            chosen = order[start : start + batch]
            sizes = [self.ranges[index][1] - self.ranges[index][0] for index in chosen]
            for index, part in zip(chosen, source.of(chosen).split(sizes), strict=True):
                states[slice(*self.ranges[index])] = part.to(states.dtype).cpu()

    def of(self, indices: Sequence[int]) -> Tensor:
        parts = [self.states[slice(*self.ranges[index])] for index in indices]
        return torch.cat(parts).to(self.device).float()
