"""Orders with a job each: `example.py order SUBJECT N` and `example.py work N`, which ends after N jobs."""

import os
import sys

import psycopg
from weir import Weir

url = os.environ["DATABASE_URL"]
weir = Weir()


def place(connection, subject, number):
    """Inserts an order and submits its job, or does neither."""
    with connection.transaction():
        connection.execute("INSERT INTO orders (number) VALUES (%s)", (number,))
        submitted = weir.submit(connection, subject, "analysis", {"order": number})
        if submitted.job_id is None:
            raise psycopg.Rollback()
    return submitted.outcome


def handle(connection, job):
    """Writes the result; the job is completed in the same transaction."""
    handled.append(job.id)
    if job.args.get("fails", 0) >= job.attempt:
        raise RuntimeError(f"attempt {job.attempt} fails")
    connection.execute("INSERT INTO results (number) VALUES (%s)", (job.args["order"],))
    return {"order": job.args["order"]}


handled = []
with psycopg.connect(url) as connection:
    # Programs that start at the same time could both create the tables.
    connection.execute("SELECT pg_advisory_xact_lock(17)")
    connection.execute("CREATE TABLE IF NOT EXISTS orders (number int NOT NULL)")
    connection.execute("CREATE TABLE IF NOT EXISTS results (number int NOT NULL)")
if sys.argv[1] == "order":
    with psycopg.connect(url) as connection:
        outcomes = [place(connection, sys.argv[2], number) for number in range(int(sys.argv[3]))]
    refused = outcomes.count("over_quota")
    print(len(outcomes) - refused, refused)
else:
    queues = ["analysis_priority", "analysis_default"]
    weir.work(url, queues, handle, poll=0.2, stop_on_signals=True, until=lambda: len(handled) >= int(sys.argv[2]))
