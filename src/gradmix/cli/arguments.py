"""What the command line takes apart itself: options with several values, seeds, settings."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from gradmix.errors import InputError


class ManyValues(TyperCommand):
    """Lets an option that may be repeated take several values at once: `--seeds 0 1 2`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Write `--seeds 0 1 2` as `--seeds 0 --seeds 1 --seeds 2` before parsing."""
        many = {name for p in self.params if getattr(p, "multiple", False) for name in p.opts}
        spelled: list[str] = []
        option = None
        for arg in args:
            is_option = arg.startswith("-") and not arg[1:2].isdecimal()
            if is_option or option is None:
                option = arg if arg in many else None
                spelled.append(arg)
            elif spelled[-1] == option:
                spelled.append(arg)
            else:
                spelled += [option, arg]
        return super().parse_args(ctx, spelled)


def parse_class_order(text: str | None) -> str | tuple[int, ...] | None:
    """natural, seed:N, or the classes in order, separated by commas."""
    if text is None or not text[:1].isdecimal():
        return text
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise InputError(
            f"class_order is {text!r}; give natural, seed:1993, or classes like 3,1,0,2"
        )
    return tuple(int(part) for part in parts)


def parse_options(texts: list[str] | None) -> tuple[tuple[str, float], ...] | None:
    """name=number, in the order of the names.

    >>> parse_options(["beta=1", "alpha=0.5"])
    (('alpha', 0.5), ('beta', 1.0))
    """
    if texts is None:
        return None
    pairs: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            raise InputError(f"option is {text!r}; give name=number, like alpha=0.3") from None
        if name in pairs:
            raise InputError(
                f"option {name} is given twice, {pairs[name]:g} and {number:g}; a run has one, and "
                "for a sweep a file lists several: options = [{...}, {...}]"
            )
        pairs[name] = number
    return tuple(sorted(pairs.items()))


def parse_transforms(names: list[str] | None) -> tuple[str, ...] | None:
    """The names in order; "none" alone is none at all."""
    return None if names is None else () if names == ["none"] else tuple(names)
