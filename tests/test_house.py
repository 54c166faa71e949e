"""Does the code keep the rules of the house? Held by walking syntax trees, so that nobody has to remember them.

The table: who may import whom. Everything else here is about single modules: a docstring that says which question the module
answers, a length one can read, and nothing that happens at import.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("policies", "proxy", "lab")
LINES_MAX = 400
LONGER: dict[str, str] = {  # module: why it may be longer
    "policies.health": "one breaker with every rule of its own, and the guard over a platform's breakers",
    "proxy.sse": "what three APIs say in their streams, and the short way past it, which must agree word for word",
    "proxy.http1.server": "one connection is one state machine: cut in two, each half would need the other's state",
}
BANNED_WORDS = {"manager", "helper", "helpers", "util", "utils", "common", "misc"}


@dataclass(frozen=True)
class Module:
    """One source file, as the rules see it."""

    name: str
    tree: ast.Module
    lines: int

    def within(self, *packages: str) -> bool:
        return any(self.name == package or self.name.startswith(package + ".") for package in packages)


def parse(name: str, source: str) -> Module:
    return Module(name, ast.parse(source), source.count("\n"))


def modules(*packages: str) -> Iterator[Module]:
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield parse(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path.read_text())


def imports(tree: ast.AST) -> Iterator[str]:
    """Every name that is imported, with `from a import b` as a.b; also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module or '.'}.{alias.name}" if not node.level else f".{node.module}" for alias in node.names)


def of(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def is_standard(name: str) -> bool:
    return name.split(".")[0] in sys.stdlib_module_names


# The import table. Each rule: which modules it concerns, which imports it forbids.
Rule = tuple[str, Callable[[Module], bool], Callable[[str], bool]]
NEVER_IN_POLICIES = ("time", "asyncio", "logging", "os", "io", "pathlib", "socket", "threading", "subprocess", "datetime")
TABLE: tuple[Rule, ...] = (
    ("no relative imports", lambda m: True, lambda i: i.startswith(".")),
    (
        "policies know the standard library and policies.model",
        lambda m: m.within("policies"),
        lambda i: not (is_standard(i) or of(i, "policies")),
    ),
    ("policies do no I/O, read no clock, do not log", lambda m: m.within("policies"), lambda i: of(i, *NEVER_IN_POLICIES)),
    (
        "random's global functions are not seeded by us",
        lambda m: m.within("policies", "lab.simulator"),
        lambda i: i.startswith("random.") and i != "random.Random",
    ),
    (
        "only the dispatcher composes policies",
        lambda m: m.within("policies") and not m.within("policies.dispatcher"),
        lambda i: of(i, "policies") and not of(i, "policies.model"),
    ),
    ("http1 knows bytes alone", lambda m: m.within("proxy.http1"), lambda i: not (is_standard(i) or of(i, "httptools", "proxy.http1"))),
    ("redis lives in replicas", lambda m: not m.within("proxy.replicas"), lambda i: of(i, "redis")),
    (
        "prometheus_client lives in telemetry",
        lambda m: m.within("proxy") and not m.within("proxy.telemetry"),
        lambda i: of(i, "prometheus_client"),
    ),
    ("OpenTelemetry lives in one module", lambda m: m.name != "proxy.telemetry.traces", lambda i: of(i, "opentelemetry")),
    ("only proxy.clock reads a clock", lambda m: m.within("proxy") and m.name != "proxy.clock", lambda i: of(i, "time")),
    ("pydantic lives in settings", lambda m: m.within("proxy") and not m.within("proxy.settings"), lambda i: of(i, "pydantic")),
    ("settings are a file, not its use", lambda m: m.within("proxy.settings"), lambda i: of(i, "policies", "asyncio")),
    (
        "the translation is settings and policies alone",
        lambda m: m.name == "proxy.translation",
        lambda i: of(i, *NEVER_IN_POLICIES) or not (is_standard(i) or of(i, "policies", "proxy.settings")),
    ),
    ("the story knows no settings", lambda m: m.name in ("proxy.story", "proxy.attempt", "proxy.relay"), lambda i: of(i, "proxy.settings")),
    ("the proxy does not know the lab", lambda m: m.within("proxy") and m.name != "proxy.cli", lambda i: of(i, "lab")),
    ("the code does not know its tests", lambda m: True, lambda i: of(i, "tests")),
    (
        "the simulator hosts policies in virtual time",
        lambda m: m.within("lab.simulator"),
        lambda i: of(i, "asyncio", "time") or (of(i, "proxy") and not of(i, "proxy.settings", "proxy.translation")),
    ),
)


def forbidden_imports(module: Module) -> list[str]:
    found = sorted(set(imports(module.tree)))
    return [
        f"{module.name} imports {name}: {why}" for why, concerns, forbids in TABLE if concerns(module) for name in found if forbids(name)
    ]


def knows_settings_and_policies(module: Module) -> bool:
    names = list(imports(module.tree))
    # problems is spelling alone: "did you mean"
    return any(of(name, "proxy.settings") and not of(name, "proxy.settings.problems") for name in names) and any(
        of(name, "policies") for name in names
    )


IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "compile", "__import__"}


def impurities(module: Module) -> list[str]:
    """What keeps a policy from being a function of its arguments."""
    found = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            found.append(f"{module.name}:{node.lineno} calls {node.func.id}")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random" and node.attr != "Random":
            found.append(f"{module.name}:{node.lineno} uses random.{node.attr}")
        elif isinstance(node, ast.Global):
            found.append(f"{module.name}:{node.lineno} keeps state in the module")
        elif isinstance(node, ast.AsyncFunctionDef | ast.Await):
            found.append(f"{module.name}:{node.lineno} waits")
    return found


