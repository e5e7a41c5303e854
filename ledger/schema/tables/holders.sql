CREATE TABLE holders (
    holder uuid NOT NULL,
    event_type usage_event_type NOT NULL,
    user_id uuid,
    slots_in_use int NOT NULL DEFAULT 0,
    parked int NOT NULL DEFAULT 0,
    granted_slots int NOT NULL DEFAULT 0,
    has_grants boolean NOT NULL DEFAULT false,
    parked_from bigint NOT NULL DEFAULT 0,
    changes bigint NOT NULL DEFAULT 0,
    generation bigint GENERATED ALWAYS AS (changes / 64) STORED,
    period_start timestamptz,
    used bigint NOT NULL DEFAULT 0,
    reserved bigint NOT NULL DEFAULT 0,
    granted_limit bigint NOT NULL DEFAULT 0,
    from_grants bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (holder, event_type),
    -- The rule of is_address_id(). A table cannot call it, because functions are created after tables.
    CONSTRAINT holders_kind CHECK ((user_id IS NULL) = (get_byte(uuid_send(holder), 8) >= 224)),
    CONSTRAINT holders_parked_check CHECK (parked >= 0),
    CONSTRAINT holders_amounts CHECK (used >= 0 AND reserved >= 0),
    CONSTRAINT holders_slots_in_use_check CHECK (slots_in_use >= 0),
    FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE
)
-- While a session holds an old snapshot, a row moves to another page when its page is full. Each move adds an entry to
-- each index, and the primary key compares it with all earlier ones of the row. The fewer rows share a page, the more
-- versions of each fit, and the fewer changes are moves.
WITH (fillfactor = 30);

COMMENT ON TABLE holders IS
    'The accounts that jobs count against: a user, or an anonymous client address. One row per meter, with its slots and its month. Every reservation and settlement locks this row first, so nothing else needs a lock.';
COMMENT ON COLUMN holders.holder IS
    'The user''s id, or a UUID derived from the client address.';
COMMENT ON COLUMN holders.event_type IS
    'The meter.';
COMMENT ON COLUMN holders.user_id IS
    'The user; null for a client address.';
COMMENT ON COLUMN holders.slots_in_use IS
    'The number of jobs with a slot.';
COMMENT ON COLUMN holders.parked IS
    'The number of jobs that wait for a slot.';
COMMENT ON COLUMN holders.granted_slots IS
    'The limit when a slot was last taken: that of slots, or for a lent worker that of the burst. 2147483647 is unlimited.';
COMMENT ON COLUMN holders.has_grants IS
    'Whether the user ever had a grant of this meter. If not, grants are not looked up.';
COMMENT ON COLUMN holders.parked_from IS
    'No parked job has a smaller id. Promotion starts here, and not at the entries of jobs that it promoted earlier, which stay while a session holds an old snapshot.';
COMMENT ON COLUMN holders.changes IS
    'The number of changes of the counters.';
COMMENT ON COLUMN holders.period_start IS
    'The start of the month that used to from_grants count; null until the next reservation. Other months are in window_balances.';
COMMENT ON COLUMN holders.used IS
    'Charged in this month.';
COMMENT ON COLUMN holders.reserved IS
    'Held by unfinished jobs in this month.';
COMMENT ON COLUMN holders.granted_limit IS
    'The limit when a reservation was last accepted; 9223372036854775807 is unlimited.';
COMMENT ON COLUMN holders.from_grants IS
    'The part of used and reserved that grants pay for.';
COMMENT ON COLUMN holders.generation IS
    'Orders the row''s versions in holders_newest.';

-- While a session holds an old snapshot, every version of a row stays, and a look-up walks over them from the oldest to
-- the newest. This index puts the newest generation last, so a backward scan finds the live version within 64 steps.
-- The planner may prefer the primary key and a sort, so statements that need the index run with enable_sort off.
CREATE INDEX holders_newest ON holders (holder, event_type, generation);

-- For the cleaning of addresses.
CREATE INDEX holders_of_addresses ON holders (holder, event_type) WHERE user_id IS NULL;

CREATE TRIGGER remember_grants BEFORE INSERT ON holders
    FOR EACH ROW WHEN (NEW.user_id IS NOT NULL AND NOT NEW.has_grants)
    EXECUTE FUNCTION remember_grants();
CREATE TRIGGER check_threshold_subscribers BEFORE UPDATE OF used ON holders
    FOR EACH STATEMENT EXECUTE FUNCTION check_threshold_subscribers();
CREATE TRIGGER emit_usage AFTER UPDATE OF used ON holders
    FOR EACH ROW WHEN (current_setting('weir.thresholds', true) = 'thresholds' AND NEW.used > OLD.used)
    EXECUTE FUNCTION emit_usage();
