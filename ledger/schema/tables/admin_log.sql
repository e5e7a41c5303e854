CREATE TABLE admin_log (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor text NOT NULL,
    action text NOT NULL,
    holder uuid,
    event_type usage_event_type,
    reason text,
    before jsonb,
    after jsonb,
    timeline int,
    PRIMARY KEY (id)
);

CREATE INDEX admin_log_timeline ON admin_log (timeline, id);

COMMENT ON TABLE admin_log IS
    'The changes by operators and billing. Rows are only added, never changed or deleted.';
COMMENT ON COLUMN admin_log.id IS
    'Increases in commit order, so a reader that resumes after an id misses no rows of the same timeline.';
COMMENT ON COLUMN admin_log.at IS
    'When it was changed.';
COMMENT ON COLUMN admin_log.actor IS
    'key:NAME over HTTP, shell:USER at the command line, weir for scheduled changes.';
COMMENT ON COLUMN admin_log.action IS
    'The change, such as plan, grant or cancel.';
COMMENT ON COLUMN admin_log.holder IS
    'The account that was changed; null when the change concerns no account.';
COMMENT ON COLUMN admin_log.event_type IS
    'The meter, for changes that concern one.';
COMMENT ON COLUMN admin_log.reason IS
    'The reason that the caller gave.';
COMMENT ON COLUMN admin_log.before IS
    'The values before the change.';
COMMENT ON COLUMN admin_log.after IS
    'The values after the change.';
COMMENT ON COLUMN admin_log.timeline IS
    'The server''s timeline, if it reports one. A new timeline may assign the ids of lost rows again.';

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON admin_log
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_log_changes();
CREATE TRIGGER note_timeline BEFORE INSERT ON admin_log
    FOR EACH ROW EXECUTE FUNCTION note_log_timeline();
CREATE TRIGGER serialize_log BEFORE INSERT ON admin_log
    FOR EACH STATEMENT EXECUTE FUNCTION serialize_log();
