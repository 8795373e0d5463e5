"""One form for every value of a setting, so that equal configurations are equal to the letter.

Whoever writes `lr=1`, or a list where a field is a tuple, means 1.0 and the tuple; whoever writes
"20" for 20 is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

from gradmix.errors import InputError


def in_one_form(name: str, annotation: str, value: Any) -> Any:
    """The value as a field with this annotation has it; InputError if it cannot be one."""
    kind = annotation.removesuffix(" | None")
    if value is None and kind != annotation:
        return None
    form, words = FORMS.get(kind, (text, "text"))
    try:
        return form(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} is {value!r}; give {words}") from None


def text(value: Any) -> str:
    """Text, and nothing else."""
    if not isinstance(value, str):
        raise TypeError
    return value


def whole(value: Any) -> int:
    """A whole number; True is none."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError
    return int(value)


def number(value: Any) -> float:
    """A number, as floating point."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError
    return float(value)


def several(form: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    """A tuple of values in the given form; one value alone is a tuple of one."""

    def convert(value: Any) -> tuple[Any, ...]:
        alone = isinstance(value, str) or not hasattr(value, "__iter__")
        return tuple(form(one) for one in ([value] if alone else value))

    return convert


def by_name(value: Any) -> tuple[tuple[str, Any], ...]:
    """Pairs in the order of the names, from pairs or a mapping; numbers as floating point."""
    pairs = dict(value.items() if isinstance(value, Mapping) else value)
    return tuple(
        sorted(
            (text(name), float(v) if isinstance(v, int) and not isinstance(v, bool) else v)
            for name, v in pairs.items()
        )
    )


def order(value: Any) -> str | tuple[int, ...]:
    """A name, or numbers."""
    return value if isinstance(value, str) else several(whole)(value)


FORMS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "int": (whole, "a whole number"),
    "float": (number, "a number"),
    "tuple[int, ...]": (several(whole), "whole numbers"),
    "tuple[str, ...]": (several(text), "names"),
    "tuple[tuple[str, float], ...]": (by_name, "numbers by name"),
    "str | tuple[int, ...]": (order, "a name or whole numbers"),
}
"""By the annotation of a field; everything else is text."""
