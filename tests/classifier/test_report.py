"""Progress: lines of text, callbacks, and the table in notebooks."""

import numpy as np
import pytest

from gradmix import IncrementalClassifier
from gradmix.classifier import report
from gradmix.classifier.report import Observer
from gradmix.errors import InputError
from gradmix.training.loop import EpochDone, StepDone, TaskDone


def test_a_callback_receives_every_event(quick, rows):
    seen = []
    quick(epochs=2).fit(*rows("a", "b", each=32), callback=seen.append)
    kinds = [type(event) for event in seen]
    assert kinds == [StepDone, StepDone, EpochDone, StepDone, StepDone, EpochDone, TaskDone]
    seen.clear()
    quick(method="ridge", model="linear").partial_fit(*rows("a", "b"), callback=seen.append)
    assert [type(event) for event in seen] == [TaskDone]


def test_an_exception_in_a_callback_changes_nothing(digest, quick, rows):
    classifier = quick().fit(*rows("a", "b"))
    before = digest(classifier)

    def failing(event):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        classifier.partial_fit(*rows("c"), callback=failing)
    assert digest(classifier) == before
    with pytest.raises(InputError, match="callback is 'x'"):
        classifier.partial_fit(*rows("c"), callback="x")


def test_a_closed_form_method_announces_no_number_of_exemplars(capsys, quick, rows):
    quick(method="ridge", model="linear", verbose=1).fit(*rows("a", "b"))
    assert capsys.readouterr().err == ""


def test_verbose_prints_lines_and_changes_no_bit(capsys, monkeypatch, quick, rows):
    monkeypatch.setattr(report, "LINE_SECONDS", 0.0)
    silent = quick(epochs=2).fit(*rows("a", "b", each=32))
    assert capsys.readouterr().err == ""
    loud = quick(epochs=2, verbose=1).fit(*rows("a", "b", each=32))
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["train epoch 1/2, step 1/2", "train epoch 1/2, step 2/2"]
    assert lines[-1] == "training finished; 64 exemplars in memory"
    assert any(line.startswith("train epoch 2/2: loss ") for line in lines)
    assert silent.predict_proba(rows("a")[0]).tolist() == loud.predict_proba(rows("a")[0]).tolist()


def test_lines_come_at_most_every_few_seconds(monkeypatch):
    now, lines = 0.0, []
    monkeypatch.setattr(report.time, "monotonic", lambda: now)
    observer = Observer(lines.append)
    for second in range(1, 12):
        now = float(second)
        observer.on_photo(second, 20)
    assert lines == [f"computing features: {n} of 20 photos" for n in (5, 10)]


def test_notebooks_show_a_table(quick, rows):
    classifier = quick(holdout_per_class=4, lr=0.02)
    assert "not fitted" in classifier._repr_html_()
    classifier.fit(*rows("a", "<b>"))
    page = classifier._repr_html_()
    assert "2: &lt;b&gt;, a" in page
    assert "on held-out samples" in page
    assert "lr=0.02" in page
    assert "32 exemplars, 8 held out" in page
    assert "text/html" in classifier._repr_mimebundle_()
    assert "defaults" in IncrementalClassifier()._repr_html_()
    assert "mean=array([1., 2.])" in IncrementalClassifier(mean=np.array([1.0, 2.0]))._repr_html_()
