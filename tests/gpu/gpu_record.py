"""Keeps what a run on a GPU found: device, versions, outcome and seconds of every test, errors."""

import json
import platform
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import pytest
import torch

DISTRIBUTIONS = ("flash-attn", "flash-attn-3", "flash-attn-4", "triton", "numpy", "nvidia-ml-py")


def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def device_facts(device_type: str) -> dict[str, object]:
    if device_type == "cpu" or not torch.cuda.is_available():
        return {"name": device_type, "there": device_type == "cpu"}
    facts = torch.cuda.get_device_properties(0)
    driver = None
    with suppress(Exception):  # a note beside the run, not a condition of it
        import pynvml

        pynvml.nvmlInit()
        driver = pynvml.nvmlSystemGetDriverVersion()
    return {
        "name": facts.name,
        "there": True,
        "compute": f"{facts.major}.{facts.minor}",
        "memory_bytes": facts.total_memory,
        "processors": facts.multi_processor_count,
        "driver": driver,
    }


class GpuRecord:
    """A plugin that writes one JSON file at the end of the run.

    Args:
        folder: Where; made if it is not there.
        device_type: What the run was asked for.
    """

    def __init__(self, folder: Path, *, device_type: str) -> None:
        self._folder, self._device_type = folder, device_type
        self._started_s = time.monotonic()
        self._tests: dict[str, dict[str, object]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        one = self._tests.setdefault(report.nodeid, {"outcome": "passed", "seconds": 0.0})
        one["seconds"] = round(float(str(one["seconds"])) + report.duration, 3)
        one |= dict(report.user_properties)
        if report.outcome != "passed":
            one |= {"outcome": report.outcome, "why": str(report.longrepr)[-2000:]}

    def pytest_sessionfinish(self) -> None:
        now = datetime.now(UTC)
        outcomes = [str(one["outcome"]) for one in self._tests.values()]
        kept = {
            "schema": 1,
            "at": now.isoformat(timespec="seconds"),
            "command": sys.argv,
            "device": device_facts(self._device_type),
            "versions": versions(),
            "wall_s": round(time.monotonic() - self._started_s, 1),
            "outcomes": {name: outcomes.count(name) for name in sorted(set(outcomes))},
            "tests": self._tests,
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / f"gpu-{self._device_type}-{now:%Y-%m-%d-%H%M%S}.json"
        file.write_text(json.dumps(kept, indent=1) + "\n")
