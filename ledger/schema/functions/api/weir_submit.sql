-- Submits a job of a service in `weir.toml` for a user, inside the caller's transaction.
--
-- | parameter | |
-- |---|---|
-- | `subject` | the user: see [identities](../how-to/identities.md). A new user is created on the default plan |
-- | `service` | the service's name |
-- | `args` | a JSON object of at most 256 KiB, nested at most 127 levels deep. Its `user_id` is set |
-- | `amount` | the maximum amount that the job may use, 0 to 10^15. Default: set by the service's handler |
-- | `options` | a JSON object with the members below. Another member is an error |
--
-- | option | |
-- |---|---|
-- | `idempotency_key` | 1 to 255 bytes. The same submission with the same key within 24 hours returns the same job. Another `run_at`, `expires_in`, `priority`, `tags` or `metadata` is another submission. Keys of the HTTP API are compared differently: retry through the interface that you used first |
-- | `run_at` | a time with an offset, such as `2027-01-31T08:00:00Z`, within 366 days. The job reserves its quota now and asks for a slot then. A time in the past means now |
-- | `expires_in` | seconds from now, or from `run_at`, up to 366 days. A job that still waits then, for whatever, is cancelled with the event `job.expired` and returns its quota. Default: the service's `expires_in` |
-- | `priority` | 1, the first, to 4: River's priority within the lane |
-- | `tags` | River's tags of the job: at most 100 texts of 3 to 255 letters, digits, `_` and, inside, `-` |
-- | `metadata` | an object of at most 16 KiB for River's metadata of the job, without the members that River or Weir write |
-- | `wake` | `true` notifies workers at your commit. Default: they find the job within 50 ms. All transactions of the server that notify commit one after the other, each after its flush and the synchronous standby. PostgreSQL then refuses `PREPARE TRANSACTION` with 0A000 if the job is admitted |
--
-- | outcome | |
-- |---|---|
-- | `admitted` | the job has a slot. Workers find it within 50 ms of your commit |
-- | `parked` | accepted. The job waits for a slot or for `run_at` |
-- | `repeated` | `idempotency_key` created this job before, or was folded into it |
-- | `folded` | the user has an unfinished job that equals this one by `unique_by`. Nothing was reserved |
-- | `over_quota` | the quota has no room. Nothing was written. `quota.windows` lists the full windows |
-- | `too_large` | used, reserved and requested would exceed 9223372036854775807. Nothing was written |
-- | `too_many_waiting` | the user has `max_waiting` jobs that wait for a slot, their time or a retry. Nothing was written |
-- | `key_reused` | `idempotency_key` belongs to another submission. Nothing was written |
--
-- Errors: 22023 for invalid arguments. 22003 for a number in a `unique_by` member that no double can hold (1e400).
-- 25000 for another isolation level than READ COMMITTED. P0001 when the user's plan has no limits for the service's
-- meter. A `unique_by` member may be nested 100 levels deep.
--
-- Cost: as submit_many(). It locks the user's account for the service's meter until the transaction ends, so the user's
-- other submissions and settlements wait.
--
-- Callers: other languages, as role weir_submitter.
CREATE OR REPLACE FUNCTION weir_submit(subject text, service text, args jsonb, amount bigint DEFAULT NULL, options jsonb DEFAULT '{}',
                            OUT outcome text, OUT job_id bigint, OUT quota jsonb)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET standard_conforming_strings = on
AS $$
#variable_conflict use_column
DECLARE
    s record;
BEGIN
    PERFORM require_read_committed('weir_submit');
    s := submission_of(weir_submit.subject, weir_submit.service, weir_submit.args, weir_submit.amount, weir_submit.options);
    SELECT m.outcome, m.job_id, m.quota INTO outcome, job_id, quota
    FROM submit_group(ARRAY[s.submission], ARRAY[s.wake], false) m;
END
$$;

COMMENT ON FUNCTION weir_submit IS
    'submits a job in the caller''s transaction; outcome: admitted, parked, repeated, folded, over_quota, too_large, too_many_waiting, key_reused';
