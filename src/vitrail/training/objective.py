"""The loss of images and soft labels, with or without a teacher.

Shapes: B images, C channels, H×W pixels, D width, K classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.surgery.projection import resize_projection
from vitrail.config import ViTConfig
from vitrail.errors import require
from vitrail.geometry import Size, fit
from vitrail.nn.adaptive import AdaptiveEmbed
from vitrail.nn.layout import Layout
from vitrail.nn.mlp import linear
from vitrail.nn.mobile import MobileViT
from vitrail.nn.patches import PatchEmbed, embed_by_convolution
from vitrail.nn.pyramid import PyramidViT
from vitrail.nn.vit import ViT
from vitrail.training.recipe import Distillation, TokenBudget

__all__ = ["Model", "Objective", "Teacher", "with_patch"]

Model = ViT | PyramidViT | MobileViT


class Teacher:
    """A frozen model that gets the student's images normalised by its own statistics.

    With `resize`, it gets them at its own size; otherwise at the student's.
    """

    def __init__(self, checkpoint: Checkpoint, student: Preprocessing, device: str, *, resize: bool = True) -> None:
        self.model = checkpoint.model(device=device, dtype=torch.float32).requires_grad_(False)
        held = checkpoint.preprocessing
        require(
            held.channels == student.channels,
            f"the teacher takes {held.channels} channels and the student {student.channels}; use another teacher",
        )
        self.image, self.classes = checkpoint.config.image if resize else None, checkpoint.config.classes
        theirs, ours = (
            [torch.tensor(values, device=device)[:, None, None] for values in (steps.mean, steps.std)]
            for steps in (held, student)
        )
        self.scale, self.shift = ours[1] / theirs[1], (ours[0] - theirs[0]) / theirs[1]

    @torch.no_grad()
    def vector(self, images: Tensor) -> Tensor:
        images = images * self.scale + self.shift
        if self.image is not None and tuple(images.shape[2:]) != tuple(self.image):
            images = F.interpolate(images, size=tuple(self.image), mode="bicubic", antialias=True, align_corners=False)
        return self.model.vector(images)

    @torch.no_grad()
    def classify(self, vector: Tensor) -> Tensor:
        return self.model.classify(vector)


class Objective(nn.Module):
    """A model and its loss; only `model` is saved."""

    def __init__(
        self,
        model: Model,
        *,
        distillation: Distillation | None = None,
        teacher: Teacher | None = None,
        token_budget: TokenBudget | None = None,
    ) -> None:
        super().__init__()
        self.model, self.distillation, self.token_budget = model, distillation, token_budget
        require(
            token_budget is None or _selector_of(model) is not None,
            "token_budget needs a learned selector; use Adaptive(selector='learned'), or leave it out",
        )
        self._teacher = (teacher,)  # in a tuple, so that it is not a submodule
        self.projection: nn.Linear | None = None
        require((distillation is None) == (teacher is None), "distillation needs a recipe and a teacher; give both")
        if distillation is None or teacher is None:
            return
        if distillation.what == "token":
            require(
                model.distillation_head is not None,
                "distillation by token needs a distillation token; use Prefix(distillation=True) and ClsPool()",
            )
        if distillation.what == "features":
            student, taught = (_width(each) for each in (model, teacher.model))
            self.projection = linear(student, taught)
        else:
            require(
                teacher.classes == model.config.classes,
                f"the teacher has {teacher.classes} classes and the student {model.config.classes}; "
                "use a teacher of the same classes, or distil features",
            )

    def forward(self, images: Tensor, targets: Tensor, patch: Size | None = None) -> tuple[Tensor, Tensor]:
        """(B, C, H, W) and (B, K) → the mean loss, and the accuracy."""
        with with_patch(self.model, patch):
            vector = self.model.vector(images)
        by_label, by_teacher = self._heads(vector)
        right = (by_label.argmax(1) == targets.argmax(1)).float().mean()
        loss = _cross_entropy(by_label, targets)
        selector = _selector_of(self.model)
        if self.token_budget is not None and selector is not None:
            excess = selector.token_share(images) - self.token_budget.share
            loss = loss + self.token_budget.weight * excess.square()
        (teacher,) = self._teacher
        if teacher is None or self.distillation is None:
            return loss, right
        weight = self.distillation.weight
        return (1 - weight) * loss + weight * self._taught(teacher, images, vector, by_teacher), right

    def logits(self, images: Tensor) -> Tensor:
        """Return the model's logits through this module, whose hooks gather sharded weights."""
        return self.model(images)

    def _heads(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits for the labels and for the teacher, which differ if there is a distillation head."""
        model = self.model
        if model.distillation_head is not None and model.head is not None:
            cls, token = vector.unbind(1)
            own = model.head(cls)
            return own, model.distillation_head(token)
        logits = model.classify(vector)
        return logits, logits

    def _taught(self, teacher: Teacher, images: Tensor, vector: Tensor, logits: Tensor) -> Tensor:
        assert self.distillation is not None
        seen = teacher.vector(images)
        if self.projection is not None:
            ours, theirs = (part.mean(1) if part.ndim == 3 else part for part in (vector, seen))
            return (1 - F.cosine_similarity(self.projection(ours).float(), theirs.float())).mean()
        decided = teacher.classify(seen).float()
        if self.distillation.what == "token":
            return F.cross_entropy(logits.float(), decided.argmax(1))
        t = self.distillation.temperature
        return F.kl_div((logits.float() / t).log_softmax(1), (decided / t).log_softmax(1), log_target=True,
                        reduction="batchmean") * t * t  # fmt: skip


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return -(targets * logits.float().log_softmax(1)).sum(1).mean()


def _selector_of(model: nn.Module) -> AdaptiveEmbed | None:
    """Return the embedding that learns which cells to split, if the model has one."""
    embedding = getattr(model, "embedding", None)
    return embedding if isinstance(embedding, AdaptiveEmbed) and embedding.selector is not None else None


def _width(model: nn.Module) -> int:
    head = model.head
    if isinstance(head, nn.Linear):
        return head.in_features
    config = model.config
    return config.vector_width if isinstance(config, ViTConfig) else config.width  # type: ignore[union-attr,return-value]


# ── another patch size, for a step ──────────────────────────────────────────────────────────────────────────────


@contextmanager
def with_patch(model: Model, patch: Size | None) -> Iterator[None]:
    """Use the model with its projection resized to another patch; gradients flow to the original projection."""
    own = model.embedding if isinstance(model, ViT) else None
    if patch is None or (isinstance(own, PatchEmbed) and own.patch == patch):
        yield
        return
    require(
        isinstance(own, PatchEmbed) and own.stride is None,
        f"patch {patch} cannot be drawn for a {type(own).__name__}; it takes non-overlapping Patches",
    )
    assert isinstance(model, ViT)
    assert isinstance(own, PatchEmbed)
    model.embedding = _Resized(own, patch)
    try:
        yield
    finally:
        model.embedding = own


class _Resized(nn.Module):
    def __init__(self, embed: PatchEmbed, patch: Size) -> None:
        super().__init__()
        self.embed, self.patch = embed, patch

    def forward(self, image: Tensor, inside: Tensor | None = None) -> tuple[Tensor, Layout]:
        grid = fit(Size(*image.shape[2:]), self.patch).grid
        weight = resize_projection(self.embed.weight, self.patch)
        return embed_by_convolution(image, weight, self.embed.bias), Layout(grid=grid, frame=grid)
