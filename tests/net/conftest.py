"""Two hosts on this machine: network namespaces joined by a link of a chosen speed."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

LINK = "200mbit"


@dataclass(frozen=True)
class Host:
    """A namespace, its end of the link and its address there."""

    name: str
    device: str
    address: str

    def command(self, *words: str) -> list[str]:
        """The command line that runs these words there."""
        return ["ip", "netns", "exec", self.name, *words]


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


def why_no_namespaces() -> str | None:
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed"
    probe = f"cpt-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode:
        return f"no network namespace can be made: {made.stderr.strip()}"
    run("ip", "netns", "del", probe)
    return None


@pytest.fixture
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two namespaces; each sends at most 200 Mbit/s to the other, and to itself at full speed."""
    if reason := why_no_namespaces():
        pytest.skip(reason)
    tag = os.getpid() % 100000
    hosts = tuple(
        Host(f"cpt{end}{tag}", f"v{end}{tag}", f"10.213.77.{number}")
        for number, end in enumerate("ab", start=1)
    )
    try:
        for host in hosts:
            run("ip", "netns", "add", host.name)
        first, second = hosts
        run("ip", "link", "add", first.device, "netns", first.name, "type", "veth", "peer",
            "name", second.device, "netns", second.name)  # fmt: skip
        for host in hosts:
            run(*host.command("ip", "link", "set", "lo", "up"))
            run(*host.command("ip", "address", "add", f"{host.address}/24", "dev", host.device))
            run(*host.command("ip", "link", "set", host.device, "up"))
            run(*host.command("tc", "qdisc", "add", "dev", host.device, "root", "tbf",
                              "rate", LINK, "burst", "64kb", "latency", "200ms"))  # fmt: skip
        yield hosts
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True)
