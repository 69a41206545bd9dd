"""`Secret`: mark arguments and fields that must never be shown, and find them in a schema."""

from __future__ import annotations

from typing import Any, cast

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, SchemaSerializer
from pydantic_core.core_schema import (
    CoreConfig,
    bytes_schema,
    plain_serializer_function_ser_schema,
)

from jetjobs.model.masking import Path
from jetjobs.model.public import public

_MARK = "jetjobs_secret"
_MASKING = frozenset({"_serialize_secret", "_serialize_secret_field"})
"""The serializers of pydantic's SecretStr, SecretBytes and Secret[T], which write asterisks."""
_NO_SCHEMA = frozenset({"metadata", "serialization", "default", "config", "expected", "members"})
_VALUES = frozenset({"default", "examples"})
_BY_NAME = frozenset({"properties", "$defs"})
"""Keys of a JSON schema whose value is an object by name: there, `default` is the name of a field."""
_ITEMS = frozenset({"list", "set", "frozenset", "generator", "tuple"})


@public("jetjobs")
class Secret:
    """`token: Annotated[str, Secret()]`: the job contains the value, and every display of arguments masks it.

    pydantic's SecretStr, SecretBytes and Secret[T] are handled in the same way; the task gets the wrapped value.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema: dict[str, Any] = dict(handler(source))
        schema["metadata"] = {**schema.get("metadata", {}), _MARK: True}
        return cast(CoreSchema, schema)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        # As pydantic marks its own secret types.
        return {**handler(schema), "writeOnly": True}

    def __repr__(self) -> str:
        return "Secret()"


def without_values(node: Any) -> Any:
    """A JSON schema without defaults and examples, which may contain secrets, and without the possible values of
    secrets.
    """
    if isinstance(node, list):
        return [without_values(item) for item in node]
    if not isinstance(node, dict):
        return node
    dropped = _VALUES | {"enum", "const"} if node.get("writeOnly") is True else _VALUES
    return {
        key: {name: without_values(one) for name, one in value.items()}
        if key in _BY_NAME and isinstance(value, dict)
        else without_values(value)
        for key, value in node.items()
        if key not in dropped
    }


def secret_paths(schema: CoreSchema) -> frozenset[Path]:
    """The paths of the secrets in values of the schema."""
    finder = _Finder()
    finder.walk(schema, ())
    # A recursive type has infinitely many paths: from its second level on, all of it is secret.
    return frozenset(finder.found | finder.recursive if finder.found else ())


class _Finder:
    def __init__(self) -> None:
        self.found: set[Path] = set()
        self.recursive: set[Path] = set()
        self._definitions: dict[str, Any] = {}
        self._inside: list[str] = []

    def walk(self, node: Any, path: Path) -> None:
        if isinstance(node, list | tuple):
            for item in node:
                self.walk(item, path)
        elif isinstance(node, dict):
            if _is_secret(node):
                self.found.add(path)
            elif isinstance(ref := node.get("ref"), str):
                self._enter(ref, node, path)
            else:
                self._walk_node(node, path)

    def _enter(self, ref: str, node: dict[str, Any], path: Path) -> None:
        if ref in self._inside:
            self.recursive.add(path)
            return
        self._inside.append(ref)
        self.walk({k: v for k, v in node.items() if k != "ref"}, path)
        self._inside.pop()

    def _walk_node(self, node: dict[str, Any], path: Path) -> None:
        kind = node.get("type")
        if kind in ("typed-dict", "model-fields"):
            for name, field in node["fields"].items():
                self._walk_field(field["schema"], path, name, field)
            self._walk_computed(node, path)
        elif kind == "dataclass-args":
            for field in node["fields"]:
                self._walk_field(field["schema"], path, field["name"], field)
            self._walk_computed(node, path)
        elif kind in _ITEMS:
            self.walk(node.get("items_schema"), (*path, "*"))
        elif kind == "dict":
            self.walk(node.get("values_schema"), (*path, "*"))
            self.walk(node.get("keys_schema"), path)  # secret keys make the whole dict secret
        elif kind == "definitions":
            self._definitions.update((one["ref"], one) for one in node["definitions"])
            self.walk(node["schema"], path)
        elif kind == "definition-ref":
            ref = node["schema_ref"]
            self._enter(ref, self._definitions.get(ref, {}), path)
        else:
            for key, value in node.items():
                if key not in _NO_SCHEMA:
                    self.walk(value, path)

    def _walk_field(self, schema: Any, path: Path, name: str, field: dict[str, Any]) -> None:
        for place in _places(name, field):
            self.walk(schema, (*path, *place))

    def _walk_computed(self, node: dict[str, Any], path: Path) -> None:
        for field in node.get("computed_fields", ()):
            self._walk_field(field["return_schema"], path, field["property_name"], field)


def _places(name: str, field: dict[str, Any]) -> set[Path]:
    """The paths that a field may have: its name, or an alias for writing or reading. A job published without
    jetjobs may use any of them.
    """
    found: set[Path] = {(name,)}
    for key in ("serialization_alias", "alias", "validation_alias"):
        alias = field.get(key)
        if isinstance(alias, str):
            found.add((alias,))
        elif isinstance(alias, list):
            # AliasPath gives one path, AliasChoices a list of them.
            for choice in [alias] if not isinstance(alias[0], list) else alias:
                found.add(tuple("*" if isinstance(step, int) else str(step) for step in choice))
    return found


def _is_secret(node: dict[str, Any]) -> bool:
    metadata = node.get("metadata")
    return (isinstance(metadata, dict) and metadata.get(_MARK) is True) or _masks(node)


def _masks(node: dict[str, Any]) -> bool:
    serialization = node.get("serialization")
    function = serialization.get("function") if isinstance(serialization, dict) else None
    return (
        getattr(function, "__name__", "") in _MASKING and getattr(function, "__module__", "") == "pydantic.types"
    )


def revealing_serializer(schema: CoreSchema, config: CoreConfig) -> SchemaSerializer:
    """Writes the values of pydantic's secret types: a job whose arguments are asterisks could not run."""
    revealed = _reveal(schema)
    try:
        return SchemaSerializer(revealed, config, _use_prebuilt=False)
    except TypeError:  # pydantic before 2.12
        return SchemaSerializer(revealed, config)


def _reveal(node: Any) -> Any:
    if isinstance(node, list):
        return [_reveal(item) for item in node]
    if not isinstance(node, dict):
        return node
    if _masks(node):
        kept = {k: v for k, v in node.items() if k != "serialization"}
        return {**kept, "serialization": _revealing(_holds_bytes(node))}
    return {key: value if key in _NO_SCHEMA else _reveal(value) for key, value in node.items()}


def _revealing(as_bytes: bool) -> Any:
    return plain_serializer_function_ser_schema(
        _value_of, return_schema=bytes_schema() if as_bytes else None, when_used="unless-none"
    )


def _holds_bytes(node: dict[str, Any]) -> bool:
    """Whether the secret is bytes: only a bytes schema applies the configured encoding."""
    inner = node.get("json_schema", {})
    return isinstance(inner, dict) and inner.get("schema", {}).get("type") == "bytes"


def _value_of(secret: Any) -> Any:
    return secret.get_secret_value()
