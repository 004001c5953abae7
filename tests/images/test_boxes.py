import json

import pytest

from vitrail.errors import VitrailError
from vitrail.images.boxes import typical_object


def test_the_typical_object_is_the_median_of_the_boxes_mean_sides(tmp_path):
    boxes = [{"bbox": [0, 0, 2, 8]}, {"bbox": [3, 1, 100, 400]}, {"bbox": [0, 9, 9, 16]}]
    (tmp_path / "boxes.json").write_text(json.dumps({"annotations": boxes}))
    assert typical_object(tmp_path / "boxes.json") == 12


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not COCO JSON"),
        ("[]", "not COCO JSON"),
        ('{"annotations": [{"box": 1}]}', "not COCO JSON"),
        ('{"annotations": [{"bbox": [1, 2]}]}', "not COCO JSON"),
        ('{"annotations": []}', "has no annotations"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, text, reason):
    (tmp_path / "boxes.json").write_text(text)
    with pytest.raises(VitrailError, match=reason) as caught:
        typical_object(tmp_path / "boxes.json")
    assert "\n" not in str(caught.value)
