"""Submits jobs to Weir and works them, in transactions of the caller's own (psycopg 3).

A job that is submitted is there when, and only when, the caller commits; so is what a worker writes and the completion of
its job. Limits hold across all programs and languages, since the database decides.
"""

import os
import socket
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb


class FencedOut(Exception):
    """Another worker has the job by now: what this attempt did is rolled back."""


@dataclass(frozen=True)
class Submitted:
    """The answer to a submission: admitted, parked, repeated, folded, over_quota, too_large, too_many_waiting or
    key_reused."""

    outcome: str
    job_id: int | None
    quota: dict | None


@dataclass(frozen=True)
class Job:
    """An attempt at a job."""

    id: int
    attempt: int
    kind: str
    args: dict
    created_at: datetime | None = None


class Weir:
    """Calls Weir's functions, in its schema or where search_path leads."""

    def __init__(self, schema=None):
        self._schema = schema

    def _call(self, connection, function, *values):
        name = sql.Identifier(self._schema, function) if self._schema else sql.Identifier(function)
        marks = sql.SQL(", ").join(sql.Placeholder() * len(values))
        return connection.execute(sql.SQL("SELECT * FROM {}({})").format(name, marks), values)

    def submit(self, connection, subject, service, args, amount=None, *, key=None, run_at=None, priority=None):
        """Submits a job inside the connection's transaction. The user's row stays locked until it ends: commit soon."""
        at = run_at.isoformat() if isinstance(run_at, datetime) else run_at
        options = {"idempotency_key": key, "run_at": at, "priority": priority}
        options = {name: value for name, value in options.items() if value is not None}
        values = (subject, service, Jsonb(args), amount, Jsonb(options))
        return Submitted(*self._call(connection, "weir_submit", *values).fetchone())

    def complete(self, connection, job, output=None, used=None):
        """Completes an attempt inside the transaction, and returns what was charged."""
        output = None if output is None else Jsonb(output)
        outcome, charged = self._call(connection, "weir_complete", job.id, job.attempt, output, used, job.created_at).fetchone()
        if outcome == "fenced_out":
            raise FencedOut(job.id)
        return charged

    def fail(self, connection, job, error, retry_at=None):
        """Records a failed attempt inside the transaction: retry, discarded, cancelled or fenced_out."""
        values = (job.id, job.attempt, _storable(str(error)), retry_at, job.created_at)
        return self._call(connection, "weir_fail", *values).fetchone()[0]

    def progress(self, connection, job, fraction, message=None):
        """Says how far an attempt is, from 0 to 1. Over a connection with autocommit: nobody sees it before a commit."""
        values = (job.id, job.attempt, float(fraction), message, job.created_at)
        return self._call(connection, "weir_progress", *values).fetchone()[0]

    def extend(self, connection, job, more):
        """Reserves more for a job that runs. False is over the quota, and changes nothing."""
        outcome, _ = self._call(connection, "weir_extend", job.id, job.attempt, more, job.created_at).fetchone()
        if outcome == "fenced_out":
            raise FencedOut(job.id)
        return outcome == "extended"

    def claim(self, connection, queue, worker, most=1):
        """Begins attempts at jobs that may run now. Commit before you work."""
        return [Job(*row) for row in self._call(connection, "weir_claim", queue, worker, most)]

    def work(self, url, queues, handle, *, river_schema="public", poll=1.0, until=lambda: False):
        """Works jobs one after the other, until `until()`.

        `handle(connection, job)` returns the output, or a pair of output and what was used. What it writes over the
        connection is committed with the job's completion, or rolled back with its failure.
        """
        worker = f"python.{socket.gethostname()[:60]}.{os.getpid()}"
        with psycopg.connect(url, autocommit=True) as idle, psycopg.connect(url) as connection:
            idle.execute(sql.SQL("LISTEN {}").format(sql.Identifier(f"{river_schema}.river_insert")))
            while not until():
                worked = False
                for queue in queues:
                    if until():
                        return
                    # The next queue has its turn after the work: a job that is claimed and waits holds a slot.
                    jobs = self.claim(connection, queue, worker)
                    connection.commit()
                    for job in jobs:
                        self._attempt(connection, job, handle)
                        worked = True
                if not worked:
                    # A submission wakes it, or a freed slot; a job that is due later is found by looking.
                    next(idle.notifies(timeout=poll, stop_after=1), None)

    def _attempt(self, connection, job, handle):
        try:
            with connection.transaction():
                made = handle(connection, job)
                output, used = made if isinstance(made, tuple) else (made, None)
                self.complete(connection, job, output, used)
        except FencedOut:
            pass
        except Exception as error:  # Whatever it is, the job is tried again or given up.
            if connection.closed:
                raise
            with connection.transaction():
                self.fail(connection, job, error)


def _storable(text):
    """The text without what PostgreSQL cannot store: NUL, and halves of surrogate pairs."""
    return text.replace("\0", "").encode(errors="replace").decode()


__all__ = ["FencedOut", "Job", "Submitted", "Weir"]
