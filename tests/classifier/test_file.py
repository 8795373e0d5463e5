"""Classifiers in files: whole, exact, checked, and without what was forgotten."""

import copy
import pickle
import subprocess
import sys
import threading
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gradmix import IncrementalClassifier
from gradmix.classifier import classifier as classifiers
from gradmix.errors import FileError, FileInUseError, GradMixError, InputError
from gradmix.files import locked, read_state_file, write_state_file
from gradmix.methods import METHODS

TRAINED = [name for name, info in METHODS.items() if info.build.trains]

load = IncrementalClassifier.load


@pytest.fixture(scope="module")
def classifier(quick, rows):
    given = {"holdout_per_class": 3, "exemplars_per_class": 9, "head_size": 6}
    made = quick(mix="gradmix+", epochs=1, **given)
    return made.partial_fit(*rows("a", "b")).partial_fit(*rows("c", "b", seed=1))


@pytest.fixture(scope="module")
def saved(classifier, tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "my.gradmix"
    classifier.save(path)
    return path


def test_everything_returns(classifier, saved, digest, rows):
    again = load(saved)
    assert digest(again) == digest(classifier)
    assert again.get_params() == {**classifier.get_params(), "lr_steps": []}
    assert again.history_ == classifier.history_
    assert str(again.report_) == str(classifier.report_)
    assert again.classes_.tolist() == ["a", "b", "c"]
    X, _ = rows("a", "b", "c", seed=2)
    assert (again.predict_proba(X) == classifier.predict_proba(X)).all()


def test_predicting_loads_nothing_that_only_training_needs(saved):
    use = f"c = IncrementalClassifier.load({str(saved)!r}); c.predict([[0.0] * c.n_features_in_])"
    check = "assert not {'lightning_fabric', 'torch._dynamo'} & set(sys.modules)"
    code = f"import sys; from gradmix import IncrementalClassifier; {use}; {check}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_parameters_that_an_earlier_file_lacks_have_their_defaults(saved, tmp_path):
    def change(state):
        for name in ("tau", "keep_images", "schedule"):
            del state["params"][name]

    again = load(forge(saved, tmp_path / "f", change))
    assert (again.tau, again.keep_images, again.schedule) == (None, True, "steps")


def test_saving_again_gives_the_same_file(classifier, saved, tmp_path):
    load(saved).save(tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == saved.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_saving_replaces_and_failing_leaves_the_old_file(classifier, tmp_path, monkeypatch, digest):
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(FileError, match="No space"):
            classifier.save(path)
    assert path.read_bytes() == b"old"
    classifier.save(path)
    assert digest(load(path)) == digest(classifier)
    with pytest.raises(FileError):
        classifier.save(path / "in a file")


def test_a_second_writer_waits_and_then_is_refused(classifier, tmp_path, monkeypatch):
    monkeypatch.setattr(classifiers, "SAVE_SECONDS", 0.05)
    with locked(tmp_path / "f"), pytest.raises(FileInUseError, match="in use"):
        classifier.save(tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_readers_see_whole_files_while_it_is_written(classifier, tmp_path, digest, rows):
    path = tmp_path / "f"
    classifier.save(path)
    other = copy.deepcopy(classifier).partial_fit(*rows("d"))
    known = {digest(classifier), digest(other)}
    over = threading.Event()

    def write():
        while not over.is_set():
            other.save(path)
            classifier.save(path)

    writer = threading.Thread(target=write)
    writer.start()
    assert {digest(load(path)) for _ in range(10)} <= known
    over.set()
    writer.join()


@pytest.mark.parametrize("method", TRAINED)
def test_no_byte_of_what_is_forgotten_is_in_the_file(method, tmp_path, images, quick):
    """Images and rows of a class; those of the others, as far as they are kept, are."""
    mix = "gradmix+" if METHODS[method].build.replays else "mixup"
    classifier = quick(method=method, mix=mix, epochs=1, exemplars_per_class=6, holdout_per_class=2)
    first, second = images("keep", "drop", each=12, shape=(1, 9, 9)), images("more", each=12)
    second = images("more", "drop", each=12, shape=(1, 9, 9), seed=1)
    classifier.partial_fit(*first).partial_fit(*second).forget("drop")
    path = tmp_path / "f"
    classifier.save(path)
    content = path.read_bytes()
    found = {"keep": 0, "more": 0, "drop": 0}
    for X, y in (first, second):
        for image, label in zip(X, y.tolist(), strict=True):
            for row in image.reshape(-1, 27):  # three pieces of each: no part of it either
                found[label] += row.tobytes() in content
    assert found["drop"] == 0
    kept = {"finetune": 2, "lwf": 2, "ewc": 2, "joint": 12}.get(method, 6)
    assert found["keep"] == found["more"] == 3 * kept
    assert b"drop" not in content


def test_forgetting_leaves_the_others_as_they_were(quick, rows):
    classifier = quick(epochs=10).fit(*rows("a", "b", "c"))
    X, _ = rows("a", "c", seed=1)
    before = classifier._learned.scores(torch.from_numpy(X).float())
    classifier.forget("b")
    assert classifier.classes_.tolist() == ["a", "c"]
    after = classifier._learned.scores(torch.from_numpy(X).float())
    torch.testing.assert_close(after, before[:, [0, 2]])
    assert classifier._learned.method.head.out_features == 2
    assert all("b" not in map(str, report.new) for report in classifier.history_)
    classifier.partial_fit(*rows("b", "d"))
    assert classifier.classes_.tolist() == ["a", "b", "c", "d"]


@settings(max_examples=15, deadline=None)
@given(
    scale=st.floats(-37, 37).map(lambda power: 10.0**power),
    shift=st.sampled_from([0.0, 1.0, -3.0]),
)
@example(scale=9e-31, shift=0.0)
@example(scale=1e-38, shift=0.0)
@example(scale=1e31, shift=0.0)
@example(scale=3e37, shift=3.0)
def test_tiny_and_huge_columns_return(digest, quick, tmp_path_factory, scale, shift):
    X = np.random.default_rng(0).normal(size=(40, 4))
    X[:, 0] = (X[:, 0] + shift) * scale
    classifier = quick(epochs=1).partial_fit(X, [0, 1] * 20)
    path = tmp_path_factory.mktemp("scaled") / "f"
    classifier.save(path)
    again = load(path)
    assert digest(again) == digest(classifier)
    assert (again.predict_proba(X) == classifier.predict_proba(X)).all()


def test_a_std_beyond_float32_returns(tmp_path, digest, quick, rows):
    classifier = quick(epochs=1, std=[1e300] * 4).fit(*rows("a", "b"))
    classifier.save(tmp_path / "f")
    assert digest(load(tmp_path / "f")) == digest(classifier)


def test_parameters_return_as_they_are_when_saved(tmp_path, digest, quick, rows):
    classifier = quick(epochs=1).fit(*rows("a", "b"))
    classifier.set_params(epochs=np.int64(7), lr=0.5, mix="remix", random_state=np.int64(3))
    classifier.save(tmp_path / "f")
    again = load(tmp_path / "f")
    assert again.get_params() == {**classifier.get_params(), "lr_steps": []}
    assert [type(again.get_params()[name]) for name in ("epochs", "random_state")] == [int, int]
    assert digest(again) == digest(classifier)
    again.save(tmp_path / "g")
    assert (tmp_path / "g").read_bytes() == (tmp_path / "f").read_bytes()
    assert digest(again.partial_fit(*rows("c"))) == digest(classifier.partial_fit(*rows("c")))
    classifier.save(tmp_path / "f")
    changed = read_state_file(tmp_path / "f", "classifier")["changed"]
    assert changed == {"holdout_per_class": None}  # the last call has the number it chose


CHANGED = {
    "method": "der",
    "model": "mlp",
    "head_size": 2,
    "exemplars_per_class": 1,
    "memory_total": 2,
    "mean": [0.0] * 3,
    "transforms": ["crop"],
}


@pytest.mark.parametrize("name", CHANGED)
def test_parameters_that_do_not_fit_what_was_learned_return_and_leave_it(
    name, tmp_path, digest, quick, rows
):
    classifier = quick(epochs=1, exemplars_per_class=6).fit(*rows("a", "b", "c"))
    classifier.set_params(**{name: CHANGED[name]}).save(tmp_path / "f")
    again = load(tmp_path / "f")
    assert again.get_params()[name] == CHANGED[name]
    assert digest(again) == digest(classifier)
    with pytest.raises(InputError, match=name):
        again.partial_fit(*rows("d"))


def test_parameters_that_make_no_sense_are_not_saved(tmp_path, quick, rows):
    classifier = quick(epochs=1).fit(*rows("a", "b")).set_params(epochs="many")
    with pytest.raises(InputError, match="epochs is 'many'"):
        classifier.save(tmp_path / "f")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "returned"), [(np.uint8(3), 3), (True, True), (np.random.RandomState(0), None)]
)
def test_seeds_return_and_generators_do_not(given, returned, tmp_path, quick, rows):
    quick(epochs=1, random_state=given).fit(*rows("a", "b")).save(tmp_path / "f")
    again = load(tmp_path / "f").random_state
    assert again is returned or again == returned


def test_a_file_is_read_to_the_device_that_was_set_last(tmp_path, quick, rows):
    classifier = quick(epochs=1).fit(*rows("a", "b")).set_params(device="cuda:99")
    classifier.save(tmp_path / "f")
    with pytest.raises(FileError, match="load it with another, for example device='cpu'"):
        load(tmp_path / "f")
    assert load(tmp_path / "f", device="cpu").device == "cuda:99"


@pytest.mark.parametrize("device", ["warp", "cuda:x", "", 5, torch.device("cpu")])
def test_a_wrong_device_is_not_the_files_fault(saved, device):
    with pytest.raises(InputError, match=r"^device is") as caught:
        load(saved, device=device)
    assert saved.name not in str(caught.value)


@pytest.mark.parametrize("model", ["mlp-small", torch.nn.Linear(4, 2), 5])
def test_a_network_for_a_file_that_has_one_is_refused(saved, model):
    with pytest.raises(InputError, match="has its own network 'mlp-small': omit model="):
        load(saved, model=model)


def network(inside, first=4):
    parts = torch.nn.Linear(first, inside), torch.nn.Tanh(), torch.nn.Linear(inside, 10)
    return torch.nn.Sequential(*parts)


@pytest.mark.parametrize("other", [network(9), network(8, first=5), torch.nn.Tanh()])
def test_a_network_that_does_not_fit_the_file_is_named(other, tmp_path, quick, rows):
    quick(epochs=1, model=network(8)).fit(*rows("a", "b")).save(tmp_path / "f")
    with pytest.raises(InputError, match=r"^model is a \w+ that does not fit .*/f; give"):
        load(tmp_path / "f", model=other)
    with pytest.raises(InputError, match=r"^model is 'mlp'; .*pass it as model="):
        load(tmp_path / "f", model="mlp")
    assert load(tmp_path / "f", model=network(8)).classes_.tolist() == ["a", "b"]


def test_saving_through_a_link_keeps_it(classifier, tmp_path, digest):
    (tmp_path / "link").symlink_to("v1")
    (tmp_path / "v1").write_bytes(b"old")
    classifier.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert digest(load(tmp_path / "v1")) == digest(classifier)


# --- hostile files --------------------------------------------------------------------------


def forge(saved, path, change):
    """The file with a state that was tampered with, its checksums right."""
    state = read_state_file(saved, "classifier")
    change(state)
    write_state_file(path, "classifier", state)
    return path


def put(*keys, value):
    def change(state):
        for key in keys[:-1]:
            state = state[key]
        state[keys[-1]] = value

    return change


def drop(*keys):
    def change(state):
        for key in keys[:-1]:
            state = state[key]
        del state[keys[-1]]

    return change


def apply(function, *keys):
    def change(state):
        for key in keys[:-1]:
            state = state[key]
        state[keys[-1]] = function(state[keys[-1]])

    return change


def beyond(state):
    """A generator's state whose place is beyond its numbers."""
    fields = state[8:24].view(torch.int32)
    fields[0], fields[2] = 600, 620
    return state


METHOD = ("training", "method")
MEMORY = (*METHOD, "memory")
MODEL = (*METHOD, "networks", "model")
FORGED = {
    "contents of the future": put("contents", value=99),
    "no contents": drop("contents"),
    "no parameters": drop("params"),
    "no such method": put("params", "method", value="os.system"),
    "another method": put("params", "method", value="foster"),
    "epochs as text": put("params", "epochs", value="many"),
    "absurd head": put("params", "head_size", value=10**9),
    "no such model": put("model", value="../../etc/passwd"),
    "another model": put("model", value="mlp"),
    "a model that takes images": put("model", value="resnet18"),
    "absurd shape": put("shape", value=[10**9]),
    "shape as text": put("shape", value="big"),
    "negative shape": put("shape", value=[-4]),
    "two dimensions": put("shape", value=[2, 2]),
    "no classes": put("known", value=[]),
    "a class twice": put("known", value=["a", "a", "b"]),
    "classes of several kinds": put("known", value=["a", 1, True]),
    "more classes": put("known", value=[str(k) for k in range(500)]),
    "fewer classes": apply(lambda known: known[:1], "known"),
    "counts of others": put("counts", value=[1]),
    "negative counts": put("counts", value=[-1, 1, 1]),
    "mean of NaN": put("mean", value=[float("nan")] * 4),
    "short mean": put("mean", value=[0.0]),
    "std of zero": put("std", value=[0.0] * 4),
    "no history": put("history", value=[]),
    "history of text": put("history", value=["once"]),
    "history with more": apply(lambda rows: [{**rows[0], "code": "x"}], "history"),
    "seed as text": put("seed", value="0"),
    "negative seed": put("seed", value=-1),
    "another seed": put("seed", value=5),
    "no training": drop("training"),
    "no networks": put(*METHOD, "networks", value={}),
    "absurd outputs": put(*METHOD, "structure", "outputs", value=10**12),
    "negative outputs": put(*METHOD, "structure", "outputs", value=-1),
    "outputs as text": put(*METHOD, "structure", "outputs", value="x"),
    "no structure": drop(*METHOD, "structure"),
    "a layer less": drop(*MODEL, "head.bias"),
    "a layer more": put(*MODEL, "tail.weight", value=torch.zeros(3)),
    "another shape": apply(lambda w: w[:, :3].clone(), *MODEL, "shared.0.weight"),
    "another type": apply(lambda w: w.double(), *MODEL, "head.weight"),
    "weights of NaN": apply(lambda w: w * float("nan"), *MODEL, "head.weight"),
    "a number for weights": put(*MODEL, "head.weight", value=1.0),
    "memory of other samples": apply(lambda x: x[:, :2].clone(), *MEMORY, "x"),
    "memory of bytes": apply(lambda x: x.to(torch.uint8), *MEMORY, "x"),
    "memory shorter than its labels": apply(lambda x: x[:2].clone(), *MEMORY, "x"),
    "labels unknown": apply(lambda y: y + 7, *MEMORY, "y"),
    "labels negative": apply(lambda y: y - 1, *MEMORY, "y"),
    "priorities of two dimensions": apply(lambda p: p[:, None], *MEMORY, "priority"),
    "complex priorities": apply(lambda p: p.to(torch.complex64), *MEMORY, "priority"),
    "samples without labels": apply(lambda y: y[:0], *MEMORY, "y"),
    "samples of NaN": apply(lambda x: x * float("nan"), *MEMORY, "x"),
    "foreign extras": put(*MEMORY, "extras", value={"logits": torch.ones(8, 3)}),
    "a parameter of its own": put("params", "code", value=1),
    "epochs beyond numbers": put("params", "epochs", value=10**400),
    "a legion of threads": put("params", "threads", value=10**5),
    "a budget beyond numbers": put("params", "exemplars_per_class", value=10**30),
    "mean beyond numbers": put("mean", value=[10**400] * 4),
    "mean of no use": put("mean", value=[1e300] * 4),
    "std of no use": put("std", value=[1e-320] * 4),
    "classes that arrays confuse": apply(lambda known: ["a", "a\0", *known[2:]], "known"),
    "classes beyond numbers": put("known", value=[2**63, -1, 6]),
    "seen as a float": apply(float, *METHOD, "structure", "seen"),
    "a network without elements": put(*MODEL, "z", value=torch.empty(10**12, 0)),
    "a report of text": apply(lambda rows: [{**rows[0], "call": "x"}], "history"),
    "a report without loss": apply(lambda rows: [{**rows[0], "loss": None}], "history"),
    "a report of rows": apply(lambda rows: [{**rows[0], "accuracy": [[1]]}], "history"),
    "a report with warnings of numbers": apply(
        lambda rows: [{**rows[0], "warnings": [5]}], "history"
    ),
    "a random stream without a name": put(
        "training", "streams", "device", value={5: torch.Generator().get_state()}
    ),
    "a random stream that would read too far": apply(
        beyond, "training", "streams", "device", "memory"
    ),
    "labels of floats": apply(lambda y: y.float(), *MEMORY, "y"),
    "over the budget": apply(lambda y: y * 0, *MEMORY, "y"),
    "no priorities": drop(*MEMORY, "priority"),
    "no holdout": put("holdout", value=None),
    "a holdout of others": apply(lambda x: x[:, :1].clone(), "holdout", "x"),
    "random state of zeros": put("training", "streams", "device", value={"a": torch.zeros(3)}),
    "random state of code": put("training", "streams", "host", value={"a": "__import__('os')"}),
    "random state of another": put("training", "streams", "host", value={"a": "{}"}),
    "no random state": drop("training", "streams"),
    "random_state missing": drop("random_state"),
    "columns of numbers": put("columns", value=3),
    "declared of lists": put("declared", value=[[1]]),
    "finished of a list": put("finished", value=[]),
    "a std that is zero in float32": put("std", value=[1e-46] * 4),
    "std of infinity": put("std", value=[float("inf")] * 4),
    "changed of text": put("changed", value="epochs"),
    "changed to text": put("changed", value={"epochs": "many"}),
    "a changed parameter of its own": put("changed", value={"code": 1}),
    "changed to a device of dreams": put("changed", value={"device": "warp:9"}),
    "a device of dreams": put("params", "device", value="warp:9"),
}


@pytest.mark.parametrize("case", FORGED)
def test_forged_files_are_refused(saved, tmp_path, case):
    path = forge(saved, tmp_path / "f", FORGED[case])
    with pytest.raises(FileError, match="/f "):
        load(path)


@pytest.mark.parametrize("memory", [MEMORY, ("holdout",)])
def test_absurd_labels_take_no_memory(saved, tmp_path, memory):
    resource = pytest.importorskip("resource")
    path = forge(saved, tmp_path / "f", apply(lambda y: y + 2 * 10**8, *memory, "y"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FileError, match="is damaged"):
        load(path)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 2**18  # KiB; a table by label would take six times that


def test_pairs_in_a_file_are_not_looked_at(saved, tmp_path):
    """They are of the last call, and a table can claim to be large."""
    tables = {"classes": torch.arange(2), "scores": torch.empty(10**9, 0, 0), "latest": 0}
    path = forge(saved, tmp_path / "f", put(*METHOD, "mixer", value={"tables": tables}))
    assert load(path)._learned.method.selector.pairs is None


def enlarge(state):
    for weights in state["training"]["method"]["networks"]["model"].values():
        if weights.is_floating_point():
            weights.mul_(1e30)


NOT_FINITE = {
    "weights of 1e30": enlarge,
    "std of 1e-38": put("std", value=[1e-38] * 3),
}


@pytest.fixture(scope="module")
def saved_images(tmp_path_factory, images, quick):
    made = quick(epochs=1, model="resnet18-tiny", exemplars_per_class=4)
    path = tmp_path_factory.mktemp("images") / "my.gradmix"
    made.fit(*images("a", "b")).save(path)
    return path


@pytest.mark.parametrize("case", [*NOT_FINITE, "a negative variance"])
def test_a_classifier_with_predictions_that_are_not_finite_does_not_load(
    saved_images, tmp_path, case
):
    names = read_state_file(saved_images, "classifier")["training"]["method"]["networks"]["model"]
    variance = next(name for name in names if name.endswith("running_var"))
    change = NOT_FINITE.get(case)
    if case == "a negative variance":
        change = apply(lambda v: v * 0 - 1, *MODEL, variance)
    path = forge(saved_images, tmp_path / "f", change)
    with pytest.raises(FileError, match=r"/f is damaged: .*(not finite|negative values)"):
        load(path)


def test_rows_with_a_std_that_does_not_fit_do_not_load(saved, tmp_path):
    path = forge(saved, tmp_path / "f", put("std", value=[1e-38] * 4))
    with pytest.raises(FileError, match="predictions are not finite"):
        load(path)


ERRORS = {
    "counts of others": "counts has 1 entries for 3 classes",
    "negative counts": r"counts\.0: input should be greater than or equal to 1",
    "epochs as text": "params: epochs is 'many'",
    "outputs as text": r"training\.method\.structure\.outputs",
    "labels unknown": r"memory\.y has labels outside 0 to 2",
    "memory shorter than its labels": r"memory: x has shape",
    "weights of NaN": r"networks\.model\.head\.weight: has values that are not finite",
    "a report of text": r"history\.0\.call",
    "random state of code": "stream .a.: the saved state",
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_name_the_field(saved, tmp_path, case):
    path = forge(saved, tmp_path / "f", FORGED[case])
    with pytest.raises(FileError, match=f"/f is damaged: .*{ERRORS[case]}"):
        load(path)


def test_no_such_name():
    with pytest.raises(FileError, match="cannot be read"):
        load("a\0b")


FORGED_JOINT = {
    "absurd labels": apply(lambda y: y + 2 * 10**8, *METHOD, "kept", "y"),
    "fewer samples": apply(lambda x: x[:3], *METHOD, "kept", "x"),
    "other samples": apply(lambda x: x[:, :2], *METHOD, "kept", "x"),
    "nothing to start from": put(*METHOD, "initial", value={}),
    "a large head to start from": put(*METHOD, "structure", "initial", value=250),
}


@pytest.mark.parametrize("case", FORGED_JOINT)
def test_forged_files_with_all_data_are_refused(tmp_path, case, quick, rows):
    quick(method="joint", epochs=1).fit(*rows("a", "b")).save(tmp_path / "my")
    path = forge(tmp_path / "my", tmp_path / "f", FORGED_JOINT[case])
    with pytest.raises(FileError, match="is damaged"):
        load(path)


def test_forged_outputs_of_exemplars_are_refused(tmp_path, quick, rows):
    quick(method="der", epochs=1).fit(*rows("a", "b")).save(tmp_path / "my")
    for change in (
        apply(lambda extras: {}, *MEMORY, "extras"),
        apply(lambda logits: torch.ones(len(logits), 99), *MEMORY, "extras", "logits"),
        apply(lambda known: known[:, None], *MEMORY, "extras", "known"),
    ):
        with pytest.raises(FileError, match="is damaged"):
            load(forge(tmp_path / "my", tmp_path / "f", change))


def test_a_pickle_is_no_file_of_ours(tmp_path, classifier):
    path = tmp_path / "my.gradmix"
    path.write_bytes(pickle.dumps(classifier))
    with pytest.raises(FileError, match="not a gradmix file"):
        load(path)


@pytest.mark.parametrize("content", [b"", b"PK\3\4", b"\x80\x04N.", b"{}", bytes(4096)])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "f"
    path.write_bytes(content)
    with pytest.raises(FileError):
        load(path)


def test_no_file_a_folder_and_another_kind(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(FileError):
            load(path)
    write_state_file(tmp_path / "f", "checkpoint", {})
    with pytest.raises(FileError, match="kind 'checkpoint'"):
        load(tmp_path / "f")


@settings(max_examples=40)
@given(st.data())
def test_truncated_and_flipped_files_are_refused(saved, tmp_path_factory, data):
    content = bytearray(saved.read_bytes())
    path = tmp_path_factory.mktemp("damaged") / "f"
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content = content[:place]
    else:
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    with pytest.raises(FileError):
        load(path)


def paths_in(value, path=()):
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from paths_in(item, (*path, key))
    else:
        yield path


@settings(max_examples=60)
@given(data=st.data())
def test_any_value_in_the_place_of_another(rows, saved, tmp_path_factory, data):
    """An error of ours, or a classifier that can be used."""
    path = tmp_path_factory.mktemp("forged") / "f"
    state = read_state_file(saved, "classifier")
    keys = data.draw(st.sampled_from(sorted(paths_in(state), key=str)))
    value = data.draw(
        st.one_of(
            st.none(),
            st.integers(-3, 10**12),
            st.floats(),
            st.text(max_size=3),
            st.just([]),
            st.builds(torch.zeros, st.integers(0, 3)),
        )
    )
    put(*keys, value=value)(state)
    write_state_file(path, "classifier", state)
    with suppress(GradMixError):
        again = load(path)
        assert np.isfinite(again.predict_proba(rows("a")[0])).all()
