"""The figures of the documentation, drawn from committed results."""
