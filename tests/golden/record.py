"""Records the golden net: ``python tests/golden/record.py [KIND ...] [--tree CLONE]``."""

import argparse
import json
import sys
from pathlib import Path

_HERE = Path(__file__).resolve()


def main():
    """Records each kind that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="default: all that are recorded")
    parser.add_argument("--tree", type=Path, default=_HERE.parents[2], help="a checkout to look at")
    parser.add_argument("--to", type=Path, help="folder to write to; default: data")
    parser.add_argument("--names", type=Path, help="JSON list of names; default: all")
    parser.add_argument("--texts", action="store_true", help="whole texts in place of digests")
    options = parser.parse_args()
    _look_at(options.tree)
    from golden import net
    from golden.workspace import workspace

    unknown = sorted({*options.kinds} - {*net.KINDS})
    if unknown:
        parser.error(f"unknown kinds {unknown}; known: {', '.join(net.KINDS)}")
    names = json.loads(options.names.read_text()) if options.names else ()
    target = (options.to or net.DATA).resolve()
    with workspace():
        for kind in options.kinds or [k for k in net.KINDS if k not in net.COMMITTED_KINDS]:
            values = net.KINDS[kind](names)
            path = net.save(kind, values if options.texts else net.kept(kind, values), target)
            print(f"{kind}: {len(values)} in {path}", flush=True)


def _look_at(tree):
    """Imports ``spec_bench`` from a checkout, and these modules as the package ``golden``."""
    sys.path[0] = str(tree.resolve())
    sys.path.append(str(_HERE.parents[1]))
    import spec_bench

    found = Path(spec_bench.__file__).resolve().parents[1]
    if found != tree.resolve():
        raise SystemExit(f"spec_bench was imported from {found}, not from {tree}")


if __name__ == "__main__":
    main()
