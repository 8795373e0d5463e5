"""The rate of detrimental mixed samples, against Theorem 1 by explicit gradients."""

import pytest
import torch
from torch import nn

from gradmix.diagnostics import detrimental_rate
from gradmix.errors import InputError


@pytest.fixture(scope="session")
def literal_rate(one_hot, products):
    def literal_rate(model, memory, current, lam, whole_network, average):
        """Over all ordered pairs of the batch that memory and current data are together."""
        x, y = (torch.cat(parts) for parts in zip(current, memory, strict=True))
        own = products(model, whole_network, memory, x, one_hot(y), average)
        harmful = []
        for j in range(len(y)):
            mixed = lam * x + (1 - lam) * x[j]
            targets = lam * one_hot(y) + (1 - lam) * one_hot(y[j : j + 1])
            gap = own - products(model, whole_network, memory, mixed, targets, average)
            harmful.append((gap > 1e-12).double())  # a sample with itself: equal but for rounding
        return float(torch.stack(harmful).mean())

    return literal_rate


@pytest.mark.parametrize("lam", [0.0, 0.4])
@pytest.mark.parametrize("whole_network", [True, False])
@pytest.mark.parametrize(("kind", "average"), [("sequential", "class"), ("residual", "sample")])
def test_it_is_theorem_1(kind, average, whole_network, lam, make, samples, seeded, literal_rate):
    """11 samples make 121 pairs, each equally likely in a shuffled batch."""
    model, (memory, current) = make(kind), samples()
    expected = literal_rate(model, memory, current, lam, whole_network, average)
    ours = detrimental_rate(
        model,
        memory,
        current,
        whole_network=whole_network,
        lam=lam,
        batches=150,
        average=average,
        generator=seeded(),
    )
    assert 0.05 < expected < 0.95  # else this test would show little
    assert ours == pytest.approx(expected, abs=0.05)  # 1650 draws


@pytest.mark.parametrize(("lam", "share"), [(0.25, 0.5), (0.75, 1.0)])
def test_by_hand(lam, share, seeded):
    """A model that knows nothing, one remembered sample, and a new one of input 0.

    All softmaxes are (½, ½), so ⟨ḡ, g⟩ is ½ for the old sample and 0 for the new. For the old mixed
    with the new it is λ (2λ − 1) / 2 < ½: detrimental. For the new mixed with the old it is
    (1 − λ) (1 − 2λ) / 2, which is detrimental, below 0, for λ above ½ only. In a batch of both
    either each meets itself or they meet each other.
    """
    model = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(model.weight)
    rates = [
        detrimental_rate(
            model,
            (torch.tensor([[1.0, 0.0]]), torch.tensor([0])),
            (torch.zeros(1, 2), torch.tensor([1])),
            whole_network=seed % 2 == 0,
            lam=lam,
            batches=1,
            generator=seeded(seed),
        )
        for seed in range(20)
    ]
    assert set(rates) == {0.0, share}


@pytest.mark.parametrize("whole_network", [True, False])
def test_unmixed_nothing_is_worse(whole_network, make, samples, seeded):
    model, (memory, current) = make("residual"), samples()
    options = {"whole_network": whole_network, "generator": seeded()}
    assert detrimental_rate(model, memory, current, lam=1.0, **options) == 0.0


def test_of_a_model_that_is_its_last_layer_both_are_the_same(make, samples, seeded):
    model, (memory, current) = make("linear"), samples()
    one, other = (
        detrimental_rate(model, memory, current, whole_network=whole, generator=seeded(4))
        for whole in (True, False)
    )
    assert one == other


def test_batches_are_of_the_sizes_asked_for_or_of_all_there_is(make, samples, seeded):
    sizes = []
    model, (memory, current) = make("sequential"), samples()
    options = {"whole_network": False, "batches": 2, "batch_size": 4, "generator": seeded()}
    hook = model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    detrimental_rate(model, memory, current, replay_batch_size=3, **options)
    assert sizes == [5, 7, 7, 7, 7]  # the memory, then samples and mixes
    sizes.clear()
    detrimental_rate(model, memory, current, replay_batch_size=99, **options)
    assert sizes == [5, 9, 9, 9, 9]
    hook.remove()


def test_ratios_are_drawn_from_beta(seeded):
    """Inputs that are 0 in memory and 1 in the current data show λ."""
    seen = []
    model = nn.Linear(1, 2)
    zeros, ones = torch.zeros(64, 1), torch.ones(64, 1)
    y = torch.zeros(64, dtype=torch.int64)
    hook = model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    for alpha in (0.2, 5.0):
        seen.clear()
        detrimental_rate(
            model,
            (zeros, y),
            (ones, y + 1),
            alpha=alpha,
            whole_network=False,
            batches=40,
            generator=seeded(),
        )
        shares = torch.cat(seen[2::2]).flatten()
        shares = shares[(shares > 0) & (shares < 1)]
        variance = 1 / (4 * (2 * alpha + 1))
        assert len(shares) > 2000
        assert float(shares.mean()) == pytest.approx(0.5, abs=0.04)
        assert float(shares.var()) == pytest.approx(variance, rel=0.1)
    hook.remove()


def test_same_seed_same_rate_and_the_global_seed_without_a_generator(make, samples, seeded):
    model, (memory, current) = make("sequential"), samples()
    rates = [
        detrimental_rate(model, memory, current, batches=1, generator=seeded(seed))
        for seed in (1, 1, *range(2, 9))
    ]
    assert rates[0] == rates[1]
    assert len(set(rates)) > 1
    with torch.random.fork_rng([]):
        torch.manual_seed(7)
        one = detrimental_rate(model, memory, current, batches=3)
        torch.manual_seed(7)
        assert detrimental_rate(model, memory, current, batches=3) == one


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0.0}, "alpha is 0.0"),
        ({"alpha": float("inf")}, "alpha is inf"),
        ({"lam": 1.5}, "lam has 1.5; a mixing ratio lies between 0 and 1"),
        ({"lam": float("nan")}, "lam has nan"),
        ({"batches": 0}, "batches is 0; give 1 or more"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"replay_batch_size": -1}, "replay_batch_size is -1"),
    ],
)
def test_bad_settings_are_refused(settings, message, make, samples):
    with pytest.raises(InputError, match=message):
        detrimental_rate(make("linear"), *samples(), **settings)
