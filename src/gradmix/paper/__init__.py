"""The paper: its numbers, tables and figures, compared with our results."""
