"""The built site: every link leads somewhere, and it works offline, by keyboard, wide and narrow.

`make docs` builds the site and runs these tests.
"""

import re
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

SITE = Path(__file__).parents[2] / "docs" / "_build" / "html"
WIDE, NARROW = {"width": 1400, "height": 900}, {"width": 390, "height": 800}
FOCUSED = """() => {
    const box = document.activeElement.getBoundingClientRect();
    return {
        id: document.activeElement.id,
        name: document.activeElement.getAttribute("aria-label") || document.activeElement.innerText,
        sidebar: Boolean(document.activeElement.closest(".sidebar-drawer")),
        beside: box.right <= 0 || box.left >= innerWidth,
    };
}"""
SIDEWAYS = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SITE.exists(), reason="no site: make docs builds it"),
]


def html_pages():
    return [page for page in sorted(SITE.rglob("*.html")) if "_static" not in page.parts]


def ids(page, known={}):  # noqa: B006
    """The places of a page that a link can name."""
    if page not in known:
        known[page] = set(re.findall(r'\sid="([^"]+)"', page.read_text(encoding="utf-8")))
    return known[page]


def test_every_link_leads_to_a_file_and_a_place():
    broken = []
    for page in html_pages():
        text = page.read_text(encoding="utf-8")
        for link in re.findall(r'\s(?:href|src)="([^"]*)"', text):
            parts = urlsplit(unescape(link))
            if parts.scheme or not link:
                continue
            target = page.parent / unquote(parts.path) if parts.path else page
            anchor = unquote(parts.fragment)
            named = target.suffix == ".html" and anchor
            if not target.exists() or (named and anchor not in ids(target.resolve())):
                broken.append(f"{page.relative_to(SITE)}: {link}")
    assert broken == []


@contextmanager
def opened(browser, page, **options):
    """A page of the site, which asks nobody else for anything."""
    context = browser.new_context(**options)
    shown = context.new_page()
    requests = []
    shown.on("request", lambda request: requests.append(request.url))
    shown.goto((SITE / page).as_uri())
    yield shown
    context.close()
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


def tab(page, until, limit=80):
    """Press Tab until something has the focus; return everything that had it."""
    passed = []
    for _ in range(limit):
        page.keyboard.press("Tab")
        passed.append(page.evaluate(FOCUSED))
        if until(passed[-1]):
            return passed
    raise AssertionError(f"not reached: {[one['name'] for one in passed]}")


def test_the_search_works_offline_and_by_keyboard(browser):
    with opened(browser, "index.html", viewport=WIDE) as page:
        tab(page, lambda focused: focused["name"] == "Search")
        page.keyboard.type("forget")
        page.keyboard.press("Enter")
        page.wait_for_selector("#search-results li")
        found = page.locator("#search-results li a").all_inner_texts()
        assert "Privacy and forgetting" in found


def test_the_keyboard_reaches_sidebar_theme_and_text(browser):
    with opened(browser, "index.html", viewport=WIDE) as page:
        tab(page, lambda focused: focused["sidebar"] and focused["name"] == "Architecture")
        tab(page, lambda focused: "color theme" in focused["name"])
        before = page.evaluate("document.body.dataset.theme")
        page.keyboard.press("Enter")
        assert page.evaluate("document.body.dataset.theme") != before
        tab(page, lambda focused: focused["name"] == "Quickstart")
        page.keyboard.press("Enter")
        page.wait_for_url("**/quickstart.html")


def test_a_narrow_screen_opens_the_sidebar_by_keyboard(browser):
    with opened(browser, "methods.html", viewport=NARROW) as page:
        focused = tab(page, lambda focused: focused["id"] == "__navigation")
        page.keyboard.press("Space")
        page.wait_for_timeout(400)  # the sidebar slides in
        focused += tab(page, lambda focused: focused["sidebar"] and focused["name"] == "Photos")
        assert not any(one["beside"] for one in focused if one["sidebar"])


def test_closed_sidebars_are_skipped(browser):
    with opened(browser, "methods.html", viewport=NARROW) as page:
        focused = tab(page, lambda focused: focused["name"] == "Furo", limit=400)
        assert not any(one["sidebar"] or one["beside"] for one in focused)


def test_no_page_scrolls_sideways_on_a_narrow_screen(browser):
    with opened(browser, "index.html", viewport=NARROW) as page:
        for path in html_pages():
            page.goto(path.as_uri())
            assert page.evaluate(SIDEWAYS) <= 0, path.name


def test_light_and_dark_text_has_contrast(browser):
    grounds = {}
    for scheme in ("light", "dark"):
        with opened(browser, "index.html", viewport=WIDE, color_scheme=scheme) as page:
            grounds[scheme] = brightness(page, "backgroundColor")
            assert abs(brightness(page, "color") - grounds[scheme]) > 0.5
    assert grounds["light"] > 0.9
    assert grounds["dark"] < 0.1


def brightness(page, name):
    """The brightness of a colour of the page, from 0 to 1."""
    colour = page.evaluate(f"() => getComputedStyle(document.body).{name}")
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / (3 * 255)
