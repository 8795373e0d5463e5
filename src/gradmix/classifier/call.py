"""One call of fit or partial_fit: from checked data to new knowledge.

A call is one task of the training loop. `learn` prepares it; `Call` trains it and reports.
"""

from __future__ import annotations

import copy
import warnings
from typing import Annotated, Any

import torch
from pydantic import ConfigDict, Field
from torch import Tensor

from gradmix.classifier.call_data import (
    CallData,
    EarlyStopping,
    Reader,
    StoppingState,
    draw_by_weight,
    equal_held_out,
    keep_pictures,
    offer,
)
from gradmix.classifier.inputs import Label, look_symbolic, read_seed
from gradmix.classifier.report import (
    Accuracy,
    Count,
    MeasuredOn,
    Report,
    few_samples,
    means,
    plural,
)
from gradmix.classifier.setup import Setup, budget, first_setup, is_fine_tuned
from gradmix.classifier.state import Learned, Pictures, copy_of, digest, load_method
from gradmix.criterion import evaluating
from gradmix.data import Benchmark
from gradmix.data.augment import TRANSFORMS
from gradmix.errors import DataWarning, InputError
from gradmix.files.schema import Schema, TensorOf, validate
from gradmix.memory import random_priority
from gradmix.methods import Method
from gradmix.methods.closed_form import ClosedForm
from gradmix.randomness import RandomStreams
from gradmix.ranks import ALONE, Ranks
from gradmix.training.build import torch_threads
from gradmix.training.checkpoint import Checkpoint, seed_on_file
from gradmix.training.checks import check_resumed
from gradmix.training.launch import Job
from gradmix.training.loop import EpochDone, Event, StepDone, Training
from gradmix.training.metrics import count_correct
from gradmix.types import Samples, Task

FEW_SAMPLES = 5  # fewer samples of a class give a warning
DETAILED_CALLS = 20  # the last calls whose reports keep classes and pairs
KEPT_PAIRS = 50  # avoided pairs in a report


# --- preparing a call -----------------------------------------------------------------------


def learn(reader: Reader, data: CallData, random_state: Any, job: Job) -> Learned:
    """Return the knowledge after a call; the knowledge before it, the reader's, does not change."""
    before, device = reader.before, job.fabric.device
    if before is None:
        seed = _seed(random_state, reader)
        setup = first_setup(reader.params, seed, data.x, data.layout, data.backbone, device)
    else:
        setup = before.setup.with_params(reader.params)
        method = before.method
        if method.learns_stored() and not len(method.stored_samples().y):
            raise InputError(
                f"this classifier was saved without exemplars, and {setup.method} needs them to "
                "learn more without forgetting; load a file that contains them "
                "(include_exemplars=True), or start again: fit, or a new --model file"
            )
    labels = data.labels
    counts = labels.encode(data.y).bincount(minlength=len(labels.known))
    if before is not None:
        counts[: len(before.counts)] += torch.tensor(before.counts)
    with torch_threads(setup.params["threads"]):
        call = Call(reader, setup, data, job)
        remarks = [*_remarks(data, counts.tolist()), *call.remarks]
        for text in remarks if job.ranks.first else ():
            warnings.warn(text, DataWarning, stacklevel=6)  # the line that calls the classifier
        finished = call.train()
        pictures = call.keep_exemplars()
        report = call.report(remarks)
    past = before.history if before else ()
    oldest = report.call - DETAILED_CALLS
    history = (*(entry if entry.call > oldest else entry.shortened() for entry in past), report)
    seen = tuple(counts.tolist())
    return Learned(setup, labels, call.method, call.holdout, seen, history, finished, pictures)


def _seed(random_state: Any, reader: Reader) -> int:
    """Return the seed of a first call; a call that resumes, and all ranks, use one drawn before."""
    drawn, ranks = None, reader.ranks
    if random_state is None and reader.checkpoint is not None:
        drawn = seed_on_file(reader.checkpoint)
    seed = read_seed(random_state) if drawn is None else drawn
    return seed if ranks.alone else ranks.from_first(seed % 2**63)


