"""A pool whose mixed samples tell their parents, and models, for the tests of mixing."""

import itertools

import numpy as np
import torch
from torch import nn

from gradmix.criterion import Exemplars
from gradmix.criterion.reference import reference_pair_table
from gradmix.criterion.selector import Judging
from gradmix.data.pool import Normalise, Pool
from gradmix.mixing import parse_recipe
from gradmix.mixing.mixer import Mixer
from gradmix.types import PairTable, Samples

OUTPUTS = 8
NEW_Y = torch.tensor([4] * 12 + [6] * 5)[
    torch.randperm(17, generator=torch.Generator().manual_seed(0))
]
OLD_Y = torch.tensor([1, 1, 1, 1, 2, 2])  # unequal, so that the kinds of average differ
Y = torch.cat([NEW_Y, OLD_Y])
SIZE = len(Y)
X = torch.eye(SIZE)
NEW, OLD = (X[:17], NEW_Y), (X[17:], OLD_Y)
EMPTY = (torch.empty(0, SIZE), torch.empty(0, dtype=torch.int64))
CLASSES = torch.tensor([1, 2, 4, 6])
SCORES = torch.tensor(
    [
        [1.0, -1.0, -1.0, 0.5],  # 1: best with itself
        [3.0, -1.0, 0.0, -1.0],  # 2: best with 1
        [-1.0, 2.0, -1.0, -1.0],  # 4: best with 2
        [-4.0, -3.0, -2.0, -1.0],  # 6: harmed by all, least by itself
    ]
)
BEST = {1: 1, 2: 1, 4: 2, 6: 6}
ROWS = torch.tensor([0, 3, 5, 8, 11, 14, 16, 17, 18, 20, 22])  # a batch of the pool
BATCHES = torch.stack([(ROWS + 7 * k) % SIZE for k in range(5)])
TABLES = tuple(PairTable.from_scores(CLASSES, scores) for scores in (SCORES, -SCORES, SCORES.T))


class FixedHost:
    """A generator of scalars that gives what the test wants, and notes what it was asked.

    `lam` is one for all, or one after another.
    """

    def __init__(self, lam=0.3, integer=0):
        self.ratios = itertools.repeat(lam) if isinstance(lam, float) else iter(lam)
        self.integer = integer
        self.asked = []

    def beta(self, a, b):
        self.asked.append(("beta", a, b))
        return next(self.ratios)

    def integers(self, limit):
        self.asked.append(("integers", limit))
        return min(self.integer, limit - 1)


class RecordingPool(Pool):
    """A pool that notes which samples it was asked for."""

    def __init__(self, *args):
        super().__init__(*args)
        self.asked = []

    def images(self, index):
        self.asked.append(index.tolist())
        return super().images(index)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def make_pool(memory=OLD, x=X):
    if memory is not None:
        memory = Samples(x[17:], OLD_Y)
    return RecordingPool(Samples(x[:17], NEW_Y), memory, Normalise([0.0], [1.0]))


def make_mixer(recipe, host=None, memory=OLD, x=X, seed=1, mix_points=1, **judging):
    recipe = parse_recipe(recipe) if isinstance(recipe, str) else recipe
    host = FixedHost() if host is None else host
    given = {"mix_points": mix_points, "judging": Judging(**judging)}
    mixer = Mixer(recipe, OUTPUTS, host=host, generator=seeded(seed), **given)
    mixer.begin_task(make_pool(memory, x))
    return mixer


def with_table(recipe, tables=TABLES[:1], **settings):
    mixer = make_mixer(recipe, **settings)
    mixer.judge.tables = tables
    return mixer


def mix_one(mixer, rows):
    """A batch of the pool, mixed."""
    return mixer.mix(mixer.plan(Y[rows][None], rows[None]), 0)


def mix_given(mixer, x, y):
    """A batch that is not said to come from the pool, mixed."""
    return mixer.mix(mixer.plan(y[None]), 0, x)


def parents(mixed, rows):
    """For each mixed row of unit vectors: λ and the partner's place in the pool."""
    result = []
    for row, own in zip(mixed, rows.tolist(), strict=True):
        others = [k for k in row.nonzero().squeeze(1).tolist() if k != own]
        assert len(others) <= 1
        result.append((float(row[own]), others[0] if others else own))
        torch.testing.assert_close(row.sum(), torch.tensor(1.0))
    return result


def global_state():
    keys, *rest = np.random.get_state()[1:]
    return [torch.get_rng_state().tolist(), keys.tolist(), *rest]


def batch_norm_model(bias=True):
    with torch.random.fork_rng([]):
        torch.manual_seed(5)
        model = nn.Sequential(
            nn.Linear(SIZE, 6),
            nn.BatchNorm1d(6),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(6, OUTPUTS, bias=bias),
        )
        with torch.no_grad():
            model[1].running_mean.uniform_(-1, 1)
            model[1].bias.fill_(1.0)
            model[4].weight[[4, 6]] += 0.5  # takes all for new, so that some pairs do harm
    return model


def reference(model, lam, average="sample"):
    """Algorithm 1 by explicit gradients on the whole pool, all pairs of samples."""
    head = model[-1]
    model.eval()
    with torch.no_grad():
        embeddings = model[:-1](X)
        exemplars = Exemplars(embeddings, head(embeddings), Y)
    model.train()
    memory = Exemplars(*(part[17:] for part in exemplars))
    return reference_pair_table(
        exemplars, memory, lam, bias=head.bias is not None, pairing="all-pairs", average=average
    )
