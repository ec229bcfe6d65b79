"""A function that sets a Megatron-Bridge ConfigContainer, and refuses another model's."""

from __future__ import annotations

from collections.abc import Iterator

from cptune.domain.candidate import DataParallelKind, Recompute, Strategy
from cptune.domain.recipe import Recipe
from cptune.recipe.export.order import Order
from cptune.recipe.export.words import header

_SHARDED = (DataParallelKind.ZERO2, DataParallelKind.FSDP)


def bridge_text(recipe: Recipe, order: Order) -> str:
    """A module to import, or to paste into a training script."""
    model = order.model
    shape = {
        "num_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "ffn_hidden_size": model.ffn,
    }
    if model.kv_heads != model.heads:  # else it is None until the model is made
        shape["num_query_groups"] = model.kv_heads
    lines = "".join(f"    cfg.{place} = {value!r}\n" for place, value in settings(order))
    return (
        header(recipe, order, notes=_notes())
        + "from megatron.bridge.training.config import ConfigContainer\n\n"
        + "_SHAPE = {\n"
        + "".join(f'    "{name}": {size},\n' for name, size in shape.items())
        + "}\n\n\n"
        + "def apply_recipe(cfg: ConfigContainer) -> ConfigContainer:\n"
        + '    """Set what the recipe says; the model must be the one it was found for."""\n'
        + "    for name, wanted in _SHAPE.items():\n"
        + "        seen = getattr(cfg.model, name)\n"
        + "        if seen != wanted:\n"
        + '            raise ValueError(f"model.{name} is {seen}; the recipe is for {wanted}")\n'
        + lines
        + "    return cfg\n"
    )


def settings(order: Order) -> list[tuple[str, object]]:
    """Every field of the container with its value."""
    return [*_model(order), *_batch(order), *_memory(order)]


def _notes() -> Iterator[str]:
    yield "use: cfg = apply_recipe(llama3_8b_pretrain_config()), before pretrain(cfg, ...)"
    yield "rank order tp-cp-ep-dp-pp, its default; it deals the context in zigzag by itself"


def _model(order: Order) -> Iterator[tuple[str, object]]:
    lay, hybrid = order.layout, order.strategy is Strategy.HYBRID and order.layout.cp > 1
    yield "model.tensor_model_parallel_size", lay.tp
    yield "model.sequence_parallel", lay.tp > 1
    yield "model.context_parallel_size", lay.cp
    yield "model.cp_comm_type", order.word("strategy") if lay.cp > 1 else None
    yield "model.hierarchical_context_parallel_sizes", [lay.ulysses, lay.ring] if hybrid else None
    yield "model.pipeline_model_parallel_size", lay.pp
    yield "model.virtual_pipeline_model_parallel_size", lay.vpp if lay.vpp > 1 else None
    yield "model.pipeline_model_parallel_layout", None
    yield "model.account_for_embedding_in_pipeline_split", not order.even
    yield "model.account_for_loss_in_pipeline_split", not order.even
    yield "model.expert_model_parallel_size", lay.ep
    yield "dist.use_tp_pp_dp_mapping", False


def _batch(order: Order) -> Iterator[tuple[str, object]]:
    work = order.workload
    yield "model.seq_length", work.seq_len
    yield "dataset.seq_length", work.seq_len
    yield "train.micro_batch_size", order.candidate.micro_batch
    yield "train.global_batch_size", work.global_batch_seqs
    yield "mixed_precision", order.word("precision")


def _memory(order: Order) -> Iterator[tuple[str, object]]:
    kind, recompute = order.candidate.data_parallel, order.candidate.recompute
    is_full = recompute is Recompute.FULL
    is_selective = recompute is Recompute.SELECTIVE
    yield "model.recompute_granularity", None if recompute is Recompute.NONE else recompute.value
    yield "model.recompute_method", order.word("recompute") if is_full else None
    yield "model.recompute_num_layers", 1 if is_full else None
    yield "model.recompute_modules", [order.word("recompute")] if is_selective else None
    yield "ddp.use_distributed_optimizer", kind is not DataParallelKind.DDP
    yield "optimizer.use_distributed_optimizer", kind is not DataParallelKind.DDP
    yield "ddp.use_megatron_fsdp", kind in _SHARDED
    yield "dist.use_megatron_fsdp", kind in _SHARDED
    if kind in _SHARDED:
        yield "ddp.data_parallel_sharding_strategy", order.word("data_parallel")
        yield "checkpoint.ckpt_format", "fsdp_dtensor"
