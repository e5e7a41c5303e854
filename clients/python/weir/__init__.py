"""Submits jobs to Weir and works them, in your own transactions (psycopg 3).

A submitted job exists if and only if your transaction commits. The same holds for what a worker writes and the
completion of its job. Limits hold across all programs and languages, because the database decides.
"""

import asyncio
import importlib
import inspect
import json
import logging
import os
import re
import signal
import socket
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow, tuple_row
from psycopg.types.json import Jsonb

#: Seconds between two attempts to connect again, at first and at most.
_PAUSES = (0.1, 5.0)

#: Seconds between two heartbeats. A worker that is silent for 10 s loses its jobs.
_BEAT = 1.5

#: Seconds without a successful heartbeat after which this worker stops its handlers, before others get its jobs.
_SILENT = 8.0

#: The number of the oldest upgrade of Weir's schema with all that this client uses.
_UPGRADE = 19

#: Seconds between two checks whether the work has to end.
_TICK = 0.25

#: Errors of PostgreSQL that pass: a read-only server after a failover, conflicts, locks, time limits, full servers.
_PASSES = re.compile("25006|40001|40P01|53|55P03|57|08")

_ASYNCHRONOUS = "the handler is asynchronous; use AsyncWeir"

_log = logging.getLogger("weir")


class FencedOut(Exception):
    """Another worker has the job. This attempt's writes are rolled back."""


class WrongVersion(Exception):
    """The database or this client has to be upgraded. The message names which."""


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


class _Row(Protocol):
    def one(self) -> Any: ...


class _DbApi(Protocol):
    def cursor(self) -> Any: ...


class _SqlAlchemy(Protocol):
    def execute(self, statement: Any, parameters: Any = ..., /) -> _Row: ...


class _AsyncSqlAlchemy(Protocol):
    def execute(self, statement: Any, parameters: Any = ..., /) -> Awaitable[_Row]: ...


class _Asyncpg(Protocol):
    def fetchrow(self, query: str, /, *values: Any) -> Awaitable[Any]: ...


#: A connection to submit over, of psycopg, Django or another driver with `%s` as its marks, or a `Connection` or
#: `Session` of SQLAlchemy.
Submits = Connection | _DbApi | _SqlAlchemy

#: An asynchronous connection to submit over, of psycopg or asyncpg, or an `AsyncConnection` or `AsyncSession` of
#: SQLAlchemy.
AsyncSubmits = AsyncConnection | _AsyncSqlAlchemy | _Asyncpg


class Stop(Protocol):
    """Ends the work when it is set: a `threading.Event`, an `asyncio.Event`, or another object with this method."""

    def is_set(self) -> bool: ...


class _Calls:
    """The statements of both clients."""

    def __init__(self, schema: str | None = None) -> None:
        self._schema = schema

    def _statement(self, function: str, values: Sequence[object]) -> sql.Composed:
        name = sql.Identifier(self._schema, function) if self._schema else sql.Identifier(function)
        marks = sql.SQL(", ").join(sql.Placeholder() * len(values))
        return sql.SQL("SELECT * FROM {}({})").format(name, marks)

    def _submission(self, mark: str, values: Sequence[object]) -> tuple[str, list[str | None]]:
        """The statement for other drivers, with a format of marks, and its values. All values and columns are text, so
        that no driver converts them."""
        places = ", ".join(
            f"CAST(CAST({mark.format(at)} AS text) AS {kind})"
            for at, kind in enumerate(("text", "text", "jsonb", "bigint", "jsonb"), start=1)
        )
        schema = "" if self._schema is None else sql.Identifier(self._schema).as_string() + "."
        columns = "outcome, CAST(job_id AS text), CAST(quota AS text)"
        return f"SELECT {columns} FROM {schema}weir_submit({places})", [_text(value) for value in values]

    def _heart(self, url: str, worker: str, channel: str, wake: Callable[[], None]) -> "_Heart":
        statement = self._statement("weir_heartbeat", ("worker", "attempts"))
        return _Heart(url, worker, statement, sql.SQL("LISTEN {}").format(sql.Identifier(channel)), wake)


