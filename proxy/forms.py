"""Which model does an uploaded form ask for? Only its field `model` is read; the parts around it are stepped over.

What two readers might see differently is refused: a boundary out of the ordinary, a part without a plain name, the field twice.
"""

from __future__ import annotations

import re
from typing import NamedTuple

PARTS_MAX = 1000
_PART_HEAD_BYTES = 4096
_MODEL_BYTES = 512

_BOUNDARY = re.compile(
    rb'multipart/form-data[ \t]*;[ \t]*boundary=(?:"([0-9A-Za-z\'()+_,./:=? -]{1,70})"|([0-9A-Za-z\'+_.-]{1,70}))', re.IGNORECASE
)
_NAME = re.compile(
    rb'^content-disposition:[ \t]*form-data;[ \t]*name=(?:"([^"\\\r\n]*)"|([^\s";]+))[^\r\n]*$', re.IGNORECASE | re.MULTILINE
)


class Form(NamedTuple):
    """What was read of a form: the model it asks for, and where the value stands in the body."""

    model: str | None
    span: tuple[int, int] | None
    delimiter: bytes


def read(body: bytes, content_type: bytes) -> Form:
    """The form in `body`. Raises ValueError where it is malformed or ambiguous."""
    declared = _BOUNDARY.fullmatch(content_type.strip())
    if declared is None:
        raise ValueError("no plain boundary")
    delimiter = b"--" + (declared[1] or declared[2])
    if not body.startswith(delimiter):
        raise ValueError("the form does not begin with its boundary")
    span: tuple[int, int] | None = None
    at = len(delimiter)
    for _ in range(PARTS_MAX):
        if body.startswith(b"--", at):
            return Form(body[span[0] : span[1]].decode() if span else None, span, delimiter)
        start = body.find(b"\r\n\r\n", at, at + _PART_HEAD_BYTES)
        if start < 0 or not body.startswith(b"\r\n", at):
            raise ValueError("a part without a head")
        names = _NAME.findall(body[at:start].replace(b"\r\n", b"\n"))
        stop = body.find(b"\r\n" + delimiter, start + 2)
        if len(names) != 1 or stop < 0:
            raise ValueError("a part without one name, or without an end")
        if b"".join(names[0]) == b"model":
            if span is not None or stop - start > _MODEL_BYTES:
                raise ValueError("two models, or one too long")
            span = (min(start + 4, stop), stop)
        at = stop + 2 + len(delimiter)
    raise ValueError("too many parts")


def replace_model(body: bytes, form: Form, name: str) -> bytes:
    """`body` with this model asked for: only that value changes. Where the form has none, a part for it is put first."""
    value = name.encode()
    if form.span is not None:
        return body[: form.span[0]] + value + body[form.span[1] :]
    return b'%b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n%b' % (form.delimiter, value, body)
