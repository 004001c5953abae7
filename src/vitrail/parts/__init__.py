"""The parts of a config: every alternative is a type of its own.

Each part validates its own fields; `vitrail.config` validates rules between parts.
"""

from . import (
    attention,
    embeddings,
    mergers,
    merging,
    mlp,
    neck,
    pools,
    position_kind,
    positions,
    prefix,
    relative,
    tiled,
)
from .attention import *
from .embeddings import *
from .mergers import *
from .merging import *
from .mlp import *
from .neck import *
from .pools import *
from .position_kind import *
from .positions import *
from .prefix import *
from .relative import *
from .tiled import *

__all__: list[str] = []
__all__ += attention.__all__
__all__ += embeddings.__all__
__all__ += mergers.__all__
__all__ += merging.__all__
__all__ += mlp.__all__
__all__ += neck.__all__
__all__ += pools.__all__
__all__ += position_kind.__all__
__all__ += positions.__all__
__all__ += prefix.__all__
__all__ += relative.__all__
__all__ += tiled.__all__
