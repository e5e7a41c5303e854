-- Whether somebody has a lock of a row of this holder's. $1 the holder.
SELECT (SELECT count(*) FROM holders h WHERE h.holder = $1) > (
    SELECT count(*) FROM (SELECT FROM holders h WHERE h.holder = $1 FOR NO KEY UPDATE SKIP LOCKED) free
) AS is_locked
