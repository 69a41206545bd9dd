"""A plain script, for example of a cron job: enqueue many jobs and wait for one of them.

python -m examples.plain_script
"""

from __future__ import annotations

from examples.shop import app, greet


def main() -> None:
    report = app.sync.enqueue_many([greet.bind(f"customer {n}") for n in range(100)])
    report.raise_for_refused()  # a script that ends here has stored all of them
    print(f"{len(report.stored)} jobs stored")
    print(greet.enqueue_sync("Ada").result_sync("30s"))


if __name__ == "__main__":
    main()