class _Heart:
    """Sends heartbeats from a separate thread and connection, so that a busy handler does not delay them. Stops the
    attempts that have lost their jobs, and all of them when no heartbeat succeeds. Calls `wake` when there may be
    jobs."""

    def __init__(
        self, url: str, worker: str, statement: sql.Composed, listen: sql.Composed, wake: Callable[[], None]
    ) -> None:
        self._url, self._worker, self._statement, self._listen, self._wake = url, worker, statement, listen, wake
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
                    connection.execute(self._listen)
                    while not self._ended.is_set():
                        self._beat_once(connection)
                        pause = _PAUSES[0]
                        self._wait(connection)
            except psycopg.Error as error:
                _log.warning("a heartbeat failed: %s", str(error).strip())
                self._ended.wait(pause)
                pause = min(2 * pause, _BEAT)

    def _wait(self, connection: Connection) -> None:
        """Until the next heartbeat. Submissions and freed slots notify."""
        until = time.monotonic() + _BEAT
        while not self._ended.is_set() and (left := until - time.monotonic()) > 0:
            for _ in connection.notifies(timeout=min(left, _TICK), stop_after=1):
                self._wake()

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
        connection: Submits,
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
        expires_in: int | None = None,
    ) -> Submitted:
        """Submits a job inside the connection's transaction. The user's row stays locked until it ends: commit soon.

        A job that still waits after `expires_in` seconds is cancelled.

        Also takes a `Connection` or `Session` of SQLAlchemy 2, Django's `connection`, and a connection of psycopg2."""
        if inspect.iscoroutinefunction(getattr(connection, "execute", None)):
            raise TypeError("the connection is asynchronous; use AsyncWeir")
        values = (subject, service, Jsonb(args), amount, _options(key, run_at, priority, tags, metadata, expires_in))
        if isinstance(connection, psycopg.Connection):
            return Submitted(*self._rows(connection, "weir_submit", *values)[0])
        if hasattr(connection, "cursor"):
            text, texts = self._submission("%s", values)
            with connection.cursor() as cursor:
                cursor.execute(text, texts)
                return _submitted(cursor.fetchone())
        return _submitted(connection.execute(*_sqlalchemy(*self._submission(":p{}", values))).one())

    def complete(self, connection: Connection, job: Job, output: Any = None, used: int | None = None) -> int:
        """Completes an attempt inside the transaction, and returns what was charged."""
        values = (job.id, job.attempt, _output(output), used, job.created_at)
        return _charged(job, self._rows(connection, "weir_complete", *values))

    def fail(self, connection: Connection, job: Job, error: object, retry_at: datetime | None = None) -> str:
        """Records a failed attempt inside the transaction: retry, discarded, cancelled or fenced_out."""
        values = (job.id, job.attempt, _storable(str(error)), retry_at and _with_zone(retry_at), job.created_at)
        return str(self._rows(connection, "weir_fail", *values)[0][0])

    def progress(self, connection: Connection, job: Job, fraction: float, message: str | None = None) -> str:
        """Records the progress of an attempt, from 0 to 1: done, cancelled or fenced_out. Use a connection with
        autocommit, so that others see it."""
        values = (job.id, job.attempt, float(fraction), message, job.created_at)
        return str(self._rows(connection, "weir_progress", *values)[0][0])

    def extend(self, connection: Connection, job: Job, more: int) -> bool:
        """Reserves more for a running job. Returns False and changes nothing if that is over the quota. Raises
        `Stopped` if the job was cancelled."""
        return _extended(job, self._rows(connection, "weir_extend", job.id, job.attempt, more, job.created_at))

    def claim(self, connection: Connection, queue: str, worker: str, most: int = 1, headroom: int = 1) -> list[Job]:
        """Starts attempts at jobs. Commit before you work. All but `headroom` of them may be over their user's
        slots."""
        return [Job(*row) for row in self._rows(connection, "weir_claim", queue, worker, most, headroom)]

    def work(
        self,
        url: str,
        queues: Sequence[str],
        handle: Handler,
        *,
        concurrency: int = 1,
        poll: float = 1.0,
        headroom: int = 1,
        stop: Stop | None = None,
        stop_on_signals: bool = False,
        until: Callable[[], bool] = lambda: False,
    ) -> None:
        """Works up to `concurrency` jobs at a time, each on a thread, until `stop` is set or `until()`. Then it claims
        no more jobs, and returns when the running ones have ended.

        `handle(connection, job)` returns the output, or a pair of the output and the amount used. Its writes over the
        connection are committed with the job's completion, or rolled back with its failure. A lost connection is
        replaced. Its job fails and is retried.

        `job.cancelled` is set when the attempt has to stop: the job was cancelled or taken over, the attempt takes
        longer than the service's timeout, or this worker lost the database. Nothing interrupts a handler that does not
        check it.

        All but `headroom` of the idle handlers also work jobs over their user's slots, if the plan has a burst.

        With `stop_on_signals`, SIGTERM and SIGINT end the work as `stop` does, and the program's own handlers of these
        signals are not called. This needs the main thread. By default, signals are left to the program. Another worker
        gets the jobs of a killed one within 15 seconds.
        """
        if inspect.iscoroutinefunction(handle):
            raise TypeError(_ASYNCHRONOUS)
        url, wake, worker = _for_psycopg(url), threading.Event(), _worker()
        with _ending(stop, until, stop_on_signals) as ends:
            with psycopg.connect(url, autocommit=True) as connection:
                try:
                    rows = self._rows(connection, "weir_version")
                except psycopg.errors.UndefinedFunction:
                    rows = []
            channel = _fit(rows)
            with self._heart(url, worker, channel, wake.set) as heart:
                loop = _Loop(url, queues, concurrency, poll, headroom, ends, worker, heart)
                _Threads(self, handle, loop, wake).work()

    def _attempt(self, connection: Connection, job: Job, handle: Handler) -> None:
        try:
            with connection.transaction():
                made = handle(connection, job)
                if inspect.iscoroutine(made):
                    made.close()
                    raise TypeError(_ASYNCHRONOUS)
                self.complete(connection, job, *_made(made))
        except FencedOut:
            pass
        except Exception as error:  # Any failure: the job is retried or discarded.
            if connection.closed:
                raise psycopg.OperationalError("the connection is lost") from error
            _log_failure(job, error)
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
        connection: AsyncSubmits,
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
        expires_in: int | None = None,
    ) -> Submitted:
        """See `Weir.submit`. Also takes an `AsyncConnection` or `AsyncSession` of SQLAlchemy 2, and a connection of
        asyncpg."""
        values = (subject, service, Jsonb(args), amount, _options(key, run_at, priority, tags, metadata, expires_in))
        if isinstance(connection, psycopg.AsyncConnection):
            return Submitted(*(await self._rows(connection, "weir_submit", *values))[0])
        if hasattr(connection, "fetchrow"):
            text, texts = self._submission("${}", values)
            return _submitted(await connection.fetchrow(text, *texts))
        if not inspect.iscoroutinefunction(connection.execute):
            raise TypeError("the connection is synchronous; use Weir")
        return _submitted((await connection.execute(*_sqlalchemy(*self._submission(":p{}", values)))).one())

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
        concurrency: int = 1,
        poll: float = 1.0,
        headroom: int = 1,
        stop: Stop | None = None,
        stop_on_signals: bool = False,
        until: Callable[[], bool] = lambda: False,
    ) -> None:
        """See `Weir.work`. Each job has a task, which is cancelled when the attempt has to stop. If the task of this
        call is cancelled, so are those of its jobs, and other workers get the jobs."""
        url, wake, worker = _for_psycopg(url), asyncio.Event(), _worker()
        running = asyncio.get_running_loop()

        def wake_up() -> None:
            _soon(running, wake.set)

        # Before anything is awaited, so that a signal reaches all workers that a program starts together.
        with _ending(stop, until, stop_on_signals) as ends:
            async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
                try:
                    rows = await self._rows(connection, "weir_version")
                except psycopg.errors.UndefinedFunction:
                    rows = []
            channel = _fit(rows)
            with self._heart(url, worker, channel, wake_up) as heart:
                loop = _Loop(url, queues, concurrency, poll, headroom, ends, worker, heart)
                await _Tasks(self, handle, loop, wake).work()

    async def _attempt(self, connection: AsyncConnection, job: Job, handler: "_Stoppable") -> None:
        try:
            async with connection.transaction():
                await self.complete(connection, job, *_made(await handler.result()))
        except FencedOut:
            pass
        except Exception as error:  # Any failure: the job is retried or discarded.
            if connection.closed:
                raise psycopg.OperationalError("the connection is lost") from error
            _log_failure(job, error)
            async with connection.transaction():
                await self.fail(connection, job, error)


