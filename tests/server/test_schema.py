"""Whatever the schema allows, and more, gets an answer: no 500, no other shape of error."""

from __future__ import annotations

import json
import zlib

import pytest
import schemathesis
from client import HOST, app
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from command import PATIENCE
from vitrail.server.app import create_api


@schemathesis.deserializer("application/octet-stream")
def header(_, response):
    """A frame's schema is its header's."""
    length = int.from_bytes(response.content[:4], "little")
    return json.loads(response.content[4 : 4 + length])


schema = schemathesis.openapi.from_dict(app().openapi())
SHARE = 5
"""One case in five is asked: the bounds of all parameters give 11,000, and operations share most parameters."""


def test_the_pages_types_need_no_built_page():
    assert create_api().openapi() == app().openapi()


# a thread that another library left behind may draw while a case is made
@pytest.mark.filterwarnings("ignore:Do not use the .random. module inside strategies")
@schema.parametrize()
@settings(
    max_examples=12,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
def test_any_question_gets_an_answer_of_the_said_shape(case):
    if zlib.crc32(f"{case.method}{case.formatted_path}{case.query}{case.body}".encode()) % SHARE:
        return
    answer = case.call(app=app(), base_url=f"http://{HOST}", headers={"Host": HOST}, timeout=PATIENCE)
    case.validate_response(
        answer,
        checks=(
            not_a_server_error,
            status_code_conformance,
            content_type_conformance,
            response_schema_conformance,
        ),
    )
    if answer.status_code >= 400:
        said = answer.json()
        assert set(said) == {"error", "status"}
        assert said["status"] == answer.status_code
        assert "\n" not in said["error"]