AT_IMPORT = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)


def happens_at_import(module: Module) -> list[str]:
    """Statements at the top of a module that do more than define: all but imports, definitions, constants and the usual two ifs."""
    found = []
    for node in module.tree.body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_guard = isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "__name__ == '__main__'")
        if not (is_docstring or is_guard or isinstance(node, AT_IMPORT)):
            found.append(f"{module.name}:{node.lineno} {ast.unparse(node).splitlines()[0]}")
    return found


SOURCES = list(modules(*PACKAGES))
POLICIES = [module for module in SOURCES if module.within("policies")]


def test_import_table() -> None:
    assert [line for module in SOURCES for line in forbidden_imports(module)] == []


def test_few_know_both_settings_and_policies() -> None:
    knowing = {module.name for module in SOURCES if knows_settings_and_policies(module)}
    # wiring builds what runs, app lets it; the lab's commands read a file and translate it as the server does
    assert knowing <= {"proxy.translation", "proxy.wiring", "proxy.app", "lab.simulator.run", "lab.planner.explain"}


def test_policies_are_pure() -> None:
    assert [line for module in POLICIES for line in impurities(module)] == []


def test_nothing_happens_at_import() -> None:
    assert [line for module in SOURCES for line in happens_at_import(module)] == []


def test_each_module_says_which_question_it_answers() -> None:
    everything = [*SOURCES, *modules("tests")]
    assert [module.name for module in everything if module.lines and not ast.get_docstring(module.tree)] == []


def test_modules_are_short_enough_to_read() -> None:
    assert {module.name: module.lines for module in SOURCES if module.lines > LINES_MAX and module.name not in LONGER} == {}
    assert [name for name in LONGER if name not in {module.name for module in SOURCES if module.lines > LINES_MAX}] == []


def test_names_say_what_a_thing_is() -> None:
    assert [module.name for module in SOURCES if BANNED_WORDS & set(module.name.replace(".", "_").split("_"))] == []


def test_each_policy_has_its_tests() -> None:
    stems = [path.stem for path in (ROOT / "tests" / "policies").glob("test_*.py")]
    names = {module.name.split(".")[1] for module in POLICIES if "." in module.name} - {"model"}
    tested_as = {"dispatcher": "conversations"}  # the composition is tested as a play
    assert {name for name in names if not any(stem.startswith(f"test_{tested_as.get(name, name)}") for stem in stems)} == set()


@pytest.mark.parametrize(
    ("name", "source", "said"),
    [
        ("policies.lanes", "import time\n", "do no I/O"),
        ("policies.lanes", "def f():\n    from asyncio import sleep\n", "do no I/O"),
        ("policies.lanes", "import pydantic\n", "standard library"),
        ("policies.lanes", "from policies.slots import Slots\n", "composes"),
        ("policies.lanes", "from . import slots\n", "relative"),
        ("policies.lanes", "from random import choice\n", "seeded"),
        ("proxy.http1.server", "from policies.model import Outcome\n", "bytes alone"),
        ("proxy.story", "import prometheus_client as p\n", "telemetry"),
        ("proxy.story", "from time import monotonic\n", "clock"),
        ("proxy.intake", "import pydantic\n", "settings"),
        ("proxy.story", "from opentelemetry import trace\n", "one module"),
        ("proxy.admin", "from redis.asyncio import Redis\n", "replicas"),
        ("proxy.settings.server", "from policies.model import Plan\n", "not its use"),
        ("proxy.app", "import lab.engine\n", "lab"),
        ("lab.simulator.host", "import asyncio\n", "virtual time"),
        ("lab.simulator.run", "from proxy import wiring\n", "virtual time"),
        ("proxy.translation", "from proxy.http1.client import KeptConnections\n", "settings and policies"),
    ],
)
def test_a_forbidden_import_is_found(name: str, source: str, said: str) -> None:
    assert said in " ".join(forbidden_imports(parse(name, source)))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("policies.dispatcher.desk", "from policies.lanes import Lanes\nimport heapq\nfrom random import Random\n"),
        ("policies.lanes", "from policies.model import Request\nfrom collections import deque\n"),
        ("proxy.clock", "import time\n"),
        ("proxy.http1.server", "import asyncio\nimport httptools\nfrom proxy.http1.head import Head\n"),
        ("proxy.telemetry.exposition", "from prometheus_client import CollectorRegistry\n"),
        ("proxy.cli", "def demo():\n    from lab.demo.run import run\n"),
    ],
)
def test_an_allowed_import_passes(name: str, source: str) -> None:
    assert forbidden_imports(parse(name, source)) == []


@pytest.mark.parametrize(
    "source", ["print(1)\n", "import random\nx = random.random()\n", "def f():\n    global x\n", "async def f(): pass\n"]
)
def test_an_impurity_is_found(source: str) -> None:
    assert impurities(parse("policies.lanes", source))


@pytest.mark.parametrize("source", ["start()\n", "for x in y: pass\n", "with open('f') as f: pass\n", "if DEBUG: start()\n"])
def test_what_happens_at_import_is_found(source: str) -> None:
    assert happens_at_import(parse("proxy.app", '"""Doc."""\n' + source))
