-- A slice of the jobs that match a filter, by id.
-- Parameters: $1 the last job of the previous slice, $2 states, $3 kinds (null: all), $4 the holder (null: all), $5 a part
-- of the error as its owner sees it (null: any), $6 seconds since the job ended or was submitted (null: any), $7 the size
-- of a slice, $8 the reason as failures.sql shows it (null: any). Reads the jobs in these states. Deliveries to webhooks
-- are left out.
SELECT j.id
FROM river_job j
WHERE j.id > $1 AND j.state::text = ANY ($2::text[]) AND j.kind <> 'weir:webhook'
  AND ($3::text[] IS NULL OR j.kind = ANY ($3))
  AND ($4::uuid IS NULL OR EXISTS (SELECT FROM weir_jobs s WHERE s.job_id = j.id AND s.holder = $4))
  AND ($5::text IS NULL OR position(lower($5) IN lower(error_of(j.metadata, j.errors))) > 0)
  AND ($8::text IS NULL
       OR left(rtrim(split_part(ltrim(coalesce(error_of(j.metadata, j.errors), ''), E' \r\n'), E'\n', 1), E'\r'),
               300) = $8)
  AND ($6::float8 IS NULL OR coalesce(j.finalized_at, j.created_at) <= now() - make_interval(secs => $6))
ORDER BY j.id
LIMIT $7