class _Loop:
    """The state of a worker."""

    def __init__(
        self,
        url: str,
        queues: Sequence[str],
        concurrency: int,
        poll: float,
        headroom: int,
        ends: Callable[[], bool],
        worker: str,
        heart: _Heart,
    ) -> None:
        if concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        self.url, self.queues, self.concurrency = url, list(queues), concurrency
        self.poll, self.headroom = poll, headroom
        self.ends, self.worker, self.heart = ends, worker, heart
        #: Jobs whose connections were lost. They are failed once the database can be reached.
        self.lost: list[Job] = []
        self._connected = False
        self._pause = _PAUSES[0]
        _log.info("worker %s starts on the queues %s", worker, ", ".join(self.queues))

    def connected(self) -> None:
        self._connected, self._pause = True, _PAUSES[0]

    def pause(self, error: psycopg.Error) -> float:
        """The seconds until the next attempt to connect. Raises errors that do not end by themselves."""
        if not (self._connected and _passes(error)):
            raise error
        _log.warning("waiting for the database: %s", str(error).strip())
        pause = self._pause
        self._pause = min(2 * pause, _PAUSES[1])
        return pause

    def room(self, running: int) -> int:
        """How many jobs may be claimed, with as many running."""
        return 0 if self.ends() or not self.heart.beats() else min(self.concurrency - running, 1000)

    def claimed(self, queue: str) -> None:
        """The other queues are next."""
        self.queues.remove(queue)
        self.queues.append(queue)

    def lose(self, job: Job, error: psycopg.Error) -> None:
        """Keeps a job for later. Raises errors that do not end by themselves."""
        if not _passes(error):
            raise error
        _log.warning("job %s, attempt %s lost its connection: %s", job.id, job.attempt, str(error).strip())
        self.lost.append(job)


