"""Start a task from a head in closed form, computed on the present features of the samples.

Fine-tuning a pretrained network from a random head would destroy its features first.
"""

from __future__ import annotations

import torch
from torch import nn

from gradmix.closed_form import Ridge, every_tenth, fit_temperature
from gradmix.criterion.embedding import embed_rows
from gradmix.data.pool import Pool
from gradmix.memory.replay import first_of_each_class
from gradmix.models.parallel import split_like
from gradmix.ranks import ALONE, Ranks


@torch.no_grad()
def start_from_closed_form(
    model: nn.Module, head: nn.Linear, pool: Pool, ranks: Ranks = ALONE
) -> None:
    """Set a head to the ridge regression from the features of a pool to its classes.

    New classes use as many samples as the memory holds of an old class, because ridge regression
    prefers frequent classes. The scores are divided by a temperature that is fitted to a tenth of
    the samples. A class without samples gets the lowest score.

    Args:
        model: The network.
        head: Its head, changed in place.
        pool: The samples.
        ranks: The processes that embed the samples together.
    """
    index, old = torch.arange(len(pool), device=pool.y.device), pool.y[pool.num_new :]
    if len(old):
        most = -(-len(old) // len(old.unique()))
        quota = torch.full((int(pool.y.max()) + 1,), most, device=pool.y.device)
        index = first_of_each_class(pool.y, index, quota)
    labels = pool.y[index].cpu()
    embeddings = embed_rows(model, head, pool.inputs, index, ranks).cpu()  # (n, d)
    held = every_tenth(labels)
    ridge = Ridge(head.in_features, normalise=False)
    ridge.update(embeddings[~held], labels[~held])
    temperature = 1.0
    if bool(held.any()) and len(ridge.classes) > 1:
        places = torch.searchsorted(torch.tensor(ridge.classes), labels[held])
        temperature = fit_temperature(ridge.scores(embeddings[held]), places)
        ridge.update(embeddings[held], labels[held])
    lowest = float(ridge.scores(embeddings).min()) / temperature
    weight, bias = ridge.linear()  # (d, C), (C,)
    classes = list(ridge.classes)
    weights = torch.zeros(head.weight.shape, dtype=head.weight.dtype)
    weights[classes] = (weight.T / temperature).to(weights)
    head.weight.copy_(split_like(weights, head.weight))
    if head.bias is not None:
        biases = torch.full(head.bias.shape, lowest, dtype=head.bias.dtype)
        biases[classes] = (bias / temperature).to(biases)
        head.bias.copy_(split_like(biases, head.bias))
