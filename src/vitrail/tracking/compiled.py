"""What a compiled training step saves for backward: the tensors that AOTAutograd's partitioner chose, counted.

`torch.compile` traces forward and backward into one graph and cuts it anew: what is cheap to compute again is not
saved. The graph is traced on fake tensors, cut by PyTorch's own partitioner, and never run.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from vitrail.config import Config, ViTConfig
from vitrail.errors import require
from vitrail.nn.build import build
from vitrail.parts import Adaptive, FullAttention
from vitrail.plan.workload import Workload
from vitrail.tracking.step import DTYPES, autocast, materialise

__all__ = ["NOTE", "Compiled", "track_compiled"]

DEVICE = "cpu"
NOTE = (
    "traced, not planned: AOTAutograd's min-cut partition of the real graph, with Inductor's decompositions and "
    "PyTorch's CPU kernels. The peak above is eager mode's; what Inductor's kernels take beside it is not modelled"
)


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """Bytes and tensors that are saved for backward, without parameters and inputs: compiled, and in eager mode."""

    saved_bytes: int
    saved_tensors: int
    eager_saved_bytes: int
    eager_saved_tensors: int


def track_compiled(config: Config, workload: Workload) -> Compiled:
    """Trace a training step of a config's model as `torch.compile` does, and count what it saves."""
    _check(config, workload)
    if isinstance(config, ViTConfig) and isinstance(config.attention, FullAttention) and workload.attention == "eager":
        config = config.but(attention=FullAttention(fused=False))
    with torch.device("meta"):
        model = build(config).train()
    with FakeTensorMode(allow_non_fake_inputs=True):
        dtype = DTYPES[workload.precision]
        materialise(model, DEVICE, dtype)
        images = torch.zeros(workload.batch, *config.input_shape, dtype=dtype, device=DEVICE)
        labels = torch.zeros(workload.batch, dtype=torch.long, device=DEVICE)
        compiled = _compiled(model, images, labels, workload)
        plain = _eager(model, images, labels, workload)
    return Compiled(
        saved_bytes=sum(compiled.values()),
        saved_tensors=len(compiled),
        eager_saved_bytes=sum(plain.values()),
        eager_saved_tensors=len(plain),
    )


def _check(config: Config, workload: Workload) -> None:
    require(workload.train, "a compiled step saves nothing for backward in inference; add --train")
    require(
        workload.library == "vitrail" and workload.tuning.is_everything and workload.pretraining is None,
        "a compiled step is traced for full training of vitrail's models; leave out --as, --pretrain and frozen parts",
    )
    require(workload.shard is None, "a compiled step is traced on one device; leave --shard out")
    require(workload.checkpointing is None, "a compiled step chooses what it recomputes; leave --checkpointing out")
    adaptive = isinstance(config, ViTConfig) and isinstance(config.embedding, Adaptive)
    merged = isinstance(config, ViTConfig) and config.merger is not None
    require(not merged, "a compiled step is traced for models with one output for an image; leave the merger out")
    require(not adaptive, "a compiled step cannot be traced with adaptive patches, whose number depends on pixels")


def _compiled(model: nn.Module, images: Tensor, labels: Tensor, workload: Workload) -> dict[int, int]:
    """Return the bytes of storages that the compiled forward saves, by address."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it warns of at import is its own
        from torch._inductor.decomposition import select_decomp_table

    graphs: list[fx.GraphModule] = []

    def capture(gm: fx.GraphModule, example_inputs: Any) -> Any:  # as PyTorch names them
        graphs.append(gm)
        return make_boxed_func(gm.forward)

    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}

    def step(tensors: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, tensors, (images,)), labels)

    traced = aot_function(
        step,
        fw_compiler=capture,
        bw_compiler=capture,
        partition_fn=partial(min_cut_rematerialization_partition, compiler="inductor"),
        decompositions=select_decomp_table(),
    )
    with warnings.catch_warnings(), autocast(workload, DEVICE):
        warnings.simplefilter("ignore")  # the tracer warns about its own buffers
        traced(tensors, images, labels)
    forward = graphs[0].graph
    given = {storage._cdata for node in forward.nodes if node.op == "placeholder" for storage in _storages(node)}
    _, *saved = forward.output_node().args[0]  # type: ignore[misc]
    held = {storage._cdata: storage.nbytes() for node in saved for storage in _storages(node)}
    return {key: size for key, size in held.items() if key not in given}


def _storages(node: Any) -> list[torch.UntypedStorage]:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return [value.untyped_storage()] if isinstance(value, Tensor) else []


def _eager(model: nn.Module, images: Tensor, labels: Tensor, workload: Workload) -> dict[int, int]:
    """Return the bytes of storages that eager mode saves, by address."""
    given = {each.untyped_storage()._cdata for each in (*model.parameters(), *model.buffers(), images, labels)}
    held: dict[int, Any] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in given:
            held[storage._cdata] = storage
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor), autocast(workload, DEVICE):
        loss = F.cross_entropy(model(images), labels)
    del loss
    return {key: storage.nbytes() for key, storage in held.items()}
