"""READMEs and the manual: links lead somewhere, commands exist, each page begins with one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from spec_bench.jobs.config.compose import recipe_arguments, register
from spec_bench.settings.configs import conf_dir

ROOT = Path(__file__).resolve().parents[1]
MANUAL = sorted((ROOT / "docs").glob("*.md"))
READMES = sorted(ROOT.glob("*.md")) + sorted(
    path
    for folder in ("conf", "experiments", "spec_bench", "tests")
    for path in (ROOT / folder).rglob("*.md")
)
PAGES = [*MANUAL, *READMES]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAMS = {"spec_bench": "config", "spec_bench.train": "train"}
OTHERS = ("recommend", "fit_tree", "compare", "answers", "convert", "serve", "watch")
FROM_OUTSIDE = ("decoder=comb", "decoder=mine")  # of another package
NOT_INSTALLED = ("hydra/launcher=ray_cluster",)  # its plug-in has pins of its own
LONGEST = {"README.md": 150, "conf/README.md": 40}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(path: Path) -> str:
    return BLOCK.sub("", path.read_text(encoding="utf-8"))


def headings(path: Path) -> set[str]:
    """As they stand behind a # in a link."""
    found = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).strip().replace(" ", "-") for each in found}


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings_that_are_there(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if link.startswith("http"):
            continue
        place, _, heading = link.partition("#")
        target = path.parent / place if place else path
        assert target.exists(), link
        assert not heading or heading in headings(target), link
        assert target.suffix not in (".html", ".pdf", ".tex"), "not in git"


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_scripts_and_make_targets_that_are_named_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {
        name
        for line in re.findall(r"^([\w -]+):(?!=)", makefile, re.MULTILINE)
        for name in line.split()
    }
    for script in re.findall(r"python3? (scripts/[\w/]+\.py)", text):
        assert (ROOT / script).is_file(), script
    for target in re.findall(r"^make ([a-z][\w-]*)|`make ([a-z][\w-]*)", text, re.MULTILINE):
        assert "".join(target) in targets, target


@pytest.mark.parametrize("path", MANUAL, ids=name_of)
def test_a_page_begins_with_its_command(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ") and lines[1] == ""
    assert lines[2].startswith("|" if path.name == "README.md" else "```")


def test_the_manuals_index_names_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    assert {path.name for path in MANUAL} - {"README.md"} == set(
        re.findall(r"\((\w+\.md)\)", index)
    )


@pytest.mark.parametrize("name", LONGEST)
def test_a_readme_stays_short(name: str) -> None:
    assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) <= LONGEST[name]


def commands() -> Iterator[tuple[str, str, list[str]]]:
    """Place, program and words of each job or training that the manual and the README print."""
    for path in (*MANUAL, ROOT / "README.md"):
        for kind, block in BLOCK.findall(path.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines() if not kind else ():
                _, found, rest = line.partition("-m spec_bench")
                words = shlex.split("spec_bench" + rest, comments=True) if found else [""]
                if words[0] in PROGRAMS and not {*words[1:2]} & {*OTHERS}:
                    yield name_of(path), words[0], words[1:]


@pytest.mark.slow
def test_every_printed_job_and_training_can_be_composed() -> None:
    register()
    seen = 0
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        for place, program, words in commands():
            told = [word for word in words if not word.startswith("-")]
            if {*told} & {*FROM_OUTSIDE, *NOT_INSTALLED}:
                continue
            # A sweep's first job: of each list of choices the first.
            first = [re.sub(r"^([\w./]+=[^\[{',]*),.*", r"\1", word) for word in told]
            try:
                compose(PROGRAMS[program], overrides=recipe_arguments(first))
            except Exception as error:
                pytest.fail(f"{place}: {' '.join(words)}: {error}")
            seen += 1
    assert seen > 50
