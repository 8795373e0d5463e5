"""The types that settings have, the errors that invalid values raise, and seeds as text.

Values take one normal form, so that equal configurations compare equal: `lr=1` becomes 1.0, a
list becomes a tuple, and a NumPy number becomes a Python number. Text such as "20" is not a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Annotated, Any, TypeGuard

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError
from pydantic_core import PydanticCustomError

from gradmix.errors import InputError, UnknownNameError

LARGEST = 1e30
MOST = 2**31
MOST_SEEDS = 1_000_000


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether a value is an integer of Python or NumPy, and not a boolean."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _whole(value: Any) -> int:
    if not is_whole(value):
        raise PydanticCustomError("form", "give a whole number")
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise PydanticCustomError("form", "give a number")
    if abs(value) > LARGEST:  # type: ignore[operator]
        raise PydanticCustomError("form", "give a finite number of at most 1e30")
    return float(value)


def _switch(value: Any) -> float:
    number = _number(value)
    if number not in (0, 1):
        raise PydanticCustomError("form", "give 1, for yes, or 0")
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise PydanticCustomError("form", "give text")
    return str(value)


def _several(value: Any, form: Callable[[Any], Any], words: str) -> tuple[Any, ...]:
    """Return values as a tuple; a single value becomes a tuple of one."""
    single = isinstance(value, str) or not hasattr(value, "__iter__")
    try:
        return tuple(form(item) for item in ([value] if single else value))
    except (ValueError, TypeError):
        raise PydanticCustomError("form", f"give {words}") from None


def _counts(value: Any) -> tuple[int, ...]:
    return _several(value, _whole, "whole numbers")


def _names(value: Any) -> tuple[str, ...]:
    """Return names as a tuple; "none" alone is the empty tuple."""
    names = _several(value, _text, "names")
    return () if names == ("none",) else names


def _pairs(value: Any) -> tuple[tuple[str, Any], ...]:
    """Return name-number pairs sorted by name, from a mapping, pairs or texts name=number."""
    found = {}
    try:
        given = list(value.items() if isinstance(value, Mapping) else value)
        for one in given:
            name, number = one.split("=") if isinstance(one, str) else one
            if isinstance(one, str) or (isinstance(number, Real) and not isinstance(number, bool)):
                number = float(number)
            found[_text(name)] = number
    except (ValueError, TypeError):
        raise PydanticCustomError("form", "give numbers by name, such as alpha=0.3") from None
    if len(found) < len(given):
        raise PydanticCustomError("form", "give each name once")
    return tuple(sorted(found.items()))


def _order(value: Any) -> str | tuple[int, ...]:
    """Return a name as it is, and classes, also as text such as "3,1,0,2", as a tuple."""
    if isinstance(value, str) and not value[:1].isdecimal():
        return value
    try:
        classes = [int(one) for one in value.split(",")] if isinstance(value, str) else value
    except ValueError:
        forms = "give natural, seed:1993, or classes such as 3,1,0,2"
        raise PydanticCustomError("form", forms) from None
    return _several(classes, _whole, "a name or whole numbers")


Whole = Annotated[int, BeforeValidator(_whole), Field(le=MOST)]
Seed = Annotated[int, BeforeValidator(_whole), Field(le=2**63 - 1)]
Number = Annotated[float, BeforeValidator(_number)]
Switch = Annotated[float, BeforeValidator(_switch)]
Text = Annotated[str, BeforeValidator(_text)]
Counts = Annotated[tuple[Annotated[int, Field(ge=1, le=MOST)], ...], BeforeValidator(_counts)]
Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
Options = Annotated[tuple[tuple[str, Any], ...], BeforeValidator(_pairs), PlainSerializer(dict)]
ClassOrder = Annotated[str | tuple[int, ...], BeforeValidator(_order)]


def setting(
    default: Any,
    help: str,  # noqa: A002
    source: str = "ours",
    *,
    short: str = "",
    flags: Sequence[str] = (),
    **bounds: Any,
) -> Any:
    """Declare a setting.

    Args:
        default: Its default; `...` if it has none.
        help: One line for options and documentation.
        source: Where the default comes from.
        short: Its name in tables, such as τ. Default: its name with spaces.
        flags: Its options on the command line. Default: its name.
        **bounds: Bounds in the words of pydantic, such as `ge=0`.
    """
    extra: Any = {"source": source, "short": short, "flags": list(flags)}
    return Field(default, description=help, json_schema_extra=extra, **bounds)


class Settings(BaseModel):
    """A group of settings: immutable, hashable, and valid from the moment it exists.

    Raises:
        InputError: If a value is invalid. The message names the setting, the value and the remedy.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise input_error(error, given, type(self).model_fields) from None


