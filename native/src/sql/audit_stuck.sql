SELECT format('job %s is parked without a reservation', j.id)
FROM submissions s
JOIN river_job j ON j.id = s.job_id
WHERE j.state = 'pending' AND NOT EXISTS (SELECT 1 FROM quota_reservations r WHERE r.job_id = j.id)
UNION ALL
SELECT format('job %s is unfinished and holds nothing', j.id)
FROM submissions s
JOIN river_job j ON j.id = s.job_id
WHERE j.finalized_at IS NULL AND j.state <> 'pending'
  AND NOT EXISTS (SELECT 1 FROM quota_reservations r WHERE r.job_id = j.id)
UNION ALL
SELECT format('holder %s, %s: %s job(s) parked for over 30 s although nothing of theirs runs', h.holder, h.event_type, h.parked)
FROM holders h
WHERE h.parked > 0 AND h.slots_in_use = 0
  AND (SELECT max(r.parked_at) FROM quota_reservations r
       WHERE r.holder = h.holder AND r.event_type = h.event_type AND r.parked_at IS NOT NULL)
      < now() - interval '30 seconds'
LIMIT $1
