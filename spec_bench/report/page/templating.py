"""The pages' templates, filled in; whatever they are given is escaped."""

from __future__ import annotations

import functools
from typing import Any

import jinja2

from spec_bench import names


@functools.cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("spec_bench.report.page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, **values: Any) -> str:
    """A page from a template of the folder beside this file.

    Args:
        template: the file's name.
        values: what it names.
    """
    return _environment().get_template(template).render(decoders=names.DECODERS, **values)


def style() -> str:
    """The pages' style sheet, its colours those of the figures."""
    return render("style.css.j2")