_REMEDIES = {
    "greater_than_equal": "give {ge} or more",
    "greater_than": "give a number above {gt}",
    "less_than_equal": "give {le} or less",
    "less_than": "give a number below {lt}",
    "finite_number": "give a finite number",
    "int_parsing": "give a whole number",
    "float_parsing": "give a number",
    "multiple_of": "give a multiple of {multiple_of}",
    "bool_type": "give True or False",
    "too_short": "give at least {min_length}",
}
"""By pydantic's type of error; other errors come from this module and are remedies themselves."""


def input_error(
    error: ValidationError, given: Mapping[str, Any], known: Iterable[str], name: str = ""
) -> InputError:
    """Return the first violation as an error that names the setting, the value and the remedy."""
    first = error.errors(include_url=False)[0]
    context = first.get("ctx", {})
    if isinstance(context.get("error"), InputError):  # raised by a validator of gradmix
        return context["error"]  # type: ignore[no-any-return]
    name = name or str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return UnknownNameError("setting", name, known)
    if first["type"] == "missing":
        return InputError(f"{name} is missing; give a value")
    if first["type"] == "literal_error":
        expected = context["expected"].replace(" or ", ", ")
        choices = [part.strip("'") for part in expected.split(", ")]
        shown = _shown(given[name])
        value = shown if shown.endswith("…") else given[name]  # messages stay short
        return UnknownNameError(name, value, choices)
    return InputError(f"{name} is {_shown(given.get(name))}; {remedy(first) or first['msg']}")


def remedy(violation: Mapping[str, Any]) -> str:
    """Return what to give instead; empty if the message of the violation says it."""
    context = violation.get("ctx", {})
    bounds = {k: f"{v:g}" if isinstance(v, float) else v for k, v in context.items()}
    return _REMEDIES.get(violation["type"], "").format(**bounds)


def _shown(value: Any) -> str:
    """Return a value in at most 80 characters, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # a number with too many digits, or an object that cannot show itself
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:79]}…"


def parse_seeds(texts: Sequence[str | int]) -> list[int]:
    """Return the seeds of numbers and ranges.

    Raises:
        InputError: If a text is neither a number nor a range, a seed is given twice, or there are
            too many seeds.

    >>> parse_seeds(["0-2", "7", 9])
    [0, 1, 2, 7, 9]
    """
    seeds: list[int] = []
    for text in map(str, texts):
        first, dash, last = text.partition("-")
        last = last if dash else first
        valid = all(part.isdecimal() and len(part) < 20 for part in (first, last))
        if not valid:
            raise InputError(f"seeds has {text!r}; give numbers or ranges, such as 0 1 2 or 0-4")
        if int(first) > int(last):
            raise InputError(
                f"seeds has {text!r}, a range whose first seed is larger than its last; give "
                f"{int(last)}-{int(first)}"
            )
        if len(seeds) + int(last) - int(first) >= MOST_SEEDS:
            raise InputError(f"seeds has {text!r}; give at most {MOST_SEEDS} seeds")
        seeds += range(int(first), int(last) + 1)
    if len(set(seeds)) < len(seeds):
        twice = Counter(seeds).most_common(1)[0][0]
        raise InputError(f"seeds has {twice} twice; give each seed once")
    return seeds


def seed_range(seeds: Sequence[int]) -> str:
    """Return consecutive seeds as a range, others one by one.

    >>> seed_range([5, 6, 7]), seed_range([0, 2])
    ('5-7', '0 2')
    """
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}-{seeds[-1]}"
    return " ".join(str(seed) for seed in seeds)
