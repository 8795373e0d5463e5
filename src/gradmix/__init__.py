"""gradmix: class-incremental learning with gradient-based selective mixup.

The public names are loaded when they are first used, so that `import gradmix` and
`gradmix --help` cost next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradmix.classifier import IncrementalClassifier
    from gradmix.criterion.selector import PairTable
    from gradmix.errors import GradMixError, InputError
    from gradmix.loggers import LogTo, log_to
    from gradmix.memory import ReplayMemory
    from gradmix.mixing import Recipe, parse_recipe
    from gradmix.mixing.gradmix import GradMix
    from gradmix.plugins import register
    from gradmix.runs.config import RunConfig, config_for
    from gradmix.runs.results import RunResult, load_result
    from gradmix.runs.run import run
    from gradmix.runs.store import ResultStore
    from gradmix.runs.sweep import run_sweep

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

__all__ = [
    "GradMix",
    "GradMixError",
    "IncrementalClassifier",
    "InputError",
    "LogTo",
    "PairTable",
    "Recipe",
    "ReplayMemory",
    "ResultStore",
    "RunConfig",
    "RunResult",
    "__version__",
    "config_for",
    "load_result",
    "log_to",
    "parse_recipe",
    "register",
    "run",
    "run_sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'gradmix' has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(_HOME[name]), name)  # once per process
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
