"""Cases that the prediction's tests share: Llama-3-8B and a toy on a DGX H100."""

from dataclasses import replace

from cptune.balance.expected import expect_load
from cptune.domain.candidate import Candidate, DataParallelKind
from cptune.domain.layout import ParallelLayout
from cptune.domain.workload import ModelShape, Workload, preset_fields
from cptune.predict.case import Case, Machine
from cptune.predict.facts import read_gpu
from cptune.store.balance import open_lengths

GIB = 1 << 30
MIB = 1 << 20


def preset(name):
    return ModelShape(**preset_fields(name))


def machine(*, world, gpu="H100-SXM-80GB", node=8, network=50e9, **more):
    facts = read_gpu(gpu)
    return Machine(
        gpu=facts,
        world_size=world,
        node_size=node,
        island_size=node,
        island_bytes_per_s=facts.nvlink_bytes_per_s,
        network_bytes_per_s=network,
        capacity_bytes=facts.memory_bytes,
        **more,
    )


def case(*, model="llama3-8b", seq_len=131072, batch=1, world=8, **more):
    shape = preset(model) if isinstance(model, str) else model
    parts = {k: more.pop(k) for k in ("stack", "constants") if k in more}
    workload = {k: more.pop(k) for k in ("mask", "precision", "lengths") if k in more}
    batches = Workload(seq_len=seq_len, global_batch_seqs=batch, **workload)
    return Case(
        model=shape,
        workload=batches,
        machine=machine(world=world, **more),
        documents=documents(batches, world=world),
        **parts,
    )


def documents(workload, *, world=64):
    return expect_load(workload, world_size=world, open_file=open_lengths)


def candidate(*, kind=DataParallelKind.ZERO1, **more):
    sizes = ("tp", "cp", "pp", "vpp", "dp", "ulysses", "ep")
    layout = ParallelLayout(**{name: more.pop(name) for name in sizes if name in more})
    more.setdefault("stages", layout.ring - 1)
    return Candidate(layout=layout, data_parallel=kind, **more)


def with_constants(given, **values):
    return replace(given, constants=replace(given.constants, **values))
