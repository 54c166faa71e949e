"""What does the process hold, as only it can know? `fairlane serve` that also tells, once a second, its tasks and objects."""

from __future__ import annotations

import asyncio
import gc
import json
import sys

from proxy import app


async def _tell() -> None:
    while True:
        await asyncio.sleep(1.0)
        print(json.dumps({"tasks": len(asyncio.all_tasks()), "objects": len(gc.get_objects())}), file=sys.stderr, flush=True)


async def _serve(path: str, loaded: object) -> int:
    telling = asyncio.ensure_future(_tell())
    try:
        return await _SERVE(path, loaded)  # type: ignore[arg-type]
    finally:
        telling.cancel()


_SERVE = app._serve

if __name__ == "__main__":
    app._serve = _serve
    sys.exit(app.run(sys.argv[2]))
