"""The sample of large products: every pair of values, in far fewer cases."""

from itertools import combinations, product

import pytest


@pytest.mark.parametrize(
    ("sizes", "most"), [((11, 2, 2), 22), ((11, 10, 2), 110), ((3, 3, 3, 3), 14), ((4,), 4)]
)
def test_every_pair_of_values_is_in_the_sample(sizes, most, sample_pairwise):
    cases = [tuple(zip("abcd", values, strict=False)) for values in product(*map(range, sizes))]
    chosen = sample_pairwise(cases)
    assert len(chosen) <= most
    together = min(2, len(sizes))
    everything = {pair for case in cases for pair in combinations(case, together)}
    assert {pair for n in chosen for pair in combinations(cases[n], together)} == everything
    assert sample_pairwise(cases) == chosen
