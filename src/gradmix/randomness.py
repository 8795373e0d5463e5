"""One seed, many independent streams of random numbers, each saved and restored exactly.

Every consumer has a stream of its own, named after what it draws, so that a change in one
place (another mix, say) leaves the draws of all others as they were: runs of one seed start
from the same weights and see the same batches whatever the method.
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

from gradmix.errors import InputError

CPU_STATE = 5056  # bytes of a CPU generator's state: its seed, places, 624 numbers, a normal one

_ANY_SEED = np.random.SeedSequence(0)


class RandomStreams:
    """Named generators derived from one seed.

    `device(name)` gives a `torch.Generator` where the tensors live, so that a step needs no
    transfer; `host(name)` a NumPy generator, for the few scalars that steer a step (λ, the
    box of CutMix, the layer of Manifold Mixup) and must not cost a device synchronisation.
    """

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise InputError(f"seed is {seed!r}; it must be an integer of 0 or more")
        self.seed = seed
        self.place = torch.device(device)  # of the tensors
        self._device: dict[str, torch.Generator] = {}
        self._host: dict[str, np.random.Generator] = {}

    def _fresh_host(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])

    def _fresh_device(self, name: str) -> torch.Generator:
        seed = int(self._fresh_host(name).integers(2**63))
        return torch.Generator(self.place).manual_seed(seed)

    def device(self, name: str) -> torch.Generator:
        """The stream `name` for draws of tensors."""
        if name not in self._device:
            self._device[name] = self._fresh_device(name)
        return self._device[name]

    def host(self, name: str) -> np.random.Generator:
        """The stream `name` for draws of scalars."""
        if name not in self._host:
            self._host[name] = self._fresh_host(name)
        return self._host[name]

    @contextmanager
    def as_global(self, name: str) -> Iterator[None]:
        """Within it, the global generator (of `nn.Linear()`, of dropout) is seeded from `name`.

        The global state of CPU and device is put back afterwards.
        """
        seed = int(self.host(name).integers(2**63))
        devices = [self.place] if self.place.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.default_generator.manual_seed(seed)
            if devices:
                torch.cuda.manual_seed(seed)
            yield

    def state_dict(self) -> dict[str, Any]:
        """Tensors and JSON text only, by name: whoever drew first makes no difference."""
        host = {name: g.bit_generator.state for name, g in sorted(self._host.items())}
        return {
            "seed": self.seed,
            "device": {name: g.get_state() for name, g in sorted(self._device.items())},
            "host": {name: json.dumps(state) for name, state in host.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Every stream continues where it stood; those not yet in use then start anew."""
        if state["seed"] != self.seed:
            raise InputError(f"the state is of seed {state['seed']}, these streams of {self.seed}")
        device, host = state["device"], state["host"]
        for name, saved in device.items():
            _check_stream(name, saved)
        if not {*map(type, host)} <= {str}:
            raise InputError("a saved random stream has no name")
        for name in self._device.keys() | device.keys():  # consumers hold the generators: refill
            saved = device[name] if name in device else self._fresh_device(name).get_state()
            self._device.setdefault(name, torch.Generator(self.place)).set_state(saved)
        for name in self._host.keys() - host.keys():
            self._host[name].bit_generator.state = self._fresh_host(name).bit_generator.state
        for name, text in host.items():
            if name not in self._host:  # of any seed: its state follows
                self._host[name] = np.random.Generator(np.random.PCG64(_ANY_SEED))
            self._host[name].bit_generator.state = json.loads(text)


def _check_stream(name: Any, saved: torch.Tensor) -> None:
    """Refuse the state of a CPU's generator that would make PyTorch read beyond its 624 numbers."""
    if not isinstance(name, str) or saved.dtype != torch.uint8 or saved.ndim != 1:
        raise InputError(f"the state of the random stream {name!r} is none")
    if len(saved) == CPU_STATE:
        left, _, place = struct.unpack_from("<iiQ", saved.cpu().numpy()[8:24].tobytes())
        if left + place != 625 and (left, place) != (1, 0):
            raise InputError(f"the state of the random stream {name!r} is damaged")
