-- A heartbeat tells workers of any language which attempts are overdue.
ALTER TABLE weir_services ADD COLUMN timeout double precision;
COMMENT ON COLUMN weir_services.timeout IS
    'The time that an attempt may take, in seconds. A longer one is overdue.';
ALTER TYPE submission ADD ATTRIBUTE tags text[];
DROP FUNCTION IF EXISTS weir_claim(text, text, int);
DROP FUNCTION IF EXISTS weir_heartbeat(text);
DROP FUNCTION IF EXISTS claim_jobs(text, text[], text[], int[], timestamptz[]);
