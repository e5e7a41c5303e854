-- Checks the options of weir_submit:
--
-- - idempotency_key: 1 to 255 bytes.
-- - run_at: with an offset, within 366 days; the past is now.
-- - priority: 1 (first) to 4.
-- - expires_in: seconds, within 366 days. Kept as a member of the metadata.
-- - wake: whether to notify workers at the commit.
-- - tags: River's tags of the job. Null without any.
-- - metadata: members of River's metadata of the job, without those that River and Weir write.
--
-- asked_for is run_at as the caller wrote it, even if it has passed.
-- Errors: 22023 for anything else.
-- Cost: no table.
-- Callers: submission_of.
CREATE OR REPLACE FUNCTION submit_options(options jsonb, OUT idempotency_key text, OUT run_at timestamptz, OUT asked_for timestamptz, OUT priority smallint,
                                          OUT wake boolean, OUT tags text[], OUT metadata jsonb)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
AS $$
DECLARE
    known CONSTANT text[] := ARRAY['expires_in', 'idempotency_key', 'metadata', 'priority', 'run_at', 'tags', 'wake'];
    unknown text;
BEGIN
    options := coalesce(nullif(options, 'null'), '{}');
    IF jsonb_typeof(options) <> 'object' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the options must be a JSON object';
    END IF;
    SELECT string_agg(k, ', ' ORDER BY k) INTO unknown FROM jsonb_object_keys(options) AS k WHERE k <> ALL (known);
    IF unknown IS NOT NULL THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('unknown options: %s', unknown),
            HINT = format('the options are %s', array_to_string(known, ', '));
    END IF;
    IF jsonb_typeof(options -> 'idempotency_key') NOT IN ('string', 'null')
       OR octet_length(options ->> 'idempotency_key') NOT BETWEEN 1 AND 255 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'idempotency_key must be text of 1 to 255 bytes';
    END IF;
    idempotency_key := options ->> 'idempotency_key';
    -- Other than every key of a batch's job. Rust: native/src/api/jobs.rs (own_key).
    IF idempotency_key ~ '#[0-9]{1,2}$' THEN
        idempotency_key := rpad(idempotency_key, 256, '#');
    END IF;
    IF (options ->> 'priority') !~ '^[1-4]$' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'priority must be a number from 1 (first) to 4';
    END IF;
    priority := coalesce(options ->> 'priority', '1')::smallint;
    IF jsonb_typeof(options -> 'wake') NOT IN ('boolean', 'null') THEN
        RAISE invalid_parameter_value USING MESSAGE = 'wake must be true or false';
    END IF;
    wake := coalesce((options ->> 'wake')::boolean, false);
    metadata := coalesce(nullif(options -> 'metadata', 'null'), '{}');
    IF jsonb_typeof(metadata) <> 'object' OR octet_length(metadata::text) > 16384 OR json_depth(metadata) > 127
       OR EXISTS (SELECT FROM jsonb_object_keys(metadata) k
                  WHERE k ~ '^(weir|river):' OR k IN ('cancel_attempted_at', 'output', 'snoozes')) THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'metadata must be a JSON object of at most 16 KiB without members that River or Weir write',
            HINT = 'these are cancel_attempted_at, output, snoozes, and names that start with river: or weir:';
    END IF;
    IF jsonb_typeof(options -> 'expires_in') NOT IN ('number', 'null') OR options ->> 'expires_in' !~ '^[1-9][0-9]{0,7}$'
       OR (options ->> 'expires_in')::int > 31622400 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'expires_in must be a number of seconds from 1 to 31622400 (366 days)';
    ELSIF options ->> 'expires_in' IS NOT NULL THEN
        metadata := metadata || jsonb_build_object('weir:expires_in', options -> 'expires_in');
    END IF;
    IF jsonb_typeof(options -> 'tags') NOT IN ('array', 'null') OR EXISTS (
        SELECT FROM jsonb_array_elements(nullif(options -> 'tags', 'null')) t
        WHERE jsonb_typeof(t) <> 'string' OR t #>> '{}' !~ '^[A-Za-z0-9_][A-Za-z0-9_-]{1,253}[A-Za-z0-9_]$'
    ) OR jsonb_array_length(nullif(options -> 'tags', 'null')) > 100 THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'tags must be at most 100 texts of 3 to 255 letters, digits, "_" and, inside, "-"';
    END IF;
    SELECT array_agg(t) INTO tags FROM jsonb_array_elements_text(nullif(options -> 'tags', 'null')) t;
    run_at := time_of(options ->> 'run_at', 'run_at');
    IF run_at > clock_timestamp() + interval '366 days' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'run_at must be within 366 days';
    END IF;
    asked_for := run_at;
    IF run_at <= clock_timestamp() THEN
        run_at := NULL;
    END IF;
END
$$;
