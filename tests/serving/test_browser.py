"""The page in a real browser: photos are dropped, chosen and classified."""

import base64
import socket
import threading
from contextlib import contextmanager

import pytest

pytest.importorskip("fastapi", reason="the extra gradmix[serve] is not installed")
uvicorn = pytest.importorskip("uvicorn", reason="the extra gradmix[serve] is not installed")

from gradmix.serving.app import ServedModel, create_app  # noqa: E402

PATIENCE = 120_000  # milliseconds to wait for anything: the machine may be busy


@contextmanager
def serving(path):
    app = create_app(ServedModel(path, max_pixels=10_000), max_bytes=50_000, refresh_seconds=0.05)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(120)
        listening.close()


@contextmanager
def opened(browser, address, *, expected=(), **options):
    """A page whose script has attached its listeners and has the answers of the server.

    It must report no errors except expected ones, and ask no other server.
    """
    trouble, requests = [], []
    with browser.new_context(**options) as context:
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("console", lambda line: trouble.append(line.text) if line.type != "log" else None)
        page.on("request", lambda request: requests.append(request.url))
        page.goto(address)
        page.wait_for_selector("html[data-ready]")
        yield page
    assert [text for text in trouble if not any(part in text for part in expected)] == []
    assert all(url.startswith((address, "blob:")) for url in requests)


def upload(name, content):
    return {"name": name, "mimeType": "image/png", "buffer": content}


def first_classes(page, count):
    """The most likely class of each photo, the newest first; waits for `count` answers."""
    page.wait_for_selector(f"#photos > li:nth-child({count})")
    page.locator("#photos h2", has_text="Classifying").first.wait_for(state="detached")
    return page.locator("#photos tr:first-child th").all_inner_texts()


def test_chosen_photos_are_classified(browser, model_file, encoded):
    files = [upload(f"{name}.png", encoded(name)) for name in ("red", "blue")]
    with serving(model_file) as address, opened(browser, address) as page:
        assert "colours.gradmix knows 3 classes: blue, green, red." in page.inner_text("#about")
        page.set_input_files("#file", files)
        assert first_classes(page, 2) == ["blue", "red"]
        table = page.locator("#photos table").first
        assert table.locator("th").all_inner_texts()[0] == "blue"
        assert table.locator("td.number").first.inner_text().endswith("%")
        assert page.inner_text("#status").startswith("blue.png: ")
        width = "image => image.decode().then(() => image.naturalWidth)"
        assert page.locator("#photos img").first.evaluate(width) == 30


def test_a_dropped_photo_is_classified(browser, model_file, encoded):
    with serving(model_file) as address, opened(browser, address) as page:
        content = base64.b64encode(encoded("green")).decode()
        transfer = page.evaluate_handle(
            """text => {
                const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
                const transfer = new DataTransfer();
                transfer.items.add(new File([bytes], "dropped.png", { type: "image/png" }));
                return transfer;
            }""",
            content,
        )
        page.dispatch_event("#drop", "drop", {"dataTransfer": transfer})
        assert first_classes(page, 1) == ["green"]


def test_keyboard_users_reach_the_photo_dialog(browser, model_file, encoded):
    with serving(model_file) as address, opened(browser, address) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "file"
        outline = page.locator("#drop").evaluate("place => getComputedStyle(place).outlineStyle")
        assert outline == "solid"
        # A click on the input opens the dialog. The test notes the click and opens no dialog:
        # whether Playwright intercepts a native one depends on the load of the machine.
        page.locator("#file").evaluate(
            """input => input.addEventListener("click", (event) => {
                event.preventDefault();
                document.documentElement.dataset.clicked = event.isTrusted;
            })"""
        )
        page.keyboard.press("Space")
        page.wait_for_selector("html[data-clicked=true]")
        page.set_input_files("#file", [upload("red.png", encoded("red"))])
        assert first_classes(page, 1) == ["red"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_screens_and_both_schemes(browser, model_file, encoded, scheme):
    size = {"width": 320, "height": 640}
    with (
        serving(model_file) as address,
        opened(browser, address, viewport=size, color_scheme=scheme) as page,
    ):
        page.set_input_files("#file", [upload("a-very-long-name" * 9 + ".png", encoded("red"))])
        assert first_classes(page, 1) == ["red"]
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert back == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 28)"}[scheme]


def test_errors_are_shown_and_the_page_goes_on(browser, model_file, encoded):
    bad = [
        upload("text.png", b"no photo"),
        upload("large.png", b"x" * 60_000),
        upload("wide.png", encoded("red", size=(200, 100))),
        upload("<b>red.png", encoded("red")),
    ]
    expected = ("422", "413", "ERR_FILE_NOT_FOUND")
    with serving(model_file) as address, opened(browser, address, expected=expected) as page:
        page.set_input_files("#file", bad)
        assert first_classes(page, 4) == ["red"]
        notes = page.locator("#photos .note").all_inner_texts()
        assert "wide.png cannot be classified: photo 1 is 200x100" in notes[0]
        assert "large.png cannot be classified: the photo is too large" in notes[1]
        assert "text.png cannot be classified: photo: not an image file" in notes[2]


def test_an_unknown_photo_is_called_unknown(browser, tmp_path, encoded, write_model):
    write_model(tmp_path / "m", "red", "blue")
    with serving(tmp_path / "m") as address, opened(browser, address) as page:
        page.set_input_files("#file", [upload("green.png", encoded("green"))])
        first_classes(page, 1)
        assert page.inner_text("#photos h2") == "unknown: unlike every learned class"
        page.set_input_files("#file", [upload("red.png", encoded("red"))])
        first_classes(page, 2)
        assert page.locator("#photos h2").first.inner_text() == "red"


def test_an_invalid_new_file_is_reported(browser, model_file):
    with serving(model_file) as address, opened(browser, address) as page:
        model_file.write_bytes(b"damaged")
        page.locator("#problem").wait_for(state="visible")
        assert "The older model is used: the file has changed" in page.inner_text("#problem")
