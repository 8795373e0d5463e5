"""Pair selection for more classes than a full pair table can hold."""
