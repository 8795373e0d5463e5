"""gradmix: class-incremental learning with gradient-based selective mixup.

The public names are loaded when they are first used, so that `import gradmix` and
`gradmix --help` cost next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # "as" marks the names as public, for type checkers
    from gradmix.classifier import IncrementalClassifier as IncrementalClassifier
    from gradmix.criterion.selector import PairTable as PairTable
    from gradmix.errors import GradMixError as GradMixError
    from gradmix.errors import InputError as InputError
    from gradmix.loggers import LogTo as LogTo
    from gradmix.loggers import log_to as log_to
    from gradmix.memory import ReplayMemory as ReplayMemory
    from gradmix.mixing import Recipe as Recipe
    from gradmix.mixing import parse_recipe as parse_recipe
    from gradmix.mixing.gradmix import GradMix as GradMix
    from gradmix.plugins import register as register
    from gradmix.runs.config import RunConfig as RunConfig
    from gradmix.runs.config import config_for as config_for
    from gradmix.runs.results import RunResult as RunResult
    from gradmix.runs.results import load_result as load_result
    from gradmix.runs.run import run as run
    from gradmix.runs.store import ResultStore as ResultStore
    from gradmix.runs.sweep import run_sweep as run_sweep

__version__ = "0.1.0"

_HOME = {
    "GradMix": "gradmix.mixing.gradmix",
    "GradMixError": "gradmix.errors",
    "IncrementalClassifier": "gradmix.classifier",
    "InputError": "gradmix.errors",
    "LogTo": "gradmix.loggers",
    "PairTable": "gradmix.criterion.selector",
    "Recipe": "gradmix.mixing",
    "ReplayMemory": "gradmix.memory",
    "ResultStore": "gradmix.runs.store",
    "RunConfig": "gradmix.runs.config",
    "RunResult": "gradmix.runs.results",
    "config_for": "gradmix.runs.config",
    "load_result": "gradmix.runs.results",
    "log_to": "gradmix.loggers",
    "parse_recipe": "gradmix.mixing",
    "register": "gradmix.plugins",
    "run": "gradmix.runs.run",
    "run_sweep": "gradmix.runs.sweep",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'gradmix' has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(_HOME[name]), name)  # once per process
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
