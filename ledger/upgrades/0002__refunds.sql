-- Grants can be taken back, down to what is used or reserved of them. A change of plan keeps the anchor that its event
-- asked for, so that the plan can return to it when a later subscription ends.
ALTER TABLE grants DROP CONSTRAINT grants_amount_check, ADD CONSTRAINT grants_amount_check CHECK (amount >= 0);
COMMENT ON COLUMN grants.amount IS
    'The whole amount, in units of the meter. A grant that was taken back keeps what was used or reserved of it.';

ALTER TABLE plan_changes
    ADD COLUMN anchor timestamptz,
    ADD CONSTRAINT plan_changes_anchor_exists CHECK (isfinite(anchor));
COMMENT ON COLUMN plan_changes.anchor IS
    'The anchor of the billing periods that the event asked for, if it named a paid period.';

DROP FUNCTION IF EXISTS plan_change_refusal(uuid, text, timestamptz, text);
