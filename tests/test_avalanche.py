"""The Avalanche plugin, with a stand-in for a strategy and with Avalanche itself."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from gradmix import GradMix
from gradmix.avalanche import GradMixPlugin
from gradmix.errors import InputError

ROOT = Path(__file__).parents[1]


def dataset(*labels):
    """Three samples of each label, (x, y, task) as Avalanche has them."""
    y = torch.tensor(labels).repeat_interleave(3)
    return TensorDataset(torch.randn(len(y), 4), y, torch.zeros(len(y)))


@pytest.fixture
def strategy():
    torch.manual_seed(0)
    return SimpleNamespace(
        model=nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)),
        plugins=[SimpleNamespace(storage_policy=SimpleNamespace(buffer=dataset(0, 1)))],
        adapted_dataset=dataset(2, 3),
        device="cpu",
        mbatch=None,
    )


def mixer():
    return GradMix(generator=torch.Generator().manual_seed(1))


def test_a_batch_is_mixed_for_the_loss_and_restored_for_metrics(strategy):
    plugin, alone = GradMixPlugin(mixer()), mixer()
    new, old = strategy.adapted_dataset.tensors, strategy.plugins[0].storage_policy.buffer.tensors
    plugin.before_training_exp(strategy)
    plugin.before_training_epoch(strategy)
    alone.refresh(strategy.model, memory=old[:2], current=new[:2])
    x, y = torch.cat([new[0], old[0]]), torch.cat([new[1], old[1]])
    strategy.mbatch = [x, y, torch.zeros(len(y))]
    plugin.before_forward(strategy)
    mixed, targets = alone(x, y)
    assert torch.equal(strategy.mbatch[0], mixed)
    assert torch.equal(strategy.mbatch[1], targets)
    plugin.before_backward(strategy)
    assert torch.equal(strategy.mbatch[1], y)


def test_the_first_experience_has_an_empty_buffer(strategy):
    strategy.plugins[0].storage_policy.buffer = []
    plugin = GradMixPlugin(mixer())
    plugin.before_training_exp(strategy)
    plugin.before_training_epoch(strategy)
    x, y, _ = strategy.adapted_dataset.tensors
    strategy.mbatch = [x, y]
    plugin.before_forward(strategy)
    assert torch.equal(strategy.mbatch[0], x)  # gradient partners leave the first task unmixed


def test_a_strategy_without_a_buffer_is_refused(strategy):
    strategy.plugins = []
    with pytest.raises(InputError, match="ReplayPlugin"):
        GradMixPlugin().before_training_exp(strategy)


@pytest.mark.slow
def test_real_avalanche(tmp_path):
    environment = Path(os.environ.get("GRADMIX_AVALANCHE", ROOT / ".avalanche"))
    if not (environment / "bin" / "python").exists():
        pytest.skip("Avalanche is not installed; `python -m benchmarks avalanche-er` installs it")
    command = [environment / "bin" / "python", ROOT / "benchmarks" / "avalanche_gradmix.py"]
    settings = ["--samples", "200", "--epochs", "1", "--seeds", "0"]
    path = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [*command, *settings], capture_output=True, text=True, env=path, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "seed 0: average accuracy 0." in done.stdout
