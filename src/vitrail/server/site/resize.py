"""A graph that resizes pixels as Pillow does, for the pictures that visitors drop on an exported page.

ONNX Runtime's antialiased resizing of bytes follows Pillow's: where the aspect ratio is kept, pixels differ by at most
one level of 255, and most are equal. Where an image is squashed, the axes are resized in another order, and pixels
differ by a fifth of a level on average, by a few at the most.
"""

from __future__ import annotations

from vitrail.checkpoint.preprocessing import Interpolation
from vitrail.errors import VitrailError

__all__ = ["MODES", "resize_graph"]

MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""ONNX's names of the interpolations that it has."""
OPSET, IR_VERSION = 18, 10


def resize_graph(interpolation: Interpolation) -> bytes:
    """Return the graph: `pixels`, uint8 (1, C, height, width), and `sizes`, int64 (4,), to `resized`."""
    from onnx import TensorProto, helper

    if interpolation not in MODES:
        raise VitrailError(
            f"a page cannot resize pictures by {interpolation}, which ONNX does not have; leave that model out"
        )
    node = helper.make_node(
        "Resize",
        ["pixels", "", "", "sizes"],
        ["resized"],
        mode=MODES[interpolation],
        antialias=1,
        coordinate_transformation_mode="half_pixel",
        cubic_coeff_a=-0.5,
        exclude_outside=1,
    )
    picture = [1, None, None, None]
    graph = helper.make_graph(
        [node],
        "resize",
        [
            helper.make_tensor_value_info("pixels", TensorProto.UINT8, picture),
            helper.make_tensor_value_info("sizes", TensorProto.INT64, [4]),
        ],
        [helper.make_tensor_value_info("resized", TensorProto.UINT8, picture)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    return model.SerializeToString()
