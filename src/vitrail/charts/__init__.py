"""Numbers and labels → pictures: one sheet, one palette, one file per kind of chart."""
