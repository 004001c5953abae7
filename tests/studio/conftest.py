"""Every test of the studio may ask for a running one (`address`), a `browser` and a `page`."""

from browser import address, browser, page

__all__ = ["address", "browser", "page"]
