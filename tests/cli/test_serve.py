"""gradmix serve: it starts, answers, and stops at Ctrl-C."""

import re
import signal
import socket
import subprocess
import sys
import urllib.request

import numpy as np
import pytest

from gradmix import IncrementalClassifier
from gradmix.errors import InputError, MissingPackageError

pytest.importorskip("uvicorn", reason="the extra gradmix[serve] is not installed")
pytest.importorskip("fastapi", reason="the extra gradmix[serve] is not installed")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m.gradmix"
    X = np.random.default_rng(0).integers(0, 256, (12, 3, 8, 8)).astype(np.uint8)
    made = IncrementalClassifier(model="mlp-small", epochs=1, random_state=0, device="cpu")
    made.fit(X, ["a", "b"] * 6).save(path)
    return path


def test_it_serves_until_ctrl_c(model, program):
    with subprocess.Popen(
        [*program, "serve", str(model), "--port", "0"], stderr=subprocess.PIPE, text=True
    ) as running:
        line = running.stderr.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+", line)[0]
        with urllib.request.urlopen(f"{address}/health") as answer:
            assert answer.status == 200
        running.send_signal(signal.SIGINT)
        assert running.wait(120) in (0, 130)
        assert running.stderr.read() == ""


def test_a_port_in_use_is_an_error(model, gradmix):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port}: .*another --host or --port"):
            gradmix("serve", model, "--port", port)


def test_without_the_extra_its_name_is_shown(model, gradmix, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingPackageError, match=r"gradmix\[serve\]"):
        gradmix("serve", model)
