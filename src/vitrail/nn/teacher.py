"""Teachers: copies of a model that follow its weights as a moving average, and are never trained themselves."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

__all__ = ["follow", "teacher_of"]

M = TypeVar("M", bound=nn.Module)


def teacher_of(student: M) -> M:
    """Return a frozen copy, without dropout."""
    return copy.deepcopy(student).requires_grad_(False).eval()


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, momentum: float) -> None:
    """Move every weight of the teacher towards the student's, in place: m · teacher + (1 − m) · student."""
    for mean, weight in zip(teacher.parameters(), student.parameters(), strict=True):
        mean.lerp_(weight.detach(), 1 - momentum)
