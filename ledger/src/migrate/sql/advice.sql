-- Advice about rights that `weir migrate` cannot or must not change.
-- Parameters: $1 the schema of Weir's tables, $2 whether they are new.
SELECT format('the roles %s do not exist, and the role %s may not create them; as a superuser or a role with CREATEROLE, '
              'run: %s then run `weir migrate` again. Until then, all of Weir''s processes work, and only %2$s can call '
              'Weir''s functions in SQL',
              string_agg(r, ', '), quote_ident(current_user), string_agg(format('CREATE ROLE %s NOLOGIN;', r), ' ')) AS advice
FROM unnest(ARRAY['weir_submitter', 'weir_worker']) AS r
WHERE to_regrole(r) IS NULL
HAVING count(*) > 0
UNION ALL
SELECT format('%s may create objects in schema %I, which Weir''s functions would use with their owner''s rights; '
              'move Weir to a separate schema (WEIR_SCHEMA=weir), or run: REVOKE CREATE ON SCHEMA %2$I FROM %1$s',
              CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, n.nspname)
FROM pg_namespace n
CROSS JOIN LATERAL aclexplode(n.nspacl) a
WHERE n.nspname = $1 AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner
  AND (a.grantee = 0 OR NOT pg_has_role(a.grantee, 'USAGE'))
UNION ALL
SELECT format('schema %1$I has the name of the role %1$I. If your product connects as this role, Weir''s tables hide your '
              'tables of the same names, and your new tables go into this schema. Then use another role, or run: '
              'ALTER ROLE %1$I SET search_path = public', r.rolname)
FROM pg_roles r
WHERE $2 AND r.rolname = $1 AND r.rolcanlogin
