"""The web application: predictions, limits, errors, and a model file that is replaced."""

import io
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from gradmix import IncrementalClassifier
from gradmix.errors import FileError, InputError

pytest.importorskip("fastapi", reason="the extra gradmix[serve] is not installed")
testclient = pytest.importorskip("fastapi.testclient", reason="httpx is not installed")

from gradmix.serving.app import ServedModel, create_app  # noqa: E402


@pytest.fixture
def served(model_file):
    return ServedModel(model_file, max_pixels=10_000)


@pytest.fixture
def client(served):
    app = create_app(served, max_bytes=100_000, refresh_seconds=0.02)
    with testclient.TestClient(app) as client:
        yield client


def send(client, *contents, **params):
    files = [("photo", (f"{n}.png", content)) for n, content in enumerate(contents)]
    return client.post("/predict", files=files, params=params)


def eventually(check):
    end = time.monotonic() + 120
    while not check():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_predictions_equal_those_of_the_classifier(client, model_file, encoded):
    contents = [encoded("red"), encoded("green", "JPEG", (21, 60)), encoded("blue", "GIF")]
    rows = send(client, *contents).json()["predictions"]
    classifier = IncrementalClassifier.load(model_file)
    shares = classifier.predict_proba(contents)
    novelty = classifier.novelty(contents)
    assert [row["file"] for row in rows] == ["0.png", "1.png", "2.png"]
    for row, own, new in zip(rows, shares, novelty, strict=True):
        found = {entry["class"]: entry["probability"] for entry in row["classes"]}
        assert found == pytest.approx(dict(zip(classifier.classes_, own, strict=True)))
        assert list(found.values()) == sorted(found.values(), reverse=True)
        assert row["novelty"] == pytest.approx(new)
    assert [row["classes"][0]["class"] for row in rows] == ["red", "green", "blue"]
    unknown = classifier.predict(contents, unknown="?") == "?"
    assert [row["unknown"] for row in rows] == unknown.tolist()
    assert len(send(client, contents[0], top=1).json()["predictions"][0]["classes"]) == 1


def test_classes_and_health(client):
    assert client.get("/classes").json() == {
        "classes": ["blue", "green", "red"],
        "false_alarm_rate": 0.05,
        "max_bytes": 100_000,
    }
    health = client.get("/health").json()
    assert health == {"status": "ok", "model": "colours.gradmix", "classes": 3, "problem": None}


def test_the_page_needs_nothing_from_elsewhere(client):
    page = client.get("/")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert client.get("/docs").status_code == 404


@pytest.mark.parametrize(
    ("content", "status", "match"),
    [
        (b"no photo", 422, "photo: not an image file"),
        (b"", 422, "not an image file"),
        (b"x" * 200_000, 413, "at most 0.1 MB"),
    ],
    ids=["text", "empty", "large"],
)
def test_bad_uploads_are_refused_with_a_reason(client, encoded, content, status, match):
    answer = send(client, content)
    assert answer.status_code == status
    assert match in answer.json()["detail"]
    assert send(client, encoded()).status_code == 200  # and it goes on


def test_a_damaged_photo_is_named_by_its_place(client, encoded):
    answer = send(client, encoded(), encoded("blue", "PNG", (90, 90))[:400])
    assert answer.status_code == 422
    assert "photo[1]: " in answer.json()["detail"]


def test_photos_with_too_many_pixels_are_refused(client, encoded):
    answer = send(client, encoded(), encoded(size=(101, 100)))
    assert answer.status_code == 413
    assert "photo 2 is 101x100; at most 10,000 pixels" in answer.json()["detail"]
    assert send(client, *[encoded()] * 33).status_code == 413


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    ("size", "reason"),
    [
        ((9_500, 9_500), "the image is 9500x9500; at most 89478485 pixels are decoded"),
        ((20_000, 10_000), "Image size (200000000 pixels) exceeds limit"),  # Pillow's own error
    ],
    ids=["above the limit", "above twice the limit"],
)
def test_photos_above_the_limit_of_pillow_are_unreadable(client, encoded, size, reason):
    """A file of a few kilobytes claims more pixels than Pillow decodes."""
    file = io.BytesIO()
    Image.new("1", size).save(file, "PNG")
    answer = send(client, encoded(), file.getvalue())
    assert answer.status_code == 422
    assert f"photo[1]: {reason}" in answer.json()["detail"]
    assert send(client, encoded()).status_code == 200


