"""The inventory of the machine that runs the tests; GPUs are in the contract tests."""

import socket

from topology.discover import discover


def test_a_node_is_named_and_counts_what_a_cpu_trial_needs(tmp_path):
    topology = discover(node_name="node0", sysfs_root=tmp_path)

    (node,) = topology.nodes
    assert node.name == "node0"
    assert node.cpus >= 1
    assert node.memory_bytes > 2**20


def test_the_host_name_is_the_default(tmp_path):
    assert discover(sysfs_root=tmp_path).nodes[0].name == socket.gethostname()


def test_the_source_is_sysfs_with_the_reason_where_nvml_is_not_usable(tmp_path):
    topology = discover(sysfs_root=tmp_path)

    reasons = [note for note in topology.nodes[0].notes if note.startswith("no GPUs listed: ")]
    assert topology.source == ("sysfs" if reasons else "nvml")
    assert len(reasons) <= 1


def test_nics_come_from_the_given_root(tmp_path):
    (tmp_path / "class/infiniband/rxe0").mkdir(parents=True)

    (node,) = discover(sysfs_root=tmp_path).nodes

    assert [nic.name for nic in node.nics] == ["rxe0"]
