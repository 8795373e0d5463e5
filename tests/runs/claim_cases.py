"""Another process that wants the same run."""

import subprocess
import sys

OTHER = """
import sys, time
from gradmix.runs.claims import try_to_claim
from pathlib import Path
claim = try_to_claim(Path(sys.argv[1]))
print("mine" if claim else "taken", flush=True)
time.sleep(60)
"""


def other_process(path):
    """A process that tries to claim a run, says whether it could, and stays."""
    command = [sys.executable, "-c", OTHER, str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()
