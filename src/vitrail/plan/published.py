"""Published accuracies as data: what each measures, its source, and whether it was checked there.

Figures are quoted, never computed here. If the authors' figure and timm's evaluation of the same weights differ, the
source says which it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["DOUBTS", "RESULTS", "Check", "Result", "best", "results"]

Check = Literal["read", "quoted", "unchecked"]

DOUBTS: dict[Check, str] = {
    "quoted": "quoted: read where somebody quotes the source, not in the source itself",
    "unchecked": "unchecked: not looked up in the source",
}
"""Remarks on figures that were not read in the source itself."""


@dataclass(frozen=True)
class Result:
    """Top-1 accuracy of one model, with its pretraining data and the image side at test time."""

    model: str
    accuracy: float
    pretraining: str
    image: int
    source: str
    """A repository and its file, or a paper and its table."""
    check: Check
    note: str = ""
    """The source's name for the model, or another remark that helps to find the figure."""
    protocol: Literal["fine-tuned", "linear probe"] = "fine-tuned"
    dataset: str = "ImageNet-1k"

    @property
    def label(self) -> str:
        """The figure with its conditions, and a remark if it was not read in its source.

        >>> best("B/16").label, best("H/14").label
        ('86.0 (ImageNet-21k, 384 px)', '88.0 (JFT-300M, 384 px, unchecked)')
        """
        conditions = [self.pretraining, f"{self.image} px"]
        conditions += [] if self.protocol == "fine-tuned" else [self.protocol]
        conditions += [] if self.check == "read" else [self.check]
        return f"{self.accuracy:.1f} ({', '.join(conditions)})"


# ── ViT ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _paper(model: str, accuracy: float, pretraining: str, quoted: str = "") -> Result:
    """Fine-tuned at 384 pixels, as the paper reports it."""
    source = "arXiv 2010.11929, table 5"
    return Result(model, accuracy, pretraining, 384, source, "quoted" if quoted else "unchecked", quoted)


def _google(model: str, accuracy: float) -> Result:
    """The authors' public code, which fine-tunes at 384 pixels; the better of the two runs that they report."""
    source = "google-research/vision_transformer, README.md"
    return Result(model, accuracy, "ImageNet-21k", 384, source, "read", "a run of the public code, not the paper's")


def _timm(model: str, accuracy: float, pretraining: str, image: int, name: str) -> Result:
    """timm's evaluation of weights that their authors released."""
    source = "huggingface/pytorch-image-models, results/results-imagenet.csv"
    return Result(model, accuracy, pretraining, image, source, "read", name)


_VIT = (
    _paper("B/16", 77.91, "ImageNet-1k", "SHI-Labs/Compact-Transformers, README.md"),
    _paper("B/16", 83.97, "ImageNet-21k"),
    _paper("B/16", 84.15, "JFT-300M"),
    _paper("B/32", 73.38, "ImageNet-1k", "a question to the authors at google-research/vision_transformer"),
    _paper("B/32", 81.28, "ImageNet-21k"),
    _paper("B/32", 80.73, "JFT-300M"),
    _paper("L/16", 76.53, "ImageNet-1k"),
    _paper("L/16", 85.15, "ImageNet-21k"),
    _paper("L/16", 87.12, "JFT-300M"),
    _paper("L/32", 71.16, "ImageNet-1k"),
    _paper("L/32", 80.99, "ImageNet-21k"),
    _paper("L/32", 84.37, "JFT-300M"),
    _paper("H/14", 85.13, "ImageNet-21k"),
    _paper("H/14", 88.04, "JFT-300M"),
    Result(
        "G/14", 90.45, "JFT-3B", 518, "arXiv 2106.04560", "quoted", "the accuracy, from copies of the abstract; not 518"
    ),
    _google("B/16", 84.62),
    _google("B/32", 81.79),
    _google("L/16", 85.07),
    _google("L/32", 82.01),
    _timm("Ti/16", 75.454, "ImageNet-21k", 224, "vit_tiny_patch16_224.augreg_in21k_ft_in1k"),
    _timm("Ti/16", 78.424, "ImageNet-21k", 384, "vit_tiny_patch16_384.augreg_in21k_ft_in1k"),
    _timm("S/16", 81.384, "ImageNet-21k", 224, "vit_small_patch16_224.augreg_in21k_ft_in1k"),
    _timm("S/16", 83.802, "ImageNet-21k", 384, "vit_small_patch16_384.augreg_in21k_ft_in1k"),
    _timm("S/32", 75.994, "ImageNet-21k", 224, "vit_small_patch32_224.augreg_in21k_ft_in1k"),
    _timm("S/32", 80.486, "ImageNet-21k", 384, "vit_small_patch32_384.augreg_in21k_ft_in1k"),
    _timm("B/8", 85.798, "ImageNet-21k", 224, "vit_base_patch8_224.augreg_in21k_ft_in1k"),
    _timm("B/16", 84.532, "ImageNet-21k", 224, "vit_base_patch16_224.augreg_in21k_ft_in1k"),
    _timm("B/16", 85.996, "ImageNet-21k", 384, "vit_base_patch16_384.augreg_in21k_ft_in1k"),
    _timm("B/32", 80.716, "ImageNet-21k", 224, "vit_base_patch32_224.augreg_in21k_ft_in1k"),
    _timm("B/32", 83.35, "ImageNet-21k", 384, "vit_base_patch32_384.augreg_in21k_ft_in1k"),
    _timm("L/16", 85.834, "ImageNet-21k", 224, "vit_large_patch16_224.augreg_in21k_ft_in1k"),
    _timm("L/16", 87.084, "ImageNet-21k", 384, "vit_large_patch16_384.augreg_in21k_ft_in1k"),
)