class _Threads:
    """Claims in the thread of the caller, and works each job on another one."""

    def __init__(self, weir: "Weir", handle: Handler, loop: _Loop, wake: threading.Event) -> None:
        self._weir, self._handle, self._loop, self._wake = weir, handle, loop, wake
        self._running: set[Future[None]] = set()
        #: Connections without a job.
        self._idle: list[Connection] = []

    def work(self) -> None:
        try:
            with ThreadPoolExecutor(self._loop.concurrency, "weir") as pool:
                while not self._loop.ends():
                    try:
                        with psycopg.connect(self._loop.url, autocommit=True) as connection:
                            self._loop.connected()
                            while not self._loop.ends():
                                self._turn(connection, pool)
                    except psycopg.Error as error:
                        self._close_idle()
                        time.sleep(self._loop.pause(error))
                _log.info("worker %s ends after %d running jobs", self._loop.worker, len(self._running))
            self._reap()
        finally:
            self._close_idle()

    def _turn(self, connection: Connection, pool: ThreadPoolExecutor) -> None:
        self._wake.clear()
        self._reap()
        while self._loop.lost:
            self._weir.fail(connection, self._loop.lost[0], "the worker lost its connection")
            self._loop.lost.pop(0)
        found = False
        for queue in list(self._loop.queues):
            # A claimed job holds its slot, so it must not wait for a handler.
            if not (room := self._loop.room(len(self._running))):
                break
            jobs = self._weir.claim(connection, queue, self._loop.worker, room, self._loop.headroom)
            for job in jobs:
                attempt = pool.submit(self._attempt, job)
                self._running.add(attempt)
                attempt.add_done_callback(lambda _: self._wake.set())
            if jobs:
                found = True
                self._loop.claimed(queue)
        if not (found and self._loop.room(len(self._running))):
            self._rest()

    def _rest(self) -> None:
        """Until a notification, the end of an attempt, or the next check for scheduled jobs."""
        until = time.monotonic() + self._loop.poll
        while not self._loop.ends() and (left := until - time.monotonic()) > 0:
            if self._wake.wait(min(left, _TICK)):
                return

    def _attempt(self, job: Job) -> None:
        try:
            # Until the end is written: heartbeats name the attempt for as long.
            with self._loop.heart.running(job):
                try:
                    connection = self._idle.pop()
                except IndexError:
                    connection = psycopg.connect(self._loop.url)
                try:
                    self._weir._attempt(connection, job, self._handle)
                finally:
                    if not connection.closed:
                        self._idle.append(connection)
        except psycopg.Error as error:
            self._loop.lose(job, error)

    def _reap(self) -> None:
        """Forgets attempts that have ended. Raises the error of one that could not be recorded."""
        ended = {attempt for attempt in self._running if attempt.done()}
        self._running -= ended
        for attempt in ended:
            attempt.result()

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()


