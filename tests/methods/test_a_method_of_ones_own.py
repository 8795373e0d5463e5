"""What docs/methods.md says about methods of one's own."""

import re
from pathlib import Path

from gradmix.methods import METHODS

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"


def test_the_documented_example_runs():
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    try:
        exec(example, names)
    finally:
        METHODS.pop("pulled", None)
    assert names["result"].config["method"] == "pulled"
    assert 0.1 < names["result"].metrics["average_accuracy"] < 1
