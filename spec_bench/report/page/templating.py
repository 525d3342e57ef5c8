"""The pages' templates, filled in; whatever they are given is escaped."""

from __future__ import annotations

import functools
import re
from typing import Any

import jinja2

from spec_bench.vocabulary import names

_DOT = re.compile(r'class="dot ([\w-]+)"')


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("spec_bench.report.page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["decoders"] = _decoders
    return environment


def _decoders(content: str) -> dict[str, names.Decoder]:
    """The decoders whose dots stand in a page: the style sheet has their looks and no others."""
    return names.apart(sorted(set(_DOT.findall(content))))


def render(template: str, **values: Any) -> str:
    """A page from a template of the folder beside this file.

    Args:
        template: the file's name.
        values: of its names.
    """
    return _environment().get_template(template).render(**values)


def style() -> str:
    """The pages' style sheet, without any decoder's colour."""
    return render("style.css.j2", decoders={})
