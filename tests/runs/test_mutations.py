"""Damaged result files: each raises FileError, or gives a result that tables and reports accept."""

import copy
import json
import random
from dataclasses import asdict

import pytest

from gradmix.errors import FileError
from gradmix.report import write_report
from gradmix.runs.config import config_for
from gradmix.runs.groups import group_results, in_order
from gradmix.runs.results import load_result
from gradmix.runs.run import run
from gradmix.runs.tables import comparison_table, group_records, run_records, runs_table

VALUES = (
    None, True, False, 0, -1, 1, 3, 10**30, -(2**63), 0.5, 1e308, -1e-300, float("nan"),
    float("inf"), "", "x", "\n\x1b[31m", "</script><b>", "er", [], [[]], [1], [None], {}, {"a": 1},
)  # fmt: skip


@pytest.fixture(scope="module")
def originals():
    """Results with every kind of field."""
    analyses = ["class-distance", "detrimental-rate", "approximation-error", "precision-recall"]
    return [
        run(config_for("digits", mix="gradmix+", epochs=1, increments=(5, 5), analyses=analyses)),
        run(config_for("digits", epochs=1, increments=(5, 5), method="foster", mix="none")),
    ]


def places(value, path=()):
    """Yield the path of every value in nested content."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))
        else:
            yield (*path, key)


def mutate(content, random):
    """Return content with one or two changes: another value, one removed, repeated or nested."""
    content = copy.deepcopy(content)
    for _ in range(random.choice((1, 1, 2))):
        # Paths of the same fields count once, or almost all changes would be of pair counts.
        found = {}
        for path in places(content):
            found.setdefault(tuple(k for k in path if isinstance(k, str)), []).append(path)
        path = random.choice(found[random.choice(list(found))])
        if not path:
            continue
        inner = content
        for key in path[:-1]:
            inner = inner[key]
        kind = random.choice(("value", "value", "value", "number", "remove", "repeat", "nest"))
        old = inner[path[-1]]
        if kind == "remove":
            del inner[path[-1]]
        elif kind == "nest":
            inner[path[-1]] = [old]
        elif kind == "repeat" and isinstance(old, list):
            inner[path[-1]] = old + old[-1:]
        elif kind == "number" and isinstance(old, int | float):
            inner[path[-1]] = old * random.choice((1 + 1e-12, 1.1, -1, 1e9))
        else:
            inner[path[-1]] = random.choice(VALUES)
    return content


@pytest.mark.parametrize(
    ("count", "seed"), [(100, 0), pytest.param(1000, 1, marks=pytest.mark.slow)]
)
def test_a_damaged_result_is_refused_or_harmless(originals, tmp_path, count, seed):
    generator, accepted = random.Random(seed), 0
    contents = [asdict(result) for result in originals]
    path = tmp_path / "x.json"
    for _ in range(count):
        path.write_text(json.dumps(mutate(generator.choice(contents), generator)))
        try:
            result = load_result(path)
        except FileError as error:
            assert str(path) in str(error)  # noqa: PT017
            continue
        accepted += 1
        results = in_order([*originals, result])
        groups = group_results(results, ["data", "method", "mix", "seed", *result.config])
        comparison_table(groups, ["average_accuracy", "forgetting_from_best"], None, "data").text()
        group_records(groups)
        run_records(results)
        runs_table(results, ["average_accuracy"])
        write_report([result], tmp_path / "report.html")
    assert accepted < count / 2


@pytest.mark.parametrize("count", [300])
def test_bytes_changed_at_random_raise_only_file_errors(originals, tmp_path, count):
    generator, path = random.Random(2), tmp_path / "x.json"
    whole = json.dumps(asdict(originals[1])).encode()
    for _ in range(count):
        damaged = bytearray(
            whole[: generator.choice((len(whole), generator.randrange(len(whole))))]
        )
        for _ in range(generator.randrange(4)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        path.write_bytes(bytes(damaged))
        try:
            load_result(path)
        except FileError as error:
            assert str(path) in str(error)  # noqa: PT017
