-- Whether River would claim a job that starts before a time. Jobs of later priorities do not count.
-- Parameters: $1 queue, $2 time, $3 kinds (null: any).
-- The comparison of rows and the order use the index of River's claims.
SELECT EXISTS (
    SELECT
    FROM river_job
    WHERE state = 'available' AND queue = $1 AND (priority, scheduled_at, id) < (1::smallint, $2::timestamptz, 0::bigint)
      AND ($3::text[] IS NULL OR kind = ANY ($3))
    ORDER BY priority, scheduled_at, id
    LIMIT 1
)
