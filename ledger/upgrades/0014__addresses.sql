-- Addresses are cleaned without reading the users.
CREATE INDEX holders_of_addresses ON holders (holder, event_type) WHERE user_id IS NULL;
