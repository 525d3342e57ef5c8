"""What the site is made from: a hook of mkdocs, named in mkdocs.yml.

The pages are the repository's own, at their own places, so that every link works as it does there.
A file is copied if it is a page of the manual or some page links it; a link to a folder goes to the
README in it, or becomes plain text. The order is that of the index, docs/README.md.
"""

import atexit
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STAGE = Path(tempfile.mkdtemp(prefix="spec_bench_docs_"))
atexit.register(shutil.rmtree, STAGE, ignore_errors=True)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Copies the pages into a folder of their own, and reads their order from the index."""
    index = ROOT / "docs" / "README.md"
    _copy([ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
    shutil.copy2(Path(__file__).with_name("site.css"), STAGE)
    config["docs_dir"] = str(STAGE)
    config["nav"] = _nav(index.read_text(encoding="utf-8"))
    return config


def _copy(waiting: list[Path]) -> None:
    """Copies these files and all that are linked from them, those alone that have changed."""
    done = set[Path]()
    while waiting:
        source = waiting.pop().resolve()
        if source in done:
            continue
        done.add(source)
        target = STAGE / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        content = source.read_bytes()

        def linked(match: re.Match[str], folder: Path = source.parent) -> str:
            mark, text, place, heading = match.groups()
            if "://" in place or place.startswith("mailto:"):
                return match[0]
            to = folder / place
            if to.is_dir() and not (to / "README.md").is_file():
                return text
            if to.is_dir():
                place, to = f"{place.rstrip('/')}/README.md", to / "README.md"
            if to.is_file():  # a file that is not there is left to mkdocs, which refuses it
                waiting.append(to)
            return f"{mark}[{text}]({place}{heading or ''})"

        if source.suffix == ".md":
            content = LINK.sub(linked, content.decode()).encode()
        if not target.is_file() or target.read_bytes() != content:
            target.write_bytes(content)


def _nav(index: str) -> list[Any]:
    """The index as mkdocs wants it: sections of pages, a page once."""
    nav: list[Any] = [{"What it is": "README.md"}, {"All questions": "docs/README.md"}]
    seen = set[str]()
    for line in re.findall(r"^\| (.*) \|$", index, re.MULTILINE)[2:]:
        if section := re.match(r"\*\*(.*)\*\*", line):
            nav.append({section[1]: []})
        for title, place in re.findall(r"\[([^\]]*)\]\(([^)#]*)\)", line):
            if place not in seen:
                seen.add(place)
                path = (ROOT / "docs" / place).resolve().relative_to(ROOT)
                next(iter(nav[-1].values())).append({title[0].upper() + title[1:]: path.as_posix()})
    return nav
