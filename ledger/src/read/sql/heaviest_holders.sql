-- The accounts of users with the most usage in their current month, of any meter. Reads all accounts.
-- Parameters: $1 how many accounts.
SELECT h.holder, (SELECT u.subject FROM users u WHERE u.id = h.user_id) AS subject, h.event_type AS meter, h.used, h.reserved,
       (SELECT t.tier FROM tier_of(h.user_id, now()) t) AS plan
FROM holders h
WHERE h.user_id IS NOT NULL AND h.used > 0 AND h.period_start > now() - interval '1 month'
ORDER BY h.used DESC, h.holder
LIMIT $1
