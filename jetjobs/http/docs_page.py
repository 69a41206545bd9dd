"""The page /docs: all calls in one server-rendered page without scripts."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from functools import cache
from html import escape
from typing import Any

from jetjobs.http.openapi import description_of, document, summary_of, tag_of
from jetjobs.http.routes import ENQUEUE, TABLE, Row

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
h2 { border-bottom: 1px solid #8884; margin-top: 3rem; text-transform: capitalize; }
h3 { margin-bottom: 0; }
code, th { font-family: ui-monospace, monospace; font-size: 0.9em; text-align: left; }
table { border-collapse: collapse; width: 100%; }
td, th { border-bottom: 1px solid #8882; padding: 0.2rem 0.8rem 0.2rem 0; vertical-align: top; }
.scope { color: #888; float: right; font-weight: normal; }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd; } a { color: #8bf; } }
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
POLICY = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of the page."""


@cache
def page(root_path: str = "") -> str:
    """The page, for an API that is mounted under this path."""
    found = document(root_path)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><meta charset="utf-8"><title>jetjobs: HTTP API</title>',
            '<meta name="viewport" content="width=device-width">',
            f"<style>{_STYLE}</style>",
            "<h1>jetjobs: HTTP API</h1>",
            f"<p>{_text(found['info']['description'])}</p>",
            f'<p>The same as OpenAPI 3.1: <a href="{escape(root_path)}/openapi.json">openapi.json</a>.</p>',
            *_sections(found),
            "</html>",
        ]
    )


def _sections(found: dict[str, Any]) -> Iterator[str]:
    for tag in found["tags"]:
        yield f"<h2>{escape(tag['name'])}</h2><p>{_text(tag['description'])}</p>"
        for row in TABLE:
            if tag_of(row) == tag["name"]:
                yield from _call(row, found)


def _call(row: Row, found: dict[str, Any]) -> Iterator[str]:
    operation = found["paths"][row.path][row.method.lower()]
    scope = "enqueue:TASK" if row.scope == ENQUEUE else row.scope
    yield f'<h3 id="{row.name}"><span class="scope">{scope}</span>'
    yield f"<code>{row.method} {escape(row.path)}</code></h3>"
    yield f"<p>{_text(summary_of(row))}</p>"
    yield from (f"<p>{_text(one)}</p>" for one in description_of(row).split("\n\n")[:-1])
    rows = [(one["name"], one["in"], one.get("description", ""), one["schema"]) for one in operation["parameters"]]
    if row.body is not None:
        schema = found["components"]["schemas"].get(row.body.__name__, {})
        rows += [
            (name, "body", one.get("description", ""), one) for name, one in schema.get("properties", {}).items()
        ]
    if rows:
        cells = (
            f"<tr><th>{escape(name)}<td>{where}<td>{escape(_kind(schema))}<td>{_text(text)}"
            for name, where, text, schema in rows
        )
        yield f"<table>{''.join(cells)}</table>"


def _kind(schema: dict[str, Any]) -> str:
    """A type as people write it."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(one) for one in schema["anyOf"]))
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("format") or schema.get("type") or "any")


def _text(text: str) -> str:
    """Escaped text, with `code` marked."""
    parts = escape(text).split("`")
    return "".join(part if number % 2 == 0 else f"<code>{part}</code>" for number, part in enumerate(parts))
