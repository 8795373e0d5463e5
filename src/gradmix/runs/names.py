"""Display names of data sets and methods."""

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
"""Names as papers write them. Other names are shown unchanged."""


def display(name: str) -> str:
    """Return the display name of a data set or method.

    >>> display("fashion-mnist"), display("folder:photos")
    ('Fashion-MNIST', 'folder:photos')
    """
    return NAMES.get(name, name)
