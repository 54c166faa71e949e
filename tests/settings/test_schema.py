"""Is the schema draft-07, does it describe every key, and does it agree with the loader on keys?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from proxy.settings.reference import sections
from proxy.settings.schema import DRAFT, schema

LATER_THAN_DRAFT_07 = {
    "$defs",
    "prefixItems",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedProperties",
    "minContains",
    "$anchor",
    "$dynamicRef",
}


def parts(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from parts(child)


def test_it_is_draft_07() -> None:
    body = schema()
    assert body["$schema"] == DRAFT
    assert json.loads(json.dumps(body)) == body
    for part in parts(body):
        assert not LATER_THAN_DRAFT_07 & set(part)
        if isinstance(part.get("$ref"), str):
            assert set(part) == {"$ref"}
            assert part["$ref"].removeprefix("#/definitions/") in body["definitions"]


def test_every_key_is_there_with_its_description_and_no_other() -> None:
    body = schema()
    described = {"Settings": body, **body["definitions"]}
    for section in sections():
        part = described[section.__name__]
        assert part["additionalProperties"] is False
        assert set(part["properties"]) == set(section.file_keys())
        for key, value in part["properties"].items():
            assert value.get("description"), f"{section.__name__}.{key}"


def test_what_it_requires_and_allows() -> None:
    body = schema()
    assert body["required"] == ["platforms", "pools"]
    backends = body["definitions"]["Platform"]["properties"]["backends"]
    assert {choice["type"] for choice in backends["anyOf"]} == {"object", "array"}
    assert not any(part.get("type") == "null" for part in parts(body))
