"""The pytest plugin in separate pytest runs, as in a user's project."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.timeout(180)

TASKS = """
from datetime import timedelta
from jetjobs import JetJobs
app = JetJobs("project")

@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}!"

greet.every("24h", name="daily", args={"name": "Eve"})

@app.task(queue="mail")
async def send(to: str) -> None:
    raise ValueError("no such address")
"""


def entry_point(folder: Path) -> Path:
    """Install the entry point of pyproject.toml: the one of this environment may be older."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    info = folder / "jetjobs_entry_point-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: jetjobs-entry-point\nVersion: 0\n")
    lines = [f"{name} = {target}" for name, target in declared.items()]
    (info / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines, ""]))
    return folder


@pytest.fixture
def project(
    pytester: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> pytest.Pytester:
    """A folder with tasks.py and the plugin installed."""
    site = entry_point(tmp_path_factory.mktemp("site"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(ROOT)]))
    for name in [name for name in os.environ if name.startswith(("JETJOBS_", "NATS_"))]:
        monkeypatch.delenv(name)
    pytester.makepyfile(tasks=TASKS)
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """Run `pytest ARGUMENTS` in its own process. Warnings are errors, except one for unconfigured pytest-asyncio.

    The plugin of hypothesis is off, because it doubles the start time; the test of the examples has it on.
    """
    warnings = ["-W", "error", "-W", "ignore:The configuration option:pytest.PytestDeprecationWarning"]
    return project.runpytest_subprocess(
        "-p", "no:cacheprovider", "-p", "no:hypothesispytest", *warnings, *arguments, timeout=150
    )


ASYNC_TESTS = """
    import asyncio
    from datetime import timedelta
    import pytest
    from jetjobs.testing import assert_enqueued, drain, refute_enqueued
    from tasks import app, greet

    {mark}

    async def test_first(jetjobs_app, nats_server, jetjobs_clock):
        assert jetjobs_app is app
        assert app.settings.nats.url == nats_server.url
        assert app.settings.queues.storage == "memory"
        await greet.options(delay=timedelta(hours=1)).enqueue("Ada")
        assert_enqueued(app, greet, name="Ada")
        assert jetjobs_clock.advance("1h") == 1
        assert len((await drain(app)).succeeded) == 1

    async def test_second_has_its_own_server(jetjobs_app):
        refute_enqueued(jetjobs_app)
        await greet.enqueue("Ada")

    async def test_worker(jetjobs_worker, jetjobs_app):
        handle = await greet.enqueue("Bob")
        assert await handle.result(timedelta(seconds=30)) == "Hello, Bob!"
        assert jetjobs_worker.ready
        refute_enqueued(jetjobs_app, greet, "Ada")
"""


@pytest.mark.parametrize(
    ("mark", "options"),
    [
        pytest.param("", ["-o", "asyncio_mode=auto"], id="asyncio-auto"),
        pytest.param("pytestmark = pytest.mark.asyncio", ["-o", "asyncio_mode=strict"], id="asyncio-strict"),
        pytest.param(
            "pytestmark = pytest.mark.asyncio(loop_scope='module')",
            ["-o", "asyncio_mode=strict", "-o", "asyncio_default_fixture_loop_scope=function"],
            id="asyncio-strict-loop-of-the-module",
        ),
        pytest.param(
            "",
            ["-o", "asyncio_mode=auto", "-o", "asyncio_default_test_loop_scope=session"],
            id="asyncio-auto-loop-of-the-session",
        ),
        pytest.param("pytestmark = pytest.mark.anyio", ["-o", "asyncio_mode=strict"], id="anyio-beside-asyncio"),
        pytest.param("pytestmark = pytest.mark.anyio", ["-p", "no:asyncio"], id="anyio-alone"),
    ],
)
def test_fixtures_work_in_async_tests(project: pytest.Pytester, mark: str, options: list[str]) -> None:
    project.makepyfile(ASYNC_TESTS.format(mark=mark))
    if "anyio" in mark:
        project.makeconftest("import pytest\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n")
    run(project, *options).assert_outcomes(passed=3)


def test_an_async_test_on_trio_is_skipped_and_one_without_a_runner_fails(project: pytest.Pytester) -> None:
    project.makepyfile("""
        import pytest

        @pytest.mark.anyio
        @pytest.mark.parametrize("anyio_backend", ["trio"])
        async def test_on_trio(jetjobs_app):
            raise AssertionError("run")

        async def test_without_runner(jetjobs_app):
            raise AssertionError("run")
    """)
    result = run(project, "-p", "no:asyncio", "-rs")
    result.assert_outcomes(skipped=1, errors=1)
    result.stdout.fnmatch_lines(
        ["*an async test needs pytest-asyncio, or anyio's plugin*", "*jetjobs needs asyncio*"]
    )


def test_async_fixtures_of_the_user_find_the_app_open(project: pytest.Pytester) -> None:
    project.makepyfile("""
        import pytest_asyncio, pytest
        from jetjobs.testing import assert_enqueued
        from tasks import greet

        @pytest_asyncio.fixture
        async def greeted(jetjobs_app):
            await greet.enqueue("Ada")
            return jetjobs_app

        @pytest.mark.asyncio
        async def test_it(greeted):
            assert_enqueued(greeted, greet, "Ada")

        @pytest.mark.asyncio
        async def test_a_declared_schedule(jetjobs_app):
            await jetjobs_app.schedules.run_now("daily")
            assert_enqueued(jetjobs_app, greet, "Eve")
    """)
    run(project).assert_outcomes(passed=2)


