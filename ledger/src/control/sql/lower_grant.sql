-- Lowers a grant, but not below what is used or reserved. Returns no row if it stays unchanged.
-- Parameters: $1 grant, $2 the new amount; 0 also ends the grant.
UPDATE grants g
SET amount = least(g.amount, greatest($2, g.reserved + g.used)),
    expires_at = CASE WHEN $2 = 0 THEN least(g.expires_at, now()) ELSE g.expires_at END
WHERE g.id = $1 AND (g.amount > greatest($2, g.reserved + g.used)
                     OR $2 = 0 AND g.reserved > 0 AND (g.expires_at > now()) IS NOT FALSE)
RETURNING *
