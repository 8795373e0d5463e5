"""Randomness: one seed, many independent named streams, each saved and restored exactly.

Every consumer draws from a stream of its own, named after what it draws. A change in one place,
such as another mix, therefore leaves the draws of all others as they were: runs with one seed
start from the same weights and see the same batches, whatever the method.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradmix.errors import InputError

_CPU_STATE = 5056  # bytes of a CPU generator's state
_NUMBERS = 624  # of the Mersenne twister


class RandomStreams:
    """Named generators derived from one seed.

    `device(name)` is a `torch.Generator` on the device of the tensors. `host(name)` is a NumPy
    generator for the few scalars that steer a step (λ, the box of CutMix, the layer of Manifold
    Mixup), so that a step needs no device synchronisation.

    Args:
        seed: An integer of 0 or more.
        device: Device of the tensors.
    """

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise InputError(f"seed is {seed!r}; it must be an integer of 0 or more")
        self.seed = seed
        self.place = torch.device(device)
        self._device: dict[str, torch.Generator] = {}
        self._host: dict[str, np.random.Generator] = {}

    def device(self, name: str) -> torch.Generator:
        """Return the stream `name` for draws of tensors."""
        if name not in self._device:
            self._device[name] = self._new_device(name)
        return self._device[name]

    def host(self, name: str) -> np.random.Generator:
        """Return the stream `name` for draws of scalars."""
        if name not in self._host:
            self._host[name] = self._new_host(name)
        return self._host[name]

    def generator(self, name: str) -> torch.Generator:
        """Return a new CPU generator, seeded by the next draw of the host stream `name`.

        Networks and heads are initialised from it, on every device with the same values.
        """
        return torch.Generator().manual_seed(int(self.host(name).integers(2**63)))

    @contextmanager
    def as_global(self, name: str, rank: int = 0) -> Iterator[None]:
        """Seed PyTorch's global generators from the host stream `name`; restore them at the end.

        Only for code that cannot take a generator, such as dropout in a network of the user.
        Another thread that draws from the global generator at the same time changes the result.
        Each of several ranks gets numbers of its own for its rows.
        """
        seed = (int(self.host(name).integers(2**63)) + rank) % 2**63
        devices = [self.place] if self.place.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.default_generator.manual_seed(seed)
            if devices:
                torch.cuda.manual_seed(seed)
            yield

    def _new_host(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])

    def _new_device(self, name: str) -> torch.Generator:
        seed = int(self._new_host(name).integers(2**63))
        return torch.Generator(self.place).manual_seed(seed)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all streams by name: tensors and JSON text."""
        host = {name: g.bit_generator.state for name, g in sorted(self._host.items())}
        return {
            "seed": self.seed,
            "device": {name: g.get_state() for name, g in sorted(self._device.items())},
            "host": {name: json.dumps(state) for name, state in host.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore all streams; streams that were not in use start at the beginning.

        Raises:
            InputError: If the state is invalid or belongs to another seed; nothing changes then.
        """
        if state["seed"] != self.seed:
            raise InputError(f"the state belongs to seed {state['seed']}, not to {self.seed}")
        device, host = state["device"], state["host"]
        for name, saved in device.items():
            _check_torch_state(name, saved, self.place)
        states = {name: parse_numpy_state(text, f"stream {name!r}") for name, text in host.items()}
        # Consumers hold the generators, which therefore stay and get another state.
        for name in self._device.keys() | device.keys():
            saved = device[name] if name in device else self._new_device(name).get_state()
            self.device(name).set_state(saved)
        for name in self._host.keys() | states.keys():
            numbers = states[name] if name in states else self._new_host(name).bit_generator.state
            self.host(name).bit_generator.state = numbers


def parse_numpy_state(text: Any, where: str) -> dict[str, Any]:
    """Return the state of a NumPy PCG64 generator from its JSON text.

    Raises:
        InputError: If the text is not such a state; the message begins with `where`.
    """
    problem = f"{where}: the saved state of the random numbers is invalid"
    try:
        state = json.loads(text)
        np.random.PCG64(0).state = state
    except (TypeError, ValueError, KeyError, OverflowError, RecursionError) as error:
        raise InputError(problem) from error
    return dict(state)


def _check_torch_state(name: Any, saved: Any, place: torch.device) -> None:
    """Refuse a state that would make PyTorch's CPU generator read beyond its 624 numbers."""
    problem = f"stream {name!r}: the saved state of the random numbers is invalid"
    is_state = isinstance(saved, Tensor) and saved.dtype == torch.uint8 and saved.ndim == 1
    if not (isinstance(name, str) and is_state):
        raise InputError(problem)
    if place.type == "cpu" and len(saved) != _CPU_STATE:
        raise InputError(problem)
    if len(saved) == _CPU_STATE:
        left, _, next_ = struct.unpack_from("<iiQ", saved.cpu().numpy()[8:24].tobytes())
        if left + next_ != _NUMBERS + 1 and (left, next_) != (1, 0):
            raise InputError(problem)
