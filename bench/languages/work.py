"""The workers in Python of `npm run -s bench -- languages`: `weir`, or `bare` for the same loop with plain SQL."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../clients/python"))
from weir import Job, Weir  # noqa: E402

CLAIM = """UPDATE river_job SET state = 'running', attempt = attempt + 1, attempted_at = now(),
    attempted_by = array_append(attempted_by, %s)
WHERE id IN (SELECT id FROM river_job WHERE state = 'available' AND queue = %s
             ORDER BY priority, scheduled_at, id LIMIT %s FOR UPDATE SKIP LOCKED)
RETURNING id, attempt, kind, args"""
COMPLETE = "UPDATE river_job SET state = 'completed', finalized_at = now() WHERE id = %s AND attempt = %s AND state = 'running'"


class Bare(Weir):
    def claim(self, connection, queue, worker, most=1, headroom=1):
        return [Job(*row) for row in connection.execute(CLAIM, (worker, queue, most)).fetchall()]

    def complete(self, connection, job, output=None, used=None):
        return connection.execute(COMPLETE, (job.id, job.attempt)).rowcount


def handle(connection, job):
    connection.execute("INSERT INTO results (number) VALUES (%s)", (job.id,))


worker = Weir() if sys.argv[1] == "weir" else Bare()
worker.work(os.environ["DATABASE_URL"], ["analysis_default"], handle, concurrency=20)
