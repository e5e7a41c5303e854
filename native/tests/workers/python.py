"""The workers in Python of the conformance suite: `sync` or `async`. conformance.rs describes the arguments of a job."""

import asyncio
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../../clients/python"))
from weir import AsyncWeir, Weir  # noqa: E402

FAILURES = {"nul": "out of \0paper", "half": "out of \ud800paper"}


def insert(job):
    """A handler executes it at its start and at its end."""
    return f"INSERT INTO results (job, attempt) VALUES ({job.id}, {job.attempt})"


def statements(job):
    """What the attempt executes over its connection at its start."""
    yield insert(job)
    if job.attempt <= job.args.get("attempts", 1):
        how = job.args.get("fails")
        if how == "statement":
            yield "SET LOCAL statement_timeout = 1"
            yield "SELECT pg_sleep(10)"
        if how == "connection":
            yield "SELECT pg_terminate_backend(pg_backend_pid())"
        if how == "network":
            raise ConnectionRefusedError("out of reach")
        if how:
            raise RuntimeError(FAILURES[how])


def steps(job):
    """Yields while the attempt runs."""
    until = time.monotonic() + job.args.get("seconds", 0)
    while job.attempt <= job.args.get("attempts", 1) and time.monotonic() < until:
        if "file" in job.args:
            with open(job.args["file"], "a") as file:
                file.write(f"{job.id} {job.attempt} {time.time()}\n")
        yield


def output(job):
    return {"text": "\0" if "nul" in job.args else "x" * job.args.get("size", 0)}


def handle(connection, job):
    for statement in statements(job):
        connection.execute(statement)
    for _ in steps(job):
        if job.cancelled.wait(0.05) and not job.args.get("ignores"):
            raise RuntimeError("stopped")
    connection.execute(insert(job))
    return output(job)


async def handle_async(connection, job):
    for statement in statements(job):
        await connection.execute(statement)
    for _ in steps(job):
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            if not job.args.get("ignores"):
                raise
    await connection.execute(insert(job))
    return output(job)


url, queues = os.environ["DATABASE_URL"], ["lasting_default", "brief_default"]
options = {"concurrency": 24, "poll": 0.2, "stop_on_signals": True}
if sys.argv[1] == "sync":
    Weir().work(url, queues, handle, **options)
else:
    asyncio.run(AsyncWeir().work(url, queues, handle_async, **options))
