-- The newest jobs that match a filter.
-- Parameters: $1 only jobs with a smaller id, $2 states, $3 kinds (null: all), $4 a part of the error (null: any), $5 a
-- holder (null: all), $6 ended, or submitted, at least so many seconds ago. Reads jobs by id until enough match.
-- Deliveries to webhooks are left out.
SELECT j.id, j.kind,
       CASE WHEN j.state = 'pending' AND EXISTS (SELECT 1 FROM outstanding_answers(j.id, j.attempt, j.attempted_by))
            THEN 'running' ELSE j.state::text END AS state,
       j.attempt, j.max_attempts, j.created_at, s.holder, u.subject,
       left(split_part(ltrim(error_of(j.metadata, j.errors), E' \n'), E'\n', 1), 200) AS error
FROM river_job j
LEFT JOIN weir_jobs s ON s.job_id = j.id
LEFT JOIN users u ON u.id = s.user_id
WHERE j.id < $1 AND j.state::text = ANY ($2::text[]) AND j.kind <> 'weir:webhook'
  AND ($3::text[] IS NULL OR j.kind = ANY ($3))
  AND ($4::text IS NULL OR position(lower($4) IN lower(error_of(j.metadata, j.errors))) > 0)
  AND ($5::uuid IS NULL OR s.holder = $5)
  AND ($6::int = 0 OR coalesce(j.finalized_at, j.created_at) <= now() - make_interval(secs => $6))
ORDER BY j.id DESC
LIMIT 50
