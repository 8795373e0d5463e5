"""Basis methods of class-incremental learning, one file each."""

from __future__ import annotations

from dataclasses import dataclass

from gradmix.errors import UnknownNameError
from gradmix.methods.base import Method, Settings, Stage
from gradmix.methods.er import ER

__all__ = ["ER", "METHODS", "Method", "MethodInfo", "Settings", "Stage", "find_method"]


@dataclass(frozen=True)
class MethodInfo:
    """A method by name."""

    summary: str
    source: str
    build: type[Method]


METHODS: dict[str, MethodInfo] = {
    "er": MethodInfo("experience replay", "Chaudhry et al., 2019", ER),
}


def find_method(name: str) -> type[Method]:
    """The class of a method by its name."""
    if name not in METHODS:
        raise UnknownNameError("method", name, METHODS)
    return METHODS[name].build
