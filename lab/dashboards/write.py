"""Are the files in config/grafana what the catalogue says? `python -m lab.dashboards.write` writes them, `--check` compares.

Needs the extra `dashboards`. Beside the four dashboards goes a ConfigMap that holds them, with the label that the sidecar of
Grafana's Helm chart looks for.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml

from lab.dashboards.backends import BACKENDS
from lab.dashboards.grafana import to_json
from lab.dashboards.lanes import LANES
from lab.dashboards.overview import OVERVIEW
from lab.dashboards.panel import Dashboard
from lab.dashboards.tokens import TOKENS

DASHBOARDS: tuple[Dashboard, ...] = (OVERVIEW, LANES, BACKENDS, TOKENS)
FOLDER = Path(__file__).resolve().parents[2] / "config" / "grafana"
CONFIG_MAP = "configmap.yaml"
SIDECAR_LABEL = "grafana_dashboard"


def files() -> dict[str, str]:
    """Every generated file by its name."""
    found = {f"{dashboard.uid}.json": to_json(dashboard) for dashboard in DASHBOARDS}
    return {**found, CONFIG_MAP: config_map(found)}


def config_map(dashboards: dict[str, str]) -> str:
    """The same dashboards for Kubernetes: `kubectl apply -f configmap.yaml` where Grafana's sidecar watches."""
    document = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "fairlane-dashboards",
            "labels": {SIDECAR_LABEL: "1"},
            "annotations": {"grafana_folder": "Fairlane"},
        },
        "data": dashboards,
    }
    _Blocks.add_representer(str, _block)
    return "# Written by python -m lab.dashboards.write; do not edit.\n" + yaml.dump(
        document, Dumper=_Blocks, sort_keys=False, width=10_000
    )


class _Blocks(yaml.SafeDumper):
    """Texts of several lines as blocks, so that a difference is readable."""


def _block(dumper: _Blocks, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


def main() -> int:
    """0: written, or current; 1: with --check, some file differs."""
    parser = argparse.ArgumentParser(description="Write the Grafana dashboards into config/grafana.")
    parser.add_argument("--check", action="store_true", help="compare instead; 1 if a file differs")
    checking: bool = parser.parse_args().check
    stale = []
    for name, text in files().items():
        path = FOLDER / name
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if not checking:
                path.write_text(text)
    if checking and stale:
        print(f"differ from the catalogue: {', '.join(stale)}; run python -m lab.dashboards.write", file=sys.stderr)
    return 1 if checking and stale else 0


if __name__ == "__main__":
    sys.exit(main())