def test_requests_without_a_photo_are_refused(client, encoded):
    no_photo = {
        "nothing": client.post("/predict"),
        "another field": client.post("/predict", files={"image": ("0.png", encoded())}),
        "text": client.post("/predict", data={"photo": "cat.jpg"}),
        "JSON": client.post("/predict", json={"photo": "cat.jpg"}),
    }
    for answer in no_photo.values():
        assert answer.status_code == 422
        assert answer.json()["detail"].startswith("the form field photo has no file; upload ")
    assert client.get("/predict").status_code == 405


@pytest.mark.parametrize("top", ["0", "1001", "two"])
def test_a_wrong_number_of_classes_is_refused(client, encoded, top):
    answer = send(client, encoded(), top=top)
    assert answer.status_code == 422
    assert answer.json() == {"detail": f"top is {top!r}; give a whole number from 1 to 1000"}


def test_a_replaced_file_is_loaded_and_a_bad_one_is_not(client, model_file, encoded, write_model):
    write_model(model_file, "red", "blue")
    eventually(lambda: client.get("/health").json()["classes"] == 2)
    model_file.write_bytes(b"damaged")
    eventually(lambda: client.get("/health").json()["status"] == "stale")
    assert "colours.gradmix" in client.get("/health").json()["problem"]
    assert send(client, encoded("blue")).json()["predictions"][0]["classes"][0]["class"] == "blue"
    os.remove(model_file)
    eventually(lambda: "colours.gradmix" in client.get("/health").json()["problem"])
    write_model(model_file, "red", "blue", "green")
    eventually(lambda: client.get("/health").json()["problem"] is None)
    assert client.get("/classes").json()["classes"] == ["blue", "green", "red"]


def test_other_requests_are_answered_during_a_slow_prediction(client, served, encoded, monkeypatch):
    started, go_on = threading.Event(), threading.Event()
    compute = ServedModel.rank

    def slow(self, photos, top):
        started.set()
        assert go_on.wait(120)
        return compute(self, photos, top)

    monkeypatch.setattr(ServedModel, "rank", slow)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(send, client, encoded())
        assert started.wait(120)
        assert client.get("/health").status_code == 200
        go_on.set()
        assert answer.result(120).status_code == 200


def test_many_requests_at_once(client, encoded):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: send(client, encoded("green")), range(24)))
    found = [answer.json()["predictions"][0]["classes"][0]["class"] for answer in answers]
    assert found == ["green"] * 24


def test_models_that_cannot_be_served(tmp_path, made_model):
    with pytest.raises(FileError):
        ServedModel(tmp_path / "none.gradmix")
    rows = IncrementalClassifier(model="mlp-small", epochs=1, random_state=0)
    rows.fit([[0.1], [1.2]] * 5, ["a", "b"] * 5).save(tmp_path / "rows.gradmix")
    with pytest.raises(InputError, match="rows of numbers"):
        ServedModel(tmp_path / "rows.gradmix")
    with pytest.raises(InputError, match="false_alarm_rate is 0"):
        ServedModel(made_model, false_alarm_rate=0)


def test_without_held_out_photos_none_is_unknown(tmp_path, encoded, photos):
    classifier = IncrementalClassifier(model="mlp-small", epochs=1, random_state=0)
    classifier.fit(photos("red", 10), [os.fsdecode(b"\xff")] * 5 + ["b"] * 5)
    classifier.save(tmp_path / "m")
    with testclient.TestClient(create_app(ServedModel(tmp_path / "m"))) as client:
        assert client.get("/classes").json()["classes"] == ["b", "?"]
        row = send(client, encoded()).json()["predictions"][0]
    assert row["unknown"] is None
