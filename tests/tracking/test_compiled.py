"""What is said to be saved by a compiled step is what torch.compile saves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks

from vitrail.checkpointing import Checkpointing
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.vit import ViT
from vitrail.parts import Mlp
from vitrail.plan import Workload
from vitrail.tracking.compiled import track_compiled

CONFIG = ViTConfig(image=Size(48, 80), width=48, depth=1, num_heads=3, mlp=Mlp(width=80), classes=7, layer_scale=0.1)


@pytest.mark.filterwarnings("ignore")  # Dynamo's own
def test_saved_bytes_are_those_of_torch_compile_on_real_tensors() -> None:
    """Dynamo, AOTAutograd and the partitioner run as in torch.compile; only Inductor's code is not generated."""
    found = track_compiled(CONFIG, Workload(batch=3, train=True, precision="amp-bf16"))
    model, images = ViT(CONFIG).train(), torch.zeros(3, 3, 48, 80)
    given = {each.untyped_storage().data_ptr() for each in (*model.parameters(), *model.buffers(), images)}
    held: dict[int, Any] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in given:
            held[storage.data_ptr()] = storage
        return tensor

    compiled = torch.compile(
        lambda images, labels: F.cross_entropy(model(images), labels), backend="aot_eager_decomp_partition"
    )
    labels = torch.zeros(3, dtype=torch.long)
    given.add(labels.untyped_storage().data_ptr())
    with torch.autocast("cpu", torch.bfloat16), saved_tensors_hooks(pack, lambda x: x):
        compiled(images, labels)
    assert found.saved_bytes == sum(storage.nbytes() for storage in held.values())
    assert found.saved_bytes < found.eager_saved_bytes


def test_what_is_not_traced_is_refused() -> None:
    with pytest.raises(VitrailError, match="add --train"):
        track_compiled(CONFIG, Workload())
    with pytest.raises(VitrailError, match="leave --checkpointing out"):
        track_compiled(CONFIG, Workload(train=True, checkpointing=Checkpointing()))
