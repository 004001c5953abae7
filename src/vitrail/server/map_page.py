"""An atlas as one HTML file that needs no server: the studio's map, with its thumbnails inside."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from html import escape

from vitrail.maps.atlas import Atlas
from vitrail.server.app import read_page
from vitrail.server.rooms.folder.folder_facts import PER_SHEET, map_facts
from vitrail.server.rooms.folder.folder_pictures import thumbnail_sheet

__all__ = ["map_page"]

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<div id="app"></div>
<noscript>The map is drawn with JavaScript; please allow it for this page.</noscript>
<script type="application/json" id="map">{told}</script>
<script>{script}</script>
</body>
</html>
"""


def map_page(atlas: Atlas, title: str, tell: Callable[[int], None] = lambda done: None) -> bytes:
    """Return the HTML of the map; `tell` is called with the number of thumbnails that are drawn."""
    files = read_page("map")
    pictures = []
    for number in range(-(-len(atlas) // PER_SHEET)):
        pictures.append(base64.b64encode(thumbnail_sheet(atlas, number).tobytes()).decode())
        tell(min(len(atlas), (number + 1) * PER_SHEET))
    told = {
        "title": title,
        "facts": list(atlas.in_words()),
        "map": map_facts(atlas).model_dump(mode="json"),
        "pictures": pictures,
    }
    page = PAGE.format(
        policy=POLICY,
        title=escape(title),
        style=files["map.css"].decode(),
        told=json.dumps(told).replace("</", "<\\/"),  # a name may end the element
        script=files["map.js"].decode().replace("</script", "<\\/script"),
    )
    return page.encode()
