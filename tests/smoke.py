"""A smoke test of an installed gradmix; `make wheel` runs it outside the sources."""

import tempfile
from pathlib import Path

from sklearn.datasets import load_digits

import gradmix

X, y = load_digits(return_X_y=True)
assert ".wheel" in str(Path(gradmix.__file__)), "the sources are imported instead of the wheel"
classifier = gradmix.IncrementalClassifier(model="mlp-small", epochs=30, random_state=0)
for first in (0, 5):
    new = (y >= first) & (y < first + 5)
    classifier.partial_fit(X[new], y[new])
with tempfile.TemporaryDirectory() as folder:
    classifier.save(f"{folder}/digits.gradmix")
    again = gradmix.IncrementalClassifier.load(f"{folder}/digits.gradmix")
    store = gradmix.ResultStore(folder)
    [result] = gradmix.run_sweep([gradmix.config_for("digits", epochs=1)], store).results
accuracy = again.score(X, y)
assert accuracy > 0.8, accuracy
assert 0 < result.metrics["average_accuracy"] <= 1
print(f"gradmix {gradmix.__version__} works: accuracy {accuracy:.3f}")  # noqa: T201
