"""Registries: found by being there, in our package or in another one."""

import sys
from typing import NamedTuple

import pytest

from spec_bench.settings.registry import Registry, list_plugin_config_folders
from spec_bench.verify.base import rule
from tests.said import one_line


class Declared(NamedTuple):
    name: str
    thing: object
    mark: str


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Lays out a package beside its metadata, as an installer leaves them."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def laid_out(name, points, **files):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(points)
        for path, text in files.items():
            file = tmp_path / f"{path.replace('__', '/')}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    return laid_out


def test_a_parameter_that_cannot_be_a_key_is_named_with_how_it_stands():
    for lazy in (lambda p, q, t, v, share=0.8: 0, lambda p, q, t, v, *, share=0.8: 0):
        with pytest.raises(ValueError, match=r"share of rule .* valid, \*, share: float"):
            rule("lazy", mark="approximate")(lazy)


def test_what_is_decorated_stays_what_it_is_and_is_found_with_its_facts():
    rules = Registry("rule", "spec_bench.test", Declared)

    @rules("coin", mark="exact")
    def coin():
        return "heads"

    assert coin() == "heads"
    assert rules["coin"] == Declared("coin", coin, "exact")
    assert list(rules) == ["coin"]


def test_an_unknown_name_is_refused_in_one_line_with_the_choices():
    rules = Registry("rule", "spec_bench.test")
    rules("one")(object)
    rules("two")(int)
    for wrong in ("three", None, float("nan"), ["one"], {}):
        with one_line("one, two") as caught:
            rules.find(wrong, "decoder 'd': verifier.rule")
        assert repr(wrong) in str(caught.value)


def test_two_things_of_one_name_are_refused_and_one_imported_twice_is_not():
    rules = Registry("rule", "spec_bench.test")
    rules("one")(int)
    rules("one")(int)
    with pytest.raises(ValueError, match=r"builtins\.int and builtins\.str"):
        rules("one")(str)


def test_modules_of_the_package_looked_after_register_when_first_asked(install):
    install(
        "housed",
        "",
        housed____init__="",
        housed__known="from spec_bench.settings.registry import Registry\n"
        "things = Registry('thing', 'g')\n",
        housed__more="from housed.known import things\n@things('late')\nclass Late: ...\n",
    )
    things = Registry("thing", "spec_bench.test", within="housed")
    assert "housed.more" not in sys.modules
    assert list(things) == []
    assert "housed.more" in sys.modules


def test_another_packages_entry_points_are_imported_only_when_asked_for(install, monkeypatch):
    things = Registry("thing", "spec_bench.test_things")
    things("own")(int)
    monkeypatch.setattr(sys, "shared_things", things, raising=False)

    def lodge(name):
        code = f"import sys\n@sys.shared_things('{name}')\nclass Guest: ...\n"
        point = f"[spec_bench.test_things]\n{name} = {name}_things\n"
        install(name, point, **{f"{name}_things": code})

    lodge("guest")
    assert things["own"] is int
    assert "guest_things" not in sys.modules
    assert things.find("guest", "thing").__name__ == "Guest"
    assert list(things) == ["own", "guest"]
    lodge("later")
    assert list(things) == ["own", "guest", "later"]


def test_an_entry_point_that_cannot_be_imported_is_named(install):
    install(
        "broken",
        "[spec_bench.test_broken]\nguest = broken_things\n",
        broken_things="raise RuntimeError('out of order\\nand more')",
    )
    things = Registry("thing", "spec_bench.test_broken")
    with one_line(r"broken_things.*RuntimeError: out of order"):
        list(things)


def test_folders_of_configs_are_found_without_importing_their_package_or_named(install, tmp_path):
    install("papers", "[spec_bench.configs]\nmine = papers_of_mine\n")
    (tmp_path / "papers_of_mine" / "experiments").mkdir(parents=True)
    assert list_plugin_config_folders() == [tmp_path / "papers_of_mine"]
    assert "papers_of_mine" not in sys.modules
    install("others", "[spec_bench.configs]\nyours = nowhere.at_all\n")
    with pytest.raises(ValueError, match=r"'yours'.*'nowhere\.at_all'"):
        list_plugin_config_folders()
