"""The command line, as `python -m proxy`."""

from __future__ import annotations

from proxy.cli import main

if __name__ == "__main__":
    main()
