"""Submits jobs to Weir and works them, in your own transactions (psycopg 3).

A submitted job exists if and only if your transaction commits. The same holds for what a worker writes and the completion
of its job. Limits hold across all programs and languages, because the database decides.
"""

import asyncio
import logging
import os
import re
import signal
import socket
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow, tuple_row
from psycopg.types.json import Jsonb

#: Seconds between two attempts to connect again, at first and at most.
_PAUSES = (0.1, 5.0)

#: Seconds between two heartbeats. A worker that is silent for 10 s loses its jobs.
_BEAT = 2.0

#: Seconds without a successful heartbeat after which this worker stops its handlers, before others get its jobs.
_SILENT = 8.0

#: Errors of PostgreSQL that pass: a read-only server after a failover, conflicts, locks, time limits, full servers.
_PASSES = re.compile("25006|40001|40P01|53|55P03|57|08")

_log = logging.getLogger("weir")


class FencedOut(Exception):
    """Another worker has the job. This attempt's writes are rolled back."""


class Stopped(Exception):
    """The attempt had to stop: its job was cancelled or overdue, or this worker lost the database."""


@dataclass(frozen=True)
class Submitted:
    """The answer to a submission: admitted, parked, repeated, folded, over_quota, too_large, too_many_waiting or
    key_reused. Without a job id, nothing was accepted."""

    outcome: str
    job_id: int | None
    quota: dict[str, Any] | None


@dataclass(frozen=True)
class Job:
    """An attempt at a job."""

    id: int
    attempt: int
    kind: str
    args: dict[str, Any]
    created_at: datetime | None = None
    #: The account; None for a job of another program.
    holder: uuid.UUID | None = None
    #: The same for all attempts at the job, and no other job has it: an idempotency key for other systems.
    key: uuid.UUID | None = None
    #: Set when the attempt has to stop. A handler that runs for long checks it.
    cancelled: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)


Connection = psycopg.Connection[Any]
AsyncConnection = psycopg.AsyncConnection[Any]
Handler = Callable[[Connection, Job], Any]
AsyncHandler = Callable[[AsyncConnection, Job], Awaitable[Any]]


class _Calls:
    """The statements of both clients."""

    def __init__(self, schema: str | None = None) -> None:
        self._schema = schema

    def _statement(self, function: str, values: Sequence[object]) -> sql.Composed:
        name = sql.Identifier(self._schema, function) if self._schema else sql.Identifier(function)
        marks = sql.SQL(", ").join(sql.Placeholder() * len(values))
        return sql.SQL("SELECT * FROM {}({})").format(name, marks)

    def _heart(self, url: str, worker: str) -> "_Heart":
        return _Heart(url, worker, self._statement("weir_heartbeat", ("worker", "attempts")))


