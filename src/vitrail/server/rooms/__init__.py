"""One module per room: a `router` that calls the library and returns JSON, and a `Question` with its parameters.

A room with helpers is a package that contains them; code that several rooms share is in `vitrail.server`.

Register a room here by its name, which the page's address uses too.
"""

from vitrail.server.rooms import (
    attention,
    decide,
    dense,
    folder,
    match,
    memory,
    models,
    patch,
    positions,
    projection,
    tokens,
    transfer,
    walk,
)

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
    "match": match,
    "dense": dense,
    "folder": folder,
}
