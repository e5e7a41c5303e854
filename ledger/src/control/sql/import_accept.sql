-- Marks the imported usage and reservations as accepted: the product may have accepted more than the plan allows.
UPDATE quota_balances b
SET granted_limit = b.used + b.reserved - b.from_grants
FROM (
    SELECT u.holder, e.event_type FROM pg_temp.import_usage e JOIN pg_temp.import_users u ON u.id = e.user_id WHERE e.is_new
    UNION
    SELECT u.holder, r.event_type FROM pg_temp.import_reservations r JOIN pg_temp.import_users u ON u.id = r.user_id
    WHERE r.is_open AND r.is_new
) i
WHERE b.user_id = i.holder AND b.event_type = i.event_type AND b.granted_limit < b.used + b.reserved - b.from_grants