class _Heart:
    """Sends heartbeats from a separate thread and connection, so that a busy handler does not delay them. Tells the
    attempts to stop that have lost their jobs, and all of them when no heartbeat succeeds."""

    def __init__(self, url: str, worker: str, statement: sql.Composed) -> None:
        self._url, self._worker, self._statement = url, worker, statement
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._running: dict[tuple[int, int], Callable[[str], None]] = {}
        self._last = time.monotonic()
        # Two threads, because a heartbeat over a dead network hangs.
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for target, name in ((self._beat, "weir-heartbeat"), (self._watch, "weir-watch"))
        ]

    def __enter__(self) -> "_Heart":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            # A connection that hangs must not delay the end.
            thread.join(_BEAT)

    def beats(self) -> bool:
        """Whether others still leave this worker its jobs. Otherwise it must not start any."""
        return time.monotonic() - self._last < _SILENT

    @contextmanager
    def running(self, job: Job, stop: Callable[[str], None] = lambda _: None) -> Iterator[None]:
        """Calls `stop` with the reason, from another thread, when the attempt has to stop."""
        key = (job.id, job.attempt)

        def stop_once(state: str) -> None:
            if job.cancelled.is_set():
                return
            _log.warning("job %s, attempt %s has to stop: %s", job.id, job.attempt, state)
            job.cancelled.set()
            stop(state)

        with self._lock:
            self._running[key] = stop_once
        try:
            yield
        finally:
            with self._lock:
                self._running.pop(key, None)

    def _beat(self) -> None:
        pause = _PAUSES[0]
        while not self._ended.is_set():
            try:
                # A connection over a dead network must not hang for minutes.
                with psycopg.connect(
                    self._url, autocommit=True, connect_timeout=5, tcp_user_timeout=6000
                ) as connection:
                    while not self._ended.is_set():
                        self._beat_once(connection)
                        pause = _PAUSES[0]
                        self._ended.wait(_BEAT)
            except psycopg.Error as error:
                _log.warning("a heartbeat failed: %s", str(error).strip())
                self._ended.wait(pause)
                pause = min(2 * pause, _BEAT)

    def _beat_once(self, connection: Connection) -> None:
        sent = time.monotonic()
        with self._lock:
            known = dict(self._running)
        attempts = Jsonb([{"job_id": job_id, "attempt": attempt} for job_id, attempt in known])
        rows = connection.execute(self._statement, [self._worker, attempts]).fetchall()
        self._last = sent
        for job_id, attempt, state in rows:
            if state != "running" and (job_id, attempt) in known:
                known[job_id, attempt](state)

    def _watch(self) -> None:
        while not self._ended.wait(0.25):
            if self.beats():
                continue
            with self._lock:
                known = list(self._running.values())
            for stop in known:
                stop("the database did not answer")


