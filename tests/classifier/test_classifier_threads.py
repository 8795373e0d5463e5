"""Calls that change one classifier run one at a time; none of them is lost."""

import copy
import gc
import pickle
import threading

import pytest
from sklearn.base import clone

from gradmix.classifier import classifier as classifiers
from gradmix.training.loop import Training


def in_threads(*calls):
    """Run all calls at once; the errors they raised."""
    errors, start = [], threading.Barrier(len(calls))

    def run(call):
        start.wait()
        try:
            call()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_no_call_is_lost(quick, rows):
    classifier = quick(epochs=3).fit(*rows("a", "b"))
    names = ["c", "d", "e", "f"]
    calls = [lambda name=name: classifier.partial_fit(*rows(name)) for name in names]
    assert in_threads(*calls) == []
    assert classifier.classes_.tolist() == ["a", "b", *names]
    assert [report.call for report in classifier.history_] == [1, 2, 3, 4, 5]


def test_the_second_call_continues_from_the_first(monkeypatch, digest, quick, rows):
    """The second call starts while the first trains, and equals a call after it."""
    expected = digest(quick().fit(*rows("a", "b")).partial_fit(*rows("c")).partial_fit(*rows("d")))
    classifier = quick().fit(*rows("a", "b"))
    events, inside, goes_on = Training.events, threading.Event(), threading.Event()

    def slow(self):
        inside.set()
        goes_on.wait()
        yield from events(self)

    monkeypatch.setattr(Training, "events", slow)
    first, second = (
        threading.Thread(target=lambda name=name: classifier.partial_fit(*rows(name)))
        for name in ("c", "d")
    )
    first.start()
    inside.wait()
    second.start()
    second.join(timeout=0.3)
    assert second.is_alive()
    goes_on.set()
    first.join()
    second.join()
    assert digest(classifier) == expected


@pytest.mark.parametrize("other", ["fit", "forget"])
def test_fit_and_forget_wait_too(other, quick, rows):
    classifier = quick(epochs=3).fit(*rows("a", "b", "c"))
    change = {
        "fit": lambda: classifier.fit(*rows("x", "y")),
        "forget": lambda: classifier.forget("a"),
    }[other]
    assert in_threads(lambda: classifier.partial_fit(*rows("b", "z")), change) == []
    known = set(classifier.classes_.tolist())
    wanted = {"fit": [{"x", "y"}, {"x", "y", "b", "z"}], "forget": [{"b", "c", "z"}]}[other]
    assert known in wanted


def test_a_failed_call_releases_the_lock(quick, rows):
    classifier = quick().fit(*rows("a", "b"))
    with pytest.raises(ValueError, match="labels for"):
        classifier.partial_fit(rows("c")[0], ["c"])
    assert in_threads(lambda: classifier.partial_fit(*rows("c"))) == []
    assert classifier.classes_.tolist() == ["a", "b", "c"]


def test_copies_have_locks_of_their_own(quick, rows):
    classifier = quick().fit(*rows("a", "b"))
    for other in (
        copy.copy(classifier),
        copy.deepcopy(classifier),
        pickle.loads(pickle.dumps(classifier)),
        clone(classifier),
    ):
        with classifiers._lock_of(classifier):
            assert in_threads(lambda other=other: other.partial_fit(*rows("a", "c"))) == []
        assert "c" in other.classes_.tolist()
    assert classifier.classes_.tolist() == ["a", "b"]
    number = len(classifiers._LOCKS)
    del other
    gc.collect()
    assert len(classifiers._LOCKS) < number
