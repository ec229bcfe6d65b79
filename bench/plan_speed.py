"""`python -m bench.plan_speed`: plans in a process of their own, so that the peak is theirs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

from bench.record import Claim, Table, at_most
from cptune.planning.plan import plan
from cptune.spec import parse

_LARGE = """
[model]
preset = "llama3-405b"
[workload]
seq_len = 131072
global_batch_seqs = 2048
[cluster]
world_size = 16384
gpu = "H100-SXM-80GB"
[axes]
strategy = ["ring", "all_gather", "ulysses", "hybrid"]
recompute = ["none", "selective", "full"]
loss = ["full", "chunked"]
data_parallel = ["zero1", "fsdp"]
"""
_SMALL = _LARGE.replace("llama3-405b", "llama3-8b").replace("16384", "64").replace("2048", "64")


def measure_speed() -> tuple[list[Table], list[Claim]]:
    """Plan for 64 and for 16,384 GPUs in one fresh process: CPU seconds and its peak memory."""
    command = [sys.executable, "-m", "bench.plan_speed"]
    seen = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    small, large = seen["plans"]
    claims = [
        at_most("plan for 64 GPUs, CPU seconds", small["cpu_s"], 1.0),
        at_most("plan for 16,384 GPUs, CPU seconds", large["cpu_s"], 5.0),
        at_most("peak memory of the process that plans, MB", seen["peak_bytes"] / 1e6, 500),
    ]
    table = Table(
        title="Speed of a plan, every strategy, recompute and loss",
        columns=("world", "layouts kept", "CPU s"),
        rows=[[one["world"], str(one["kept"]), f"{one['cpu_s']:.2f}"] for one in seen["plans"]],
    )
    return [table], claims


def _plan_both() -> dict[str, object]:
    plans = list[dict[str, object]]()
    for name, text in (("64 GPUs", _SMALL), ("16,384 GPUs", _LARGE)):
        spec = parse(text, source="bench", default_name="bench")
        start = time.process_time()
        kept = plan(spec)["counts"]["legal"]
        plans.append({"world": name, "kept": kept, "cpu_s": time.process_time() - start})
    return {"plans": plans, "peak_bytes": _peak_bytes()}


def _peak_bytes() -> int:
    """The most this process held; getrusage would count what its parent held before the exec."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None, "Linux says how much a process held"
    return int(found[1]) * 1024


if __name__ == "__main__":
    print(json.dumps(_plan_both()))
