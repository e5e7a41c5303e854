-- Holders with parked jobs and a free slot, from a slice of all waiting holders, and holders with a recently changed
-- subscription or override. Takes no locks, so holders without room are not affected. `n` numbers the slice's rows; the
-- next slice starts at the last one. `has_room` marks holders with room, also if that is a burst that lenders do not know
-- about, because the plan has just got it. Parameters:
--
-- - $1 and $2: the last holder and meter of the previous slice.
-- - $3: the size of a slice.
-- - $4: seconds that count as recent.
--
-- The query jumps from holder to holder in the index of parked reservations. So its cost grows with the slice and not
-- with the number of waiting jobs or holders.
WITH RECURSIVE slice AS (
    (SELECT r.holder, r.event_type, 1 AS n FROM quota_reservations r
     WHERE r.parked_at IS NOT NULL AND (r.holder, r.event_type) > ($1::uuid, $2::usage_event_type)
     ORDER BY r.holder, r.event_type LIMIT 1)
    UNION ALL
    SELECT f.holder, f.event_type, s.n + 1
    FROM slice s
    CROSS JOIN LATERAL (
        SELECT r.holder, r.event_type FROM quota_reservations r
        WHERE r.parked_at IS NOT NULL AND (r.holder, r.event_type) > (s.holder, s.event_type)
        ORDER BY r.holder, r.event_type LIMIT 1
    ) f
    WHERE s.n < $3::int
), candidates AS (
    SELECT holder, event_type, n FROM slice
    UNION ALL
    SELECT h.holder, h.event_type, NULL
    FROM user_subscriptions u
    CROSS JOIN LATERAL (SELECT * FROM holders k WHERE k.holder = u.user_id AND k.parked > 0 OFFSET 0) h
    WHERE u.updated_at > now() - make_interval(secs => $4::float8)
    UNION ALL
    SELECT h.holder, h.event_type, NULL
    FROM limit_overrides o
    CROSS JOIN LATERAL (
        SELECT * FROM holders k WHERE k.holder = o.user_id AND k.event_type = o.event_type AND k.parked > 0 OFFSET 0
    ) h
    WHERE o.changed_at > now() - make_interval(secs => $4::float8)
)
SELECT c.holder, c.event_type, c.n, coalesce(h.parked > 0 AND (h.slots_in_use < t.slots OR t.burst > greatest(h.slots_in_use, t.slots) AND NOT EXISTS (
           SELECT FROM waiting_accounts w WHERE w.event_type = c.event_type AND w.holder = c.holder)), false) AS has_room
FROM candidates c
LEFT JOIN LATERAL (
    SELECT * FROM holders k WHERE k.holder = c.holder AND k.event_type = c.event_type
    ORDER BY k.generation DESC LIMIT 1
) h ON true
CROSS JOIN LATERAL (
    SELECT slots_in_force(h.user_id, p.tier, p.slots, p.own_slots) AS slots, p.burst
    FROM (SELECT) one
    LEFT JOIN LATERAL plan_of(h.user_id, h.event_type, now()) p ON h.user_id IS NOT NULL
) t
