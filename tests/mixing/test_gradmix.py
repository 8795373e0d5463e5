"""GradMix in anybody's own loop."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gradmix
from gradmix.errors import InputError, UnknownNameError
from gradmix.mixing.gradmix import GradMix
from gradmix.mixing.recipe import LABELS, PARTNERS

OUTPUTS = 8
NEW_Y = torch.tensor([4] * 12 + [6] * 5)[
    torch.randperm(17, generator=torch.Generator().manual_seed(0))
]
OLD_Y = torch.tensor([1, 1, 1, 1, 2, 2])  # unequal, so that the kinds of average differ
Y = torch.cat([NEW_Y, OLD_Y])
SIZE = len(Y)
X = torch.eye(SIZE)  # mixed rows tell their parents
NEW, OLD = (X[:17], NEW_Y), (X[17:], OLD_Y)
EMPTY = (torch.empty(0, SIZE), torch.empty(0, dtype=torch.int64))
ROWS = torch.tensor([0, 3, 5, 8, 11, 14, 16, 17, 18, 20, 22])


@pytest.fixture(scope="module")
def refreshed(batch_norm_model, seeded):
    def call(model=None, seed=2, memory=OLD, current=NEW, **settings):
        mixer = GradMix(generator=seeded(seed), **settings)
        mixer.refresh(
            batch_norm_model(SIZE, OUTPUTS) if model is None else model,
            memory=memory,
            current=current,
        )
        return mixer

    return call


@pytest.fixture(scope="module")
def use(batch_norm_model):
    """Hand over samples as a batch, or as one argument of a refresh."""

    def call(mixer, argument, samples):
        if argument == "batch":
            mixer(*samples)
        else:
            mixer.refresh(
                batch_norm_model(SIZE, OUTPUTS),
                **{"memory": OLD, "current": NEW, argument: samples},
            )

    return call


def test_it_is_the_public_name():
    assert gradmix.GradMix is GradMix


@pytest.mark.parametrize("bias", [True, False])
def test_the_table_is_algorithm_1(bias, batch_norm_model, reference_table, refreshed):
    """A huge α makes λ a half."""
    model = batch_norm_model(SIZE, OUTPUTS, bias)
    mixer = refreshed(model, alpha=1e10, tables=1, pairing="all-pairs")
    expected = reference_table(model, X, Y, 17, 0.5)
    assert mixer.pairs.classes.tolist() == [1, 2, 4, 6]
    torch.testing.assert_close(mixer.pairs.scores, expected.scores, atol=1e-4, rtol=1e-3)
    assert torch.equal(mixer.pairs.negative, expected.negative)
    assert torch.equal(mixer.pairs.optimal, expected.optimal)


def test_a_mixed_batch_is_what_it_says(parents, refreshed):
    mixer = refreshed(labels="proportional")
    table = mixer.pairs
    assert 0 < table.negative_rate < 1  # else this test would show little
    position = {int(label): k for k, label in enumerate(table.classes)}
    eye, ratios = torch.eye(OUTPUTS), set()
    for _ in range(20):
        x, targets = mixer(X[ROWS], Y[ROWS])
        assert targets.dtype == torch.float32
        assert targets.shape == (len(ROWS), OUTPUTS)
        mixed = {}
        for row, (lam, partner) in enumerate(parents(x, ROWS)):
            a, b = position[int(Y[ROWS[row]])], position[int(Y[partner])]
            assert not table.negative[a, b] or b == table.optimal[a]
            if partner != ROWS[row]:
                mixed[row] = lam, partner
        (lam,) = {round(lam, 5) for lam, _ in mixed.values()}  # one λ per batch
        ratios.add(lam)
        for row, (lam, partner) in mixed.items():
            expected = lam * eye[Y[ROWS[row]]] + (1 - lam) * eye[Y[partner]]
            torch.testing.assert_close(targets[row], expected)
    assert len(ratios) == 20


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("partners", PARTNERS)
@pytest.mark.parametrize("blend", ["linear", "cutmix"])
def test_targets_are_distributions_and_train_a_model(blend, partners, labels, refreshed, seeded):
    x = torch.rand(SIZE, 1, 4, 4, generator=seeded())
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, OUTPUTS))
    mixer = refreshed(
        model,
        memory=(x[17:], OLD_Y),
        current=(x[:17], NEW_Y),
        partners=partners,
        blend=blend,
        labels=labels,
    )
    mixed, targets = mixer(x[ROWS], Y[ROWS])
    assert mixed.shape == x[ROWS].shape
    assert bool((targets >= 0).all())
    torch.testing.assert_close(targets.sum(1), torch.ones(len(ROWS)))
    seen = Y.unique().tolist()
    assert not targets[:, [k for k in range(OUTPUTS) if k not in seen]].any()
    F.cross_entropy(model(mixed), targets).backward()
    assert model[-1].weight.grad is not None


def test_same_seed_same_bits_whatever_the_global_generator_does(refreshed):
    results = []
    for seed in (4, 4, 5):
        torch.manual_seed(len(results))
        mixer = refreshed(seed=seed)
        torch.rand(3)
        results.append((mixer.pairs.scores, *mixer(X[ROWS], Y[ROWS])))
    assert all(torch.equal(*pair) for pair in zip(results[0], results[1], strict=True))
    assert not torch.equal(results[0][1], results[2][1])


def test_with_a_generator_the_global_ones_and_the_model_are_left_alone(
    batch_norm_model, global_state, refreshed
):
    model = batch_norm_model(SIZE, OUTPUTS).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    randomness = global_state()
    refreshed(model)(X[ROWS], Y[ROWS])
    assert global_state() == randomness
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_without_a_generator_the_global_seed_decides(batch_norm_model):
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        mixer = GradMix()
        mixer.refresh(batch_norm_model(SIZE, OUTPUTS), memory=OLD, current=NEW)
        results.append(mixer(X[ROWS], Y[ROWS])[0])
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_the_batch_is_not_written_to(refreshed):
    x, y = X[ROWS].clone(), Y[ROWS].clone()
    refreshed()(x, y)
    assert torch.equal(x, X[ROWS])
    assert torch.equal(y, Y[ROWS])


def test_labels_may_be_a_view(refreshed):
    """PyTorch would warn if they were looked up as they are."""
    spread = torch.stack([Y[ROWS], Y[ROWS]], dim=1)[:, 0]
    for expected, found in zip(
        refreshed()(X[ROWS], Y[ROWS]), refreshed()(X[ROWS], spread), strict=True
    ):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("memory", [EMPTY, None])
def test_an_empty_memory_leaves_batches_as_they_are(memory, refreshed):
    mixer = refreshed(memory=memory)
    assert mixer.pairs is None
    x = X[:5].clone()
    mixed, targets = mixer(x, NEW_Y[:5])
    assert torch.equal(mixed, X[:5])
    assert targets.dtype == torch.float32
    assert torch.equal(targets, torch.eye(OUTPUTS)[NEW_Y[:5]])


def test_an_empty_memory_does_not_stop_mixes_without_gradients(refreshed):
    mixed, _ = refreshed(memory=EMPTY, partners="shuffle")(X[:9], NEW_Y[:9])
    assert not torch.equal(mixed, X[:9])


@pytest.mark.parametrize(("partners", "mixes"), [("gradient", True), ("shuffle", False)])
def test_mixing_with_an_empty_memory_can_be_turned_on_and_off(partners, mixes, refreshed):
    mixer = refreshed(memory=EMPTY, partners=partners, mix_first_task=mixes)
    mixed, _ = mixer(X[:9], NEW_Y[:9])
    assert mixer.pairs is None
    assert torch.equal(mixed, X[:9]) is not mixes


def test_a_given_head_is_used_where_the_last_linear_is_another(refreshed):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.classifier = nn.Linear(SIZE, OUTPUTS, bias=False)
            self.rotation = nn.Linear(SIZE, 4)  # registered last, used for something else

        def forward(self, x):
            return self.classifier(x)

    model = Model()
    mixer = refreshed(model, head=model.classifier)
    assert mixer(X[ROWS], Y[ROWS])[1].shape == (len(ROWS), OUTPUTS)
    before = mixer.pairs
    with pytest.raises(InputError, match="head"):
        refreshed(model)
    assert mixer.pairs is before


@pytest.mark.parametrize("limit", [1, 4])
def test_few_exemplars_are_drawn_of_the_current_classes(limit, batch_norm_model, refreshed):
    model, rows = batch_norm_model(SIZE, OUTPUTS), []
    model.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0].argmax(1)))
    refreshed(model, criterion_exemplars=limit)
    labels = Y[torch.cat(rows)]
    assert labels.bincount(minlength=OUTPUTS).tolist() == [0, 4, 2, 0, limit, 0, limit, 0]


def test_a_refresh_follows_model_and_data(batch_norm_model, refreshed):
    mixer = refreshed(pairing="all-pairs")
    first = mixer.pairs
    mixer.refresh(
        batch_norm_model(SIZE, OUTPUTS), memory=(X, Y), current=(X[:4], torch.full((4,), 7))
    )
    assert mixer.pairs is not first
    assert mixer.pairs.classes.tolist() == [1, 2, 4, 6, 7]
    mixer.refresh(batch_norm_model(SIZE, OUTPUTS), memory=EMPTY, current=NEW)
    assert mixer.pairs is None


def test_state_goes_on_between_epochs(batch_norm_model, seeded):
    mixer = GradMix(generator=(generator := seeded(3)))
    model = batch_norm_model(SIZE, OUTPUTS)

    def epoch(mixer):
        mixer.refresh(model, memory=OLD, current=NEW)
        return [mixer(X[ROWS], Y[ROWS])[0] for _ in range(3)]

    epoch(mixer)
    state, draws = mixer.state_dict(), generator.get_state()
    expected = epoch(mixer)
    again = GradMix(generator=(other := seeded(99)))
    again.load_state_dict(state)
    other.set_state(draws)
    assert all(torch.equal(*pair) for pair in zip(epoch(again), expected, strict=True))


@pytest.mark.parametrize("tables", [1, 4])
def test_a_control_without_gradients_has_the_same_draws(batch_norm_model, seeded, tables):
    """The criterion draws from streams of its own, so only replaced partners differ."""
    model, partners = batch_norm_model(SIZE, OUTPUTS), "class-balanced"
    generators, mixed, states = [], [], []
    for name in (f"gradient-{partners}", partners):
        generators.append(seeded(3))
        settings = {"partners": name, "labels": "proportional", "tables": tables}
        mixer = GradMix(generator=generators[-1], **settings)
        for _ in range(3):
            mixer.refresh(model, memory=OLD, current=NEW)
            batches = [mixer(X[ROWS], Y[ROWS])[0] for _ in range(2)]
        mixed.append(torch.cat(batches))
        states.append(mixer.state_dict())
    assert states[0] == states[1]
    assert torch.equal(*(generator.get_state() for generator in generators))
    same = (mixed[0] == mixed[1]).all(1)
    assert same.any()
    assert not same.all()


@pytest.mark.parametrize(
    "state",
    [None, {}, [], {"host": None}, {"host": "{}"}, {"host": "[" * 10_000}, {"host": 3, "more": 1}],
)
def test_a_state_that_is_none_is_refused_and_changes_nothing(state):
    mixer = GradMix(generator=torch.Generator().manual_seed(0))
    before = mixer.state_dict()
    with pytest.raises(InputError, match="state"):
        mixer.load_state_dict(state)
    assert mixer.state_dict() == before


def test_a_call_before_the_first_refresh_says_what_to_do():
    mixer = GradMix()
    assert mixer.pairs is None
    with pytest.raises(InputError, match="call refresh"):
        mixer(X[ROWS], Y[ROWS])


NAN = torch.where(torch.eye(SIZE) > 0, torch.nan, X)

BAD_SAMPLES = {
    "fewer inputs": (X[:2], Y[:3], "3 labels"),
    "fewer labels": (X[:3], Y[:2], "2 labels"),
    "int32 labels": (X[:2], Y[:2].int(), "labels are torch.int32"),
    "soft labels": (X[:2], torch.eye(OUTPUTS)[:2], "labels are torch.float32"),
    "labels in a column": (X[:2], Y[:2, None], "2 dimensions"),
    "label above the outputs": (X[:2], torch.tensor([1, 8]), "outputs 0 to 7"),
    "label below 0": (X[:2], torch.tensor([1, -1]), "from -1 to 1"),
    "integer inputs": (X[:2].to(torch.uint8), Y[:2], "inputs are torch.uint8"),
    "NaN": (NAN[:2], Y[:2], "NaN or infinite"),
    "infinite": (X[:2] / 0, Y[:2], "NaN or infinite"),
    "sparse inputs": (X[:2].to_sparse(), Y[:2], "give dense data"),
    "inputs without values": (X[:2].to("meta"), Y[:2], "give dense data"),
    "other shape": (X[:2, None], Y[:2], r"\(1, 23\)"),
    "fewer columns": (X[:2, :1], Y[:2], r"\(1,\)"),
    "other dtype": (X[:2].half(), Y[:2], "torch.float16"),
}


@pytest.mark.parametrize("case", BAD_SAMPLES)
@pytest.mark.parametrize("argument", ["memory", "current", "batch"])
def test_bad_samples_are_refused_by_name_and_change_nothing(argument, case, refreshed, use):
    x, y, message = BAD_SAMPLES[case]
    mixer = refreshed()
    pairs, state = mixer.pairs, mixer.state_dict()
    if argument == "current" and case in ("other shape", "fewer columns", "other dtype"):
        message = "memory is .*" + message  # which of the two is wrong, nobody can know
    else:
        message = f"{argument} .*{message}"
    with pytest.raises(InputError, match=message):
        use(mixer, argument, (x, y))
    assert mixer.pairs is pairs
    assert mixer.state_dict() == state
    assert mixer(X[ROWS], Y[ROWS])[0].shape == (len(ROWS), SIZE)  # and it still works


@pytest.mark.parametrize("bad", [(), (X, Y, Y), X])
@pytest.mark.parametrize("argument", ["memory", "current"])
def test_what_is_no_pair_is_refused_by_name(argument, bad, batch_norm_model, refreshed):
    mixer = refreshed()
    with pytest.raises(InputError, match=f"{argument} is a .*give a pair"):
        mixer.refresh(
            batch_norm_model(SIZE, OUTPUTS), **{"memory": OLD, "current": NEW, argument: bad}
        )
    with pytest.raises(InputError, match="model is 'mlp'; give a network"):
        mixer.refresh("mlp", memory=OLD, current=NEW)


@pytest.mark.parametrize("argument", ["current", "batch"])
def test_only_the_memory_may_be_empty(argument, refreshed, use):
    mixer = refreshed()
    with pytest.raises(InputError, match=f"{argument} has 0 inputs"):
        use(mixer, argument, EMPTY)


@pytest.mark.parametrize("partners", ["gradient", "shuffle"])
def test_a_class_that_was_not_there_at_the_refresh_is_refused(partners, refreshed):
    mixer = refreshed(partners=partners)
    with pytest.raises(InputError, match=r"classes \[0, 5\].*classes \[1, 2, 4, 6\]"):
        mixer(X[:3], torch.tensor([5, 4, 0]))


def without_linear(model):
    return nn.Sequential(nn.Flatten(), nn.ReLU())


def with_softmax(model):
    return nn.Sequential(model, nn.Softmax(1))


def diverged(model):
    nn.init.constant_(model[-1].weight, torch.nan)
    return model


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without_linear, "model is a Sequential"),
        (with_softmax, "head"),
        (diverged, "model gives NaN"),
    ],
)
def test_bad_models_are_refused_and_change_nothing(spoil, message, batch_norm_model, refreshed):
    mixer, model = refreshed(), spoil(batch_norm_model(SIZE, OUTPUTS)).train()
    pairs, state = mixer.pairs, mixer.state_dict()
    with pytest.raises(InputError, match=message):
        mixer.refresh(model, memory=OLD, current=NEW)
    assert mixer.pairs is pairs
    assert mixer.state_dict() == state
    assert all(module.training for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("which", ["a stranger", "a hidden layer"])
def test_a_wrong_head_is_refused(which, refreshed):
    model = nn.Sequential(nn.Linear(SIZE, OUTPUTS), nn.ReLU(), nn.Linear(OUTPUTS, OUTPUTS))
    head = model[0] if which == "a hidden layer" else nn.Linear(SIZE, OUTPUTS)
    with pytest.raises(InputError, match="head"):
        refreshed(model, head=head)


def test_cutmix_of_rows_is_refused(batch_norm_model, seeded):
    mixer = GradMix(blend="cutmix", generator=seeded())
    with pytest.raises(InputError, match="'cutmix', which needs images"):
        mixer.refresh(batch_norm_model(SIZE, OUTPUTS), memory=OLD, current=NEW)
    assert mixer.pairs is None


def test_a_failed_refresh_leaves_the_generator_where_it_was(batch_norm_model, seeded):
    generator = seeded()
    model = batch_norm_model(SIZE, OUTPUTS)
    mixer = GradMix(generator=generator, head=model[0])
    before = generator.get_state()
    with pytest.raises(InputError, match="does not give the model's output"):
        mixer.refresh(model, memory=(OLD[0], OLD[1] % 6), current=(NEW[0], NEW[1] % 6))
    assert torch.equal(generator.get_state(), before)


def test_every_batch_is_paired_by_the_table_of_its_ratio(
    batch_norm_model, parents, reference_table, refreshed
):
    """With eight tables the one in use is the reference at the centre of the ratio's bin."""
    model = batch_norm_model(SIZE, OUTPUTS)
    mixer = refreshed(model, pairing="all-pairs", criterion_exemplars=99)
    seen = set()
    for _ in range(20):
        x, _ = mixer(X, Y)
        shares = [lam for lam, _ in parents(x, torch.arange(SIZE)) if lam < 1]
        centre = (int(shares[0] * 8) + 0.5) / 8
        seen.add(centre)
        expected = reference_table(model, X, Y, 17, centre)
        torch.testing.assert_close(mixer.pairs.scores, expected.scores, atol=1e-4, rtol=1e-3)
    assert len(seen) > 4  # several tables were in use


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"blend": "manifold"}, InputError, "blend is 'manifold'"),
        ({"alpha": 0.0}, InputError, "alpha is 0.0"),
        ({"alpha": None}, InputError, "alpha is None; give a number"),
        ({"tau": "a"}, InputError, "tau is 'a'; give a number"),
        ({"tables": 1.5}, InputError, "tables is 1.5; give an integer"),
        ({"criterion_exemplars": "8"}, InputError, "criterion_exemplars is '8'"),
        ({"head": "fc"}, InputError, "head is 'fc'; give the model's last"),
        ({"generator": 0}, InputError, "generator is 0; give a torch.Generator"),
        ({"alpha": -1.0}, InputError, "alpha is -1.0"),
        ({"alpha": float("nan")}, InputError, "alpha is nan"),
        ({"alpha": float("inf")}, InputError, "alpha is inf"),
        ({"labels": "remx"}, UnknownNameError, "unknown labels 'remx': did you mean 'remix'"),
        ({"partners": "gradent"}, UnknownNameError, "did you mean 'gradient'"),
        ({"blend": "cutmx"}, UnknownNameError, "unknown blend 'cutmx': did you mean 'cutmix'"),
        ({"criterion_exemplars": -1}, InputError, "criterion_exemplars is -1"),
    ],
)
def test_bad_settings_fail_at_construction(settings, error, message):
    with pytest.raises(error, match=message):
        GradMix(**settings)


def test_many_classes_are_mixed_without_a_table():
    """1,200 classes: no table of pairs, and what replaces a partner is a class of the pool."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(1200, 8, generator=generator)
    y = torch.arange(1200)
    old, new = y < 1100, y >= 1100
    model = nn.Linear(8, 1200)
    with torch.no_grad():
        model.weight.copy_(centres)
        model.bias.copy_(4.0 * new)
    mixer = GradMix(tables=2, generator=generator)
    mixer.refresh(model, memory=(centres[old], y[old]), current=(centres[new], y[new]))
    assert mixer.pairs is None
    rows = torch.cat([y[new][:60], y[old][:60]])
    x, targets = mixer(centres[rows], rows)
    assert x.shape == (120, 8)
    torch.testing.assert_close(targets.sum(1), torch.ones(120))
    exact = GradMix(tables=2, criterion="exact", generator=torch.Generator().manual_seed(0))
    exact.refresh(model, memory=(centres[old], y[old]), current=(centres[new], y[new]))
    assert exact.pairs is not None
    assert 0 < mixer._selector.negative_rate < 1
