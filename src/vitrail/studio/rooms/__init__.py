"""One module per room: a `router` that calls the library and shapes JSON, and the `Question` that it takes.

A room that has helpers is a package, and they lie in it; what several rooms share lies in `vitrail.studio`.

A room is added here by its name, which is its name in the page's address too.
"""

from vitrail.studio.rooms import attention, decide, memory, models, patch, positions, projection, tokens, transfer, walk

__all__ = ["ROOMS"]

ROOMS = {
    "patch": patch,
    "projection": projection,
    "tokens": tokens,
    "positions": positions,
    "transfer": transfer,
    "memory": memory,
    "models": models,
    "attention": attention,
    "decide": decide,
    "walk": walk,
}
