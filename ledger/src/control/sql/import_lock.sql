-- Locks the users with new rows and their accounts, and returns them. The users come first, because an account that does
-- not exist yet cannot be locked. A repeated import without changes delays no one.
-- Cost: one read of the copied rows. Waits for the locks.
WITH new AS (
    SELECT u.holder
    FROM (
        SELECT e.user_id FROM pg_temp.import_usage e WHERE e.is_new
        UNION
        SELECT r.user_id FROM pg_temp.import_reservations r WHERE r.is_new
        UNION
        SELECT s.user_id FROM pg_temp.import_subscriptions s
        WHERE s.status = 'active' AND NOT EXISTS (SELECT 1 FROM plan_changes c WHERE c.event_id = s.event_id)
    ) n
    JOIN pg_temp.import_users u ON u.id = n.user_id AND NOT u.is_deleted
), locked AS (
    SELECT k.id FROM users k WHERE k.id IN (SELECT holder FROM new) ORDER BY k.id FOR UPDATE
)
SELECT l.holders, lock_holders(l.holders)
FROM (SELECT coalesce(array_agg(id), '{}') AS holders FROM locked) l
