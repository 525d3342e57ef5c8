"""The code of own metrics: other code is seen wherever it lies."""

import sys

import pytest

from spec_bench.metrics import digest_user_code, own_code, register_score_function
from spec_bench.metrics.module_metric import load_module_score
from spec_bench.metrics.quality import compute_score_columns

SCORE = """
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def compute(predictions):
    from {module} import measure

    return {{"v": measure()}}
"""
HELPERS = {"helper_a.py": "from kit.inner import K\n\n\ndef measure():\n    return K\n"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A metric whose number is in the second file that it imports."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "kit").mkdir()
    texts = {"score.py": SCORE.format(module="helper_a"), "kit/inner.py": "K = 1\n", **HELPERS}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_file_that_a_metrics_file_imports_is_part_of_its_code(folder):
    score = str(folder / "score.py")
    digests, signatures = [], []
    for value in (1, 100, 1):
        (folder / "kit" / "inner.py").write_text(f"K = {value}\n")
        digests.append(digest_user_code([score]))
        columns, signature = compute_score_columns(score, ["a"], [[]])
        assert columns["score_v"].value == value
        signatures.append(signature.partition("|code:")[2])
    assert digests[0] == digests[2] != digests[1]
    assert signatures[0] == signatures[2] != signatures[1] and len(signatures[0]) == 8
    (folder / "other.py").write_text("K = 3\n")  # nothing imports it
    assert digest_user_code([score]) == digests[0]


def test_a_file_that_a_text_of_a_metrics_file_names_is_part_of_its_code(tmp_path):
    score = tmp_path / "score.py"
    score.write_text(
        'from pathlib import Path\n\nWORDS = Path(__file__).with_name("words.txt").read_text()\n'
    )
    digests = []
    for words in ("good", "bad", "good"):
        (tmp_path / "words.txt").write_text(words)
        digests.append(digest_user_code([str(score)]))
    assert digests[0] == digests[2] != digests[1]


def test_a_data_file_is_part_of_the_code_of_functions_too_and_a_text_of_any_length_is_no_fault(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)

    def measured(predictions):
        """Zählt Wörter."""
        return {"v": [open(name).read() for name in ("words.txt", "ö" * 200, "\0", "")]}

    digests = []
    for words in ("good", "bad", "good"):
        (tmp_path / "words.txt").write_text(words)
        digests.append(own_code.read_function_code_and_values(measured, with_run_mark=False))
    assert digests[0] == digests[2] != digests[1]
    (tmp_path / "score.py").write_text(f"NAMES = 'words.txt', '{'ö' * 200}', '{tmp_path}'\n")
    assert own_code.read_code_of_file(tmp_path / "score.py").count("\0") == 1


def test_imports_of_a_file_whose_name_is_also_a_text_are_followed(tmp_path):
    (tmp_path / "score.py").write_text("import helper\n\nHELPER = 'helper.py'\n")
    (tmp_path / "helper.py").write_text("import inner\n")
    (tmp_path / "inner.py").write_text("K = 1\n")
    files = own_code.list_files_of_code(tmp_path / "score.py")
    assert [file.name for file in files] == ["score.py", "helper.py", "inner.py"]


SCALE = 1


def test_what_a_function_closes_over_and_its_globals_are_part_of_its_code():
    def make(k):
        def measured(predictions):
            return {"v": k * SCALE}

        return measured

    seen = []
    for k, scale in ((1.0, 2), (7.0, 2), (7.0, 3), (1.0, 2)):
        globals()["SCALE"] = scale
        name = register_score_function(make(k))
        seen.append((digest_user_code([name]), load_module_score(name).score(["a"], [[]])[1]))
    for each in zip(*seen, strict=True):
        assert each[0] == each[3] and len(set(each)) == 3


def test_a_function_that_hangs_on_more_is_other_code_in_every_run():
    table = {"v": 1.0}

    def looked_up(predictions):
        return table

    def alone(predictions):
        return {"v": len(predictions), "path": own_code.__name__, "argv": sys.argv}

    names = [register_score_function(compute) for compute in (looked_up, alone)]
    first = [digest_user_code([name]) for name in names]
    assert first == [digest_user_code([name]) for name in names]
    own_code.renew_run_mark()
    again = [digest_user_code([name]) for name in names]
    assert again[0] != first[0] and again[1] == first[1]
    signatures = {load_module_score("looked_up").score(["a"], [[]])[1] for _ in range(2)}
    assert len(signatures) == 1


def test_all_files_of_a_package_are_part_of_its_metrics_code(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    codes = []
    for value in (1, 100):
        name = f"own_package_{value}"
        package = tmp_path / name
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "constants.py").write_text(f"K = {value}\n")
        (package / "measures.py").write_text("def measure(generations):\n    return 1.0\n")
        measure = __import__(f"{name}.measures", fromlist=["measure"]).measure
        codes.append(own_code.read_foreign_code(measure))
    assert f"K = {1}\n" in codes[0] and "K = 100" in codes[1]
    assert own_code.read_foreign_code(digest_user_code) == ""
