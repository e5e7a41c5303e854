"""Helpers for tests of programs that submit or work jobs. A test runs in one transaction, which is rolled back, so that
tests leave nothing behind and do not see each other's jobs.

The connection's role owns Weir's schema, as in a database of tests.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from . import AsyncConnection, AsyncHandler, AsyncWeir, Connection, Handler, Job, Weir

_WORKER = "python.test"


@dataclass(frozen=True)
class Ran:
    """An attempt that `run_queued` has ended."""

    job: Job
    #: What the handler returned.
    result: Any = None
    #: What the handler raised.
    error: Exception | None = None


@contextmanager
def rolled_back(url: str) -> Iterator[Connection]:
    """A connection with a transaction that is rolled back at the end."""
    with psycopg.connect(url) as connection, connection.transaction(force_rollback=True):
        yield connection


@asynccontextmanager
async def async_rolled_back(url: str) -> AsyncIterator[AsyncConnection]:
    """See `rolled_back`."""
    async with await psycopg.AsyncConnection.connect(url) as connection, connection.transaction(force_rollback=True):
        yield connection


def set_quota(
    connection: Connection, subject: str, service: str, limit: int | None, *, weir: Weir | None = None
) -> None:
    """Sets the limit of a user for a service in each billing period; None is unlimited. Creates an unknown user."""
    (weir or Weir())._rows(connection, "set_test_quota", subject, service, limit)


async def async_set_quota(
    connection: AsyncConnection, subject: str, service: str, limit: int | None, *, weir: AsyncWeir | None = None
) -> None:
    """See `set_quota`."""
    await (weir or AsyncWeir())._rows(connection, "set_test_quota", subject, service, limit)


def run_queued(
    connection: Connection, queues: Sequence[str], handle: Handler, *, weir: Weir | None = None
) -> list[Ran]:
    """Works jobs, one after the other, until none of these queues has a job that can start now. The jobs of the
    connection's own transaction are among them. Each is completed or failed as by `Weir.work`."""
    weir = weir or Weir()
    ran: list[Ran] = []
    while jobs := _next(weir, connection, queues):
        job = jobs[0]
        try:
            with connection.transaction():
                result = handle(connection, job)
                output, used = result if isinstance(result, tuple) else (result, None)
                weir.complete(connection, job, output, used)
            ran.append(Ran(job, result))
        except Exception as error:
            weir.fail(connection, job, error)
            ran.append(Ran(job, error=error))
    return ran


async def async_run_queued(
    connection: AsyncConnection, queues: Sequence[str], handle: AsyncHandler, *, weir: AsyncWeir | None = None
) -> list[Ran]:
    """See `run_queued`."""
    weir = weir or AsyncWeir()
    ran: list[Ran] = []
    while jobs := await _async_next(weir, connection, queues):
        job = jobs[0]
        try:
            async with connection.transaction():
                result = await handle(connection, job)
                output, used = result if isinstance(result, tuple) else (result, None)
                await weir.complete(connection, job, output, used)
            ran.append(Ran(job, result))
        except Exception as error:
            await weir.fail(connection, job, error)
            ran.append(Ran(job, error=error))
    return ran


def _next(weir: Weir, connection: Connection, queues: Sequence[str]) -> list[Job]:
    weir._rows(connection, "start_test_jobs")
    for queue in queues:
        if jobs := weir.claim(connection, queue, _WORKER):
            return jobs
    return []


async def _async_next(weir: AsyncWeir, connection: AsyncConnection, queues: Sequence[str]) -> list[Job]:
    await weir._rows(connection, "start_test_jobs")
    for queue in queues:
        if jobs := await weir.claim(connection, queue, _WORKER):
            return jobs
    return []


__all__ = [
    "Ran",
    "async_rolled_back",
    "async_run_queued",
    "async_set_quota",
    "rolled_back",
    "run_queued",
    "set_quota",
]
