"""Linear discriminant analysis against scikit-learn."""

import pytest
import torch
from sklearn.covariance import OAS
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from gradmix.closed_form import SLDA
from gradmix.closed_form.heads import oracle_shrinkage
from gradmix.errors import InputError


def data(samples=60):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(samples, 5, generator=generator, dtype=torch.float64)
    labels = torch.arange(samples) % 3
    return rows @ torch.randn(5, 5, generator=generator).double() + labels[:, None], labels


def test_probabilities_agree_with_scikit_learn():
    rows, labels = data()
    head = SLDA(5, shrinkage=0.0, normalise=False)
    head.update(rows, labels)
    peer = LinearDiscriminantAnalysis(solver="lsqr", priors=[1 / 3] * 3).fit(rows, labels)
    expected = torch.from_numpy(peer.predict_proba(rows.numpy()))
    torch.testing.assert_close(head.scores(rows).softmax(1), expected)


def test_the_shrinkage_agrees_with_scikit_learn():
    rows = data()[0]
    rows = rows - rows.mean(0)
    found = oracle_shrinkage(rows.T @ rows / len(rows), len(rows))
    assert found == pytest.approx(OAS(assume_centered=True).fit(rows.numpy()).shrinkage_)


def test_one_sample_per_class_gives_the_nearest_mean():
    rows = torch.eye(3, dtype=torch.float64)
    head = SLDA(3)
    head.update(rows, torch.arange(3))
    assert head.scores(rows).argmax(1).tolist() == [0, 1, 2]


def test_a_shrinkage_above_one_is_refused():
    with pytest.raises(InputError, match="shrinkage is 2"):
        SLDA(3, shrinkage=2)
