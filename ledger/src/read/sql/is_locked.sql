-- Whether another transaction holds a lock on one of the holder's rows: of a meter, or of the user. $1 holder.
SELECT (SELECT count(*) FROM holders h WHERE h.holder = $1) + (SELECT count(*) FROM users u WHERE u.id = $1)
       > (SELECT count(*) FROM (SELECT FROM holders h WHERE h.holder = $1 FOR NO KEY UPDATE SKIP LOCKED) free)
       + (SELECT count(*) FROM (SELECT FROM users u WHERE u.id = $1 FOR NO KEY UPDATE SKIP LOCKED) free) AS is_locked
