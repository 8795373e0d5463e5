"""Run benchmarks: `make bench` for all, or `python -m benchmarks NAME …` for some."""

from __future__ import annotations

import sys

import torch

from benchmarks import (
    augment,
    classes,
    classifier,
    costs,
    criterion,
    loop,
    methods,
    networks,
    peers,
    ranks,
    sweep,
    tried,
)

BENCHMARKS = {
    "loop": loop.er_over_minimal,
    "mix": loop.gradmix_over_mixup,
    "criterion-speed": criterion.reference_over_fast,
    "criterion-memory": criterion.peak_memory,
    "mir": methods.mir_over_er,
    "gss": methods.gss_selection,
    "augment": augment.batched_over_pillow,
    "networks": networks.channels_last_over_usual,
    "predict": classifier.predict_over_forward,
    "load": classifier.load_over_safetensors,
    "sweep": sweep.two_jobs_over_one,
    "ranks": ranks.two_ranks_over_one,
    "classes": classes.over_classes,
    "avalanche-er": peers.er_over_avalanche,
    "avalanche-mir": peers.mir_over_avalanche,
    "avalanche-gss": peers.gss_over_avalanche,
    "limit": peers.er_over_limit,
    **costs.COSTS,
    **tried.TRIED,
}


def main() -> None:
    torch.set_num_threads(1)
    names = sys.argv[1:] or list(BENCHMARKS)
    for name in names:
        if name not in BENCHMARKS:
            sys.exit(f"unknown benchmark {name!r}: known are {', '.join(BENCHMARKS)}")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread")
    for name in names:
        print(f"{name}: {BENCHMARKS[name]()}", flush=True)


if __name__ == "__main__":
    main()