def test_plain_tests_have_the_app_with_its_queues_but_not_open(project: pytest.Pytester) -> None:
    project.makepyfile("""
        import asyncio, unittest, pytest
        from jetjobs.testing import assert_enqueued, drain, refute_enqueued
        from tasks import app, greet

        async def enqueue():
            async with app:
                await greet.enqueue("Ada")

        def test_plain(jetjobs_app):
            assert not app.is_open
            asyncio.run(enqueue())
            assert_enqueued(jetjobs_app, greet, "Ada")
            asyncio.run(drain(jetjobs_app))
            refute_enqueued(jetjobs_app)

        @pytest.mark.usefixtures("jetjobs_app")
        class TestUnittest(unittest.IsolatedAsyncioTestCase):
            async def test_of_unittest(self):
                await enqueue()
                assert_enqueued(app, greet, "Ada")

        def test_worker(jetjobs_worker):
            pass
    """)
    result = run(project)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*jetjobs_worker needs an async test*"])


def test_a_failing_helper_fails_the_test_without_showing_its_own_code(project: pytest.Pytester) -> None:
    project.makepyfile("""
        import pytest
        from jetjobs.testing import assert_enqueued, drain, refute_enqueued
        from tasks import greet, send
        pytestmark = pytest.mark.asyncio

        async def test_assert(jetjobs_app):
            await greet.enqueue("Bob")
            assert_enqueued(jetjobs_app, greet, name="Ada")

        async def test_refute(jetjobs_app):
            await greet.enqueue("Ada")
            refute_enqueued(jetjobs_app, greet)

        async def test_drain(jetjobs_app):
            await send.enqueue("unknown")
            await drain(jetjobs_app)
    """)
    result = run(project)
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        [
            "E*AssertionError: not enqueued: greet(name='Ada')",
            "E*name: wanted 'Ada', found 'Bob'",
            "E*1 job is enqueued, expected none: greet(…)",
            "E*JobsFailed: 1 job failed in drain()*",
            "E*ValueError: no such address*",
        ]
    )
    result.stdout.no_fnmatch_line("*def assert_enqueued*")
    result.stdout.no_fnmatch_line("*def refute_enqueued*")


def test_the_app_comes_from_the_configuration_or_from_a_fixture(project: pytest.Pytester) -> None:
    project.makepyfile(shop="from jetjobs import JetJobs\none = JetJobs('one')\ntwo = JetJobs('two')\n")
    test = "def test_it(jetjobs_app):\n    assert jetjobs_app.name == '{}'\n"
    project.makepyfile(test_ini=test.format("two"))
    run(project, "-o", "jetjobs_app=shop:two").assert_outcomes(passed=1)
    for number, made in enumerate(("return JetJobs('made')", "return lambda: JetJobs('made')")):
        folder = project.mkpydir(f"made{number}")
        (folder / "conftest.py").write_text(
            "import pytest\nfrom jetjobs import JetJobs\n"
            f"@pytest.fixture\ndef jetjobs_app_factory():\n    {made}\n"
        )
        (folder / "test_made.py").write_text(test.format("made"))
    run(project, "made0", "made1").assert_outcomes(passed=2)


def test_an_app_that_cannot_be_found_is_a_clear_error(project: pytest.Pytester) -> None:
    project.makepyfile("def test_it(jetjobs_app): pass")
    result = run(project, "-o", "jetjobs_app=tasks:nothing")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*jetjobs_app: 'tasks:nothing' is not a JetJobs app*set `jetjobs_app = MODULE:NAME`*"]
    )


def test_without_a_server_tests_are_skipped_with_a_reason_or_fail_on_demand(project: pytest.Pytester) -> None:
    project.makeconftest("""
        import pytest
        from jetjobs import dev_server as devserver
        from jetjobs.model.errors import ConfigError

        @pytest.fixture(autouse=True)
        def no_binary(monkeypatch):
            monkeypatch.setattr(devserver.Path, "is_file", lambda path: False)
            monkeypatch.setenv("PATH", "")
    """)
    project.makepyfile("def test_it(jetjobs_app): pass\ndef test_other(): pass")
    result = run(project, "-rs")
    result.assert_outcomes(skipped=1, passed=1)
    result.stdout.fnmatch_lines(['SKIPPED*nats-server is not installed: pip install "jetjobs?dev?"'])
    result = run(project, "--jetjobs-require-server")
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines(['*nats-server is not installed: pip install "jetjobs?dev?"'])


def test_no_server_is_left_behind_and_the_settings_are_restored(project: pytest.Pytester) -> None:
    project.makepyfile("""
        import pytest
        from pathlib import Path
        from tasks import app
        seen = []

        @pytest.mark.asyncio
        async def test_one(jetjobs_app, nats_server):
            seen.append((nats_server.process.pid, nats_server.url))
            raise ValueError("a test may fail")

        def test_two():
            pid, url = seen[0]
            assert not Path(f"/proc/{pid}").exists()
            assert not app.is_open
            assert app.settings.nats.url != url
    """)
    run(project).assert_outcomes(passed=1, failed=1)


def test_the_plugin_loads_nothing_heavy_until_a_fixture_is_used(project: pytest.Pytester) -> None:
    project.makepyfile("""
        import sys

        def test_it(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("jetjobs")
            ours = {name for name in sys.modules if name.split(".")[0] == "jetjobs"}
            assert ours == {"jetjobs", "jetjobs.pytest_plugin"}
            assert not {"nats", "pydantic", "prometheus_client"} & sys.modules.keys()
    """)
    run(project).assert_outcomes(passed=1)


def test_the_examples_have_tests_that_pass(tmp_path: Path) -> None:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("JETJOBS_", "NATS_", "PYTEST_"))
    }
    path = os.pathsep.join([str(entry_point(tmp_path)), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "examples/test_shop.py"],
        cwd=ROOT,
        env={**kept, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
