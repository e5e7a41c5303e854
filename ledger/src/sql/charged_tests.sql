-- The rendered texts of tests that were charged.
-- Parameters: $1 holder, $2 language, $3 keys. Looks up rows by key.
SELECT c.test_key, c.rendered
FROM specview_cache c
WHERE c.holder = $1 AND c.language = $2 AND c.test_key = ANY ($3)
  AND EXISTS (SELECT 1 FROM usage_events u WHERE u.job_id = c.job_id)
