"""The training loop, checkpoints, evaluation and metrics."""
