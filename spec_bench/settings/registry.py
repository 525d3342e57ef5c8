"""Registries of rules, policies, drafters, metrics and so on, which new files add themselves to.

A registry maps names to entries. On first use it imports the modules of our package that register
entries, and then those that other installed packages name as entry points of its group. So no list
has to be edited for a new file, and nothing is imported before it is needed. Knows nothing about
the entries, and imports no torch.

    rule = Registry("rule", "spec_bench.rules", Rule, within="spec_bench.verify")

    @rule("k_seq", siblings=("iid",), mark="exact")
    def k_seq(p, q, tokens, valid): ...

    rule["k_seq"].mark

Another package writes in its ``pyproject.toml``:

    [project.entry-points."spec_bench.rules"]
    coin = "my_package.coin"
"""

import ast
import functools
import importlib
import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

from spec_bench.settings.fields import format_value, get_first_line
from spec_bench.system.code_digests import read_package_code_digests
from spec_bench.system.errors import UsageError

Entry = TypeVar("Entry")
Thing = TypeVar("Thing")

CONFIGS = "spec_bench.configs"


class Registry(Mapping[str, Entry], Generic[Entry]):
    """Mapping from names to registered entries."""

    def __init__(
        self,
        noun: str,  # word for an entry in messages
        group: str,  # the entry points' group, under which other packages name their modules
        # makes an entry from the name, the decorated object and the decorator's keywords; None
        # makes the object itself the entry
        declare: Callable[..., Entry] | None = None,
        *,
        # our package with the modules that register entries, all imported on first use
        within: str | None = None,
    ) -> None:
        self.noun = noun
        self.group = group
        self._declare = declare
        self._within = within
        self._entries: dict[str, Entry] = {}
        self._origins: dict[str, str] = {}
        self._loaded: set[tuple[str, str]] = set()

    def __call__(self, name: str, **facts: Any) -> Callable[[Thing], Thing]:
        """Returns a decorator that registers an object under ``name`` and returns it unchanged."""

        def register(definition: Thing) -> Thing:
            entry: Any = self._declare(name, definition, **facts) if self._declare else definition
            self.add(name, entry, _get_qualified_name(definition))
            if inspect.isclass(definition) or inspect.isfunction(definition):
                with suppress(OSError):  # who uses it reads it again
                    read_package_code_digests(definition)  # type: ignore[arg-type]
            return definition

        return register

    def add(self, name: str, entry: Entry, origin: str) -> None:
        """Registers an entry under a name; a module that is imported again replaces its entries.
        Raises UsageError if the name is taken.
        """
        if self._origins.get(name, origin) != origin:
            raise UsageError(
                f"two {self.noun} entries are called {name!r}: {self._origins[name]} and {origin}"
            )
        self._entries[name] = entry
        self._origins[name] = origin

    def __getitem__(self, name: str) -> Entry:
        """Returns the entry called ``name``."""
        if name not in self._entries:
            self._import_own_modules()
        if name not in self._entries:
            self._import_plugins()
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        """Iterates over all names, our own first."""
        self._import_own_modules()
        self._import_plugins()
        return iter(tuple(self._entries))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def find(self, name: object, where: str) -> Entry:
        """Returns the entry that a user named. Raises UsageError, with the key and the choices, if
        there is no such entry.
        """
        if isinstance(name, str) and name in self:
            return self[name]
        raise UsageError(
            f"{where} must be one of {', '.join(sorted(self))}, got {format_value(name)}"
        )

    def build_from_block(self, block: Mapping[str, Any], key: str, where: str) -> Any:
        """Builds the dataclass that a block of settings names under ``key`` from its other
        settings. Raises UsageError, which names the block's place ``where``, if they do not fit.
        """
        from spec_bench.settings.validation import read_settings  # pydantic

        name = block.get(key)
        kind: Any = self.find(name, f"{where}.{key}")
        settings = {setting: value for setting, value in block.items() if setting != key}
        return read_settings(kind, settings, where, owner=f"{self.noun} {name!r}")

    def forget(self, name: str) -> None:
        """Removes an entry; for tests that register something."""
        self._entries.pop(name, None)
        self._origins.pop(name, None)

    def _import_own_modules(self) -> None:
        """Imports the modules of our package, once."""
        if self._within is None:
            return
        package = importlib.import_module(self._within)
        self._within = None
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)

    def _import_plugins(self) -> None:
        """Imports the modules that other packages' entry points name, each once."""
        for point in list_entry_points(self.group):
            if (point.name, point.value) in self._loaded:
                continue
            try:
                point.load()
            except Exception as error:
                raise UsageError(
                    f"entry point {point.name!r} of {self.group} ({point.value}) cannot be "
                    f"imported: {type(error).__name__}: {get_first_line(error)}"
                ) from error
            self._loaded.add((point.name, point.value))


@functools.cache
def scan_registrations(package: str, decorator: str) -> dict[str, dict[str, ast.expr]]:
    """Reads the names that our ``package`` registers with a decorator, and the decorator's
    keywords, from the modules' text: a report knows the trees without importing torch.
    """
    keywords_by_name = {}
    folders = getattr(find_spec(package), "submodule_search_locations", None) or ()
    for file in (file for folder in folders for file in sorted(Path(folder).rglob("*.py"))):
        text = file.read_text(encoding="utf-8")
        for statement in ast.parse(text).body if f"\n@{decorator}(" in text else ():
            for call in getattr(statement, "decorator_list", ()):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == decorator:
                    keywords = {keyword.arg or "": keyword.value for keyword in call.keywords}
                    keywords_by_name[str(ast.literal_eval(call.args[0]))] = keywords
    return keywords_by_name


def list_plugin_config_folders() -> list[Path]:
    """Lists the folders of configs and papers in other packages. An entry point of
    ``spec_bench.configs`` names a package, laid out like the top of ours (``conf`` and
    ``experiments``); it may hold no code and is not imported. Raises UsageError if there is no such
    package.
    """
    folders = []
    for point in list_entry_points(CONFIGS):
        try:
            package = find_spec(point.module)
        except ModuleNotFoundError:
            package = None
        if package is None or not package.submodule_search_locations:
            raise UsageError(
                f"entry point {point.name!r} of {CONFIGS} must name a package with a folder, "
                f"got {point.value!r}"
            )
        folders.append(Path(next(iter(package.submodule_search_locations))))
    return folders


def list_entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Lists the entry points of a group; reads them again only if a folder of
    ``sys.path`` changed.
    """
    folders = (name for name in sys.path if os.path.exists(name or "."))
    return _read_entry_points(
        group, tuple((name, os.stat(name or ".").st_mtime_ns) for name in folders)
    )


@functools.lru_cache(maxsize=32)
def _read_entry_points(group: str, _folders: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))


def _get_qualified_name(entry: object) -> str:
    """Returns ``module.name`` of a function, class or other object."""
    definition = entry if hasattr(entry, "__qualname__") else type(entry)
    return f"{definition.__module__}.{definition.__qualname__}"
