"""A function that sets a torchtitan Trainer.Config: since 0.3 its configurations are Python."""

from __future__ import annotations

from collections.abc import Iterator

from cptune.domain.candidate import DataParallelKind, LossKind, Recompute
from cptune.domain.recipe import Recipe
from cptune.recipe.export.order import Order
from cptune.recipe.export.words import header

_LOSS = "torchtitan.components.loss"
_CHECKPOINTS = "torchtitan.distributed.activation_checkpoint"


def torchtitan_text(recipe: Recipe, order: Order) -> str:
    """A module whose function a config_registry of one's own calls."""
    lines = "".join(f"    config.{place} = {value!r}\n" for place, value in settings(order))
    imports = sorted([*_imports(order), "from torchtitan.trainer import Trainer"])
    return (
        header(recipe, order, notes=_notes(order))
        + "".join(f"{line}\n" for line in imports)
        + "\n\ndef apply_recipe(config: Trainer.Config) -> Trainer.Config:\n"
        + '    """Set what the recipe says; the model is yours, of its shape."""\n'
        + lines
        + _objects(order)
        + "    return config\n"
    )


def settings(order: Order) -> list[tuple[str, object]]:
    """Every plain field of the configuration with its value."""
    return [*_parallelism(order), *_training(order)]


def _notes(order: Order) -> Iterator[str]:
    model = order.model
    yield (
        "use, in a config_registry.py of yours: def run(): return apply_recipe(llama3_8b()); then "
        "--module YOURS --config run"
    )
    yield (
        f"the model: {model.layers} layers, hidden {model.hidden}, {model.heads} heads, "
        f"{model.kv_heads} kv heads, ffn {model.ffn}"
    )
    yield (
        "its text data loader restarts positions at each document, and FlexAttention masks "
        "documents by them: the mask of this recipe is "
        f"{order.workload.mask.value}"
    )
    if order.layout.cp > 1:
        yield "cp > 1 wants the flex attention backend; keys and values are gathered whole"
    if order.candidate.loss is LossKind.CHUNKED:
        yield "it cuts the loss into 8 chunks of a sequence; the recipe's had 512 tokens each"


def _parallelism(order: Order) -> Iterator[tuple[str, object]]:
    lay, kind = order.layout, order.candidate.data_parallel
    replicated = kind is DataParallelKind.DDP
    yield "parallelism.data_parallel_replicate_degree", lay.dp if replicated else 1
    yield "parallelism.data_parallel_shard_degree", 1 if replicated else lay.dp
    yield "parallelism.fsdp_reshard_after_forward", order.word("data_parallel")
    yield "parallelism.tensor_parallel_degree", lay.tp
    yield "parallelism.enable_sequence_parallel", True
    yield "parallelism.context_parallel_degree", lay.cp
    if lay.cp > 1:
        word = order.word("sharding")
        yield "parallelism.context_parallel_load_balancer", None if word == "None" else word
    yield "parallelism.expert_parallel_degree", lay.ep
    yield "parallelism.pipeline_parallel_degree", lay.pp
    if lay.pp > 1:
        spared = 0 if order.even else 1  # the embedding and the head as a layer each
        layers = (order.model.layers + 2 * spared) // (lay.pp * lay.vpp)
        schedule = "Interleaved1F1B" if lay.vpp > 1 else "1F1B"
        yield "parallelism.pipeline_parallel_schedule", schedule
        yield "parallelism.pipeline_parallel_layers_per_stage", layers
        yield "parallelism.pipeline_parallel_first_stage_less_layers", spared
        yield "parallelism.pipeline_parallel_last_stage_less_layers", spared
        yield "parallelism.pipeline_parallel_microbatch_size", order.candidate.micro_batch


def _training(order: Order) -> Iterator[tuple[str, object]]:
    """A pipeline takes all micro-batches of a step at once, and cuts them itself."""
    passes = order.batches if order.layout.pp > 1 else 1
    yield "training.local_batch_size", order.candidate.micro_batch * passes
    yield "training.global_batch_size", order.workload.global_batch_seqs
    yield "training.seq_len", order.workload.seq_len
    yield "training.dtype", "float32"
    yield "training.mixed_precision_param", order.word("precision")
    yield "training.mixed_precision_reduce", "float32"


def _imports(order: Order) -> Iterator[str]:
    chunked = order.candidate.loss is LossKind.CHUNKED
    yield f"from {_LOSS} import {'ChunkedLossWrapper, ' if chunked else ''}CrossEntropyLoss"
    yield "from torchtitan.models.common.config_utils import decoder_vocab_size"
    if order.candidate.recompute is Recompute.FULL:
        yield f"from {_CHECKPOINTS} import FullAC"


def _objects(order: Order) -> str:
    """What is set to an object of its own."""
    word = order.word("recompute")
    vocab = "decoder_vocab_size(config.model_spec)"
    lines = [
        f"config.activation_checkpoint = {word}" + (".Config()" if word != "None" else ""),
        f"config.loss = CrossEntropyLoss.Config(global_vocab_size={vocab})",
    ]
    if order.candidate.loss is LossKind.CHUNKED:
        lines.append("config.loss = ChunkedLossWrapper.Config(loss_fn=config.loss)")
    return "".join(f"    {line}\n" for line in lines)
