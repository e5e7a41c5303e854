-- Stores outputs too large for the jobs' metadata. The caller has just completed these jobs. $1 ids, $2 outputs.
INSERT INTO job_outputs AS o (job_id, output)
SELECT * FROM unnest($1::bigint[], $2::jsonb[])
ON CONFLICT (job_id) DO UPDATE SET output = excluded.output
