-- Users with an override in a window that is in force now.
-- Parameters: $1 meter, $2 day, hour or minute.
SELECT count(*) AS holders, min(o.user_id::text) AS example
FROM limit_overrides o
WHERE o.event_type = $1 AND (o.expires_at IS NULL OR o.expires_at > clock_timestamp())
  AND (to_jsonb(o) ->> $2)::bigint >= 0
