"""The Lightning callback: the training step sees what the mixer returns."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from gradmix import GradMix
from gradmix.errors import InputError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning = pytest.importorskip("lightning.pytorch")
    from gradmix.lightning import GradMixCallback

X, Y = torch.randn(24, 4, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 4
OLD = Y < 2


class Module(lightning.LightningModule):
    """A linear model that remembers the batches it gets."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(4, 4), []

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch, batch_idx):
        self.seen.append(batch)
        return cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def fit(module, callback, tmp_path):
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback],
        default_root_dir=tmp_path,
    )
    trainer.fit(module, DataLoader(TensorDataset(X, Y), batch_size=12))


@pytest.mark.filterwarnings("ignore")
def test_the_training_step_gets_mixed_batches(tmp_path):
    module, data = Module(), {"memory": (X[OLD], Y[OLD]), "current": (X[~OLD], Y[~OLD])}
    callback = GradMixCallback(GradMix(generator=torch.Generator().manual_seed(3)))
    callback.begin_task(**data)
    fit(module, callback, tmp_path)
    alone = GradMix(generator=torch.Generator().manual_seed(3))
    alone.refresh(module, **data)  # a learning rate of 0 leaves the model as it was
    for number, (x, targets) in enumerate(module.seen):
        rows = slice(12 * number, 12 * number + 12)
        expected_x, expected_targets = alone(X[rows], Y[rows])
        assert torch.equal(x, expected_x)
        assert torch.equal(targets, expected_targets)
    assert len(module.seen) == 2


@pytest.mark.filterwarnings("ignore")
def test_data_must_be_given_first(tmp_path):
    with pytest.raises(InputError, match="begin_task"):
        fit(Module(), GradMixCallback(), tmp_path)


def test_a_batch_that_is_no_list_is_refused():
    with pytest.raises(InputError, match="batch is a tuple"):
        GradMixCallback().on_train_batch_start(None, None, (X, Y), 0)
