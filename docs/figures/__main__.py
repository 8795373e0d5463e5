"""Draw every figure of the documentation and write the pages of the reproduction: `make figures`.

`python -m docs.figures FOLDER` writes to another folder than docs/.
"""

import subprocess
import sys
from pathlib import Path

from docs.figures import demo, explanations, photos, science

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Write the figures into docs/ or the given folder."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs"
    results = ROOT / "results"
    demo.draw(results / "digits", folder / "demo.svg")
    photos.draw(ROOT / "docs" / "photos.json", folder / "photos.svg")
    science.draw(folder / "science.svg")
    explanations.draw(results, folder / "explanations")
    pages = ["--no-run", "--out", str(results), "--to", str(folder / "reproduction")]
    command = [sys.executable, "-m", "gradmix", "reproduce", "all", *pages]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