class Weir(_Calls):
    """Calls Weir's functions, in its schema or where search_path leads."""

    def _rows(self, connection: Connection, function: str, *values: object) -> list[TupleRow]:
        # The connection may have another row factory.
        with connection.cursor(row_factory=tuple_row) as cursor:
            return cursor.execute(self._statement(function, values), values).fetchall()

    def submit(
        self,
        connection: Connection,
        subject: str,
        service: str,
        args: dict[str, Any],
        amount: int | None = None,
        *,
        key: str | None = None,
        run_at: datetime | str | None = None,
        priority: int | None = None,
        tags: Sequence[str] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Submitted:
        """Submits a job inside the connection's transaction. The user's row stays locked until it ends: commit soon."""
        values = (subject, service, Jsonb(args), amount, _options(key, run_at, priority, tags, metadata))
        return Submitted(*self._rows(connection, "weir_submit", *values)[0])

    def complete(self, connection: Connection, job: Job, output: Any = None, used: int | None = None) -> int:
        """Completes an attempt inside the transaction, and returns what was charged."""
        values = (job.id, job.attempt, _output(output), used, job.created_at)
        return _charged(job, self._rows(connection, "weir_complete", *values))

    def fail(self, connection: Connection, job: Job, error: object, retry_at: datetime | None = None) -> str:
        """Records a failed attempt inside the transaction: retry, discarded, cancelled or fenced_out."""
        values = (job.id, job.attempt, _storable(str(error)), retry_at and _with_zone(retry_at), job.created_at)
        return str(self._rows(connection, "weir_fail", *values)[0][0])

    def progress(self, connection: Connection, job: Job, fraction: float, message: str | None = None) -> str:
        """Records the progress of an attempt, from 0 to 1: done, cancelled or fenced_out. Use a connection with autocommit,
        so that others see it."""
        values = (job.id, job.attempt, float(fraction), message, job.created_at)
        return str(self._rows(connection, "weir_progress", *values)[0][0])

    def extend(self, connection: Connection, job: Job, more: int) -> bool:
        """Reserves more for a running job. Returns False and changes nothing if that is over the quota. Raises
        `Stopped` if the job was cancelled."""
        return _extended(job, self._rows(connection, "weir_extend", job.id, job.attempt, more, job.created_at))

    def claim(self, connection: Connection, queue: str, worker: str, most: int = 1, headroom: int = 1) -> list[Job]:
        """Starts attempts at jobs. Commit before you work. All but `headroom` of them may be over their user's slots."""
        return [Job(*row) for row in self._rows(connection, "weir_claim", queue, worker, most, headroom)]

    def work(
        self,
        url: str,
        queues: Sequence[str],
        handle: Handler,
        *,
        river_schema: str = "public",
        poll: float = 1.0,
        headroom: int = 1,
        until: Callable[[], bool] = lambda: False,
    ) -> None:
        """Works jobs one at a time, until `until()`.

        `handle(connection, job)` returns the output, or a pair of the output and the amount used. Its writes over the
        connection are committed with the job's completion, or rolled back with its failure. A lost connection is
        replaced. Its job fails and is retried.

        `job.cancelled` is set when the attempt has to stop: the job was cancelled or taken over, the attempt takes longer
        than the service's timeout, or this worker lost the database. Nothing interrupts a handler that does not look.

        With `headroom=0`, it also works jobs over their user's slots when it would be idle, if the plan has a burst.

        SIGTERM and SIGINT end the work after the current job, if this runs in the main thread. Another worker gets the
        jobs of a killed one within 15 seconds.
        """
        lost: list[Job] = []
        connected = False
        pause = _PAUSES[0]
        worker = _worker()
        with _or_a_signal(until) as enough, self._heart(url, worker) as heart:
            while not enough():
                try:
                    with psycopg.connect(url, autocommit=True) as idle, psycopg.connect(url) as connection:
                        connected, pause = True, _PAUSES[0]
                        idle.execute(_listen(river_schema))
                        self._turns(idle, connection, queues, handle, poll, headroom, enough, lost, worker, heart)
                except psycopg.Error as error:
                    if not (connected and _passes(error)):
                        raise
                    _log.warning("waiting for the database: %s", str(error).strip())
                    time.sleep(pause)
                    pause = min(2 * pause, _PAUSES[1])

    def _turns(
        self,
        idle: Connection,
        connection: Connection,
        queues: Sequence[str],
        handle: Handler,
        poll: float,
        headroom: int,
        until: Callable[[], bool],
        lost: list[Job],
        worker: str,
        heart: _Heart,
    ) -> None:
        while lost:
            with connection.transaction():
                self.fail(connection, lost[-1], "the worker lost its connection")
            lost.pop()
        while not until():
            worked = False
            for queue in queues:
                if until():
                    return
                if not heart.beats():
                    break
                # Claims one job at a time, because a claimed job holds its slot.
                with connection.transaction():
                    jobs = self.claim(connection, queue, worker, headroom=headroom)
                for job in jobs:
                    lost.append(job)
                    with heart.running(job):
                        self._attempt(connection, job, handle)
                    lost.pop()
                    worked = True
            if not worked:
                # Submissions and freed slots notify. Scheduled jobs are found by polling.
                next(idle.notifies(timeout=poll, stop_after=1), None)

    def _attempt(self, connection: Connection, job: Job, handle: Handler) -> None:
        try:
            with connection.transaction():
                self.complete(connection, job, *_made(handle(connection, job)))
        except FencedOut:
            pass
        except Exception as error:  # Any failure: the job is retried or discarded.
            if connection.closed:
                raise psycopg.OperationalError("the connection is lost") from error
            with connection.transaction():
                self.fail(connection, job, error)


class AsyncWeir(_Calls):
    """The same for asyncio."""

    async def _rows(self, connection: AsyncConnection, function: str, *values: object) -> list[TupleRow]:
        async with connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(self._statement(function, values), values)
            return await cursor.fetchall()

    async def submit(
        self,
        connection: AsyncConnection,
        subject: str,
        service: str,
        args: dict[str, Any],
        amount: int | None = None,
        *,
        key: str | None = None,
        run_at: datetime | str | None = None,
        priority: int | None = None,
        tags: Sequence[str] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Submitted:
        """See `Weir.submit`."""
        values = (subject, service, Jsonb(args), amount, _options(key, run_at, priority, tags, metadata))
        return Submitted(*(await self._rows(connection, "weir_submit", *values))[0])

    async def complete(
        self, connection: AsyncConnection, job: Job, output: Any = None, used: int | None = None
    ) -> int:
        """See `Weir.complete`."""
        values = (job.id, job.attempt, _output(output), used, job.created_at)
        return _charged(job, await self._rows(connection, "weir_complete", *values))

    async def fail(
        self, connection: AsyncConnection, job: Job, error: object, retry_at: datetime | None = None
    ) -> str:
        """See `Weir.fail`."""
        values = (job.id, job.attempt, _storable(str(error)), retry_at and _with_zone(retry_at), job.created_at)
        return str((await self._rows(connection, "weir_fail", *values))[0][0])

    async def progress(
        self, connection: AsyncConnection, job: Job, fraction: float, message: str | None = None
    ) -> str:
        """See `Weir.progress`."""
        values = (job.id, job.attempt, float(fraction), message, job.created_at)
        return str((await self._rows(connection, "weir_progress", *values))[0][0])

    async def extend(self, connection: AsyncConnection, job: Job, more: int) -> bool:
        """See `Weir.extend`."""
        values = (job.id, job.attempt, more, job.created_at)
        return _extended(job, await self._rows(connection, "weir_extend", *values))

    async def claim(
        self, connection: AsyncConnection, queue: str, worker: str, most: int = 1, headroom: int = 1
    ) -> list[Job]:
        """See `Weir.claim`."""
        return [Job(*row) for row in await self._rows(connection, "weir_claim", queue, worker, most, headroom)]

    async def work(
        self,
        url: str,
        queues: Sequence[str],
        handle: AsyncHandler,
        *,
        river_schema: str = "public",
        poll: float = 1.0,
        headroom: int = 1,
        until: Callable[[], bool] = lambda: False,
    ) -> None:
        """See `Weir.work`. The task of a handler that has to stop is cancelled."""
        lost: list[Job] = []
        connected = False
        pause = _PAUSES[0]
        worker = _worker()
        with _or_a_signal(until) as enough, self._heart(url, worker) as heart:
            while not enough():
                try:
                    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as idle:
                        async with await psycopg.AsyncConnection.connect(url) as connection:
                            connected, pause = True, _PAUSES[0]
                            await idle.execute(_listen(river_schema))
                            await self._turns(idle, connection, queues, handle, poll, headroom, enough, lost, worker, heart)
                except psycopg.Error as error:
                    if not (connected and _passes(error)):
                        raise
                    _log.warning("waiting for the database: %s", str(error).strip())
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _PAUSES[1])

    async def _turns(
        self,
        idle: AsyncConnection,
        connection: AsyncConnection,
        queues: Sequence[str],
        handle: AsyncHandler,
        poll: float,
        headroom: int,
        until: Callable[[], bool],
        lost: list[Job],
        worker: str,
        heart: _Heart,
    ) -> None:
        while lost:
            async with connection.transaction():
                await self.fail(connection, lost[-1], "the worker lost its connection")
            lost.pop()
        while not until():
            worked = False
            for queue in queues:
                if until():
                    return
                if not heart.beats():
                    break
                async with connection.transaction():
                    jobs = await self.claim(connection, queue, worker, headroom=headroom)
                for job in jobs:
                    lost.append(job)
                    await self._attempt(connection, job, handle, heart)
                    lost.pop()
                    worked = True
            if not worked:
                async for _ in idle.notifies(timeout=poll, stop_after=1):
                    pass

    async def _attempt(self, connection: AsyncConnection, job: Job, handle: AsyncHandler, heart: _Heart) -> None:
        async def work() -> Any:
            return await handle(connection, job)

        handler = _Stoppable(work())
        # Until the end is written: heartbeats name the attempt for as long.
        with heart.running(job, handler.stop):
            try:
                async with connection.transaction():
                    await self.complete(connection, job, *_made(await handler.result()))
            except FencedOut:
                pass
            except Exception as error:  # Any failure: the job is retried or discarded.
                if connection.closed:
                    raise psycopg.OperationalError("the connection is lost") from error
                async with connection.transaction():
                    await self.fail(connection, job, error)


def _options(
    key: str | None,
    run_at: datetime | str | None,
    priority: int | None,
    tags: Sequence[str] | None,
    metadata: dict[str, Any] | None,
) -> Jsonb:
    if isinstance(run_at, datetime):
        run_at = _with_zone(run_at).isoformat()
    options = {
        "idempotency_key": key,
        "run_at": run_at,
        "priority": priority,
        "tags": None if tags is None else list(tags),
        "metadata": metadata,
    }
    return Jsonb({name: value for name, value in options.items() if value is not None})


def _with_zone(time: datetime) -> datetime:
    """PostgreSQL would read a time without a zone in the zone of the session."""
    if time.utcoffset() is None:
        raise ValueError(f"{time!r} has no time zone; use an aware datetime, such as datetime.now(timezone.utc)")
    return time


def _passes(error: psycopg.Error) -> bool:
    """Whether the error of a statement of Weir's ends by itself. Without a code, the connection was lost."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError)
    return _PASSES.match(error.sqlstate) is not None


class _Stoppable:
    """A handler's task, which is cancelled when the attempt has to stop."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._task = asyncio.create_task(work)
        self._loop = asyncio.get_running_loop()
        self._reason: str | None = None

    def stop(self, reason: str) -> None:
        """Called from another thread. A handler that is done is not disturbed."""
        self._reason = reason
        self._loop.call_soon_threadsafe(self._task.cancel)

    async def result(self) -> Any:
        try:
            # Shielded, so that a cancellation of the worker itself is not taken for a stop.
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if not self._task.cancelled():
                self._task.cancel()
                await asyncio.wait([self._task])
                raise
            if self._reason == "taken_over":
                raise FencedOut() from None
            raise Stopped(f"the attempt had to stop: {self._reason or 'the handler was cancelled'}") from None


def _output(output: Any) -> Jsonb | None:
    return None if output is None else Jsonb(output)


def _charged(job: Job, rows: list[TupleRow]) -> int:
    outcome, charged = rows[0]
    if outcome == "fenced_out":
        raise FencedOut(job.id)
    return int(charged)


def _extended(job: Job, rows: list[TupleRow]) -> bool:
    outcome = rows[0][0]
    if outcome == "fenced_out":
        raise FencedOut(job.id)
    if outcome == "cancelled":
        raise Stopped("the job was cancelled")
    return bool(outcome == "extended")


def _made(made: Any) -> tuple[Any, int | None]:
    """A handler's result as the output and the amount used."""
    return made if isinstance(made, tuple) else (made, None)


def _listen(river_schema: str) -> sql.Composed:
    return sql.SQL("LISTEN {}").format(sql.Identifier(f"{river_schema}.river_insert"))


def _worker() -> str:
    """A name that no other worker has, even on a host with the same name and process ids, such as a container."""
    host = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in socket.gethostname()[:40])
    return f"python.{host}.{os.getpid()}.{uuid.uuid4().hex[:12]}"


@contextmanager
def _or_a_signal(until: Callable[[], bool]) -> Iterator[Callable[[], bool]]:
    """Whether `until()`, or SIGTERM or SIGINT has arrived. Python delivers signals to the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield until
        return
    arrived = threading.Event()
    before = {number: signal.signal(number, lambda *_: arrived.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: arrived.is_set() or until()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _storable(text: str) -> str:
    """The text without what PostgreSQL cannot store: NUL, and halves of surrogate pairs."""
    return text.replace("\0", "").encode(errors="replace").decode()


__all__ = ["AsyncWeir", "FencedOut", "Job", "Stopped", "Submitted", "Weir"]
