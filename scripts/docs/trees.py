"""Draws docs/trees.png: the first tree that six decoders grow behind one prompt, token by token.

    python scripts/docs/trees.py

The trees are those of the embedded pair's decoders. A filled node was accepted; the last token of
the call, which is drawn from the target, hangs below the path with a dashed line.
"""

import sys
from itertools import count
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import spec_bench  # noqa: E402

PROMPT = (
    "Article: Rosa, a smith from Tarnow, won the singing contest on Friday. "
    "It happened at the mill.\nSummary: A smith from Tarnow has won the"
)
CELLS = ("sd:3", "rsd_c:2-2-1", "spectr:4x3", "rsd_s:4x3", "opt_tree:6x4@12", "dyspec:@12")
WORDS = {
    "sd:3": "3: a chain of three",
    "rsd_c:2-2-1": "2-2-1: children per node, level by level",
    "spectr:4x3": "4x3: four sequences of three, drawn apart",
    "rsd_s:4x3": "4x3: four nodes on each of three levels",
    "opt_tree:6x4@12": "6x4@12: the 12 best of 6 by 4",
    "dyspec:@12": "@12: the 12 best, however deep",
}
SEED, BLUE, GREY = 3, "#0072B2", "#999999"


def first_tree(pair, cell):
    """The first tree of an answer, [N] tokens, parents and presence, and the step it became."""
    stream = pair.stream(PROMPT, cell, max_new_tokens=8, seed=SEED)
    kind, grown = type(stream._decoder.policy), []
    grow_tree = kind.grow_tree
    kind.grow_tree = lambda policy, context: grown.append(grow_tree(policy, context)) or grown[-1]
    try:
        step = next(stream)
    finally:
        kind.grow_tree = grow_tree
    tree = grown[0]
    return *(part[0].tolist() for part in (tree.tokens, tree.parent, tree.valid)), step


def places_of(children):
    """x and depth of every node: leaves side by side, parents over their children."""
    places, leaves = {}, count()

    def place(node, depth):
        below = [place(child, depth + 1) for child in children.get(node, ())]
        places[node] = (sum(below) / len(below) if below else next(leaves)), -depth
        return places[node][0]

    place(0, 0)
    return places


def draw(axes, pair, cell):
    """One tree with its accepted path."""
    tokens, parents, valid, step = first_tree(pair, cell)
    children = {}
    for node in (n for n in range(1, len(tokens)) if valid[n]):
        children.setdefault(parents[node], []).append(node)
    path, drawn = [0], len(tokens)  # the node that the target adds
    for token in step.tokens[: step.accepted]:
        path.append(next(n for n in children[path[-1]] if tokens[n] == token))
    children.setdefault(path[-1], []).append(drawn)
    tokens, parents = [*tokens, step.tokens[step.accepted]], [*parents, path[-1]]
    places = places_of(children)
    for node, place in places.items():
        kept, line = node in (*path, drawn), "--" if node == drawn else "-"
        colour = BLUE if kept else GREY
        axes.plot(*zip(places[parents[node]], place, strict=True), c=colour, ls=line, zorder=0)
        text = pair.tokenizer.decode([tokens[node]]).strip() or "␣"
        box = {"boxstyle": "round,pad=0.25", "fc": BLUE if kept else "white", "ec": colour}
        ink = "white" if kept else "black"
        axes.text(*place, text, ha="center", va="center", fontsize=8, bbox=box, color=ink)
    axes.set_title(f"{cell}\n{WORDS[cell]}", fontsize=10)
    axes.margins(0.12)
    axes.axis("off")


def main() -> None:
    matplotlib.use("Agg")
    pair = spec_bench.load_pair("embedded")
    figure, panels = plt.subplots(2, 3, figsize=(11, 6.4), layout="constrained")
    for axes, cell in zip(panels.flat, CELLS, strict=True):
        draw(axes, pair, cell)
    figure.savefig(ROOT / "docs/trees.png", dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    main()
