"""Imports follow the layers, each library has its place, and every module states its duty."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import jetjobs

ROOT = Path(jetjobs.__file__).parent
MODULES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}

BELOW: dict[str, frozenset[str]] = {
    "model": frozenset({"model"}),
    "define": frozenset({"model", "define"}),
    "jetstream": frozenset({"model", "jetstream"}),
    "observe": frozenset({"model", "observe"}),
    "worker": frozenset({"model", "define", "jetstream", "worker"}),
    "settings": frozenset({"model", "settings"}),
    "top": frozenset({"model", "define", "jetstream", "observe", "worker", "settings", "top"}),
    "testing": frozenset({"model", "define", "jetstream", "worker", "settings", "top", "testing"}),
    "http": frozenset({"model", "define", "jetstream", "observe", "worker", "settings", "top", "http"}),
    "cli": frozenset(
        {"model", "define", "jetstream", "observe", "worker", "settings", "top", "testing", "http", "cli", "root"}
    ),
}
"""For each layer, the layers it may import from. `root` is the package itself, with the public names."""

ROOMS: dict[str, dict[str, frozenset[str]]] = {
    "jetstream": {
        "transport": frozenset(),
        "messages": frozenset({"transport"}),
        "pull": frozenset({"transport"}),
        "jobs": frozenset({"transport", "messages"}),
        "schedules": frozenset({"transport", "messages", "jobs"}),
        "flows": frozenset({"transport", "messages", "jobs", "queues"}),
        "queues": frozenset({"transport", "messages", "pull", "jobs"}),
        "workers": frozenset({"transport", "messages"}),
        "leader_lock": frozenset({"transport", "messages"}),
        "audit_log": frozenset({"transport", "messages"}),
        "tokens": frozenset({"transport", "messages", "audit_log"}),
        "wire_version": frozenset({"transport", "queues"}),
        "topology_plan": frozenset({"transport", "wire_version"}),
        "topology": frozenset({"transport", "messages", "queues", "workers", "wire_version", "topology_plan"}),
        "webhooks": frozenset({"transport", "messages", "topology", "topology_plan"}),
        "client": frozenset(
            {
                "transport",
                "messages",
                "jobs",
                "schedules",
                "flows",
                "queues",
                "workers",
                "wire_version",
                "topology",
                "topology_plan",
                "audit_log",
                "tokens",
                "webhooks",
            }
        ),
    },
    "worker": {
        "lifespan": frozenset(),
        "webhooks": frozenset(),
        "options": frozenset({"lifespan"}),
        "attempt": frozenset(),
        "unawaited": frozenset({"attempt"}),
        "leases": frozenset({"attempt"}),
        "isolation": frozenset({"attempt", "unawaited"}),
        "execution": frozenset({"options", "attempt", "unawaited", "leases", "isolation"}),
        "intake": frozenset({"options", "attempt", "leases", "execution"}),
        "job_runner": frozenset({"options", "attempt", "leases", "execution", "intake"}),
        "scheduling": frozenset(),
        "leader": frozenset({"scheduling"}),
        "fleet": frozenset({"options", "attempt", "leases", "intake"}),
        "worker": frozenset({"options", "job_runner", "scheduling", "leader", "fleet"}),
    },
}
"""For each room of a layer, the other rooms of that layer it may import from. A module directly below the layer is
a room of its own. docs/explanation/architecture.md shows this order."""

TOP = {
    "admin": "top",
    "app": "top",
    "bulk": "top",
    "doctor": "top",
    "enqueue": "top",
    "sync": "top",
    "errors": "top",
    "events": "top",
    "foreign_task": "top",
    "config": "settings",
    "dev_server": "settings",
    "pytest_plugin": "cli",
}
OUTSIDE_OF_MODEL = {"pydantic", "pydantic_core", "typing_extensions"}
CONFINED = {
    "nats": ("jetjobs.jetstream.",),
    "croniter": ("jetjobs.model.schedule.cron",),
    "h11": ("jetjobs.http.", "jetjobs.worker.webhooks.http_post."),
    "jsonschema": ("jetjobs.http.",),
    "prometheus_client": ("jetjobs.observe.",),
    "pytest": ("jetjobs.pytest_plugin.",),
    "pytest_asyncio": ("jetjobs.pytest_plugin.",),
    "rich": ("jetjobs.cli.",),
    "sse_starlette": ("jetjobs.http.",),
    "starlette": ("jetjobs.http.",),
    "uvicorn": ("jetjobs.http.",),
    "uvloop": ("jetjobs.cli.",),
}

API = "jetjobs.jetstream.transport.api"
API_SUBJECT = re.compile(
    r"\$JS(?!\.EVENT\.)|\bDIRECT\.GET|\bMSG\.(NEXT|GET|DELETE)"
    r"|\b(STREAM|CONSUMER)\.(INFO|NAMES|LIST|CREATE|DURABLE|UPDATE|DELETE|PURGE|PAUSE|MSG|LEADER|SNAPSHOT)"
)
"""Subjects of the JetStream API and of acks, whole or as a path below `$JS.API.`."""

SUBJECT_PARSERS = {"jetjobs.model.wire.subjects", "jetjobs.model.wire.flow_names", API}
NOT_SUBJECTS = {
    "jetjobs.cli.commands.dead": "names of exception classes",
    "jetjobs.cli.live.tables": "names of exception classes",
    "jetjobs.config": "keys of settings",
    "jetjobs.doctor.checks.server": "versions",
    "jetjobs.model.flow.steps": "headers of flows",
    "jetjobs.model.masking": "paths of arguments",
    "jetjobs.model.views.dead_letter": "names of exception classes",
    "jetjobs.model.views.error_text": "names of modules",
    "jetjobs.model.views.job_query": "paths of arguments",
    "jetjobs.model.views.live_events": "kinds of events",
    "jetjobs.testing.matching": "paths of arguments",
    "jetjobs.worker.fleet.event_publisher": "kinds of events",
}
"""Modules that split other texts at dots, and what these are."""


class Import(NamedTuple):
    importer: str
    imported: str
    line: int
    on_load: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def layer_of(module: str) -> str:
    parts = module.split(".")
    if module == "jetjobs":
        return "root"
    if parts[1] == "__main__":
        return "cli"
    return TOP.get(parts[1], parts[1])


def room_of(module: str) -> str:
    """The folder or module below the layer; empty for the layer itself."""
    return ".".join(module.split(".")[2:3])


def is_typing_only(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports_in(module: str, body: list[ast.stmt], on_load: bool = True) -> Iterator[Import]:
    """Every import below `body`: in functions, under TYPE_CHECKING, in try blocks."""
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, alias.name, node.lineno, on_load)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}:{node.lineno} is a relative import"
            assert node.module is not None
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield Import(module, full if full in MODULES else node.module, node.lineno, on_load)
        else:
            deferred = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_typing_only(node)
            for field in ("body", "orelse", "finalbody", "handlers", "cases"):
                yield from imports_in(module, getattr(node, field, []), on_load and not deferred)


def all_imports() -> list[Import]:
    return [
        found for module, path in MODULES.items() for found in imports_in(module, ast.parse(path.read_text()).body)
    ]


IMPORTS = all_imports()
OURS = [found for found in IMPORTS if found.imported.split(".")[0] == "jetjobs"]


def report(offenders: list[str]) -> str:
    return "\n" + "\n".join(offenders)


def test_the_walk_sees_every_kind_of_import() -> None:
    source = (
        "import a\n"
        "from b import c\n"
        "if TYPE_CHECKING:\n    import d\n"
        "def f():\n    import e\n    class G:\n        import g\n"
        "try:\n    import h\nexcept ImportError:\n    import i\nelse:\n    import j\nfinally:\n    import k\n"
        "match 1:\n    case 1:\n        import m\n"
    )
    found = {one.imported: one.on_load for one in imports_in("x", ast.parse(source).body)}
    assert found == dict.fromkeys("abhijkm", True) | dict.fromkeys("deg", False)


def test_every_module_belongs_to_a_known_layer() -> None:
    strays = [module for module in MODULES if layer_of(module) not in {*BELOW, "root"}]
    assert not strays, report(strays)


def test_imports_point_down_typing_and_local_imports_included() -> None:
    offenders = [
        f"{found} ({layer_of(found.importer)} -> {layer_of(found.imported)})"
        for found in OURS
        if layer_of(found.importer) != "root"
        and layer_of(found.imported) not in BELOW.get(layer_of(found.importer), frozenset())
    ]
    assert not offenders, report(offenders)


@pytest.mark.parametrize("layer", [layer for layer, rooms in ROOMS.items() if rooms])
def test_imports_between_the_rooms_of_a_layer_follow_the_order(layer: str) -> None:
    rooms = ROOMS[layer]
    inside = f"jetjobs.{layer}."
    offenders = [
        f"{module} is in no room"
        for module in MODULES
        if f"{module}.".startswith(inside) and room_of(module) not in {"", *rooms}
    ]
    offenders += [
        f"{found} ({room_of(found.importer)} -> {room_of(found.imported)})"
        for found in OURS
        if found.importer.startswith(inside)
        and found.imported.startswith(inside)
        and room_of(found.imported) not in {room_of(found.importer), *rooms.get(room_of(found.importer), ())}
    ]
    assert not offenders, report(offenders)


def test_the_package_itself_loads_nothing_of_its_own() -> None:
    offenders = [str(found) for found in OURS if found.importer == "jetjobs" and found.on_load]
    assert not offenders, report(offenders)


def test_the_model_needs_only_the_standard_library_and_pydantic() -> None:
    offenders = []
    for found in IMPORTS:
        library = found.imported.split(".")[0]
        allowed = library in sys.stdlib_module_names or library in OUTSIDE_OF_MODEL or library == "jetjobs"
        cron = found.importer == "jetjobs.model.schedule.cron" and library == "croniter"
        if layer_of(found.importer) == "model" and not allowed and not cron:
            offenders.append(str(found))
    assert not offenders, report(offenders)


@pytest.mark.parametrize("library", sorted(CONFINED))
def test_a_library_is_imported_only_in_its_place(library: str) -> None:
    places = CONFINED[library]
    offenders = [
        str(found)
        for found in IMPORTS
        if found.imported.split(".")[0] == library and not f"{found.importer}.".startswith(places)
    ]
    assert not offenders, report(offenders)


def test_subjects_of_the_jetstream_api_are_spelled_only_in_one_module() -> None:
    offenders = [
        f"{module}:{number} spells {found[0]}"
        for module, path in MODULES.items()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if module != API and (found := API_SUBJECT.search(line))
    ]
    assert not offenders, report(offenders)
    assert API_SUBJECT.search(MODULES[API].read_text()), "the pattern finds nothing"


def splits_at_dots(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("split", "rsplit", "partition", "rpartition")
            and any(
                isinstance(value, ast.Constant) and value.value in (".", b".", r"\.", "[.]")
                for value in [*node.args, *(keyword.value for keyword in node.keywords)]
            )
        ):
            yield node.lineno


def test_subjects_are_parsed_only_by_their_value_types() -> None:
    found = {module: [*splits_at_dots(ast.parse(path.read_text()))] for module, path in MODULES.items()}
    offenders = [
        f"{module}:{line} splits at dots: use JobSubject, DeadSubject or last_token"
        for module, lines in found.items()
        if module not in {*SUBJECT_PARSERS, *NOT_SUBJECTS}
        for line in lines
    ]
    assert not offenders, report(offenders)
    assert all(found[module] for module in {*SUBJECT_PARSERS, *NOT_SUBJECTS}), "an exception is not needed"
    source = 'a.split(".")\nb.rpartition(".")[2]\nc.split()\nd.split(sep=".")'
    assert sorted(splits_at_dots(ast.parse(source))) == [1, 2, 4]


def test_the_environment_is_read_only_by_config_and_the_command_line() -> None:
    offenders = []
    for module, path in MODULES.items():
        if module == "jetjobs.config" or layer_of(module) == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            reads = isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv")
            brings = (
                isinstance(node, ast.ImportFrom)
                and node.module == "os"
                and any(alias.name in ("environ", "environb", "getenv") for alias in node.names)
            )
            if reads or brings:
                offenders.append(f"{module}:{getattr(node, 'lineno', 0)} reads the environment")
    assert not offenders, report(offenders)


def test_no_import_cycle_even_counting_typing_and_local_imports() -> None:
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for found in OURS:
        if found.importer != "jetjobs" and found.imported != "jetjobs" and found.imported in MODULES:
            graph[found.importer].add(found.imported)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(reversed(error.args[1]))}")


@pytest.mark.timeout(240)  # imports every module again: half a minute on a busy machine
def test_every_module_can_be_the_first_one_imported() -> None:
    script = (
        "import sys, importlib\n"
        "for module in sys.argv[1:]:\n"
        "    for name in [n for n in sys.modules if n.split('.')[0] == 'jetjobs']:\n"
        "        del sys.modules[name]\n"
        "    importlib.import_module(module)\n"
        "print('all', len(sys.argv) - 1)\n"
    )
    modules = [module for module in MODULES if not module.endswith("__main__")]
    ran = subprocess.run([sys.executable, "-c", script, *modules], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == f"all {len(modules)}"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_the_first_line_of_a_module_is_a_sentence_that_says_its_duty(module: str) -> None:
    text = ast.get_docstring(ast.parse(MODULES[module].read_text()))
    assert text, f"{module} has no docstring"
    first = text.splitlines()[0]
    assert first.endswith("."), f"{module}: {first!r} does not end with a full stop"
    assert len(first.split()) >= 3, f"{module}: {first!r} says nothing"
