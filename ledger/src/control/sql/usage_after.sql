-- Usage events after a position, in the order of the transactions that wrote them, up to the oldest open transaction.
-- Parameters:
--
-- - $1: the transaction of the last event.
-- - $2: the last event.
-- - $3: how many at most.
-- - $4: the reasons of events without a transaction that are skipped. A reader has seen the events of archived sums, or
--   finds them in a file. Imported events were billed before the import.
-- - $5: the time before which events are skipped (null: none).
--
-- Two index ranges: rows without a transaction (no more are added), and all others.
SELECT e.id, e.user_id, e.event_type, e.quota_amount, e.from_grants, e.overage, e.created_at, e.job_id, e.period_start, e.reason, u.subject,
       coalesce(e.xid::text, '0') AS transaction
FROM (
    (SELECT * FROM usage_events
     WHERE xid IS NULL AND $1::text = '0' AND id > $2::uuid AND NOT (job_id IS NULL AND coalesce(reason = ANY ($4), false))
       AND ($5::timestamptz IS NULL OR created_at >= $5)
     ORDER BY id LIMIT $3)
    UNION ALL
    (SELECT * FROM usage_events
     WHERE xid IS NOT NULL AND xid >= $1::text::xid8 AND (xid > $1::text::xid8 OR id > $2::uuid)
       AND xid < pg_snapshot_xmin(pg_current_snapshot())
       AND ($5::timestamptz IS NULL OR created_at >= $5)
     ORDER BY xid, id LIMIT $3)
) e
LEFT JOIN users u ON u.id = e.user_id
ORDER BY e.xid NULLS FIRST, e.id
LIMIT $3
