-- Deletes rendered tests that were not requested for half a year.
-- Parameters: $1 how many at most.
DELETE FROM specview_cache c
USING (
    SELECT holder, language, test_key FROM specview_cache
    WHERE created_at < now() - interval '180 days' ORDER BY created_at LIMIT $1
) o
WHERE c.holder = o.holder AND c.language = o.language AND c.test_key = o.test_key
