"""Where an engine computes: on the processor or an accelerator, in float32 or with products in bfloat16.

The same code runs everywhere; only the tensors' device differs. Images are uint8 when they are copied, a quarter of
their float size, from pinned memory where the device can read it while it computes.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from vitrail.errors import require
from vitrail.vectors.engines.names import Device

__all__ = ["Place", "require_device"]


def require_device(device: Device) -> None:
    """Raise VitrailError if this machine or this build of torch lacks the device."""
    available = {
        "cpu": lambda: True,
        "cuda": torch.cuda.is_available,
        "mps": torch.backends.mps.is_available,
        "xpu": torch.xpu.is_available,
    }
    require(
        available[device](),
        f"device {device} is not available to torch {torch.__version__} on this machine; use --device cpu, or install "
        "a torch that has it",
    )


class Place:
    """A device and the precision of its products."""

    def __init__(self, device: Device = "cpu", *, bf16: bool = False) -> None:
        require_device(device)
        self.device: Device = device
        self.bf16 = bf16

    def computing(self) -> AbstractContextManager[object]:
        """With bfloat16, products are in it, and norms, softmax and the residual stay float32."""
        return torch.autocast(self.device, torch.bfloat16) if self.bf16 else nullcontext()

    def there(self, images: Tensor) -> Tensor:
        """Copy a batch to the device."""
        if self.device == "cpu":
            return images
        pinned = images.pin_memory() if self.device == "cuda" else images
        return pinned.to(self.device, non_blocking=True)

    def back(self, result: Tensor) -> Tensor:
        """Copy a result to the processor, as float32."""
        return result.to("cpu", torch.float32)
