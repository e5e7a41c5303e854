-- Stores rendered tests for a job, and returns the keys of those that are charged to it. A row stays with another job
-- that was charged for it or is running.
-- Parameters: $1 holder, $2 language, $3 keys, $4 texts, $5 job. Looks up rows by key, in the order of the keys, so that
-- two jobs cannot deadlock.
INSERT INTO specview_cache AS c (holder, language, test_key, rendered, job_id)
SELECT $1, $2, k, t, $5 FROM unnest($3::bytea[], $4::text[]) AS n (k, t) ORDER BY k
ON CONFLICT (holder, language, test_key)
    DO UPDATE SET rendered = excluded.rendered, job_id = excluded.job_id
    WHERE NOT EXISTS (SELECT 1 FROM usage_events u WHERE u.job_id = c.job_id)
      AND (c.job_id = excluded.job_id
           OR NOT EXISTS (SELECT 1 FROM river_job j WHERE j.id = c.job_id AND j.state = 'running'))
RETURNING test_key
