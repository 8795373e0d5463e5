"""Runs: their configuration, their results, and the protocol of the paper."""
