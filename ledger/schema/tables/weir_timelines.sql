CREATE TABLE weir_timelines (
    timeline int NOT NULL,
    first_xid xid8 NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (timeline)
);

COMMENT ON TABLE weir_timelines IS
    'The timelines that this database has been on. A replica that takes over starts a new one, and may lack the last commits of the previous one. It assigns their job ids and transaction ids again.';
COMMENT ON COLUMN weir_timelines.timeline IS
    'The number of the server''s timeline.';
COMMENT ON COLUMN weir_timelines.first_xid IS
    'Every transaction of this timeline alone has this id or a later one.';
COMMENT ON COLUMN weir_timelines.seen_at IS
    'When Weir first saw it.';
