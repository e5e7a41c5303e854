-- The changes that restrict the use of Weir's objects to the owner and the two roles for other languages. Default
-- privileges, and PostgreSQL's own, give others rights on every new object.
--
-- Each row is a command, and a description of the revoked rights. The description is null for a grant, and for
-- PostgreSQL's own rights of PUBLIC. No row: nothing to do. Rights on the schema itself, which another program may own,
-- are only reported.
--
-- The names in braces are replaced by literals: the schema, and the names of Weir's functions, relations and types.
WITH allowed (name, role) AS (
    VALUES ('weir_submit', 'weir_submitter'), ('weir_submit_many', 'weir_submitter'), ('weir_quota', 'weir_submitter'),
           ('weir_charge', 'weir_submitter'), ('weir_retry', 'weir_submitter'),
           ('weir_holder', 'weir_submitter'), ('weir_holder', 'weir_worker'),
           ('weir_version', 'weir_submitter'), ('weir_version', 'weir_worker'),
           ('weir_claim', 'weir_worker'), ('weir_complete', 'weir_worker'), ('weir_fail', 'weir_worker'),
           ('weir_settle_many', 'weir_worker'),
           ('weir_progress', 'weir_worker'), ('weir_extend', 'weir_worker'), ('weir_admit', 'weir_worker'),
           ('weir_release', 'weir_worker'), ('weir_heartbeat', 'weir_worker')
), schema AS (
    SELECT n.* FROM pg_namespace n WHERE n.nspname = {weir}
), relations AS (
    SELECT c.* FROM pg_class c JOIN schema n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v') AND c.relname = ANY ({relations}::text[])
), objects AS (
    SELECT 'ROUTINE' AS kind, p.oid::regprocedure::text AS object, p.proname::text AS name, p.proowner AS owner,
           coalesce(p.proacl, acldefault('f', p.proowner)) AS rights
    FROM pg_proc p JOIN schema n ON n.oid = p.pronamespace
    WHERE p.proname = ANY ({functions}::text[]) AND pg_has_role(p.proowner, 'USAGE')
    UNION ALL
    SELECT 'TABLE', r.oid::regclass::text, r.relname, r.relowner, coalesce(r.relacl, acldefault('r', r.relowner))
    FROM relations r
    UNION ALL
    SELECT 'TABLE', r.oid::regclass::text, r.relname, r.relowner, a.attacl
    FROM relations r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attacl IS NOT NULL
    UNION ALL
    SELECT 'SEQUENCE', s.oid::regclass::text, s.relname, s.relowner, coalesce(s.relacl, acldefault('s', s.relowner))
    FROM relations r
    JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = r.oid AND d.classid = 'pg_class'::regclass
    JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
    UNION ALL
    SELECT CASE t.typtype WHEN 'd' THEN 'DOMAIN' ELSE 'TYPE' END, t.oid::regtype::text, t.typname, t.typowner,
           coalesce(t.typacl, acldefault('T', t.typowner))
    FROM pg_type t JOIN schema n ON n.oid = t.typnamespace
    WHERE t.typtype IN ('d', 'e') AND t.typname = ANY ({relations}::text[])
), foreign_rights AS (
    SELECT o.kind, o.object, a.grantee, string_agg(DISTINCT a.privilege_type, ', ') AS rights
    FROM objects o CROSS JOIN LATERAL aclexplode(o.rights) a
    WHERE a.grantee <> o.owner
      AND NOT (o.kind = 'ROUTINE' AND EXISTS (
          SELECT 1 FROM allowed w WHERE w.name = o.name AND to_regrole(w.role) = a.grantee))
    GROUP BY 1, 2, 3
), commands AS (
    SELECT 1 AS n, format('REVOKE ALL ON %s %s FROM %s', f.kind, f.object, g.grantee) AS command,
           CASE WHEN f.grantee <> 0 THEN format('%s on %s from %s', f.rights, f.object, g.grantee) END AS taken
    FROM foreign_rights f
    CROSS JOIN LATERAL (SELECT CASE f.grantee WHEN 0 THEN 'PUBLIC' ELSE f.grantee::regrole::text END AS grantee) g
    UNION ALL
    SELECT 2, format('GRANT EXECUTE ON ROUTINE %s TO %I', o.object, w.role), NULL
    FROM objects o JOIN allowed w ON o.kind = 'ROUTINE' AND w.name = o.name
    WHERE NOT EXISTS (SELECT 1 FROM aclexplode(o.rights) a WHERE a.grantee = to_regrole(w.role))
      AND to_regrole(w.role) IS NOT NULL
    UNION ALL
    SELECT DISTINCT 3, format('GRANT USAGE ON SCHEMA %I TO %I', n.nspname, w.role), NULL
    FROM schema n CROSS JOIN allowed w
    WHERE NOT EXISTS (SELECT 1 FROM aclexplode(n.nspacl) a
                      WHERE a.grantee = to_regrole(w.role) AND a.privilege_type = 'USAGE')
      AND NOT EXISTS (SELECT 1 FROM aclexplode(n.nspacl) a WHERE a.grantee = 0 AND a.privilege_type = 'USAGE')
      AND to_regrole(w.role) IS NOT NULL
)
SELECT command, taken FROM commands ORDER BY n, command
