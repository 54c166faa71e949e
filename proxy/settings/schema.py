"""What may an editor offer and underline? The JSON Schema (draft-07) of the file, from the models and their descriptions."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core import core_schema

from proxy.settings.root import Settings
from proxy.settings.section import SHOWN

DRAFT = "http://json-schema.org/draft-07/schema#"


class _FileSchema(GenerateJsonSchema):
    """As the file is written: no nulls, and defaults as the file spells them, so that those that are no JSON are not missed."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  pydantic's own attribute

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def schema() -> dict[str, Any]:
    """The schema. It knows shapes and spellings; names, sums and files are for `fairlane check`."""
    body = Settings.model_json_schema(by_alias=True, schema_generator=_FileSchema)
    return {"$schema": DRAFT, **_draft_07(body), "title": "Fairlane settings"}


def _draft_07(node: Any) -> Any:
    """The same in draft-07: definitions under their old name, and no keys beside a `$ref`, which would be overlooked."""
    if isinstance(node, list):
        return [_draft_07(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {"definitions" if key == "$defs" else key: _draft_07(value) for key, value in node.items()}
    shown = node.pop(SHOWN, None)
    if shown is not None:
        node.pop("default", None)
        node["description"] += f" (default: {shown})"
    if node.get("default", ...) is None:
        del node["default"]
    reference = node.get("$ref")
    if isinstance(reference, str):
        alone = {"$ref": reference.replace("#/$defs/", "#/definitions/")}
        rest = {key: value for key, value in node.items() if key != "$ref"}
        return {"allOf": [alone], **rest} if rest else alone
    return node
