"""Data sets and methods as people write them."""

from __future__ import annotations

NAMES = {
    **{name: name.upper() for name in ("er", "mir", "gss", "der", "der++", "foster", "memo")},
    **{name: name.upper() for name in ("mnist", "cifar-10", "cifar-100")},
    "gss-stream": "GSS (stream)",
    "icarl": "iCaRL",
    "finetune": "Fine-tuning",
    "joint": "Joint training",
    "fashion-mnist": "Fashion-MNIST",
    "tiny-imagenet": "Tiny ImageNet",
    "imagenet": "ImageNet",
    "digits": "Digits",
}
"""Data sets and methods as papers write them; others keep their own names."""


def display(name: str) -> str:
    """A data set or method as people write it.

    >>> display("fashion-mnist"), display("folder:photos")
    ('Fashion-MNIST', 'folder:photos')
    """
    return NAMES.get(name, name)
