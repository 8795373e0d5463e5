"""The paper: its numbers, tables and figures, filled in from results."""
