"""A configuration file of `accelerate launch`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cptune.domain.candidate import DataParallelKind
from cptune.domain.recipe import Recipe
from cptune.recipe.export.order import Order
from cptune.recipe.export.words import header

_PREFIX = "parallelism_config_"


def accelerate_text(recipe: Recipe, order: Order) -> str:
    """What `accelerate launch --config_file` reads."""
    return header(recipe, order, notes=_notes(order)) + "".join(_yaml(tables(recipe, order)))


def tables(recipe: Recipe, order: Order) -> dict[str, object]:
    """Every key with its value; those of FSDP and of the sizes in tables of their own."""
    lay = order.layout
    replicated = order.candidate.data_parallel is DataParallelKind.DDP
    plain = "NO" if lay.world_size == 1 else "MULTI_GPU"
    found: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": plain if replicated else "FSDP",
        "num_machines": len({place.device.node for place in recipe.placement.ranks}),
        "num_processes": lay.world_size,
        "mixed_precision": order.word("precision"),
    }
    if replicated:
        return found
    sizes: dict[str, object] = {
        "dp_replicate_size": 1,
        "dp_shard_size": lay.dp,
        "tp_size": lay.tp,
        "cp_size": lay.cp,
    }
    if lay.cp > 1:
        sizes |= {"cp_backend": "torch", "cp_comm_strategy": order.word("strategy")}
    return found | {
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": order.word("data_parallel") == "true",
            "fsdp_activation_checkpointing": order.word("recompute") == "true",
        },
        "parallelism_config": {f"{_PREFIX}{name}": value for name, value in sizes.items()},
    }


def _notes(order: Order) -> Iterator[str]:
    yield (
        f"what the script holds: a batch of {order.candidate.micro_batch} for each data-parallel "
        f"rank, gradient_accumulation_steps {order.batches}, sequences of "
        f"{order.workload.seq_len} tokens, and how the loss holds its logits "
        f"({order.candidate.loss.value} in the recipe)"
    )
    if order.layout.cp > 1:
        yield (
            "each step under accelerator.maybe_context_parallel(buffers=..., buffer_seq_dims=...)"
            "; it deals the context head to tail, which is zigzag"
        )
    if (
        order.candidate.data_parallel is DataParallelKind.DDP
        and order.candidate.recompute == "full"
    ):
        yield "recompute full: model.gradient_checkpointing_enable(), which no key here says"
    yield "num_machines is that of the recipe; machine_rank and main_process_ip are each node's"


def _yaml(table: Mapping[str, object], indent: str = "") -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}:\n"
            yield from _yaml(value, f"{indent}  ")
        elif isinstance(value, bool):
            yield f"{indent}{name}: {str(value).lower()}\n"
        elif isinstance(value, str):
            yield f"{indent}{name}: '{value}'\n"  # NO and no are words here, and false in YAML
        else:
            yield f"{indent}{name}: {value}\n"
