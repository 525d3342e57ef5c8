"""Dialogues as token ids, which of them are learned, and what heads guess at each position.

The alignment is that of decoding. At position t the target's last hidden state x_t is known and so
is token t + 1, which the target has emitted; guess i (1..K) is about token t + 1 + i. The papers
call these t+1..t+K, counting from the token that is known. Knows nothing about text or models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

IGNORED = -100  # no loss where nothing is to be learned; the default of torch's cross-entropy


@dataclass(frozen=True)
class Dialogue:
    """One sequence.

    Attributes:
        ids: T token ids.
        learned: T times whether the token is an answer's.
    """

    ids: tuple[int, ...]
    learned: tuple[bool, ...]

    def cut(self, length: int) -> Dialogue:
        """Its first ``length`` tokens."""
        return Dialogue(self.ids[:length], self.learned[:length])

    @property
    def prompt(self) -> tuple[int, ...]:
        """The tokens before the first answer."""
        return self.ids[: self.learned.index(True)] if True in self.learned else self.ids


def positions(dialogue: Dialogue) -> list[int]:
    """Positions t that something is learned at: tokens t + 1 and t + 2 belong to one answer."""
    learned = dialogue.learned
    return [t for t in range(len(learned) - 2) if learned[t + 1] and learned[t + 2]]


def known_and_guessed(dialogue: Dialogue, guesses: int) -> Tensor:
    """Tokens t + 1..t + 1 + K of every position.

    Args:
        dialogue: the dialogue.
        guesses: K.

    Returns:
        [N, K + 1] int64: first the token that is known, then those to be guessed; IGNORED from the
        end of the answer on.
    """
    at = positions(dialogue)
    ids = torch.tensor([*dialogue.ids, *[0] * guesses])
    learned = torch.tensor([*dialogue.learned, *[False] * guesses])
    window = torch.tensor(at, dtype=torch.long)[:, None] + 1 + torch.arange(guesses + 1)
    # Once an answer has ended, what another one says is no guess of this one.
    inside = learned[window].long().cumprod(dim=1).bool()
    return ids[window].masked_fill(~inside, IGNORED)


def split(
    dialogues: Sequence[Dialogue], share: float, seed: int
) -> tuple[list[Dialogue], list[Dialogue]]:
    """Training and validation, which has about this share of the prompts; dialogues of the same
    prompt are never on both sides.
    """
    sides: tuple[list[Dialogue], list[Dialogue]] = ([], [])
    for dialogue in dialogues:
        digest = hashlib.sha256(repr((seed, dialogue.prompt)).encode()).digest()
        sides[int.from_bytes(digest[:8]) < share * 2**64].append(dialogue)
    return sides


def digest(dialogues: Sequence[Dialogue]) -> str:
    """Twelve hex digits that identify the tokens and what is learned of them."""
    total = hashlib.sha256()
    for dialogue in dialogues:
        total.update(repr((dialogue.ids, dialogue.learned)).encode())
    return total.hexdigest()[:12]
