"""A toy that looks up the last M tokens that the tree mask lets a token see: a wrong ancestor, a
wrong copy or a wrong commit changes what it says.
"""

import torch

from spec_bench.audit.toys import MarkovModel


class TokenCache:
    """Tokens and positions by slot."""

    bytes = 0

    def __init__(self, rows, slots):
        self.grow_and_clear(rows, slots)

    def grow_and_clear(self, rows, slots):
        self.tokens = torch.zeros((rows, slots), dtype=torch.long)
        self.positions = torch.full((rows, slots), -1)

    def commit(self, row, length, nodes):
        source = [length + node for node in nodes]
        for kept in (self.tokens, self.positions):
            kept[row, length : length + len(source)] = kept[row, source]

    def commit_all(self, lengths, nodes):
        for row, (length, path) in enumerate(zip(lengths, nodes.tolist(), strict=True)):
            self.commit(row, length, path)

    def move_row(self, source, target, length, start=0):
        for kept in (self.tokens, self.positions):
            kept[target, start:length] = kept[source, start:length]


class HistoryModel(MarkovModel):
    """Next-token logits [V, ..., V, V] by the last M tokens, M + 1 axes: the token M - 1 places
    back, ..., the last token. Before the start of a sequence stands token 0.
    """

    def __init__(self, logits):
        super().__init__(logits)
        self.memory = logits.dim() - 1

    def allocate(self, rows, slots):
        return TokenCache(rows, slots)

    def find_logits_index(self, prefix):
        return tuple([*[0] * self.memory, *prefix][-self.memory :])

    def find_logits_indices(self, tokens, positions):
        return self.seen

    def forward(self, cache, starts, tokens, positions, visible, *, row=0, **asked):
        rows, seen = slice(row, row + len(starts)), visible.shape[2]
        slots = torch.tensor(starts).unsqueeze(1) + torch.arange(tokens.shape[1])
        index = torch.arange(rows.start, rows.stop).unsqueeze(1)
        cache.tokens[index, slots], cache.positions[index, slots] = tokens, positions
        known, places = (x[rows, :seen].unsqueeze(1) for x in (cache.tokens, cache.positions))
        history = []
        for back in reversed(range(self.memory)):
            at = visible & (places == (positions - back).unsqueeze(-1))
            assert (at.sum(dim=-1) <= 1).all(), "a token sees two others at one position"
            history.append((known * at).sum(dim=-1))
        self.seen = tuple(history)
        return super().forward(cache, starts, tokens, positions, visible, row=row, **asked)


def random_history(vocab, seed, memory=3, sharpness=1.5):
    """A toy with normal logits of the given standard deviation, float64."""
    generator = torch.Generator().manual_seed(seed)
    shape = (vocab,) * (memory + 1)
    return HistoryModel(torch.randn(shape, generator=generator, dtype=torch.float64) * sharpness)
