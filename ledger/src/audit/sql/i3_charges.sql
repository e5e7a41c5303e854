-- Compares the charge of each finished job with a user to the charge it should have. Skips jobs with a reservation,
-- which are not settled yet. For a job that was charged and ran again, the metadata has the usage of the last attempt,
-- which was not charged.
-- Parameters: $2 seconds that a settlement may take.
SELECT format('job %s (%s) of user %s: charged %s time(s), %s in all, should be %s',
              f.id, f.state, f.user_id, f.times, f.charged, f.due)
FROM (
    SELECT j.id, j.state, s.user_id, s.reserved_amount,
           EXISTS (SELECT 1 FROM usage_events u WHERE u.job_id = j.id AND u.created_at < j.attempted_at) AND j.attempt > 1 AS ran_again,
           (SELECT count(*) FROM usage_events u WHERE u.job_id = j.id) AS times,
           (SELECT coalesce(sum(u.quota_amount), 0) FROM usage_events u WHERE u.job_id = j.id) AS charged,
           CASE WHEN j.state = 'completed' THEN charge_of(s.reserved_amount, used_of(j.metadata)) ELSE 0 END AS due
    FROM weir_jobs s
    JOIN river_job j ON j.id = s.job_id
    WHERE EXISTS (SELECT 1 FROM users u WHERE u.id = s.user_id) AND j.finalized_at <= now() - make_interval(secs => $2)
      AND s.submitted_at IS NOT NULL AND s.ended_at IS NOT NULL
) f
WHERE f.charged <> f.due AND NOT f.ran_again OR f.times > 1
LIMIT $1
