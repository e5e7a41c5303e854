-- Changes after a position, in the order of their commits. A position on an earlier timeline may be after the first change
-- of a later one, because ids of lost changes are assigned again. It then moves back to that change.
-- Parameters: $1 the id of the last change, $2 its timeline (null: unknown), $3 how many at most.
-- Cost: two index ranges: the changes of later timelines, and the returned ones.
SELECT l.*, u.subject
FROM admin_log l
LEFT JOIN users u ON u.id = l.holder
WHERE l.id > least($1, (SELECT min(n.id) - 1 FROM admin_log n WHERE n.timeline > $2))
ORDER BY l.id
LIMIT $3
