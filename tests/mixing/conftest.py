"""For tests of mixing: who was mixed with whom."""

import pytest
import torch


@pytest.fixture(scope="session")
def parents():
    """Return a function that finds, for each mixed row of unit vectors, λ and the partner.

    The partner is its place in the pool; `rows` are the places of the batch.
    """

    def find(mixed, rows):
        result = []
        for row, own in zip(mixed, rows.tolist(), strict=True):
            others = [k for k in row.nonzero().squeeze(1).tolist() if k != own]
            assert len(others) <= 1
            result.append((float(row[own]), others[0] if others else own))
            torch.testing.assert_close(row.sum(), torch.tensor(1.0))
        return result

    return find
