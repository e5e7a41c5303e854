-- The database's clock, and until when a periodic job is enqueued; one that was never seen begins now. $1 its id.
WITH begun AS (
    INSERT INTO periodic_jobs (id, enqueued_until)
    SELECT $1::text, clock_timestamp() WHERE NOT EXISTS (SELECT 1 FROM periodic_jobs WHERE id = $1)
    ON CONFLICT DO NOTHING
    RETURNING enqueued_until
)
SELECT clock_timestamp() AS now,
       coalesce((SELECT enqueued_until FROM periodic_jobs WHERE id = $1),
                (SELECT enqueued_until FROM begun), clock_timestamp()) AS enqueued_until
