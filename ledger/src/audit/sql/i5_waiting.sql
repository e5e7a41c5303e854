-- Holders with parked jobs and a free slot. The transaction that frees a slot also passes it on, so this happens only
-- for moments after a limit was raised.
-- Parameters: $2 seconds that promotion may take after a change of plan or of limits.
SELECT format('holder %s, %s: %s job(s) wait although %s of %s slots are in use',
              h.holder, h.event_type, h.parked, h.slots_in_use, t.slots)
FROM (SELECT * FROM holders WHERE parked > 0) h
LEFT JOIN user_subscriptions s ON s.user_id = h.user_id AND s.status = 'active'
LEFT JOIN LATERAL plan_of(h.user_id, h.event_type, now()) p ON h.user_id IS NOT NULL
CROSS JOIN LATERAL (
    SELECT slots_in_force(h.user_id, p.tier, p.slots, p.own_slots) AS slots
) t
WHERE h.slots_in_use < t.slots AND (SELECT counts_slots FROM weir_settings)
  AND (s.updated_at IS NULL OR s.updated_at <= now() - make_interval(secs => $2))
  AND (s.next_plan_at IS NULL OR s.next_plan_at > now() OR s.next_plan_at <= now() - make_interval(secs => $2))
  AND NOT EXISTS (
      SELECT 1 FROM limit_overrides o
      WHERE o.user_id = h.user_id AND o.event_type = h.event_type
        AND (o.changed_at > now() - make_interval(secs => $2)
             OR o.expires_at > now() - make_interval(secs => $2) AND o.expires_at <= now()))
  AND EXISTS (SELECT 1 FROM quota_reservations r JOIN river_job j ON j.id = r.job_id
              WHERE r.holder = h.holder AND r.event_type = h.event_type AND r.parked_at IS NOT NULL
                AND r.parked_at <= now() - make_interval(secs => $2)
                AND j.state IN ('pending', 'scheduled'))
LIMIT $1
