"""CPUs and memory that a process may use, on made-up /proc and /sys."""

import os

import pytest

from topology.host import cpu_list, read_cpus, read_memory_bytes

GIB = 2**30


@pytest.fixture
def machine(tmp_path):
    """Writes a file below the root; the roots are `proc` and `sys` in it."""

    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return tmp_path

    write("proc/meminfo", f"MemFree: 1 kB\nMemTotal:       {16 * 2**20} kB\n")
    return write


def roots(root):
    return {"proc_root": root / "proc", "sysfs_root": root / "sys"}


def test_without_limits_cpus_are_those_the_process_may_run_on(machine):
    root = machine("proc/self/cgroup", "0::/\n")

    assert read_cpus(**roots(root)) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("limit", "cpus"),
    [("100000 100000", 1), ("50000 100000", 1), ("max 100000", None), ("90000000 100000", None)],
)
def test_a_cpu_quota_counts_only_where_it_is_lower(machine, limit, cpus):
    machine("proc/self/cgroup", "0::/pod\n")
    root = machine("sys/fs/cgroup/pod/cpu.max", f"{limit}\n")

    assert read_cpus(**roots(root)) == (cpus or len(os.sched_getaffinity(0)))


def test_a_quota_further_up_the_tree_counts(machine):
    machine("proc/self/cgroup", "0::/slice/pod\n")
    machine("sys/fs/cgroup/slice/pod/memory.max", "max\n")
    root = machine("sys/fs/cgroup/slice/memory.max", f"{2 * GIB}\n")

    assert read_memory_bytes(**roots(root)) == 2 * GIB


def test_limits_of_version_one_count(machine):
    machine("proc/self/cgroup", "5:memory:/mem\n4:cpu,cpuacct:/cpu\n3:name=systemd:/x\n")
    machine("sys/fs/cgroup/cpu/cpu/cpu.cfs_quota_us", "100000\n")
    machine("sys/fs/cgroup/cpu/cpu/cpu.cfs_period_us", "100000\n")
    root = machine("sys/fs/cgroup/memory/mem/memory.limit_in_bytes", f"{3 * GIB}\n")

    assert read_cpus(**roots(root)) == 1
    assert read_memory_bytes(**roots(root)) == 3 * GIB


def test_a_version_one_group_without_quota_has_none(machine):
    machine("proc/self/cgroup", "4:cpu,cpuacct:/\n")
    machine("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    root = machine("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")

    assert read_cpus(**roots(root)) == len(os.sched_getaffinity(0))


def test_in_a_container_the_mount_counts_where_the_path_is_the_hosts(machine):
    machine("proc/self/cgroup", "0::/kubepods/pod1\n")
    root = machine("sys/fs/cgroup/memory.max", f"{GIB}\n")

    assert read_memory_bytes(**roots(root)) == GIB


def test_memory_is_the_hosts_where_no_limit_is_lower(machine):
    machine("proc/self/cgroup", "0::/\n")
    root = machine("sys/fs/cgroup/memory.max", f"{2**63}\n")

    assert read_memory_bytes(**roots(root)) == 16 * GIB


def test_memory_that_nobody_tells_is_unknown(tmp_path):
    assert read_memory_bytes(**roots(tmp_path)) is None


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        ([0xFF], "0-7"),
        ([0b1011], "0-1,3"),
        ([1 << 63, 1], "63-64"),
        ([0, 0b100], "66"),
        ([0, 0], None),
        ([], None),
    ],
)
def test_a_cpu_mask_is_written_as_a_list(mask, text):
    assert cpu_list(mask) == text
