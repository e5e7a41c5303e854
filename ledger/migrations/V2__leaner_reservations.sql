-- Every index of this table is written at each reservation and again when a parked job gets its slot. Sums are kept in
-- quota_balances and rows are looked up by job, so the indexes for summing (ADR-21) and by id earn nothing; without
-- them a renewal of expires_at changes no index either.
ALTER TABLE quota_reservations
    DROP CONSTRAINT quota_reservations_pkey,
    DROP CONSTRAINT quota_reservations_job_id_key,
    ADD PRIMARY KEY (job_id);
DROP INDEX quota_reservations_sum;
