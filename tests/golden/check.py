"""Checks a checkout against the golden net: ``python tests/golden/check.py [KIND ...]``.

A line a kind, then each difference; status 1 where there is one. ``--against CLONE`` looks the
differing texts up in a checkout of before and prints the beginning of each difference. ``--record``
records the kinds anew.
"""

import argparse
import difflib
import json
import subprocess
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
    parser.add_argument("--against", type=Path, metavar="CLONE", help="a checkout of before")
    parser.add_argument("--out", type=Path, help="folder for the texts that differ, and for pages")
    parser.add_argument("--record", action="store_true", help="record what there is now")
    parser.add_argument("--tree", type=Path, default=_HERE.parents[2], help="a checkout to look at")
    parser.add_argument("--to", type=Path, help="folder to record to; default: data")
    parser.add_argument("--names", type=Path, help="JSON list of names to record; default: all")
    parser.add_argument("--texts", action="store_true", help="record whole texts, not digests")
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
    against = options.against and options.against.resolve()
    out = (options.out or Path(tempfile.mkdtemp(prefix="golden-differences-"))).resolve()
    target, wrong = (options.to or net.DATA).resolve(), 0
    names = json.loads(options.names.read_text()) if options.names else ()
    with workspace():
        if options.record:
            for kind in options.kinds or [k for k in net.KINDS if k not in net.COMMITTED_KINDS]:
                values = net.KINDS[kind](names)
                path = net.save(kind, values if options.texts else net.kept(kind, values), target)
                print(f"{kind}: {len(values)} in {path}", flush=True)
            return 0
        for kind in options.kinds or net.KINDS:
            wrong += _check(kind, against, out)
        if {"files", "figures", "pages", "pixels"} & {*(options.kinds or net.KINDS)}:
            for name, text in net.KINDS["pages"](()).items():
                _write(out / "pages" / name.replace("/", "-"), text)
    print(f"{wrong} differences; texts in {out}" if wrong else "no difference")
    return int(wrong > 0)


def _check(kind, against, out):
    """One kind; how many values differ."""
    from golden import net

    wanted = net.expected(kind)
    values = net.KINDS[kind](tuple(wanted))
    found = net.kept(kind, values)
    wrong = net.differing(kind, wanted, found)
    new = [name for name in found if name not in wanted]
    more = f", {len(new)} new: {', '.join(new[:5])}" if new else ""
    print(f"{kind}: {len(wanted) - len(wrong)} of {len(wanted)} equal{more}", flush=True)
    before = wanted if kind not in net.DIGESTED else _texts(kind, wrong, against)
    for name in wrong:
        print(f"  {kind} {name}")
        for line in islice(_shown(name, before, values), _DIFF):
            print(f"    {line}")
        for side, texts in (("before", before), ("now", values)):
            if name in texts:
                text = texts[name]
                text = text if isinstance(text, str) else json.dumps(text, indent=1, sort_keys=True)
                _write(out / kind / side / name.replace("/", "-"), text)
    return len(wrong)


def _shown(name, before, now):
    """How one value differs."""
    from golden import net

    if name not in now:
        return ["is no longer there"]
    if name not in before:
        return ["(--against CLONE shows how)"]
    one, other = before[name], now[name]
    if isinstance(one, str) or (one and isinstance(one, list) and isinstance(one[0], str)):
        lines = [each.splitlines() if isinstance(each, str) else each for each in (one, other)]
        return difflib.unified_diff(*lines, "before", "now", lineterm="", n=1)
    return islice(net.differences(one, other), _SHOWN)


def _texts(kind, names, against):
    """The texts of before, from the other checkout."""
    if not names or against is None:
        return {}
    with tempfile.TemporaryDirectory() as name:
        wanted = Path(name) / "names.json"
        wanted.write_text(json.dumps(names))
        command = [sys.executable, str(_HERE), kind, "--record", "--texts"]
        command += ["--tree", str(against), "--to", name, "--names", str(wanted)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads((Path(name) / f"{kind}.json").read_text(encoding="utf-8"))


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
