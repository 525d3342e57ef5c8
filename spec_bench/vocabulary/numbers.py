"""How a number with its interval is written; nothing about how either is computed."""


def format_count(number: float, noun: str) -> str:
    """Writes a number of things: ``1 prompt``, ``3 prompts``."""
    return f"{number:g} {noun}{'' if number == 1 else 's'}"


def format_interval(value: float, low: float | None, high: float | None, form: str) -> str:
    """``value [low, high]``, each written as the form says (``.2f``), or the value alone where it
    has no interval (None or nan).
    """
    return f"{value:{form}} {format_ends(low, high, form)}".rstrip()


def format_ends(low: float | None, high: float | None, form: str, pattern: str = "[{}, {}]") -> str:
    """Both ends of an interval in a pattern; "" where one of them is None or nan."""
    if low is None or high is None or low != low or high != high:
        return ""
    return pattern.format(f"{low:{form}}", f"{high:{form}}")
