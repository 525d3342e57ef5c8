"""ReDrafter as a drafter: beam search with the recurrent head (arXiv 2403.09919, section 2).

Letters: R rows, W beams, L tokens a beam, V vocabulary, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from spec_bench.draft.heads.recurrent import RecurrentHead
from spec_bench.draft.hidden import HiddenStates
from spec_bench.engine.stopwatch import ForwardTimer


class RecurrentDrafter:
    """Beams of equal length from one recurrent head.

    Args:
        head: the head, on the target's device.
        embed: the target's input embeddings, tokens [...] -> [..., D].
        rows: rows of the caches.
        vocab_size: tokens that exist; the head may have padded rows.
    """

    def __init__(
        self, head: RecurrentHead, embed: Callable[[Tensor], Tensor], rows: int, vocab_size: int
    ) -> None:
        self._head, self._embed, self._vocab = head, embed, vocab_size
        self._like = next(head.parameters())
        self.hidden = HiddenStates(rows, head.shape.hidden, self._like)
        self._timer = ForwardTimer(self._like.device)

    def beams(self, roots: Sequence[int], width: int, length: int) -> Tensor:
        """The W likeliest continuations of each root, best first.

        Args:
            roots: R last committed tokens; the head's first update takes them in.
            width: W.
            length: L.

        Returns:
            [R, W, L] tokens.
        """
        self._timer.start()
        rows = len(roots)
        x = self.hidden.first(rows).unsqueeze(1)  # [R, 1, D]
        tokens = torch.tensor(roots, device=self._like.device).unsqueeze(1)  # [R, 1]
        state = torch.zeros_like(x)
        score = torch.zeros((rows, 1), dtype=torch.float32, device=x.device)
        beams = tokens.new_zeros((rows, 1, 0))
        for _ in range(length):
            state = self._head.advance(state, self._embed(tokens).to(state.dtype))
            logits = self._head(x.expand_as(state), state)[..., : self._vocab]
            joint = (score.unsqueeze(-1) + logits.float().log_softmax(dim=-1)).flatten(1)
            score, cell = joint.topk(min(width, joint.shape[1]), dim=-1)
            parent, tokens = cell // self._vocab, cell % self._vocab
            state = state.gather(1, parent.unsqueeze(-1).expand(-1, -1, state.shape[-1]))
            kept = beams.gather(1, parent.unsqueeze(-1).expand(-1, -1, beams.shape[-1]))
            beams = torch.cat([kept, tokens.unsqueeze(-1)], dim=-1)
        self._timer.stop()
        return beams

    def move_row(self, source: int, target: int) -> None:
        """Moves a row over another one."""
        self.hidden.move(source, target)

    def take_forward_s(self) -> float:
        """Seconds in the head since the last call."""
        return self._timer.take_s()
