"""gradmix doctor: findings, problems and the exit code."""

import json
import platform

import torch

import gradmix as package


def findings(gradmix, expect=0):
    rows = json.loads(gradmix("doctor", "--json", expect=expect))
    return {(row["topic"], row["name"]): row for row in rows}


def test_versions_and_cpu_are_those_of_this_process(gradmix, monkeypatch):
    monkeypatch.delenv("GRADMIX_DATA", raising=False)
    found = findings(gradmix)
    assert found["version", "gradmix"]["value"] == package.__version__
    assert found["version", "python"]["value"] == platform.python_version()
    assert found["version", "torch"]["value"].split("+")[0] == torch.__version__.split("+")[0]
    assert found["machine", "cpu capability"]["value"] == torch.backends.cpu.get_cpu_capability()


def test_every_optional_extra_of_users_is_listed(gradmix, monkeypatch):
    monkeypatch.delenv("GRADMIX_DATA", raising=False)
    listed = {name for topic, name in findings(gradmix) if topic == "extra"}
    assert {"cluster", "hub", "tensorboard", "photos", "serve"} <= listed


def test_a_folder_of_data_is_found(gradmix, tmp_path, monkeypatch):
    (tmp_path / "mnist").mkdir()
    monkeypatch.setenv("GRADMIX_DATA", str(tmp_path))
    assert findings(gradmix)["data", "mnist"]["value"] == str(tmp_path / "mnist")


def test_a_missing_data_set_names_the_remedy(gradmix, tmp_path, monkeypatch):
    for name in ("GRADMIX_DATA", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("GRADMIX_OFFLINE", raising=False)
    found = {name: row["value"] for (_, name), row in findings(gradmix).items()}
    assert found["cifar-10"].endswith("; `gradmix run --data cifar-10` downloads it")
    assert found["imagenet"].endswith("; put it into $GRADMIX_DATA/imagenet")
    monkeypatch.setenv("GRADMIX_OFFLINE", "1")
    missing = findings(gradmix)["data", "cifar-10"]["value"]
    assert missing == "not on this machine; put it into $GRADMIX_DATA/cifar-10"


def test_a_wrong_data_variable_is_a_problem(gradmix, tmp_path, monkeypatch):
    missing = tmp_path / "nowhere"
    monkeypatch.setenv("GRADMIX_DATA", str(missing))
    found = findings(gradmix, expect=1)
    assert str(missing) in found["data", "GRADMIX_DATA"]["problem"]
    assert "problem: GRADMIX_DATA: " in gradmix("doctor", expect=1)


def test_a_healthy_installation_has_no_problems(gradmix, monkeypatch):
    monkeypatch.delenv("GRADMIX_DATA", raising=False)
    assert gradmix("doctor").endswith("no problems found\n")
