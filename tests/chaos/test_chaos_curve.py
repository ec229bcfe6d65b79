"""A curve killed at a random moment: its rows stay, and the next one measures what is missing."""

import os
import random
import subprocess
import sys
import time
from collections import Counter

import pyarrow.parquet as pq
from sweep_process import sweep_processes, wait_for

SEED = int(os.environ.get("CPTUNE_CHAOS_SEED", "20261129"))


def test_a_curve_killed_at_any_moment_loses_nothing_and_measures_nothing_twice():
    draw = random.Random(SEED)
    with sweep_processes() as processes:
        path = processes.write(
            "killed",
            cluster={"world_size": 2, "device_memory_bytes": 6_000_000},
            axes={"tp": [1], "cp": [2], "pp": [1]},
        )
        kept = processes.runs / "killed-curve"
        command = [sys.executable, "-m", "cptune", "curve", "--runs", processes.runs]

        def rows():
            file = kept / "curve.parquet"
            return pq.read_table(file).to_pylist() if file.exists() else []

        curve = processes.start(
            [*command, path, "--seq-lens", "256,512,768"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        least = draw.randint(0, 3)
        wait_for(lambda: len(rows()) >= least and kept.exists(), within_s=60, what="a row")
        time.sleep(draw.uniform(0.0, 1.5))
        curve.kill()
        curve.wait()
        assert processes.wait_gone() == {}
        before = rows()

        again = processes.start([*command, kept / "spec.toml", "--name", kept.name, "--resume"])
        _, said = again.communicate(timeout=110)

        assert again.returncode == 0, said
        after = rows()
        assert after[: len(before)] == before
        assert len(after) > len(before)
        assert set(Counter((row["cp"], row["seq_len"]) for row in after).values()) == {1}
        tried = [line for line in said.splitlines() if line.startswith("CP=")]
        assert len(tried) == len(after) - len(before)
