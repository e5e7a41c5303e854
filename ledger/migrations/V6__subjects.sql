-- Users are named by any text, not only by UUIDs.

ALTER TABLE users
    ADD COLUMN subject text COLLATE "C" UNIQUE CHECK (octet_length(subject) BETWEEN 1 AND 255);
COMMENT ON COLUMN users.subject IS
    'the text that names the user in tokens and in the arguments of jobs; null when that is the id. The id is made from it';
