"""Charts: one page layout, one palette, one file per kind of chart."""
