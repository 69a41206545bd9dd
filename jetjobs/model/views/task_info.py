"""The definitions of tasks in the registry: signature, JSON schema, retry policy, and which workers have which."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from jetjobs.model.public import Record, public
from jetjobs.model.views.worker_info import WorkerRecord
from jetjobs.model.wire.lenient_json import as_seconds

MAX_SCHEMA = 64 * 1024
"""Characters of a schema that are published; a longer one is left out."""
MAX_DESCRIPTION = 2_000


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class TaskDefinition(Record):
    """A task as a worker declares it."""

    name: str
    queue: str
    priority: str
    aliases: tuple[str, ...]
    signature: str
    """Name, arguments and result as people write them; a default value is written as `...`."""
    description: str
    """The docstring of the function, at most 2,000 characters."""
    retry: Mapping[str, Any]
    timeout: timedelta | None
    result_ttl: timedelta
    store_result: bool
    isolation: str
    memory_limit: int | None
    secret: tuple[str, ...]
    """The paths of secret arguments, such as `token` or `user.password`."""
    schema: Mapping[str, Any] | None
    """JSON schema of the arguments. None if a type has none, or if it is longer than 64 KiB."""
    fingerprint: str = ""
    """The hash of the schema, `-` and the hash of the rest. Workers with the same definition have the same."""

    def with_fingerprint(self, schema: str) -> TaskDefinition:
        """The definition with its fingerprint. `schema` is the hash of the schema, empty if there is none."""
        text = json.dumps({**self.as_dict(), "schema": None}, sort_keys=True, default=str)
        return replace(self, fingerprint=f"{schema}-{hashlib.sha256(text.encode()).hexdigest()[:8]}")


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class TaskVersion(Record):
    """One definition of a task and the workers that have it."""

    fingerprint: str
    workers: tuple[str, ...]
    definition: TaskDefinition | None
    """None if the worker could not publish it."""
    in_app: bool = False
    """Whether the app that asks declares the task like this."""


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class TaskInfo(Record):
    """A task that running workers know. They differ if there is more than one version."""

    name: str
    versions: tuple[TaskVersion, ...]
    """The version of the most workers first."""

    @property
    def definition(self) -> TaskDefinition | None:
        """The definition that the most workers have, as far as it is known."""
        return next((one.definition for one in self.versions if one.definition is not None), None)

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers that know the task, by key."""
        return tuple(sorted(key for version in self.versions for key in version.workers))

    def differences(self) -> list[str]:
        """The fields in which the known versions differ."""
        known = [one.definition.as_dict() for one in self.versions if one.definition is not None]
        keys = known[0].keys() - {"fingerprint"} if known else ()
        return sorted(key for key in keys if any(one[key] != known[0][key] for one in known[1:]))


def schema_hash(fingerprint: str) -> str:
    """The hash of the schema in a fingerprint; empty if the task has no schema.

    >>> schema_hash("9f86d081884c-7d865e95"), schema_hash("9f86d081884c"), schema_hash("-7d865e95")
    ('9f86d081884c', '9f86d081884c', '')
    """
    return fingerprint.partition("-")[0]


def known_tasks(
    workers: Iterable[WorkerRecord], published: Iterable[TaskDefinition], declared: Iterable[TaskDefinition] = ()
) -> list[TaskInfo]:
    """The tasks of the workers and of the app that asks, by name.

    A published definition that no worker has is left out, and so is an alias.
    """
    own = {one.fingerprint: one for one in declared}
    by_fingerprint = {one.fingerprint: one for one in published} | own
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for one in own.values():
        found[one.name][one.fingerprint] = []
    for worker in workers:
        for name, fingerprint in worker.tasks.items():
            definition = by_fingerprint.get(fingerprint)
            if definition is None or definition.name == name:
                found[name][fingerprint].append(worker.key)
    tasks = []
    for name, by_version in sorted(found.items()):
        versions = [
            TaskVersion(one, tuple(sorted(keys)), by_fingerprint.get(one), one in own)
            for one, keys in by_version.items()
        ]
        versions.sort(key=lambda one: (-len(one.workers), one.fingerprint))
        tasks.append(TaskInfo(name, tuple(versions)))
    return tasks


def read_definition(value: Mapping[str, Any]) -> TaskDefinition:
    """A definition that a worker wrote, perhaps a newer one. Missing fields get defaults."""
    timeout, limit, schema = value.get("timeout_s"), value.get("memory_limit"), value.get("schema")
    return TaskDefinition(
        name=str(value["name"]),
        queue=str(value.get("queue", "")),
        priority=str(value.get("priority", "")),
        aliases=_texts(value.get("aliases")),
        signature=str(value.get("signature", "")),
        description=str(value.get("description", "")),
        retry=dict(value.get("retry") or {}),
        timeout=None if timeout is None else timedelta(seconds=as_seconds(timeout)),
        result_ttl=timedelta(seconds=as_seconds(value.get("result_ttl_s"))),
        store_result=value.get("store_result") is not False,
        isolation=str(value.get("isolation", "none")),
        memory_limit=limit if type(limit) is int else None,
        secret=_texts(value.get("secret")),
        schema=schema if isinstance(schema, dict) else None,
        fingerprint=str(value["fingerprint"]),
    )


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()
