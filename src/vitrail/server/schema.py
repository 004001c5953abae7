"""Print the OpenAPI schema, from which the page's types are generated: python -m vitrail.server.schema."""

from __future__ import annotations

import json
import sys

from vitrail.server.app import create_api

__all__ = []

if __name__ == "__main__":
    json.dump(create_api().openapi(), sys.stdout)