class _Tasks:
    """Claims in the task of the caller, and works each job in another one."""

    def __init__(self, weir: "AsyncWeir", handle: AsyncHandler, loop: _Loop, wake: asyncio.Event) -> None:
        self._weir, self._handle, self._loop, self._wake = weir, handle, loop, wake
        self._running: set[asyncio.Task[None]] = set()
        self._idle: list[AsyncConnection] = []

    async def work(self) -> None:
        try:
            try:
                await self._claim_until_the_end()
            except asyncio.CancelledError:
                for attempt in self._running:
                    attempt.cancel()
                raise
            finally:
                await asyncio.gather(*self._running, return_exceptions=True)
            self._reap()
        finally:
            await self._close_idle()

    async def _claim_until_the_end(self) -> None:
        while not self._loop.ends():
            try:
                async with await psycopg.AsyncConnection.connect(self._loop.url, autocommit=True) as connection:
                    self._loop.connected()
                    while not self._loop.ends():
                        await self._turn(connection)
            except psycopg.Error as error:
                await self._close_idle()
                await asyncio.sleep(self._loop.pause(error))
        _log.info("worker %s ends after %d running jobs", self._loop.worker, len(self._running))

    async def _turn(self, connection: AsyncConnection) -> None:
        self._wake.clear()
        self._reap()
        while self._loop.lost:
            await self._weir.fail(connection, self._loop.lost[0], "the worker lost its connection")
            self._loop.lost.pop(0)
        found = False
        for queue in list(self._loop.queues):
            if not (room := self._loop.room(len(self._running))):
                break
            jobs = await self._weir.claim(connection, queue, self._loop.worker, room, self._loop.headroom)
            for job in jobs:
                attempt = asyncio.create_task(self._attempt(job))
                self._running.add(attempt)
                attempt.add_done_callback(lambda _: self._wake.set())
            if jobs:
                found = True
                self._loop.claimed(queue)
        if not (found and self._loop.room(len(self._running))):
            await self._rest()

    async def _rest(self) -> None:
        until = time.monotonic() + self._loop.poll
        woken = asyncio.create_task(self._wake.wait())
        try:
            while not woken.done() and not self._loop.ends() and (left := until - time.monotonic()) > 0:
                await asyncio.wait([woken], timeout=min(left, _TICK))
        finally:
            woken.cancel()

    async def _attempt(self, job: Job) -> None:
        async def work() -> Any:
            made: Any = self._handle(connection, job)
            if not inspect.isawaitable(made):
                raise TypeError("the handler is synchronous; use Weir")
            return await made

        try:
            connection = self._idle.pop() if self._idle else await psycopg.AsyncConnection.connect(self._loop.url)
            try:
                handler = _Stoppable(work)
                with self._loop.heart.running(job, handler.stop):
                    await self._weir._attempt(connection, job, handler)
            finally:
                if not connection.closed:
                    self._idle.append(connection)
        except psycopg.Error as error:
            self._loop.lose(job, error)

    def _reap(self) -> None:
        ended = {attempt for attempt in self._running if attempt.done()}
        self._running -= ended
        for attempt in ended:
            attempt.result()

    async def _close_idle(self) -> None:
        while self._idle:
            await self._idle.pop().close()


def _options(
    key: str | None,
    run_at: datetime | str | None,
    priority: int | None,
    tags: Sequence[str] | None,
    metadata: dict[str, Any] | None,
    expires_in: int | None,
) -> Jsonb:
    if isinstance(run_at, datetime):
        run_at = _with_zone(run_at).isoformat()
    options = {
        "idempotency_key": key,
        "run_at": run_at,
        "priority": priority,
        "tags": None if tags is None else list(tags),
        "metadata": metadata,
        "expires_in": expires_in,
    }
    return Jsonb({name: value for name, value in options.items() if value is not None})


def _text(value: object) -> str | None:
    if isinstance(value, Jsonb):
        return json.dumps(value.obj)
    return None if value is None else str(value)


def _submitted(row: Any) -> Submitted:
    """The answer in columns of text."""
    outcome, job_id, quota = row
    return Submitted(outcome, job_id and int(job_id), quota and json.loads(quota))


