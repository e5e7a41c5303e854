-- Readers go on; whoever books waits. Locks in the order in which a reservation touches the tables.
LOCK TABLE holders, quota_reservations, quota_balances, usage_events IN SHARE ROW EXCLUSIVE MODE;

INSERT INTO holders (holder, event_type, user_id)
SELECT DISTINCT ON (holder, event_type) holder, event_type, user_id FROM quota_reservations
ON CONFLICT (holder, event_type) DO NOTHING;
UPDATE holders h
SET slots_in_use = coalesce(r.slots, 0), parked = coalesce(r.parked, 0)
FROM holders k
LEFT JOIN (SELECT holder, event_type, count(admitted_at) AS slots, count(parked_at) AS parked
           FROM quota_reservations GROUP BY 1, 2) r USING (holder, event_type)
WHERE h.holder = k.holder AND h.event_type = k.event_type
  AND (h.slots_in_use <> coalesce(r.slots, 0) OR h.parked <> coalesce(r.parked, 0));

INSERT INTO quota_balances (user_id, event_type, period_start)
SELECT user_id, event_type, period_start FROM usage_events
UNION
SELECT user_id, event_type, period_start FROM quota_reservations WHERE user_id IS NOT NULL
ON CONFLICT (user_id, event_type, period_start) DO NOTHING;
UPDATE quota_balances b
SET used = coalesce(u.used, 0), reserved = coalesce(r.reserved, 0)
FROM quota_balances k
LEFT JOIN (SELECT user_id, event_type, period_start, sum(quota_amount) AS used
           FROM usage_events GROUP BY 1, 2, 3) u USING (user_id, event_type, period_start)
LEFT JOIN (SELECT user_id, event_type, period_start, sum(reserved_amount) AS reserved
           FROM quota_reservations WHERE user_id IS NOT NULL GROUP BY 1, 2, 3) r
    USING (user_id, event_type, period_start)
WHERE b.user_id = k.user_id AND b.event_type = k.event_type AND b.period_start = k.period_start
  AND (b.used <> coalesce(u.used, 0) OR b.reserved <> coalesce(r.reserved, 0));