def _remarks(data: CallData, counts: list[int]) -> list[str]:
    """Return warnings about data that is hard to learn."""
    labels = data.labels
    remarks = [
        f"{few_samples(labels.known[k])}{plural(counts[k], 'sample')} so far; a class with fewer "
        f"than {FEW_SAMPLES} is hard to learn"
        for k in labels.encode(data.y).unique().tolist()
        if counts[k] < FEW_SAMPLES
    ]
    if look_symbolic(data.x):
        remarks.append(
            "most columns of X have few different whole numbers, like codes of symbols; mixing "
            "such rows makes little sense: try mix='none'"
        )
    return [*remarks, *data.skipped]


# --- the call -------------------------------------------------------------------------------


_Counts = Annotated[Tensor, TensorOf(torch.int64, ndim=1)]
_Pair = Annotated[list[Label | float], Field(min_length=3, max_length=3)]  # two classes, a share


class CallRecord(Schema):
    """What a call has measured so far; its checkpoint contains it."""

    model_config = ConfigDict(frozen=False)

    epochs: Count = 0
    steps: Count = 0
    loss: float = 0.0
    stopped_early: bool = False
    correct_before: _Counts | None = None  # before the call, by class
    correct: _Counts | None = None  # after it
    avoided: list[_Pair] = Field(default_factory=list)
    avoided_share: float | None = None  # None: no pairs were to be avoided
    stopping: StoppingState | None = None