def _sqlalchemy(text: str, values: list[str | None]) -> tuple[Any, dict[str, str | None]]:
    # The caller has it. A type checker need not.
    sqlalchemy = importlib.import_module("sqlalchemy")
    return sqlalchemy.text(text), {f"p{at}": value for at, value in enumerate(values, start=1)}


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

    def __init__(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._work = work
        self._task: asyncio.Task[Any] | None = None
        self._loop = asyncio.get_running_loop()
        self._reason: str | None = None

    def stop(self, reason: str) -> None:
        """Called from another thread. A handler that is done is not disturbed."""
        self._reason = reason
        _soon(self._loop, self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def result(self) -> Any:
        """Runs the handler. It starts here, so a worker that is cancelled earlier leaves no handler behind."""
        task = self._task = asyncio.create_task(self._work())
        if self._reason is not None:
            task.cancel()
        try:
            # Shielded, so that a cancellation of the worker itself is not taken for a stop.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                # A handler that stops already is not disturbed again.
                if self._reason is None:
                    task.cancel()
                await asyncio.wait([task])
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


def _fit(rows: list[TupleRow]) -> str:
    """Returns the channel of notifications. Raises `WrongVersion` if the database or this client is too old for the
    other."""
    if not rows:
        raise WrongVersion(
            "upgrade the database with `weir migrate`, or name Weir's schema: there is no function weir_version"
        )
    # An older database has fewer columns, a newer one more.
    upgrade, oldest_client, *rest = rows[0]
    if upgrade < _UPGRADE:
        raise WrongVersion(
            f"upgrade the database with `weir migrate`: it has upgrade {upgrade} of Weir's schema, and this client "
            f"needs {_UPGRADE}"
        )
    if oldest_client > _UPGRADE:
        raise WrongVersion(
            f"upgrade this client: it is made for upgrade {_UPGRADE} of Weir's schema, and the database serves clients "
            f"from {oldest_client} on"
        )
    return str(rest[0])


def _for_psycopg(url: str) -> str:
    """The URL without the driver that SQLAlchemy's URLs may name."""
    return re.sub(r"^(postgres(?:ql)?)\+\w+://", r"\1://", url)


def _worker() -> str:
    """A name that no other worker has, even on a host with the same name and process ids, such as a container."""
    host = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in socket.gethostname()[:40])
    return f"python.{host}.{os.getpid()}.{uuid.uuid4().hex[:12]}"


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Calls it in the loop, from another thread. A closed loop needs no calls."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call)


class _Signals:
    """SIGTERM and SIGINT, for all workers of the process that end by them."""

    def __init__(self) -> None:
        self._workers = 0
        self._arrived: list[bool] = []
        self._before: dict[signal.Signals, Any] = {}

    @contextmanager
    def arrived(self) -> Iterator[list[bool]]:
        """A list that is not empty once a signal has arrived, even before this call, as long as other workers have not
        ended. It is no event, because the interrupted code may hold the lock of an event."""
        if self._workers == 0:
            self._arrived = []
            self._before = {number: signal.signal(number, self._arrive) for number in (signal.SIGTERM, signal.SIGINT)}
        self._workers += 1
        try:
            yield self._arrived
        finally:
            self._workers -= 1
            if self._workers == 0:
                for number, handler in self._before.items():
                    signal.signal(number, handler or signal.SIG_DFL)

    def _arrive(self, *_: object) -> None:
        self._arrived.append(True)


_signals = _Signals()


@contextmanager
def _ending(stop: Stop | None, until: Callable[[], bool], on_signals: bool) -> Iterator[Callable[[], bool]]:
    """Whether the work has to end."""
    signals: AbstractContextManager[list[bool]] = _signals.arrived() if on_signals else nullcontext([])
    with signals as arrived:
        yield lambda: bool(arrived) or (stop is not None and stop.is_set()) or until()


def _log_failure(job: Job, error: Exception) -> None:
    _log.warning("job %s, attempt %s failed", job.id, job.attempt, exc_info=error)


def _storable(text: str) -> str:
    """The text without what PostgreSQL cannot store: NUL, and halves of surrogate pairs."""
    return text.replace("\0", "").encode(errors="replace").decode()


__all__ = [
    "AsyncSubmits",
    "AsyncWeir",
    "FencedOut",
    "Job",
    "Stop",
    "Stopped",
    "Submits",
    "Submitted",
    "Weir",
    "WrongVersion",
]
