"""Rules that the source of gradmix keeps, found by reading it."""

import re
from pathlib import Path

import pytest

import gradmix

FILES = sorted(Path(gradmix.__file__).parent.rglob("*.py"))
FORBIDDEN = {
    "a private PyTorch operation": r"torch\.(ops\.aten\.)?_(?!_)\w|\b_(foreach|fused)_\w+\(",
    "seeding of all libraries": r"(torch|np\.random|random)\.(manual_)?seed\(|seed_everything",
    "NumPy's global generator": r"np\.random\.(rand|randn|randint|permutation|shuffle|choice)\(",
    "loading of pickle": r"torch\.load\((?!.*weights_only=True)|pickle\.load",
    "inspection of functions": r"__func__|\.__code__",
}
GLOBAL_GENERATOR = {"randomness.py", "mixing/gradmix.py", "models/vit.py", "models/__init__.py"}


def code(path):
    """The text of a file without comments and docstrings."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r'"""(?:.|\n)*?"""', '""', text)
    return re.sub(r"#.*", "", text)


def found(pattern):
    package = Path(gradmix.__file__).parent
    return {
        path.relative_to(package).as_posix()
        for path in FILES
        if re.search(pattern, code(path), re.MULTILINE)
    }


@pytest.mark.parametrize("what", FORBIDDEN)
def test_nothing_uses(what):
    assert found(FORBIDDEN[what]) == set()


def test_few_places_touch_the_global_generator():
    """`RandomStreams.as_global` for dropout, and what a caller without a generator asks for."""
    assert found(r"default_generator|fork_rng|get_rng_state|set_rng_state") <= GLOBAL_GENERATOR


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("torch._fused_sgd_(p)", "a private PyTorch operation"),
        ("torch._foreach_add_(p)", "a private PyTorch operation"),
        ("torch.ops.aten._addmm_activation(b)", "a private PyTorch operation"),
        ("    torch.manual_seed(3)", "seeding of all libraries"),
        ("np.random.shuffle(x)", "NumPy's global generator"),
        ("torch.load(path)", "loading of pickle"),
    ],
)
def test_the_search_finds_what_it_should(text, what):
    assert re.search(FORBIDDEN[what], text)