class Call:
    """One call: its method, its data, its training and what it has measured so far."""

    def __init__(self, reader: Reader, setup: Setup, data: CallData, job: Job) -> None:
        fabric, before, labels = job.fabric, reader.before, data.labels
        self.reader, self.before = reader, before
        self.setup, self.labels, self.data = setup, labels, data
        self.known_before = len(before.labels.known) if before else 0
        known, outputs = len(labels.known), setup.outputs(len(labels.known))
        self.record = CallRecord()
        self.remarks: list[str] = []
        self.method = self._build(fabric.device, job.ranks)
        if setup.layout.images and self.method.replays and not setup.params["keep_images"]:
            raise InputError(
                f"keep_images is False, and {setup.method} replays images; use a pretrained "
                "backbone, whose embeddings it can replay, or omit keep_images"
            )
        samples = Samples(data.x.to(fabric.device), labels.encode(data.y).to(fabric.device))
        if before is None and not isinstance(setup.model, str) and not is_fine_tuned(setup.params):
            check_takes(self.method, samples.x)
        self.classes = tuple(samples.y.unique().tolist())
        self.holdout = setup.new_holdout()
        self.stopping: EarlyStopping | None = None
        train = self._samples_to_train(samples)
        self.measured_on, self.test = self._evaluation(fabric.device)
        task = Task(1, self.classes, train, self.test)
        names = (*map(str, labels.known), *[""] * (outputs - known))
        order = tuple(range(outputs))
        benchmark = Benchmark("classifier", (task,), names, order, setup.mean, setup.std)
        transforms = [TRANSFORMS[name] for name in setup.transforms()]
        self.training = Training(benchmark, self.method, fabric, transforms)

    def _build(self, device: torch.device, ranks: Ranks) -> Method:
        """Return a method that continues from the knowledge before the call, if there is any."""
        setup, before, known = self.setup, self.before, len(self.labels.known)
        samples, streams = len(self.data.y), RandomStreams(setup.seed, device)
        method = setup.new_method(samples, known, streams, loads=before is not None, ranks=ranks)
        if before is not None:
            past = before.training_state()
            past["method"]["networks"] = copy_of(past["method"]["networks"])  # they are trained
            room = method.memory.exemplars_per_class, method.memory.total
            method.memory.set_budget(*budget(setup.params, self.known_before))
            load_method(method, past)
            method.memory.set_budget(*room)
        return method

    def _samples_to_train(self, samples: Samples) -> Samples:
        """Return the samples to train on; the others are for measuring and early stopping."""
        params, streams = self.setup.params, self.method.streams
        rows: Any = slice(None)
        if self.setup.held_out:
            if self.before is not None:
                self.holdout.load_state_dict(self.before.holdout.state_dict())
            priority = random_priority(len(samples.y), streams.device("holdout"))
            every = torch.ones_like(samples.y, dtype=torch.bool)
            before = self._copies_of_held_out(samples, every, "that an earlier call holds out")
            left = offer(self.holdout, samples, priority, before)
            copies = self._copies_of_held_out(samples, left, "that are held out")
            rows = (left & ~copies).nonzero().flatten()
        train = _rows(samples, rows)
        if params["early_stopping"]:
            if not self.method.trains:
                name = self.setup.method
                raise InputError(f"early_stopping is True, but {name} has no epochs; omit it")
            self.stopping = EarlyStopping(self.method, train, params)
            self.record.stopping = self.stopping.state
            rows = torch.arange(len(samples.y), device=samples.y.device)[rows][self.stopping.left]
            train = _rows(samples, rows)
        if self.data.weights is None:
            return train
        weights = torch.from_numpy(self.data.weights).to(train.y.device)[rows]
        if isinstance(self.method, ClosedForm):  # it takes the weights itself
            self.method.sample_weights = weights
            return train
        return _rows(train, draw_by_weight(train.y, weights, streams.device("sample weights")))

    def _copies_of_held_out(self, samples: Samples, left: Tensor, which: str) -> Tensor:
        """Return which images of `left` equal a held-out one, (N,); a warning counts them."""
        found = torch.zeros_like(left)
        if self.setup.given.images and isinstance(samples.x, Tensor) and len(self.holdout):
            found = left & equal_held_out(samples, self.holdout)
            found &= torch.isin(samples.y, samples.y[left & ~found])  # no class loses all images
        if bool(found.any()):
            self.remarks.append(
                f"{plural(int(found.sum()), 'image')} not learned: copies of images {which} to "
                "measure accuracy; give each image once"
            )
        return found

    def _evaluation(self, device: torch.device) -> tuple[MeasuredOn | None, Samples]:
        """Return what accuracy is measured on: its name, and the samples."""
        if self.data.evaluation is not None:
            x, y = self.data.evaluation
            encoded = self.labels.encode(y, "eval_set's y")
            return "eval_set", Samples(x.to(device), encoded.to(device))
        if len(self.holdout):
            return "holdout", self.holdout.samples
        none = torch.empty(0, dtype=torch.int64, device=device)
        return None, Samples(self.data.x[:0].to(device), none)

    # --- training ---------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        """Return what identifies this call: past, parameters and data."""
        other = ("model", "threads", "verbose")  # they do not identify a call
        params = {k: v for k, v in self.setup.params.items() if k not in other}
        return {
            "parameters": params,
            "seed": self.setup.seed,
            "past": self.before.digest() if self.before else "",
            "data": self.data.digest(),
        }

    def train(self) -> str:
        """Train all steps, from the checkpoint on if there is one; return `Learned.finished`."""
        kept, finished, observer = None, "", self.reader.observer
        if self.reader.checkpoint is not None:
            identity = self._identity()
            finished = digest(identity)
            calls = len(self.before.history) + 1 if self.before else 1
            kept = Checkpoint(
                self.reader.checkpoint,
                self.training,
                self,
                identity,
                say=observer.say,
                largest=max(self.training.benchmark.num_classes + 1, calls),
            )
        resumed = kept is not None and kept.resume()
        check_resumed(self.training, resumed)
        if not resumed:
            self.record.correct_before = self._measure_before()
            if kept is not None:
                kept.save()  # at once: a stop at any time can then be resumed
        for event in self.training.events():
            self._note(event)
            if kept is not None:
                kept.note(event)
            observer.on_event(self.training, event)
        if isinstance(self.method, ClosedForm):
            self.method.sample_weights = None
        for network in self.method.networks().values():
            network.eval()
        self.method.ranks = ALONE  # predictions need one process
        return finished

    def _measure_before(self) -> Tensor | None:
        """Return the correct predictions before the call, by class."""
        old = self.test.y < self.known_before
        if self.before is None or not bool(old.any()):
            return None
        predict, samples = self.before.scores, _rows(self.test, old)
        return count_correct(
            lambda x: predict(x).to(x.device), samples, lambda x: x, self.known_before
        )[0]

    def _note(self, event: Event) -> None:
        """Record an event."""
        record = self.record
        if isinstance(event, StepDone):
            record.steps += 1
        elif isinstance(event, EpochDone):
            record.epochs, record.loss = record.epochs + 1, event.loss
            if self.stopping is not None:
                record.stopped_early |= self.stopping.note(self.training, event)
        else:
            record.correct = event.correct["main"].sum(dim=0)
            self._note_avoided()

    def _note_avoided(self) -> None:
        """Record the class pairs in S⁻ of the last epoch, with the share of mixing ratios."""
        tables = self.method.selector.tables
        if not tables:
            return
        negative = torch.stack([table.negative for table in tables])  # (T, K, K)
        shares = negative.double().mean(dim=0).cpu()
        classes = [self.labels.known[k] for k in tables[0].classes.tolist()]
        places = shares.nonzero().tolist()
        pairs: list[Any] = [[classes[i], classes[j], float(shares[i, j])] for i, j in places]
        self.record.avoided = sorted(pairs, key=lambda pair: -pair[2])[:KEPT_PAIRS]
        self.record.avoided_share = float(shares.mean())

    def state_dict(self) -> dict[str, Any]:
        """Return the record of the call, for a checkpoint."""
        return self.record.model_dump()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the record of a checkpoint; FileError or InputError if it is invalid."""
        self.record = validate(CallRecord, state, "record")
        if self.stopping is not None:
            if self.record.stopping is None:
                raise InputError("record.stopping is missing")
            self.stopping.load_state(self.record.stopping, self.method)

    def keep_exemplars(self) -> Pictures | None:
        """Return the pictures of the exemplars; None if photos are not kept."""
        data, memory, before = self.data, self.method.memory, self.before
        if data.backbone is None or data.photos is None or not self.setup.params["keep_images"]:
            return None
        if not self.method.trains:  # closed-form methods store no exemplars themselves
            train = self.training.benchmark.tasks[0].train
            memory.add(train, random_priority(len(train.y), self.method.streams.device("memory")))
        x = data.x
        known: Pictures = ()
        if before is not None and before.pictures is not None:
            x, known = torch.cat([x, before.method.memory.x.cpu()]), before.pictures
        return keep_pictures(memory.x, x, data.photos, data.backbone, known)

    # --- the report -------------------------------------------------------------------------

    def report(self, remarks: list[str]) -> Report:
        """Return the report of the call."""
        known, record = self.labels.known, self.record
        accuracy: Accuracy = []
        if self.measured_on is not None and record.correct is not None:
            totals = self.test.y.cpu().bincount(minlength=len(known)).tolist()
            was = [] if record.correct_before is None else record.correct_before.tolist()
            for k, (label, total) in enumerate(zip(known, totals, strict=True)):
                before = was[k] / total if k < len(was) and total else None
                if total:
                    accuracy.append((label, before, float(record.correct[k]) / total, total))
        same = {"epochs", "steps", "loss", "stopped_early", "avoided_share"}
        measured: dict[str, Any] = {**record.model_dump(include=same), **means(accuracy)}
        return Report(
            call=(self.before.history[-1].call if self.before else 0) + 1,
            new=[known[k] for k in self.classes if k >= self.known_before],
            more=[known[k] for k in self.classes if k < self.known_before],
            samples=len(self.training.benchmark.tasks[0].train.y),
            memory=len(self.method.memory),
            held_out=len(self.holdout),
            measured_on=self.measured_on,
            accuracy=accuracy,
            **measured,
            avoided=[tuple(pair) for pair in record.avoided],  # type: ignore[misc]
            warnings=remarks,
        )


def check_takes(method: Method, x: Tensor) -> None:
    """Pass two samples through a copy of the caller's network before training starts."""
    first = torch.arange(min(2, len(x)), device=x.device)
    network, some = copy.deepcopy(method.model), method.normalise(x.index_select(0, first))
    try:
        with torch.no_grad(), evaluating(network):
            found = tuple(network(some).shape)
    except Exception as error:
        raise InputError(
            f"model cannot take samples of shape {tuple(x.shape[1:])}: "
            f"{type(error).__name__}: {error}"
        ) from error
    wanted = len(some), method.head.out_features
    if found != wanted:
        raise InputError(
            f"model returns shape {found} for {len(some)} samples; it must return {wanted}"
        )


def _rows(samples: Samples, rows: Any) -> Samples:
    return Samples(samples.x[rows], samples.y[rows])
