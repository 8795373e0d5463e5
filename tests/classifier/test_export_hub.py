"""The Hugging Face Hub: upload, download and model cards, against a local stand-in."""

import base64
import hashlib
import json
import sys
from collections import namedtuple
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest

from gradmix import IncrementalClassifier
from gradmix.classifier.export import FILE, model_card
from gradmix.errors import FileError, InputError, MissingPackageError

SHA = "5" * 40
Hub = namedtuple("Hub", "files requests created")


class Handler(BaseHTTPRequestHandler):
    """The endpoints for creating a repository, committing small files and reading them."""

    def log_message(self, *args):
        pass

    def answer(self, content, status=200, **headers):
        self.send_response(status)
        headers = {"Content-Length": str(len(content)), **headers}
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_POST(self):
        hub, url = self.server.hub, f"http://{self.headers['Host']}"
        body = self.rfile.read(int(self.headers["Content-Length"]))
        hub.requests.append((self.path, self.headers["Authorization"]))
        if self.path == "/api/repos/create":
            hub.created.append(json.loads(body))
            reply = {"url": f"{url}/me/flowers"}
        elif self.path == "/api/validate-yaml":
            reply = {"errors": [], "warnings": []}
        elif "/preupload/" in self.path:
            paths = [file["path"] for file in json.loads(body)["files"]]
            modes = {"uploadMode": "regular", "shouldIgnore": False}
            reply = {"files": [{"path": path, **modes} for path in paths]}
        else:
            revision = self.path.split("?")[0].rpartition("/commit/")[2]
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    hub.files[revision, line["value"]["path"]] = content
            reply = {"commitUrl": f"{url}/me/flowers/commit/{SHA}", "commitOid": SHA}
        self.answer(json.dumps(reply).encode())

    def do_GET(self):
        self.server.hub.requests.append((self.path, self.headers["Authorization"]))
        repo, _, place = self.path.lstrip("/").partition("/resolve/")
        content = self.server.hub.files.get(tuple(place.split("/", 1)))
        if repo != "me/flowers" or content is None:
            code = "RepoNotFound" if repo != "me/flowers" else "EntryNotFound"
            self.answer(b"", 404, X_Error_Code=code)
        else:
            etag = hashlib.sha256(content).hexdigest()
            self.answer(content, ETag=f'"{etag}"', X_Repo_Commit=SHA)

    def do_HEAD(self):
        self.do_GET()


@pytest.fixture
def hub(monkeypatch, tmp_path):
    constants = pytest.importorskip("huggingface_hub.constants")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.hub = Hub({}, [], [])
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    yield server.hub
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def ridge(quick, rows):
    params = {"method": "ridge", "model": "linear", "holdout_per_class": 3}
    return quick(**params).partial_fit(*rows("a", "b")).partial_fit(*rows("c"))


def bytes_of(X):
    return [row.astype(np.float32).tobytes() for row in X]


def test_a_classifier_returns_from_the_hub_without_its_samples(hub, ridge, rows, tmp_path):
    address = ridge.push_to_hub("me/flowers", token="secret", private=True)
    assert address.endswith(f"/me/flowers/commit/{SHA}")
    assert hub.created == [{"name": "flowers", "organization": "me", "visibility": "private"}]
    assert {("main", FILE), ("main", "README.md")} == hub.files.keys()
    written = [token for path, token in hub.requests if path.startswith("/api/models/")]
    assert {*written} == {"Bearer secret"}
    stored = [row for row in bytes_of(rows("a", "b")[0]) if row in hub.files["main", FILE]]
    assert stored == []
    again = IncrementalClassifier.from_pretrained("me/flowers", token="secret")
    X, _ = rows("a", "b", "c", seed=1)
    np.testing.assert_array_equal(again.predict_proba(X), ridge.predict_proba(X))
    offline = IncrementalClassifier.from_pretrained("me/flowers", local_files_only=True)
    np.testing.assert_array_equal(offline.predict(X), ridge.predict(X))


def test_exemplars_are_uploaded_on_request_and_to_a_branch(hub, quick, rows):
    classifier = quick(method="er", epochs=1).partial_fit(*rows("a", "b"))
    classifier.push_to_hub("me/flowers", include_exemplars=True, revision="full", token="t")
    X, _ = classifier.exemplars()
    assert len(X) == 40
    assert all(row in hub.files["full", FILE] for row in bytes_of(X))
    again = IncrementalClassifier.from_pretrained("me/flowers", revision="full", token="t")
    np.testing.assert_array_equal(again.exemplars()[0], X)


def test_errors_name_the_repository(hub, ridge):
    with pytest.raises(FileError, match=r"'me/other' cannot be read from the Hub: Repository"):
        IncrementalClassifier.from_pretrained("me/other", token="t")
    with pytest.raises(FileError, match=r"'me/flowers' at 'v2' cannot be read"):
        IncrementalClassifier.from_pretrained("me/flowers", revision="v2", token="t")
    with pytest.raises(InputError, match=r"repo_id is 'no/such/name'; give 'user/name'"):
        ridge.push_to_hub("no/such/name", token="t")
    assert not hub.files


def test_without_the_extra_the_message_names_it(ridge, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingPackageError, match=r"gradmix\[hub\]"):
        ridge.push_to_hub("me/flowers")
    with pytest.raises(MissingPackageError, match=r"gradmix\[hub\]"):
        IncrementalClassifier.from_pretrained("me/flowers")


# --- model cards ----------------------------------------------------------------------------


def test_a_card_says_what_the_report_says(ridge):
    card = model_card(ridge._learned, "me/flowers", licence="mit")
    assert card.startswith("---\nlibrary_name: gradmix\npipeline_tag: tabular-classification\n")
    assert 'license: "mit"\n' in card
    assert "| classes | 3: a, b, c |" in card
    for label, _, after, count in ridge.report_.accuracy:
        assert f"| {label} | {after:.3f} | {count} |" in card
    first, second = ridge.history_
    assert f"| 1 | a, b |  | {first.samples} | {first.after:.3f} | unknown |" in card
    assert f"| 2 | c |  | {second.samples} | {second.after:.3f} | {second.forgotten:.3f} |" in card
    assert "from_pretrained('me/flowers')" in card
    assert "teaches it further classes" in card
    assert "No exemplars and no held-out samples" in card


def test_a_card_counts_the_samples_in_the_file(ridge):
    X, _ = ridge.exemplars()
    count = len(X) + len(ridge._learned.holdout)
    assert f"Rows of {count} real samples are in the file" in model_card(
        ridge._learned, "a/b", True
    )


def test_a_card_says_that_replay_needs_exemplars(quick, rows):
    classifier = quick(method="er").partial_fit(*rows("a", "b"))
    card = model_card(classifier._learned, "me/flowers")
    assert "`partial_fit` refuses to learn more, because `er` needs exemplars" in card
    assert "accuracy | not measured" in card


def test_names_of_classes_are_no_markup(quick, rows):
    X, y = rows("a", "b")
    names = {"a": "x|y\n# <script>", "b": "`[link](z)`"}
    classifier = quick().partial_fit(X, [names[label] for label in y])
    card = model_card(classifier._learned, "me/flowers")
    assert "<script>" not in card
    assert "[link]" not in card
    assert "\n# &lt;" not in card
    assert "x&#124;y &#35; &lt;script&gt;" in card
