"""What does `${VAR}` stand for? Substitution inside a scalar, after the file has been parsed."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SPOT = re.compile(r"\$\$|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})?", re.ASCII)


def substitute(text: str, environ: Mapping[str, str]) -> str:
    """The text with its variables: `${VAR}`, `${VAR:-default}` (the default also where VAR is empty, as in a shell), `$$` for `$`.

    A `$` before anything else stands for itself. ValueError names an unset variable without default, or a `${` that is no variable.
    """

    def value(spot: re.Match[str]) -> str:
        if spot[0] == "$$":
            return "$"
        name, default = spot[1], spot[2]
        if name is None:
            raise ValueError("must spell a variable as ${NAME} or ${NAME:-default} (and $$ for a dollar sign)")
        found = environ.get(name)
        if default is not None:
            return found or default
        if found is None:
            raise ValueError(f"needs the environment variable {name}, which is not set; set it, or write ${{{name}:-default}}")
        return found

    return _SPOT.sub(value, text)
