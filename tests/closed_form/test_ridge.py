"""Ridge regression: the formula, the regulariser and the random features."""

import pytest
import torch

from gradmix.closed_form import Ridge
from gradmix.closed_form.base import solve_positive
from gradmix.closed_form.heads import SEARCH_GRID, cross_validation_errors
from gradmix.errors import FileError, InputError


def data(samples=30, size=8, classes=3):
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(samples, size, generator=generator, dtype=torch.float64)
    return rows, torch.arange(samples) % classes


def test_the_solution_is_ridge_regression_on_one_hot_labels():
    rows, labels = data()
    targets = torch.nn.functional.one_hot(labels).double()
    head = Ridge(8, regulariser=0.7, normalise=False)
    head.update(rows, labels)
    expected = torch.linalg.inv(rows.T @ rows + 0.7 * torch.eye(8)) @ rows.T @ targets
    torch.testing.assert_close(head.linear().weight, expected)


@pytest.mark.parametrize(("samples", "size"), [(30, 8), (10, 25)])
def test_the_cross_validation_error_follows_its_definition(samples, size):
    rows, labels = data(samples, size)
    targets = torch.nn.functional.one_hot(labels).double()
    grid = torch.tensor([0.01, 1.0, 50.0], dtype=torch.float64)
    found = cross_validation_errors(rows.T @ rows, rows.T @ targets, samples, grid)
    for lam, error in zip(grid, found, strict=True):
        hat = rows @ torch.linalg.inv(rows.T @ rows + lam * torch.eye(size)) @ rows.T
        residual = (targets - hat @ targets).square().sum()
        torch.testing.assert_close(error, samples * residual / (samples - hat.trace()) ** 2)


def test_it_is_the_leave_one_out_error_where_all_samples_have_equal_leverage():
    """The rows of a scaled orthogonal matrix all have the same A_ii."""
    rows, _ = torch.linalg.qr(data(8, 8)[0])
    labels = torch.arange(8) % 2
    targets = torch.nn.functional.one_hot(labels).double()
    lam = torch.tensor([0.5], dtype=torch.float64)
    total = 0.0
    for left_out in range(8):
        rest = torch.arange(8) != left_out
        gram = rows[rest].T @ rows[rest] + lam * torch.eye(8)
        weight = torch.linalg.solve(gram, rows[rest].T @ targets[rest])
        total += float((targets[left_out] - rows[left_out] @ weight).square().sum())
    found = cross_validation_errors(rows.T @ rows, rows.T @ targets, 8, lam)
    assert float(found) == pytest.approx(total / 8)


@pytest.mark.parametrize(("samples", "size"), [(40, 400), (400, 40)])
def test_the_chosen_regulariser_has_the_least_error_among_few_and_many_samples(samples, size):
    """The definition is computed from the samples, where nothing cancels."""
    rows, labels = data(samples, size)
    rows = torch.nn.functional.normalize(rows + 2 * torch.eye(3, size)[labels])
    targets = torch.nn.functional.one_hot(labels).double()
    values, vectors = torch.linalg.eigh(rows @ rows.T)
    values = values.clamp(min=0)
    errors = {}
    for lam in SEARCH_GRID * samples / size:
        left = lam / (values + lam)  # the eigenvalues of I - A
        residual = (left[:, None] * (vectors.T @ targets)).square().sum()
        errors[float(lam)] = float(residual / left.sum() ** 2)
    head = Ridge(size)
    head.update(rows, labels)
    assert head.chosen_regulariser() == pytest.approx(min(errors, key=errors.__getitem__))


@pytest.mark.parametrize("copied", [9, 90])
def test_copies_of_samples_do_not_spoil_the_head(copied):
    """A copy predicts a sample that is left out; without a limit, λ would be tiny."""
    size, samples = 100, 90
    centres = torch.randn(3, size, generator=torch.Generator().manual_seed(1))
    rows, labels = data(samples + 900, size)
    rows = 2 * rows + centres[labels]
    head = Ridge(size)
    head.update(rows[:samples], labels[:samples])
    head.update(rows[:copied], labels[:copied])
    right = head.scores(rows[samples:]).argmax(1) == labels[samples:]
    assert float(right.double().mean()) > 0.95  # 0.75 without the limit


def test_noisy_labels_get_a_larger_regulariser():
    rows, _ = data(60, 20)
    clean = (rows[:, 0] > 0).long()
    noisy = torch.randint(2, (60,), generator=torch.Generator().manual_seed(0))
    chosen = []
    for labels in (clean, noisy):
        head = Ridge(20)
        head.update(rows, labels)
        chosen.append(head.chosen_regulariser())
    assert chosen[1] > 10 * chosen[0]


def test_random_features_are_drawn_once_from_the_generator_and_saved():
    rows, labels = data()
    heads = [Ridge(8, features=40, generator=torch.Generator().manual_seed(s)) for s in (0, 0, 1)]
    for head in heads:
        head.update(rows, labels)
    scores = [head.scores(rows) for head in heads]
    assert torch.equal(scores[0], scores[1])
    assert not torch.equal(scores[0], scores[2])
    heads[2].load_state_dict(heads[0].state_dict())
    assert torch.equal(heads[2].scores(rows), scores[0])
    assert (heads[0].features(rows) >= 0).all()


def test_the_global_generator_is_not_used():
    before = torch.random.get_rng_state()
    Ridge(8, features=40, generator=torch.Generator().manual_seed(0))
    Ridge(8)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_regulariser_chosen_on_the_first_features_fits_all_of_them(monkeypatch):
    rows, labels = data(200, 8)
    chosen = []
    for size in (2000, 200):
        monkeypatch.setattr("gradmix.closed_form.heads.SEARCH_SIZE", size)
        head = Ridge(8, features=400, generator=torch.Generator().manual_seed(0))
        head.update(rows, labels)
        chosen.append(head.chosen_regulariser())
    assert 0.1 < chosen[1] / chosen[0] < 10


def test_a_singular_matrix_is_solved_with_the_least_shift():
    matrix = torch.ones(3, 3, dtype=torch.float64)
    solution = solve_positive(matrix, torch.ones(3, 1, dtype=torch.float64))
    torch.testing.assert_close(matrix @ solution, torch.ones(3, 1, dtype=torch.float64))


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"features": -1}, "features is -1"),
        ({"features": 5}, "generator is missing"),
        ({"regulariser": 0.0}, "regulariser is 0.0"),
        ({"embedding_size": 0}, "embedding_size is 0"),
    ],
)
def test_unusable_settings_are_refused(settings, match):
    with pytest.raises(InputError, match=match):
        Ridge(**{"embedding_size": 8, **settings})


def test_a_state_with_another_projection_is_refused():
    head = Ridge(8, features=4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(FileError, match="projection"):
        Ridge(8).load_state_dict(head.state_dict())
