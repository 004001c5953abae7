"""The options of a run that change its vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from vitrail.config import Config, ViTConfig
from vitrail.errors import require
from vitrail.parts import Adaptive
from vitrail.rules import PositiveInt, Range
from vitrail.value import Value
from vitrail.vectors.engines.names import RUNTIMES, Device, require_runtime

__all__ = ["EngineOption", "MergeThreshold", "Options"]

EngineOption = Literal["auto", "torch", "openvino", "onnxruntime", "int8"]
MergeThreshold = Annotated[float, Range("[0, 1)", "give how much merged tokens may differ, like 0.15, or 0")]
TORCH_ONLY = (
    "--native",
    "--adaptive",
    "--scales",
    "--merge",
    "--keep-cosine",
    "--tokens",
    "--compile",
    "--device",
    "--bf16",
)
"""Options that only the torch engine has."""
APART = (
    *(("--native", other) for other in ("--adaptive", "--scales", "--tokens")),
    *(("--adaptive", other) for other in ("--scales", "--tokens")),
    ("--merge", "--tokens"),
    *(
        ("--keep-cosine", other)
        for other in ("--merge", "--adaptive", "--scales", "--tokens", "--engine int8", "--bf16")
    ),
    *(
        ("--compile", other)
        for other in ("--native", "--adaptive", "--merge", "--keep-cosine", "--tokens", "--engine int8")
    ),
    *((f"--engine {runtime}", other) for runtime in RUNTIMES for other in TORCH_ONLY),
    *((other, "--engine int8") for other in ("--device", "--bf16")),
    *((other, packed) for other in ("--device", "--bf16") for packed in ("--native", "--adaptive", "--compile")),
)
"""Pairs of options that exclude each other."""


@dataclass(frozen=True, kw_only=True)
class Options(Value):
    """Part of the plan: all workers use the same options, and a run with different ones is refused."""

    engine: EngineOption = "torch"
    """auto is the fastest of torch, OpenVINO and onnxruntime by a tournament; int8 likewise, in 8 bits."""
    dtype: Literal["float32", "float16"] = "float32"
    """Number type of the stored vectors."""
    exact: bool = False
    """Decode and resize exactly as Pillow does."""
    native: bool = False
    """Keep each image's aspect ratio."""
    token_budget: PositiveInt | None = None
    """At most this many patches per image at its native size."""
    scales: tuple[Annotated[float, Range("(0, 8]", "give factors of the model's image, like 1,1.5")], ...] = (1.0,)
    merge: MergeThreshold = 0.0
    """Merge patches whose tokens differ by less than this."""
    keep_cosine: Annotated[float, Range("(0, 1)", "0.995 is a start")] | None = None
    """Merge as much as leaves vectors this mean cosine to float32's, on a sample of the run's images."""
    adaptive: Annotated[float, Range("[0, inf]", "0.3 is a start")] | None = None
    """Use patches twice as large where a part of an image has less detail than this, relative to all its parts."""
    tokens: Literal["npy", "safetensors"] | None = None
    """Also store every token's features, in this format."""
    compile: bool = False
    """Use torch.compile, whose kernels round differently."""
    device: Device = "cpu"
    """Where torch computes."""
    bf16: bool = False
    """Multiply in bfloat16."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.native or self.token_budget is None, "--token-budget is for --native images; give both")
        asked = self._asked()
        for one, other in APART:
            require(not (asked[one] and asked[other]), f"{one} and {other} cannot be combined; use one of them")

    def _asked(self) -> dict[str, bool]:
        return {
            "--native": self.native,
            "--adaptive": self.adaptive is not None,
            "--scales": self.scales != (1.0,),
            "--merge": self.merge > 0,
            "--keep-cosine": self.keep_cosine is not None,
            "--tokens": self.tokens is not None,
            "--compile": self.compile,
            "--engine int8": self.engine == "int8",
            "--engine openvino": self.engine == "openvino",
            "--engine onnxruntime": self.engine == "onnxruntime",
            "--device": self.device != "cpu",
            "--bf16": self.bf16,
        }

    @property
    def torch_only(self) -> list[str]:
        """The options given that only the torch engine has."""
        asked = self._asked()
        return [name for name in TORCH_ONLY if asked[name]]

    @property
    def approximate(self) -> bool:
        """Whether the vectors differ from float32's, so that the agreement must be measured."""
        return self.engine == "int8" or self.merges or self.adaptive is not None or self.bf16

    @property
    def merges(self) -> bool:
        """Whether patches may be merged."""
        return self.merge > 0 or self.keep_cosine is not None

    def check(self, config: Config) -> None:
        """Raise VitrailError if this model cannot run with these options."""
        # imported late: reading a plan, for a search, needs no torch
        from vitrail.checkpoint.surgery.adaptive import adaptive_config
        from vitrail.nn.compile import require_compiler
        from vitrail.vectors.engines.device import require_device
        from vitrail.vectors.engines.graph import why_no_graph
        from vitrail.vectors.engines.int8 import why_no_int8
        from vitrail.vectors.engines.scales import scaled_sizes

        plain = isinstance(config, ViTConfig)
        special = self.native or self.merges or self.tokens or self.engine == "int8" or self.scales != (1.0,)
        require(
            plain or not special,
            f"{type(config).__name__} has no single sequence of tokens; leave out --native, --merge, "
            "--keep-cosine, --tokens, --scales and int8",
        )
        of_images = self.native or self.merges or self.tokens or self.adaptive is not None or self.scales != (1.0,)
        require(
            config.frames == 1 or not of_images,
            f"the model takes clips of {config.frames} frames; leave out --native, --merge, --keep-cosine, "
            "--tokens, --adaptive and --scales",
        )
        require(config.channels in (1, 3), f"the model takes {config.channels} channels, and images have 1 or 3")
        if self.compile:
            require_compiler()
        require_device(self.device)
        reason = why_no_int8(config) if self.engine == "int8" else None
        require(reason is None, f"int8 cannot run this model: {reason}; use --engine torch")
        if self.engine in RUNTIMES:
            require_runtime(self.engine)
            reason = why_no_graph(config)
            require(reason is None, f"{self.engine} cannot run this model: {reason}; use --engine torch")
        if self.adaptive is not None:
            adaptive_config(config, self.adaptive)
        if isinstance(config, ViTConfig):
            require(
                not ((self.tokens or self.merges) and isinstance(config.embedding, Adaptive)),
                "the model's adaptive patches are not on one grid for all images; leave out --tokens, --merge and "
                "--keep-cosine",
            )
            scaled_sizes(config.image, config.patch, self.scales)
