"""Checks a checkout against the golden net: ``python tests/golden/check.py [KIND ...]``.

A line a kind, then the beginning of each difference; status 1 where there is one. ``--record``
records the kinds anew.
"""

import argparse
import difflib
import json
import sys
import tempfile
from itertools import islice
from pathlib import Path

_HERE = Path(__file__).resolve()
_SHOWN = 6  # lines of one value's differences
_DIFF = 30  # lines of one text's


def main():
    """Checks, 1 where something differs; or records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="default: all")
    parser.add_argument("--out", type=Path, help="folder for the texts that differ")
    parser.add_argument("--record", action="store_true", help="record what there is now")
    parser.add_argument("--tree", type=Path, default=_HERE.parents[2], help="a checkout to look at")
    parser.add_argument("--to", type=Path, help="folder to record to; default: data")
    options = parser.parse_args()
    # ``spec_bench`` is the checkout's; these modules are the package ``golden``.
    sys.path[0] = str(options.tree.resolve())
    sys.path.append(str(_HERE.parents[1]))
    from golden import net
    from golden.workspace import workspace

    import spec_bench

    if not Path(spec_bench.__file__).resolve().is_relative_to(options.tree.resolve()):
        parser.error(f"spec_bench was imported from {spec_bench.__file__}, not from {options.tree}")
    unknown = sorted({*options.kinds} - {*net.KINDS})
    if unknown:
        parser.error(f"unknown kinds {unknown}; known: {', '.join(net.KINDS)}")
    out = (options.out or Path(tempfile.mkdtemp(prefix="golden-differences-"))).resolve()
    target, wrong = (options.to or net.DATA).resolve(), 0
    with workspace():
        if options.record:
            for kind in options.kinds or [k for k in net.KINDS if k not in net.COMMITTED_KINDS]:
                path = net.save(kind, values := net.KINDS[kind](), target)
                print(f"{kind}: {len(values)} in {path}", flush=True)
            return 0
        for kind in options.kinds or net.KINDS:
            wrong += _check(kind, out)
    print(f"{wrong} differences; texts in {out}" if wrong else "no difference")
    return int(wrong > 0)


def _check(kind, out):
    """One kind; how many values differ."""
    from golden import net

    wanted, found = net.expected(kind), net.KINDS[kind]()
    wrong = net.differing(kind, wanted, found)
    new = [name for name in found if name not in wanted]
    more = f", {len(new)} new: {', '.join(new[:5])}" if new else ""
    print(f"{kind}: {len(wanted) - len(wrong)} of {len(wanted)} equal{more}", flush=True)
    for name in wrong:
        print(f"  {kind} {name}")
        for line in islice(_shown(name, wanted, found), _DIFF):
            print(f"    {line}")
        for side, texts in (("before", wanted), ("now", found)):
            if name in texts:
                text = texts[name]
                text = text if isinstance(text, str) else json.dumps(text, indent=1, sort_keys=True)
                _write(out / kind / side / name.replace("/", "-"), text)
    return len(wrong)


def _shown(name, before, now):
    from golden import net

    if name not in now:
        return ["is no longer there"]
    one, other = before[name], now[name]
    if isinstance(one, str) or (one and isinstance(one, list) and isinstance(one[0], str)):
        lines = [each.splitlines() if isinstance(each, str) else each for each in (one, other)]
        return difflib.unified_diff(*lines, "before", "now", lineterm="", n=1)
    return islice(net.differences(one, other), _SHOWN)


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
