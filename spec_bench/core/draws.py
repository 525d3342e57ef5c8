"""Sources of randomness: every random choice of a decoder is a call of a ``RandomSource``.

``SeededSource`` draws from a generator per row. ``spec_bench.audit`` has another implementation
that goes through every outcome with its probability, so that the benchmarked code itself is
enumerated.

A row's draws depend only on the row's generator and on the shape of the decoder's tree, never on
other rows or on how far a walk gets. So batching, shuffling or resuming changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from spec_bench.core.host_device import cached_arange, cached_constant
from spec_bench.settings.former import FormerMembers, make_former_getattr

Choice = Callable[[Tensor, Tensor], Tensor]
"""Chooses tokens [..., count] from probabilities [..., V] and uniforms [..., count]."""


class WalkDraws(Protocol):
    """The random choices of a walk down the tree."""

    def first_accepted(self, level: int, acceptance: Tensor) -> Tensor:
        """Tests children in order with acceptance probabilities [R, C]; returns the index of the
        first success, else C, [R].
        """

    def passes(self, test_numbers: Tensor, acceptance: Tensor) -> Tensor:
        """Makes all tests at once, [R, n, C] bool, from their numbers [n, C] or [R, n, C], counted
        across all levels, and acceptance probabilities [R, n, C]. Tests of equal number share one
        random number, because a walk meets only one of them.
        """

    def token(self, probs: Tensor) -> Tensor:
        """Draws a token per row from probabilities [R, V]; returns [R]."""


class PositionDraws(Protocol):
    """The choice of a token for each position that a walk may reach."""

    def sample_at(self, level: int, probs: Tensor) -> Tensor:
        """Draws the token after a node of ``level`` from probabilities [R, V]; returns [R]."""

    def sample_nodes_at(self, levels: Tensor, probs: Tensor) -> Tensor:
        """Draws the token after each of N nodes of ``levels`` [R or 1, N] from probabilities [R, N,
        V]; returns [R, N].
        """


class TrialDraws(Protocol):
    """A known number of yes-or-no choices."""

    def succeeds(self, index: int, probability: Tensor) -> Tensor:
        """Makes choice number ``index`` of every row with a probability [R]; returns bool [R]."""


class RandomSource(Protocol):
    """The random choices of a decoding iteration."""

    def categorical(self, probs: Tensor, count: int) -> Tensor:
        """Draws ``count`` i.i.d. tokens per node from probabilities [R, F, V]; returns [R, F,
        count].
        """

    def gumbel(
        self,
        like: Tensor,
        counts: Sequence[int] | None = None,
        best: int | None = None,
    ) -> Tensor:
        """Draws standard Gumbel noise of the shape of ``like`` [R, F, V]. With ``counts`` [R] only
        the first nodes of each row get noise; other values are undefined. With ``best`` the caller
        may only use the tokens of each node's ``best`` largest perturbed values.
        """

    def verdict(self, children: Sequence[int]) -> WalkDraws:
        """Prepares one walk; ``children`` bounds the children tested at each level."""

    def prepare_positions(self, count: int) -> PositionDraws:
        """Prepares a choice for each of the next ``count`` positions of every row. A position's
        random number does not depend on the iteration, so the text equals that of plain decoding.
        """

    def advance(self, emitted: Sequence[int]) -> None:
        """Ends the walk: advances row r by ``emitted[r]`` positions."""

    def trials(self, count: int) -> TrialDraws:
        """Prepares ``count`` yes-or-no choices per row."""


if not TYPE_CHECKING:
    __getattr__ = make_former_getattr(__name__, {"Draws": "RandomSource"})


def derive_row_seed(seed: int, prompt_id: str) -> int:
    """Derives the 63-bit seed of a prompt's generator."""
    digest = hashlib.sha256(f"{seed}\x00{prompt_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def make_row_generator(seed: int, prompt_id: str, device: torch.device) -> torch.Generator:
    """Makes the generator for all draws of a prompt."""
    return torch.Generator(device=device).manual_seed(derive_row_seed(seed, prompt_id))


def inverse_cdf(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Finds the tokens [..., count] at which the cumulative sums of probs [..., V], which need not
    be normalised, pass each uniform [..., count] in [0, 1), float64, times their total.

    Sums are in float64: with float32 sums a vocabulary of 128k loses its tail. A token of
    probability zero is never returned.
    """
    if not probs.is_cpu:
        return _inverse_cdf_in_blocks(probs, uniforms)
    cdf = probs.double().cumsum(dim=-1)
    # The product stays below the total, so the search ends before the end: a float64 below 1 is at
    # most 1 - 2^-53, and a factor of that size lowers any number by more than half a unit in its
    # last place. Only without a distribution (NaN or zeros) could it end past the last token.
    index = torch.searchsorted(cdf, uniforms * cdf[..., -1:], right=True)
    return index.clamp_(max=cdf.shape[-1] - 1)


_BLOCK = 256  # tokens


def _inverse_cdf_in_blocks(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Computes ``inverse_cdf`` in two steps, first the block of tokens, then the token in it. A GPU
    sums a row of the whole vocabulary on a single processor, but its blocks on all.
    """
    missing = -probs.shape[-1] % _BLOCK
    blocks = (pad(probs, (0, missing)) if missing else probs).unflatten(-1, (-1, _BLOCK))
    mass = blocks.sum(dim=-1, dtype=torch.float64)
    ends = mass.cumsum(dim=-1)
    thresholds = uniforms * ends[..., -1:]
    block = _find_crossing(mass.unsqueeze(-2), ends.unsqueeze(-2), thresholds)
    block_probs = blocks.gather(-2, block.unsqueeze(-1).expand(*block.shape, _BLOCK))
    mass_before = (ends - mass).gather(-1, block).unsqueeze(-1)
    sums = mass_before + block_probs.double().cumsum(dim=-1)
    return torch.add(_find_crossing(block_probs, sums, thresholds), block, alpha=_BLOCK)


def _find_crossing(mass: Tensor, sums: Tensor, thresholds: Tensor) -> Tensor:
    """Finds the first entry with mass whose sum is above the threshold; if rounding leaves none,
    the last entry with mass. Takes mass and sums [..., count, n] and thresholds [..., count];
    returns [..., count].
    """
    count = mass.shape[-1]
    places = cached_arange(count, mass.device)
    is_crossed = sums > thresholds.unsqueeze(-1)
    # Above the threshold earlier entries rank higher; below it, later entries do.
    reversed_places = cached_constant(tuple(range(2 * count, count, -1)), mass.device)
    ranks = torch.where(is_crossed, reversed_places, places)
    return (ranks * (mass > 0)).argmax(dim=-1)


def choose_likeliest(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Computes ``inverse_cdf`` of one-hot distributions, as at temperature 0. The uniforms are not
    read, but they are drawn, because some rules need them at temperature 0 too.
    """
    return probs.argmax(dim=-1, keepdim=True).expand_as(uniforms)


def read_generator_position(generator: torch.Generator) -> Any:
    """Returns a generator's position: its offset on a GPU, else its state."""
    return generator.get_offset() if generator.device.type == "cuda" else generator.get_state()


class SeededSource(FormerMembers):
    """Draws from a ``torch.Generator`` per row, on the device that needs the draws."""

    former_members: ClassVar = {"by_position": "prepare_positions", "settle": "advance"}
    _fresh = True  # whether uniforms are new tensors, which may be overwritten

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        self.generators = generators
        # generators' positions before and after the first number of ``prepare_positions``
        self._rewind_positions: list[tuple[Any, Any]] = []
        self.choose: Choice = inverse_cdf

    def _draw_uniforms(self, *shape: int) -> Tensor:
        """Draws uniforms [R, *shape] in [0, 1), float64."""
        rows = [
            torch.rand(shape, generator=g, dtype=torch.float64, device=g.device)
            for g in self.generators
        ]
        return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(rows)

    def categorical(self, probs: Tensor, count: int) -> Tensor:
        return self.choose(probs, self._draw_uniforms(probs.shape[1], count))

    def gumbel(
        self,
        like: Tensor,
        counts: Sequence[int] | None = None,
        best: int | None = None,
    ) -> Tensor:
        # -log -log of a uniform variable is a Gumbel variable; the clamp keeps it finite. Drawn in
        # float64, whose tail is long enough; torch's exponential variables cost three times more.
        if counts is None:
            uniforms = self._draw_uniforms(*like.shape[1:])
        else:
            uniforms = torch.full_like(like, 0.5, dtype=torch.float64)
            for row, generator, count in zip(uniforms, self.generators, counts, strict=True):
                row[:count].uniform_(generator=generator)
        at_least = torch.finfo(torch.float64).tiny
        uniforms = torch.clamp(uniforms, at_least, out=uniforms if self._fresh else None)
        return uniforms.log_().neg_().to(like.dtype).log_().neg_()

    def verdict(self, children: Sequence[int]) -> SeededWalkDraws:
        return SeededWalkDraws(self._draw_uniforms(sum(children) + 1), children, self.choose)

    def prepare_positions(self, count: int) -> SeededPositionDraws:
        # A call per number, as in plain decoding: on a GPU larger calls give other numbers.
        positions = [read_generator_position(generator) for generator in self.generators]
        numbers = [self._draw_uniforms(1)]
        if count > 1:  # a single position is always used, so ``advance`` changes nothing
            self._rewind_positions = [
                *zip(positions, map(read_generator_position, self.generators), strict=True)
            ]
        numbers += [self._draw_uniforms(1) for _ in range(count - 1)]
        return SeededPositionDraws(torch.cat(numbers, dim=1), self.choose)

    def advance(self, emitted: Sequence[int]) -> None:
        for generator, (start, second), count in zip(
            self.generators,
            self._rewind_positions,
            emitted,
            strict=bool(self._rewind_positions),
        ):
            if isinstance(start, int):
                generator.set_offset(start + count * (second - start))
                continue
            generator.set_state(start)
            for _ in range(count):
                torch.rand(1, generator=generator, dtype=torch.float64)

    def trials(self, count: int) -> SeededTrialDraws:
        return SeededTrialDraws(self._draw_uniforms(count))


class SeededWalkDraws:
    """Uniforms [R, sum(children) + 1] in [0, 1), float64, for a walk, all drawn before it starts.
    ``children`` bounds the number of children tested at each level.
    """

    def __init__(self, uniforms: Tensor, children: Sequence[int], choose: Choice) -> None:
        self._choose = choose
        parts = uniforms.split([*children, 1], dim=1)
        self._levels = parts[:-1]
        self._token = parts[-1]
        self._uniforms = uniforms

    def first_accepted(self, level: int, acceptance: Tensor) -> Tensor:
        # Strictly less: with <= a token of probability zero passes when the uniform is 0.
        successes = self._levels[level][:, : acceptance.shape[1]] < acceptance
        return (successes.cumsum(dim=1) == 0).sum(dim=1)

    def passes(self, test_numbers: Tensor, acceptance: Tensor) -> Tensor:
        if test_numbers.dim() == 2:
            return self._uniforms[:, test_numbers] < acceptance
        return self._uniforms.gather(1, test_numbers.flatten(1)).view_as(test_numbers) < acceptance

    def token(self, probs: Tensor) -> Tensor:
        return self._choose(probs, self._token).squeeze(-1)


@dataclass
class SeededPositionDraws:
    """Random numbers for the positions that a walk may reach."""

    uniforms: Tensor  # [R, count] in [0, 1), float64
    choose: Choice

    def sample_at(self, level: int, probs: Tensor) -> Tensor:
        return self.choose(probs, self.uniforms[:, level : level + 1]).squeeze(-1)

    def sample_nodes_at(self, levels: Tensor, probs: Tensor) -> Tensor:
        uniforms = self.uniforms.gather(1, levels.expand(probs.shape[:2]))
        return self.choose(probs, uniforms.unsqueeze(-1)).squeeze(-1)


@dataclass
class SeededTrialDraws:
    """Random numbers for a known number of trials, all drawn in advance."""

    uniforms: Tensor  # [R, count] in [0, 1), float64

    def succeeds(self, index: int, probability: Tensor) -> Tensor:
        return self.uniforms[:, index] < probability
