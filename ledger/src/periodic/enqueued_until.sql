-- The database's clock, and the time until which a periodic job is enqueued. An unknown job starts now. A job that is
-- enqueued until a future time also starts now: the clock was ahead, and its ticks are created at their time. A
-- difference of less than a minute counts as a clock correction.
-- Parameters: $1 its id.
WITH begun AS (
    INSERT INTO periodic_jobs AS p (id, enqueued_until)
    SELECT $1::text, clock_timestamp()
    WHERE NOT EXISTS (SELECT 1 FROM periodic_jobs
                      WHERE id = $1 AND enqueued_until <= clock_timestamp() + interval '1 minute')
    ON CONFLICT (id) DO UPDATE SET enqueued_until = excluded.enqueued_until
        WHERE p.enqueued_until > excluded.enqueued_until + interval '1 minute'
    RETURNING enqueued_until
)
SELECT clock_timestamp() AS now,
       coalesce((SELECT enqueued_until FROM begun), (SELECT enqueued_until FROM periodic_jobs WHERE id = $1),
                clock_timestamp()) AS enqueued_until
