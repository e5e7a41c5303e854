-- ADR-21's reservations: the jobs that hold quota.
CREATE OR REPLACE VIEW quota_reservations AS
SELECT lpad(to_hex(job_id), 32, '0')::uuid AS id, user_id, event_type, reserved_amount, job_id, expires_at,
       reserved_at AS created_at, holder, period_start, admitted_at, parked_at, windows, from_grants, due_at, progress,
       overage, start_by
FROM weir_jobs
WHERE ended_at IS NULL;

COMMENT ON VIEW quota_reservations IS
    'The jobs that hold quota, as ADR-21 names them: one row per unfinished job. See weir_jobs for the columns.';
COMMENT ON COLUMN quota_reservations.id IS
    'The job''s id as a UUID.';
COMMENT ON COLUMN quota_reservations.created_at IS
    'The moment that decided in which windows it counts.';
