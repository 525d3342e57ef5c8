"""Traces one job: which of our frames lie between the command and a decoder's iteration, and in
which forms a temperature and a prompt pass on the way.

    python scripts/check/forms.py

A form is a text, a number, a mapping or a class: the type of an argument or of a result that is the
number or the prompt's name, or that holds it. Lists of a form are that form.
"""

import json
import sys
import tempfile
from dataclasses import is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from omegaconf import DictConfig, OmegaConf

TEMPERATURE = 0.7265625
PROMPT = "heron-7f3a"  # its name, which all of its forms have
PACKAGE = "spec_bench"


def our_name(frame: FrameType) -> str:
    """Returns a frame's module and function; "" where it is not ours."""
    module = frame.f_globals.get("__name__", "")
    ours = module.split(".")[0] == PACKAGE and not frame.f_code.co_name.startswith("<")
    return f"{module.removeprefix(PACKAGE + '.')}.{frame.f_code.co_qualname}" if ours else ""


def is_wanted(part: Any, wanted: float | str) -> bool:
    """Returns whether a value is the number or the name, or a text with it."""
    if isinstance(part, str):
        return str(wanted) in part
    return type(part) is type(wanted) and part == wanted


def find_form(value: Any, wanted: float | str) -> str:
    """Returns the kind of a value that is what is wanted or holds it; "" where it does not."""
    if is_wanted(value, wanted):
        return "text" if isinstance(value, str) else "number"
    name = type(value).__name__
    parts: list[Any] = []
    if isinstance(value, DictConfig):
        value = OmegaConf.to_container(value)
    if isinstance(value, dict):
        groups = [part for part in value.values() if isinstance(part, dict)]
        parts = [*value.values(), *value, *(part for group in groups for part in group.values())]
        name = "mapping" if name == "dict" else name
    elif isinstance(value, list | tuple):
        return next(filter(None, (find_form(part, wanted) for part in value)), "")
    elif is_dataclass(value):
        parts = [*vars(value).values()]
    return name if any(is_wanted(part, wanted) for part in parts) else ""


class Tracer:
    """Collects forms and the deepest stack while a job runs."""

    def __init__(self) -> None:
        self.forms: dict[str, dict[str, str]] = {"temperature": {}, "prompt": {}}
        self.stack: list[str] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Looks at a call's arguments, and at what it returns."""
        if event not in ("call", "return"):
            return
        name = our_name(frame)
        if not name:
            return
        if name.endswith("Decoder.run_iteration") and not self.stack:
            above: FrameType | None = frame
            while above is not None:
                self.stack.insert(0, our_name(above) or above.f_globals.get("__name__", ""))
                above = above.f_back
        values = list(frame.f_locals.values()) if event == "call" else [argument]
        for kind, wanted in (("temperature", TEMPERATURE), ("prompt", PROMPT)):
            for value in values:
                if form := find_form(value, wanted):
                    self.forms[kind].setdefault(form, name)


def main() -> None:
    """Runs the job and prints what was found."""
    from spec_bench import __main__ as front

    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder, "prompts.jsonl")
        prompts.write_text(
            json.dumps({"id": PROMPT, "prompt": "A heron."}) + "\n", encoding="utf-8"
        )
        sys.argv = [
            *("spec-bench", "run", "--data", str(prompts), "--decoders", "sd:2"),
            *("--temperature", str(TEMPERATURE), "--max-new-tokens", "8", "--out", f"{folder}/out"),
            *("sink=quiet", "warmup=0"),
        ]
        tracer = Tracer()
        sys.setprofile(tracer)
        try:
            front.main()
        except SystemExit:
            pass
        finally:
            sys.setprofile(None)
    first = tracer.stack.index("__main__.main")
    frames = [name for name in tracer.stack[first:-1] if not name.startswith("torch")]
    print(f"{len(frames)} frames between the command and an iteration")
    print(*(f"  {name}" for name in frames), sep="\n")
    for kind, forms in tracer.forms.items():
        print(f"{len(forms)} forms of a {kind}")
        print(*(f"  {form:24} {place}" for form, place in forms.items()), sep="\n")


if __name__ == "__main__":
    main()
