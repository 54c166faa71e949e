"""What do all sections of the file share? Frozen models that know their keys by the file's names and explain what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic.config import JsonDict
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from proxy.settings.problems import did_you_mean, listed, nearest

Steps = tuple[str | int, ...]
SHOWN = "x-default"  # in the schema of a field: its default as one would write or say it
KEY = "[key]"  # a last step that means the name itself, and not what it names
UNITS = ("_s", "_bytes")
SUGGESTIONS_MAX = 100  # in one section; a file with more unknown keys is not a misspelt one
REFUSED, UNKNOWN = "refused", "unknown"  # types of what a section raises: a value, a key

_MESSAGES = {
    "missing": "is required",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
    "dict_type": "must be a mapping of names to values",
    "mapping_type": "must be a mapping of names to values",
    "tuple_type": "must be a list",
    "string_type": "must be text; put it in quotes",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a number",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
    "too_short": "must name at least one",
    "string_too_short": "must not be empty",
    "literal_error": "must be {expected}",
}


def setting(description: str, default: Any = ..., *, shown: str | None = None, **bounds: Any) -> Any:
    """A key of the file. `shown`: its default as one would write it, where that is not plain from `default`."""
    extra: JsonDict = {} if shown is None else {SHOWN: shown}
    return Field(default, description=description, json_schema_extra=extra, **bounds)


def file_name(attribute: str) -> str:
    """The file's key for an attribute: without the unit, which the file writes beside the number."""
    for unit in UNITS:
        attribute = attribute.removesuffix(unit)
    return attribute


class Section(BaseModel):
    """A mapping of the file: unknown keys are refused with the spelling that was probably meant, values are never shown."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, hide_input_in_errors=True, alias_generator=file_name, protected_namespaces=()
    )

    later: ClassVar[frozenset[str]] = frozenset()  # keys of what is not built yet: refused as such, never ignored

    @classmethod
    def file_keys(cls) -> dict[str, str]:
        """The file's keys of this section, and the attribute that each becomes."""
        return {field.alias or name: name for name, field in cls.model_fields.items()}

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(data)
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False)
        raise ValidationError.from_exception_data(cls.__name__, list(cls._explained(details)))

    @classmethod
    def _explained(cls, details: list[ErrorDetails]) -> Iterator[InitErrorDetails]:
        known = cls.file_keys()
        unknown = [str(error["loc"][-1]) for error in details if error["type"] == "extra_forbidden"]
        meant = {nearest(key, known) for key in unknown[:SUGGESTIONS_MAX]}
        for error in details:
            kind, steps, message = error["type"], error["loc"], error["msg"]
            if kind == "missing" and (steps[-1] in meant or not cls.later.isdisjoint(unknown)):
                continue  # it is there, misspelt, or replaced by what is not there yet
            if kind == "extra_forbidden":
                key = str(steps[-1])
                hint = did_you_mean(key, known) if key in unknown[:SUGGESTIONS_MAX] else ""
                kind, message = UNKNOWN, "is not available yet" if key in cls.later else f"is no key here{hint}"
            elif kind not in (UNKNOWN, REFUSED):
                kind, message = REFUSED, _message(error)
            yield InitErrorDetails(type=PydanticCustomError(kind, _literal(message)), loc=steps, input=None)


def _message(error: ErrorDetails) -> str:
    """Ours for what pydantic found, or what our validator raised."""
    context = error.get("ctx", {})
    if error["type"] == "value_error":
        return str(context["error"])
    template = _MESSAGES.get(error["type"])
    return error["msg"] if template is None else template.format_map(context)


def _literal(message: str) -> Any:
    return message


def refuse(*problems: tuple[Steps, str]) -> None:
    """Raise what is wrong, each at its place relative to the section or field that is being validated, if anything is."""
    if not problems:
        return
    details = [InitErrorDetails(type=PydanticCustomError(REFUSED, _literal(message)), loc=steps, input=None) for steps, message in problems]
    raise ValidationError.from_exception_data("settings", details)


def rivals(section: Section, *keys: str) -> list[tuple[Steps, str]]:
    """The problem of a section that gives more than one of these keys, if it does."""
    given = [key for key in keys if key in section.model_fields_set]
    return [((given[-1],), f"cannot stand beside {listed(given[:-1])}; keep one of them")] if len(given) > 1 else []


def filled(section: Any, values: Mapping[str, Any]) -> None:
    """Give a section, while it is being validated, the defaults that follow from its other keys."""
    for name, value in values.items():
        object.__setattr__(section, name, value)
