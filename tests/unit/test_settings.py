"""Settings: immutable, validated, with working defaults."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from jetjobs.model.errors import ConfigError
from jetjobs.model.settings import Settings, WorkerSettings, build_settings

GROUPS = ["nats", "queues", "worker", "observe"]


def test_the_defaults_are_valid_and_equal_to_nothing_given() -> None:
    assert build_settings({}) == Settings()
    assert Settings.model_validate(Settings().model_dump()) == Settings()


def test_the_defaults_point_at_a_server_on_this_machine() -> None:
    settings = Settings()
    assert settings.nats.url == "nats://127.0.0.1:4222"
    assert settings.queues.namespace is None, "the app's name"
    assert settings.queues.lease == timedelta(seconds=30)
    assert settings.worker.provision == "apply"
    assert settings.worker.http == "off"


@pytest.mark.parametrize("values", [Settings(), *(getattr(Settings(), group) for group in GROUPS)])
def test_settings_are_frozen(values: BaseModel) -> None:
    name = next(iter(type(values).model_fields))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(values, name, getattr(values, name))


@pytest.mark.parametrize("group", GROUPS)
def test_an_unknown_key_is_refused_by_name(group: str) -> None:
    with pytest.raises(ConfigError, match=rf"{group}\.colour"):
        build_settings({group: {"colour": "red"}})


def test_an_unknown_group_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="redis"):
        build_settings({"redis": {}})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("queues.lease", "999ms"),
        ("queues.lease", "0s"),
        ("queues.lease", 0),
        ("queues.lease", "soon"),
        ("queues.lease", True),
        ("queues.replicas", 0),
        ("queues.replicas", 6),
        ("queues.storage", "tape"),
        ("queues.max_running", 0),
        ("queues.max_crashes", 0),
        ("queues.unknown_task_grace", -1),
        ("queues.unknown_task_grace", "soon"),
        ("queues.dead_max_age", "0s"),
        ("queues.audit_max_age", "0s"),
        ("queues.namespace", "a.b"),
        ("queues.namespace", ""),
        ("nats.connect_timeout", "0s"),
        ("nats.connect_timeout", float("nan")),
        ("nats.connect_timeout", 1e300),
        ("nats.connect_timeout", "99999999999999999999"),
        ("worker.slots", -1),
        ("worker.slots", "many"),
        ("worker.processes", 0),
        ("worker.timeout", "0s"),
        ("worker.provision", "maybe"),
        ("observe.log_level", "loud"),
        ("observe.log_format", "xml"),
    ],
)
def test_a_value_that_cannot_work_is_a_config_error_that_names_its_key(key: str, value: Any) -> None:
    group, name = key.split(".")
    with pytest.raises(ConfigError, match=rf"{group}(\.{name})?") as caught:
        build_settings({group: {name: value}})
    assert name in str(caught.value)


def test_every_wrong_key_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        build_settings({"worker": {"slots": -1, "processes": 0}, "nats": {"urll": ""}})
    for key in ("worker.slots", "worker.processes", "nats.urll"):
        assert key in str(caught.value)


def test_an_invalid_secret_is_not_printed() -> None:
    with pytest.raises(ConfigError) as caught:
        build_settings({"nats": {"password": ["s3cret"]}})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("value", ["30s", "0.5m", 30, 30.0, "30", timedelta(seconds=30)])
def test_a_duration_may_be_text_or_seconds(value: Any) -> None:
    assert build_settings({"worker": {"timeout": value}}).worker.timeout == timedelta(seconds=30)


def test_a_worker_may_stop_at_once() -> None:
    assert WorkerSettings(stop_timeout=timedelta(0)).stop_timeout == timedelta(0)


def test_secrets_do_not_show_in_the_representation() -> None:
    shown = repr(build_settings({"nats": {"password": "s3cret", "token": "t0ken"}}))
    assert "s3cret" not in shown
    assert "t0ken" not in shown


@pytest.mark.parametrize("name", ["creds", "nkey", "tls_ca", "tls_cert", "tls_key"])
def test_an_empty_path_is_refused_instead_of_taken_for_none(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"nats\.{name}.* expected the path of a file, found an empty text"):
        build_settings({"nats": {name: ""}})


@pytest.mark.parametrize(("text", "env"), [("Production ", "production"), ("staging", "staging")])
def test_an_environment_is_compared_without_case(text: str, env: str) -> None:
    assert build_settings({"env": text}).env == env


def test_a_near_miss_of_production_is_refused() -> None:
    with pytest.raises(ConfigError, match="invalid env 'prod': did you mean 'production'"):
        build_settings({"env": "prod"})