# ── related models ──────────────────────────────────────────────────────────────────────────────────────────────


def _deit(model: str, accuracy: float, note: str = "") -> Result:
    return Result(model, accuracy, "ImageNet-1k", 224, "facebookresearch/deit, README_deit.md", "read", note)


def _dinov2(model: str, accuracy: float) -> Result:
    """A linear classifier on frozen features, at the 224 pixels of the repository's evaluation."""
    source, protocol = "facebookresearch/dinov2, README.md", "linear probe"
    return Result(model, accuracy, "LVD-142M", 224, source, "read", protocol=protocol)


def _swin(model: str, accuracy: float, pretraining: str = "ImageNet-1k") -> Result:
    return Result(model, accuracy, pretraining, 224, "microsoft/Swin-Transformer, README.md", "read")


def _pit(model: str, accuracy: float) -> Result:
    return Result(model, accuracy, "ImageNet-1k", 224, "naver-ai/pit, README.md", "read")


def _flexivit(model: str, accuracy: float, name: str) -> Result:
    return _timm(model, accuracy, "ImageNet-1k, distilled", 240, f"{name}.1200ep_in1k")


def _cifar(model: str, accuracy: float, name: str) -> Result:
    source = "SHI-Labs/Compact-Transformers, README.md"
    return Result(model, accuracy, "none", 32, source, "read", f"{name}, 200 epochs", dataset="CIFAR-10")


_RELATIVES = (
    *(_deit(name, 72.2) for name in ("Ti/16", "deit-Ti/16")),
    *(_deit(name, 79.9, "timm evaluates the same weights at 79.844") for name in ("S/16", "deit-S/16")),
    *(_deit(name, 81.8) for name in ("B/16", "deit-B/16")),
    _deit("deit-Ti/16-distilled", 74.5),
    _deit("deit-S/16-distilled", 81.2),
    _deit("deit-B/16-distilled", 83.4),
    _dinov2("dinov2-S/14", 81.1),
    _dinov2("dinov2-B/14", 84.5),
    _dinov2("dinov2-L/14", 86.3),
    _dinov2("dinov2-g/14", 86.5),
    _dinov2("dinov2-S/14-reg4", 80.9),
    _dinov2("dinov2-B/14-reg4", 84.6),
    _dinov2("dinov2-L/14-reg4", 86.7),
    _dinov2("dinov2-g/14-reg4", 87.1),
    _timm("beit-B/16", 85.212, "ImageNet-21k", 224, "beit_base_patch16_224.in22k_ft_in22k_in1k"),
    _timm("beit-L/16", 87.478, "ImageNet-21k", 224, "beit_large_patch16_224.in22k_ft_in22k_in1k"),
    _flexivit("flexivit-S/16", 82.52, "flexivit_small"),
    _flexivit("flexivit-B/16", 84.678, "flexivit_base"),
    _flexivit("flexivit-L/16", 85.646, "flexivit_large"),
    _swin("swin-T", 81.2),
    _swin("swin-S", 83.2),
    _swin("swin-B", 83.5),
    _swin("swin-B", 85.2, "ImageNet-21k"),
    _pit("pit-Ti", 73.0),
    _pit("pit-XS", 78.1),
    _pit("pit-S", 80.9),
    _pit("pit-B", 82.0),
    _pit("pit-Ti-distilled", 74.6),
    _pit("pit-XS-distilled", 79.1),
    _pit("pit-S-distilled", 81.9),
    _pit("pit-B-distilled", 84.0),
    _timm("mobilevit-XXS", 68.932, "ImageNet-1k", 256, "mobilevit_xxs.cvnets_in1k"),
    _timm("mobilevit-XS", 74.636, "ImageNet-1k", 256, "mobilevit_xs.cvnets_in1k"),
    _timm("mobilevit-S", 78.312, "ImageNet-1k", 256, "mobilevit_s.cvnets_in1k"),
    _cifar("ViT-Lite, 3.7 M", 91.38, "ViT-Lite 7/4"),
    _cifar("CCT, 0.28 M", 89.17, "CCT 2/3x2"),
)

RESULTS = (*_VIT, *_RELATIVES)


def results(model: str) -> tuple[Result, ...]:
    """Return all results of a model, by its preset name."""
    return tuple(result for result in RESULTS if result.model == model)


def best(model: str, dataset: str = "ImageNet-1k") -> Result | None:
    """Return the best result on a dataset, or None if there is none.

    A figure that was read in its source is preferred to a higher one that was not.
    """
    candidates = [result for result in results(model) if result.dataset == dataset]
    return max(candidates, key=lambda result: (result.check == "read", result.accuracy), default=None)
