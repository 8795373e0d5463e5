"""Relative links of Markdown pages lead somewhere, external ones are known, and none is local."""

import re
import unicodedata
from pathlib import Path

import pytest

import gradmix

ROOT = Path(__file__).parents[2]
TOOLS = {"_build", "node_modules"}  # what tools write, as folders with a dot, except .github
PAGES = sorted(
    page.relative_to(ROOT)
    for page in ROOT.rglob("*.md")
    if not any(
        part in TOOLS or (part.startswith(".") and part != ".github")
        for part in page.relative_to(ROOT).parts
    )
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
EXTERNAL = {
    "https://arxiv.org/abs/2505.08528",  # the paper
}
"""All external links. Open a new one in a browser before you add it; `make linkcheck` opens all."""
MACHINE_PATH = re.compile(r"(?<![\w.:/])/(?:home|root|work|tmp|Users|mnt|opt)/\w")


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def prose(page):
    """The text of a page without code."""
    return re.sub(r"`[^`\n]*`", "", FENCED.sub("", text_of(page)))


def links(page):
    return [target for target in LINK.findall(prose(page)) if "://" not in target]


def anchors(page):
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text_of(page)), re.MULTILINE)
    return {slug(heading) for heading in headings}


def slug(heading):
    kept = [c for c in heading.lower() if c in " -_" or unicodedata.category(c)[0] in "LN"]
    return "".join(kept).strip().replace(" ", "-")


def test_headings_become_anchors():
    assert slug("`gradmix` and `gradmix+`") == "gradmix-and-gradmix"
    assert slug("3. Your own training loop") == "3-your-own-training-loop"


def test_pages_are_found():
    assert {Path("README.md"), Path("CONTRIBUTING.md"), Path("docs/architecture.md")} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_relative_links_lead_to_files_and_headings(page):
    for target in links(page):
        name, _, anchor = target.partition("#")
        found = (ROOT / page.parent / name).resolve() if name else ROOT / page
        assert found.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(found.relative_to(ROOT)), f"{page}: {target}"


def test_external_links_are_those_in_the_list():
    found = {link for page in PAGES for link in re.findall(r"[(<](\w+://[^\s)>]+)", prose(page))}
    assert found == EXTERNAL
    assert all(re.fullmatch(r"https://[\w.-]+/\S*[\w/]", link) for link in found)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_no_page_names_a_folder_of_a_machine(page):
    assert MACHINE_PATH.search(text_of(page)) is None


def test_the_readme_links_every_page_of_the_documentation():
    linked = {target.partition("#")[0] for target in links(Path("README.md"))}
    pages = {page.as_posix() for page in PAGES if page.parent == Path("docs")}
    assert pages <= linked


def test_the_reference_has_every_public_name():
    page = text_of(Path("docs/reference/api.md"))
    described = set(re.findall(r":: gradmix\.(?:errors\.)?(\w+)", page))
    assert set(gradmix.__all__) - {"__version__"} <= described
