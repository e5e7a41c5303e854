-- The time until which usage was billed at the last import that had one, if this import has new usage.
SELECT l.after ->> 'billed_until' AS billed_until
FROM admin_log l
WHERE l.action = 'import' AND l.after ->> 'billed_until' IS NOT NULL
  AND EXISTS (SELECT 1 FROM pg_temp.import_usage e WHERE e.is_new)
ORDER BY l.id DESC
LIMIT 1
