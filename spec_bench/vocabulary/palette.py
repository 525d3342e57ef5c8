"""Colours and markers of figures and pages."""

from __future__ import annotations

from typing import Literal, NamedTuple

ColourName = Literal["blue", "vermillion", "green", "purple", "orange", "sky", "black"]
Marker = Literal["o", "s", "^", "D", "v", "P", "X"]


class Colour(NamedTuple):
    """A colour on white and on a dark page."""

    light: str
    dark: str


# Okabe & Ito: distinguishable with any colour vision.
COLOURS: dict[ColourName, Colour] = {
    "blue": Colour("#0072B2", "#4AA8E0"),
    "vermillion": Colour("#D55E00", "#F08A3C"),
    "green": Colour("#009E73", "#2FC294"),
    "purple": Colour("#CC79A7", "#E29AC4"),
    "orange": Colour("#E69F00", "#E69F00"),
    "sky": Colour("#56B4E9", "#56B4E9"),
    "black": Colour("#000000", "#98A2AD"),
}
PALETTE = tuple(COLOURS.values())
MARKERS: tuple[Marker, ...] = ("o", "s", "^", "D", "v", "P", "X")
