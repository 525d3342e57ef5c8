"""What a drawn figure shows: data, labels, limits, legends, read from it when it is saved.

Knows matplotlib and nothing of the package. The order in which artists were drawn says nothing;
numbers are kept to nine digits.
"""

import contextlib
import json
import os
from pathlib import Path
from unittest import mock

import numpy as np
from matplotlib.collections import LineCollection, PathCollection, QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import imread

PIXEL_TOLERANCE = 2e-3  # mean absolute difference, of 1


@contextlib.contextmanager
def watched(folder):
    """Describes every PNG that is saved below the folder; by its path from there."""
    seen = {}
    saved = {}  # by the temporary file that is given the picture's name
    original = Figure.savefig
    rename = os.replace

    def savefig(figure, target, *arguments, **named):
        original(figure, target, *arguments, **named)
        if named.get("format") == "png":
            saved[target] = describe(figure)

    def replace(source, target):
        rename(source, target)
        path = Path(target).resolve()
        if source in saved and path.is_relative_to(folder):
            seen[str(path.relative_to(folder))] = saved.pop(source)

    with (
        mock.patch.object(Figure, "savefig", savefig),
        mock.patch.object(os, "replace", replace),
    ):
        yield seen


def describe(figure):
    return {
        "inches": _numbers(figure.get_size_inches()),
        "texts": [text.get_text() for text in figure.texts if text.get_text()],
        "suptitle": figure.get_suptitle(),
        "legends": [_legend(legend) for legend in figure.legends],
        "axes": [_axes(axes) for axes in figure.axes],
    }


def pixel_difference(one, other):
    """Mean absolute difference of two PNGs, 0 to 1; 1 where their sizes differ."""
    first, second = imread(one), imread(other)
    return 1.0 if first.shape != second.shape else float(np.abs(first - second).mean())


def _axes(axes):
    found = {
        "title": axes.get_title(),
        "other_titles": [axes.get_title(loc="left"), axes.get_title(loc="right")],
        "visible": axes.axison and axes.get_visible(),
        "lines": _sorted(_line(line) for line in axes.lines),
        "collections": _sorted(_collection(each) for each in axes.collections),
        "patches": _sorted(_patch(patch) for patch in axes.patches),
        "images": [_numbers(image.get_array()) for image in axes.images],
        "texts": _sorted(
            [t.get_text(), _numbers(t.xyann if hasattr(t, "xyann") else t.get_position())]
            for t in axes.texts
        ),
        "legend": _legend(axes.get_legend()),
    }
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
        found[name] = {
            "label": axis.get_label_text(),
            "limits": _numbers(axis.get_view_interval()),
            "scale": axis.get_scale(),
            "ticks": [[_number(t.get_loc()), t.label1.get_text()] for t in ticks],
        }
    return found


def _line(line):
    return {
        "x": _numbers(line.get_xdata(orig=False)),
        "y": _numbers(line.get_ydata(orig=False)),
        "label": _label(line),
        "look": [to_hex(line.get_color()), line.get_linestyle(), str(line.get_marker())],
    }


def _collection(each):
    found = {"label": _label(each)}
    if isinstance(each, PathCollection):
        found["offsets"] = _numbers(each.get_offsets())
    elif isinstance(each, LineCollection):
        found["segments"] = [_numbers(segment) for segment in each.get_segments()]
    elif isinstance(each, QuadMesh):
        found["values"] = _numbers(each.get_array())
    else:
        found["paths"] = [_numbers(path.vertices) for path in each.get_paths()]
    colours = [*each.get_facecolor(), *each.get_edgecolor()]
    found["look"] = sorted({to_hex(colour) for colour in colours})
    return found


def _patch(patch):
    shape = patch.get_patch_transform().transform_path(patch.get_path())
    return {
        "vertices": _numbers(shape.vertices),
        "label": _label(patch),
        "look": [to_hex(patch.get_facecolor())],
    }


def _legend(legend):
    if legend is None:
        return None
    return [legend.get_title().get_text(), *(text.get_text() for text in legend.get_texts())]


def _label(artist):
    """What the legend would say; matplotlib's own names say nothing."""
    label = str(artist.get_label())
    return "" if label.startswith("_") else label


def _sorted(found):
    return sorted(found, key=lambda each: json.dumps(each, sort_keys=True))


def _numbers(values):
    array = np.ma.filled(np.ma.asarray(values).astype(float), np.nan)
    return [_number(value) for value in array] if array.ndim == 1 else [*map(_numbers, array)]


def _number(value):
    return float(f"{float(value):.9g}") if np.isfinite(float(value)) else None
