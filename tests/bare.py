"""A python with torch, transformers, pydantic and their needs, offline: ``bare.py SCRIPT ...``."""

import importlib.metadata as metadata
import re
import runpy
import socket
import sys

KEPT = ("torch", "transformers", "pydantic")
WITHOUT = {"rich"}  # that a version of theirs requires, and that is not counted on


def required(names):
    """The distributions that these require, by extras of none of them."""
    found = set()
    left = list(names)
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if name in found | WITHOUT:
            continue
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        found.add(name)
        left += [
            re.split(r"[^\w.-]", need)[0] for need in needs if "extra" not in need.partition(";")[2]
        ]
    return found


def absent_modules():
    """Top-level modules of every other distribution."""
    kept = required(KEPT)
    return {
        module
        for module, owners in metadata.packages_distributions().items()
        if not {re.sub(r"[-_.]+", "-", owner).lower() for owner in owners} & kept
    } - {"spec_bench"}


class Hidden:
    """A finder that finds all but some modules."""

    def __init__(self, finder, absent):
        self._finder, self._absent = finder, absent

    def __getattr__(self, name):
        return getattr(self._finder, name)

    def find_spec(self, name, path=None, target=None):
        """As the finder's, or None."""
        if name.partition(".")[0] in self._absent:
            return None
        return self._finder.find_spec(name, path, target)


def refuse(*_):
    """In place of ``connect``."""
    raise OSError("no network")


def main():
    """Runs the script that the command line names."""
    absent = absent_modules()
    sys.meta_path[:] = [Hidden(finder, absent) for finder in sys.meta_path]
    socket.socket.connect = refuse  # type: ignore[method-assign, assignment]
    sys.path.pop(0)  # this file's folder
    sys.argv = sys.argv[1:]
    for name in ("hydra", "omegaconf", "pandas"):
        try:
            __import__(name)
        except ModuleNotFoundError:
            continue
        raise SystemExit(f"{name} is there")
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
