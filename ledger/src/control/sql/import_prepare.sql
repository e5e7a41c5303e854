-- Finds out which copied rows the database has already.
UPDATE pg_temp.import_users u
SET is_new = NOT was_deleted(u.holder), is_deleted = was_deleted(u.holder)
WHERE u.holder IS NOT NULL AND NOT EXISTS (SELECT 1 FROM users k WHERE k.id = u.holder);
-- A changed row is another event.
UPDATE pg_temp.import_subscriptions s
SET event_id = 'import:' || encode(sha256(convert_to(
        jsonb_build_array(s.user_id, p.tier, extract(epoch FROM s.current_period_start),
                          extract(epoch FROM s.current_period_end), extract(epoch FROM s.updated_at), s.subscription)::text,
        'UTF8')), 'hex')
FROM pg_temp.import_plans p
WHERE p.id = s.plan_id AND s.status = 'active';
-- So is a row that has returned to an earlier state.
UPDATE pg_temp.import_subscriptions s
SET event_id = CASE WHEN split_part(l.event_id, '@', 1) = s.event_id THEN l.event_id
                    ELSE s.event_id || '@' || extract(epoch FROM now()) END
FROM pg_temp.import_users u
CROSS JOIN LATERAL (
    SELECT c.event_id FROM plan_changes c
    WHERE c.user_id = u.holder AND c.event_id LIKE 'import:%' ORDER BY c.recorded_at DESC LIMIT 1
) l
WHERE u.id = s.user_id AND EXISTS (SELECT 1 FROM plan_changes c WHERE c.event_id = s.event_id);
-- The id of an event that has no UUID is derived, so that it is the same in each run.
UPDATE pg_temp.import_usage e
SET event_id = coalesce(uuid_of_subject(e.id), subject_id(w.address_namespace, 'imported usage ' || e.id))
FROM weir_settings w;
UPDATE pg_temp.import_usage e
SET is_new = true
FROM pg_temp.import_users u
WHERE u.id = e.user_id AND NOT u.is_deleted AND NOT EXISTS (SELECT 1 FROM usage_events k WHERE k.id = e.event_id);
-- A reservation of an ended or deleted job is over.
UPDATE pg_temp.import_reservations r
SET is_open = true,
    is_new = NOT EXISTS (SELECT 1 FROM weir_jobs s WHERE s.job_id = j.id AND s.submitted_at IS NOT NULL)
             AND NOT EXISTS (SELECT 1 FROM pg_temp.import_users u WHERE u.id = r.user_id AND u.is_deleted)
FROM river_job j
WHERE j.id = r.job_id AND j.finalized_at IS NULL;
ANALYZE pg_temp.import_users, pg_temp.import_plans, pg_temp.import_subscriptions, pg_temp.import_usage,
        pg_temp.import_reservations;
