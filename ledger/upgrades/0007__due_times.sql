-- A scheduled change of plan keeps its time: the end of the period that its subscription had when it was received.
ALTER TABLE plan_changes ADD COLUMN due_at timestamptz;
COMMENT ON COLUMN plan_changes.due_at IS
    'When a change at the end of a period takes effect.';
-- The arithmetic of billing_period(). An upgrade calls no functions of Weir.
UPDATE plan_changes c
SET due_at = (k.a + make_interval(months => k.n + 1 - (k.a + make_interval(months => k.n) > k.t)::int)) AT TIME ZONE 'UTC'
FROM (
    SELECT u.event_id, u.a, u.t,
           (12 * (date_part('year', u.t) - date_part('year', u.a)) + date_part('month', u.t) - date_part('month', u.a))::int AS n
    FROM (
        SELECT s.event_id, s.recorded_at AT TIME ZONE 'UTC' AS t,
               coalesce((SELECT a.anchor FROM plan_changes a
                         WHERE a.user_id = s.user_id AND a.subscription = s.subscription AND a.anchor IS NOT NULL
                           AND a.occurred_at <= s.occurred_at
                         ORDER BY a.occurred_at DESC LIMIT 1),
                        (SELECT p.current_period_start FROM user_subscriptions p
                         WHERE p.user_id = s.user_id AND p.status = 'active'),
                        '2000-01-01 00:00:00+00') AT TIME ZONE 'UTC' AS a
        FROM plan_changes s
        WHERE s.effective = 'period_end'
    ) u
) k
WHERE k.event_id = c.event_id;

DROP FUNCTION IF EXISTS plan_change_effect(uuid, text, timestamptz, text, timestamptz);

-- A webhook is disabled only if nothing was delivered while it failed.
ALTER TABLE webhooks ADD COLUMN delivered_at timestamptz;
COMMENT ON COLUMN webhooks.delivered_at IS
    'When an event was last delivered, up to a minute earlier.';
-- Earlier deliveries were not recorded. With this time, failures before the upgrade disable no webhook.
UPDATE webhooks SET delivered_at = now();

-- Webhooks that receive all events also receive the new one.
UPDATE webhooks SET events = events || 'webhook.disabled'::text
WHERE events @> ARRAY['job.completed', 'job.failed', 'job.cancelled', 'quota.threshold', 'quota.renewed', 'plan.changed']
  AND 'webhook.disabled' <> ALL (events);

-- Submissions of the last day whose jobs are gone cannot be told from those that were deleted before this upgrade.
COMMENT ON COLUMN submissions.deleted_at IS
    'When the job ended without a charge, or Weir found that it was deleted.';
UPDATE submissions s SET deleted_at = now()
WHERE s.user_id IS NOT NULL AND s.deleted_at IS NULL AND s.created_at > now() - interval '1 day'
  AND NOT EXISTS (SELECT FROM river_job j WHERE j.id = s.job_id)
  AND NOT EXISTS (SELECT FROM quota_reservations r WHERE r.job_id = s.job_id)
  AND NOT EXISTS (SELECT FROM usage_events u WHERE u.job_id = s.job_id)
  AND NOT EXISTS (SELECT FROM finished_jobs f WHERE f.job_id = s.job_id);
