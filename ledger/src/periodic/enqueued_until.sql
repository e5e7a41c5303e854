-- The database's clock, and until when a periodic job is enqueued; one that was never seen begins now. So does one that
-- is enqueued until a time that has yet to come: the clock was ahead of itself, and its ticks are made at their time. What
-- is within a minute is a clock that was set right. $1 its id.
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
