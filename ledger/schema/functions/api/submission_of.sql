-- Checks one submission of an SQL caller, and whether it notifies workers.
-- Errors: as weir_submit.
-- Cost: two look-ups by key.
-- Callers: weir_submit, weir_submit_many.
CREATE OR REPLACE FUNCTION submission_of(subject text, service text, args jsonb, amount bigint, options jsonb,
                                         OUT submission submission, OUT wake boolean)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT
SET standard_conforming_strings = on
AS $$
#variable_conflict use_column
DECLARE
    this_holder CONSTANT uuid := weir_holder(submission_of.subject);
    is_uuid CONSTANT boolean := uuid_of_subject(submission_of.subject) IS NOT NULL;
    wanted record;
    of_service weir_services;
    hash bytea;
BEGIN
    SELECT * INTO wanted FROM submit_options(submission_of.options);
    SELECT * INTO of_service FROM weir_services s WHERE s.name = submission_of.service;
    IF NOT FOUND THEN
        PERFORM raise_no_service(submission_of.service);
    END IF;
    IF jsonb_typeof(args) IS DISTINCT FROM 'object' OR octet_length(args::text) > 262144 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the arguments must be a JSON object of at most 256 KiB';
    END IF;
    -- Workers cannot read more.
    IF json_depth(args) > 127 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the arguments must be nested at most 127 levels deep';
    END IF;
    -- As in a token of the same user.
    args := args || jsonb_build_object(
        'user_id', CASE WHEN is_uuid THEN this_holder::text ELSE submission_of.subject END);
    IF wanted.idempotency_key IS NOT NULL THEN
        hash := sha256(convert_to(of_service.name, 'UTF8') || '\x00' || convert_to(args::text, 'UTF8')
                       || convert_to(concat_ws('/', coalesce(submission_of.amount::text, ''), wanted.priority,
                                               extract(epoch FROM wanted.asked_for), nullif(wanted.metadata, '{}'), wanted.tags),
                                     'UTF8'));
    END IF;
    IF of_service.expires_in IS NOT NULL AND NOT wanted.metadata ? 'weir:expires_in' THEN
        wanted.metadata := wanted.metadata || jsonb_build_object('weir:expires_in', of_service.expires_in);
    END IF;
    wake := wanted.wake;
    submission := ROW(
        this_holder, this_holder, CASE WHEN NOT is_uuid THEN submission_of.subject END, of_service.name,
        of_service.event_type, of_service.kind, of_service.max_attempts, args, wanted.metadata, wanted.priority,
        amount_of(of_service, args, submission_of.amount), wanted.run_at, wanted.idempotency_key, hash,
        unique_key_of(this_holder, of_service.kind, args, of_service.unique_by), wanted.tags)::submission;
END
$$;
