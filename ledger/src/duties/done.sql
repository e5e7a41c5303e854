-- Who does the duties, and that they are done. $1 the process.
INSERT INTO duties AS d (process) VALUES ($1)
ON CONFLICT (one) DO UPDATE
SET process = excluded.process, done_at = excluded.done_at,
    since = CASE WHEN d.process = excluded.process THEN d.since ELSE excluded.since END
