CREATE TABLE admin_requests (
    holder uuid NOT NULL,
    idempotency_key text NOT NULL,
    request jsonb NOT NULL,
    answer jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (holder, idempotency_key)
);

COMMENT ON TABLE admin_requests IS
    'Answers of /admin requests that had an Idempotency-Key, so that a repeated request changes nothing.';
COMMENT ON COLUMN admin_requests.holder IS
    'The user of the changed account.';
COMMENT ON COLUMN admin_requests.idempotency_key IS
    'The caller''s Idempotency-Key.';
COMMENT ON COLUMN admin_requests.request IS
    'The request. Another request with the same key is refused.';
COMMENT ON COLUMN admin_requests.answer IS
    'The response.';
COMMENT ON COLUMN admin_requests.created_at IS
    'When the request was first made.';
