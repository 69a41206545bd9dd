"""Flask: a view enqueues a job, another shows its status.

Web:    gunicorn --workers 4 --threads 4 examples.flask_app:web
Worker: jetjobs worker examples.flask_app:app
"""

from __future__ import annotations

from typing import Any

from flask import Flask, request

from jetjobs import JetJobs, JobNotFound, JobState

app = JetJobs("receipts")
web = Flask(__name__)


@app.task
def send_receipt(order: int) -> str:
    """A plain function runs in a thread of the worker, so it may block."""
    return f"receipt for order {order}"


@web.post("/receipts")
def create_receipt() -> tuple[dict[str, Any], int]:
    order = int(request.form["order"])
    # The id makes the request safe to repeat: a client that got no answer sends it again.
    handle = send_receipt.options(job_id=f"receipt-{order}").enqueue_sync(order)
    return {"job": handle.id}, 202


@web.get("/jobs/<job_id>")
def show_job(job_id: str) -> tuple[dict[str, Any], int]:
    try:
        status = app.sync.get(job_id)
    except JobNotFound as error:
        return {"error": str(error)}, 404
    result = app.sync.result(job_id, timeout=5) if status.state is JobState.SUCCEEDED else None
    return {"id": status.id, "state": status.state, "attempt": status.attempt, "result": result}, 200
