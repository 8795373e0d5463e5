"""Names of data sets, methods and settings as tables and figures show them."""

from __future__ import annotations

from typing import Any

from gradmix.settings import short_name

_UPPER = (
    *("er", "mir", "aser", "gss", "scr", "der", "der++", "foster", "memo", "drc", "er-ace"),
    *("a-gem", "ewc", "wa", "mnist", "cifar-10", "cifar-100"),
)
NAMES = {
    **{name: name.upper() for name in _UPPER},
    **{"bic": "BiC", "gdumb": "GDumb", "icarl": "iCaRL", "lwf": "LwF", "digits": "Digits"},
    "gss-stream": "GSS (stream)",
    "der-expandable": "DER (expandable)",
    "finetune": "Fine-tuning",
    "joint": "Joint training",
    "fashion-mnist": "Fashion-MNIST",
    "tiny-imagenet": "Tiny ImageNet",
    "imagenet": "ImageNet",
}
"""Names as papers write them. Other names are shown unchanged."""


def display(name: str) -> str:
    """Return the display name of a data set or method.

    >>> display("fashion-mnist"), display("folder:photos")
    ('Fashion-MNIST', 'folder:photos')
    """
    return NAMES.get(name, name)


def show_setting(value: Any) -> str:
    """Return the value of a setting as short text.

    >>> show_setting([5, 5]), show_setting(None), show_setting({"beta": 0.5})
    ('5 5', '–', 'beta=0.5')
    """
    if value is None:
        return "–"
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return " ".join(f"{name}={one}" for name, one in value.items()) or "none"
    return str(value)


def format_setting(name: str, value: Any) -> str:
    """Return a setting with its short name; empty if it is not set.

    >>> format_setting("weight_decay", 0.1), format_setting("options", {"beta": 0.5})
    ('weight decay 0.1', 'beta 0.5')
    """
    if isinstance(value, dict):
        return " ".join(f"{key} {number}" for key, number in value.items())
    return "" if value is None or value == [] else f"{short_name(name)} {show_setting(value)}"
