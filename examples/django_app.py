"""Django in one file: a job is enqueued when the transaction that it belongs to has been committed.

Table:  python -m examples.django_app
Web:    gunicorn --threads 4 examples.django_app:web
Worker: jetjobs worker examples.django_app:app
"""

from __future__ import annotations

import os
from typing import Any

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections, connection, models, transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

from jetjobs import JetJobs

settings.configure(
    ALLOWED_HOSTS=["127.0.0.1"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("SHOP_DB", "shop.db")}},
    ROOT_URLCONF=__name__,
    SECRET_KEY="example",
    USE_TZ=True,
)
django.setup()

app = JetJobs("orders")


class Order(models.Model):  # type: ignore[misc]
    item = models.CharField(max_length=100)
    confirmed = models.BooleanField(default=False)

    class Meta:
        app_label = "examples"


@app.task
def confirm(order_id: int) -> str:
    """Pass ids, not objects: the worker reads the row as it is when the job runs."""
    close_old_connections()  # the thread may have a database connection that has timed out since its last job
    order = Order.objects.get(id=order_id)
    order.confirmed = True
    order.save()
    return f"confirmed {order.item}"


def place_order(request: HttpRequest) -> JsonResponse:
    with transaction.atomic():
        order = Order.objects.create(item=request.POST["item"])
        # Not before the commit: a worker would look for a row that is not there, or that is rolled back.
        transaction.on_commit(lambda: confirm.enqueue_sync(order.id))
        if order.item == "unicorn":
            raise ValueError("sold out")  # rolls back: neither row nor job
    return JsonResponse({"order": order.id}, status=201)


def show_order(request: HttpRequest, order_id: int) -> JsonResponse:
    return JsonResponse({"confirmed": Order.objects.get(id=order_id).confirmed})


urlpatterns: list[Any] = [path("orders", place_order), path("orders/<int:order_id>", show_order)]

web = get_wsgi_application()

if __name__ == "__main__":  # instead of migrations, which need a package
    with connection.schema_editor() as editor:
        editor.create_model(Order)
