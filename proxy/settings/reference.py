"""What does each key of the file mean? `python -m proxy.settings.reference` prints docs/configuration.md, from the models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from proxy.settings.document import FILE_BYTES_MAX
from proxy.settings.root import Settings
from proxy.settings.section import SHOWN, Section
from proxy.settings.values import Kind

HEAD = f"""# Configuration

The reference of the file that `fairlane serve` and `fairlane check` read. It is printed by `python -m proxy.settings.reference`;
change the descriptions in `proxy/settings/`, not this page. `config/example.yaml` shows the keys at work, `config/smallest.yaml`
how little is needed, and `fairlane schema` prints a JSON Schema for editors.

* The file is YAML, UTF-8, at most {FILE_BYTES_MAX >> 20} MiB, one document. Only `true`, `false` and decimal numbers are more than text:
  `on`, `yes`, `012` and `1:30` are text. Duplicate and unknown keys, empty values, anchors, aliases, merge keys and tags are errors.
* `${{VAR}}` and `${{VAR:-default}}` are replaced by the environment's value inside scalars, after parsing; the default also where
  the variable is empty. `$$` is a dollar sign. A variable may also stand for a number or for true or false. Inside braces or
  brackets such a value needs quotes: `{{max_streams: "${{CAP:-16}}"}}`.
* Durations are `250ms`, `10s`, `1m30s`, `2h`; sizes `64KiB`, `8MiB`, `1GiB`; shares `10%` or `0.1`. A number without its unit is an error.
* Names begin with a letter or digit and hold letters, digits, dots, dashes and underscores, at most 63. A backend's name is unique over
  the whole file. Globs know `*`, `?` and `[...]`.
* Paths start from the directory of the file. Files that hold secrets and certificates are read when the file is, and again on reload.
* Of a caller's secret only the SHA-256 is kept; no secret is ever printed.
* `fairlane check FILE` reports all problems at once, each as `FILE:LINE:COLUMN: path: what is wrong`.
"""


def reference() -> str:
    """The page, in Markdown."""
    parts = (f"\n## {_title(places)}\n\n{section.__doc__}\n\n{_table(section)}" for section, places in sections().items())
    return HEAD + "".join(parts)


def sections() -> dict[type[Section], list[str]]:
    """Every section of the file with the places where it may stand, outer ones first."""
    found: dict[type[Section], list[str]] = {}
    ahead: list[tuple[str, type[Section]]] = [("", Settings)]
    while ahead:
        place, section = ahead.pop(0)
        found.setdefault(section, []).append(place)
        inner = [
            (f"{place}.{field.alias or name}{_repetition(field)}".removeprefix("."), kind)
            for name, field in section.model_fields.items()
            for kind in dict.fromkeys(_parts(field))
            if isinstance(kind, type) and issubclass(kind, Section)
        ]
        ahead = inner + ahead
    return found


def _title(places: list[str]) -> str:
    return " and ".join(f"`{place}`" for place in dict.fromkeys(places)) if places != [""] else "The whole file"


def _parts(field: FieldInfo) -> Iterator[Any]:
    """The types and annotations that a field's type is made of."""
    ahead: list[Any] = [*field.metadata, field.annotation]
    while ahead:
        part = ahead.pop(0)
        yield part
        ahead += [part.json_schema_input_type] if isinstance(part, BeforeValidator) else get_args(part)


def _repetition(field: FieldInfo) -> str:
    shape = field.annotation
    return ".NAME" if "Mapping" in str(shape) else "[]" if str(shape).startswith("tuple") else ""


def _table(section: type[Section]) -> str:
    rows = ["| key | value | default | meaning |", "| --- | --- | --- | --- |"]
    for name, field in section.model_fields.items():
        meaning = (field.description or "").replace("|", "\\|")
        rows.append(f"| `{field.alias or name}` | {_kind(field)} | {_default(field)} | {meaning} |")
    return "\n".join(rows) + "\n"


def _kind(field: FieldInfo) -> str:
    kind = next((part.name for part in _parts(field) if isinstance(part, Kind)), None)
    return kind or ("mapping" if any(isinstance(part, type) and issubclass(part, Section) for part in _parts(field)) else "text")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    extra = field.json_schema_extra
    shown = str(extra[SHOWN]) if isinstance(extra, dict) and SHOWN in extra else ""
    if not shown:
        shown = "" if field.default is None else str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
    is_code = re.fullmatch(r"[\[{].*[\]}]|[\w.:%]+", shown) and shown not in ("all", "none", "refused", "unknown")
    return f"`{shown}`" if is_code else shown


if __name__ == "__main__":
    print(reference(), end="")
