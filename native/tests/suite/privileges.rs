//! Rights: other database roles can use Weir's objects only by calling its functions through two roles.

use crate::common::others::weir;
use crate::common::{GO_TESTS, Weir, Who};
use serde_json::json;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;
use weir_ledger::database::Database;
use weir_ledger::migrate::{self, Schema};

/// A role of the server, dropped at the end.
struct Role {
    name: String,
    admin: Client,
}

impl Role {
    /// It can log in, and has no rights.
    async fn new(weir: &Weir) -> Self {
        let name = format!("stranger_{}", Uuid::new_v4().simple());
        let admin = weir.client().await;
        let role = Self { name, admin };
        role.run("CREATE ROLE {} LOGIN PASSWORD 'secret'").await;
        role
    }

    /// Runs a statement as an administrator; `{}` is the role.
    async fn run(&self, sql: &str) {
        self.admin
            .batch_execute(&sql.replace("{}", &self.name))
            .await
            .unwrap();
    }

    async fn connect(&self, weir: &Weir) -> Client {
        let mut config: tokio_postgres::Config = weir.url().parse().unwrap();
        config.user(&self.name).password("secret");
        let (client, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    async fn drop(self) {
        self.run("DROP OWNED BY {} CASCADE; DROP ROLE {}").await;
    }
}

async fn refusal(client: &Client, sql: &str) -> String {
    let error = client.batch_execute(sql).await.expect_err(sql);
    error
        .as_db_error()
        .map_or_else(|| error.to_string(), |db| db.message().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_owner_and_two_roles_may_use_weirs_objects() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let names: Vec<String> = Schema::present()
        .files
        .iter()
        .filter_map(|file| file.path.strip_prefix("functions/"))
        .filter_map(|path| Some(path.split('/').nth(1)?.trim_end_matches(".sql").to_owned()))
        .collect();
    let rows = client
        .query(
            "SELECT p.oid::regprocedure::text AS function, p.proowner::regrole::text AS owner, l.lanname::text AS language, \
                    p.prosecdef AS definer, p.prokind = 'p' AS commits, \
                    (SELECT s FROM unnest(p.proconfig) s WHERE s LIKE 'search_path=%') AS path, \
                    ARRAY(SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END \
                          FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a \
                          WHERE a.grantee <> p.proowner ORDER BY 1) AS callers \
             FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang \
             WHERE p.pronamespace = current_schema()::regnamespace AND p.proname = ANY ($1) ORDER BY 1",
            &[&names],
        )
        .await
        .unwrap();
    assert_eq!(rows.len(), names.len());
    for row in &rows {
        let (function, owner): (&str, &str) = (row.get("function"), row.get("owner"));
        let (language, path): (&str, Option<&str>) = (row.get("language"), row.get("path"));
        let callers: Vec<&str> = row.get("callers");
        println!(
            "{function} | {owner} | {} | {callers:?}",
            path.unwrap_or("that of the caller")
        );
        let for_others = function.starts_with("weir_");
        assert_eq!(
            callers
                .iter()
                .all(|role| ["weir_submitter", "weir_worker"].contains(role))
                && !callers.is_empty(),
            for_others,
            "{function}: {callers:?}"
        );
        // The planner inlines a function in SQL into the calling statement, which has a pinned path. A procedure that
        // commits cannot have a path.
        let is_definer: bool = row.get("definer");
        assert!(
            path.is_some_and(|path| path.ends_with("pg_temp"))
                || (language == "sql" || row.get("commits")) && !is_definer,
            "{function} has no own search_path that ends with pg_temp: {path:?}"
        );
    }
    let others: Vec<String> = client
        .query(
            "SELECT format('%s on %s', a.privilege_type, o.name) FROM ( \
                 SELECT c.relname::text AS name, c.relowner AS owner, \
                        coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 's'::\"char\" ELSE 'r' END, c.relowner)) AS acl \
                 FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'v', 'S') \
                   AND c.relname !~ '^river_' \
                 UNION ALL \
                 SELECT t.typname, t.typowner, coalesce(t.typacl, acldefault('T', t.typowner)) FROM pg_type t \
                 WHERE t.typnamespace = current_schema()::regnamespace AND t.typtype IN ('d', 'e') AND t.typname !~ '^river_' \
             ) o CROSS JOIN LATERAL aclexplode(o.acl) a WHERE a.grantee <> o.owner",
            &[],
        )
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert_eq!(others, Vec::<String>::new());
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_cannot_use_weirs_trigger_functions_on_their_tables() {
    let weir = Weir::with(&[("WEIR_SCHEMA", "weir"), ("RIVER_SCHEMA", "public")]).await;
    let stranger = Role::new(&weir).await;
    stranger.run("GRANT USAGE ON SCHEMA weir TO {}").await;
    let client = stranger.connect(&weir).await;
    client
        .batch_execute("CREATE TEMPORARY TABLE bait (LIKE pg_class)")
        .await
        .unwrap();
    let triggers = weir
        .client()
        .await
        .query(
            "SELECT proname::text FROM pg_proc WHERE pronamespace = 'weir'::regnamespace AND prorettype = 'trigger'::regtype",
            &[],
        )
        .await
        .unwrap();
    assert!(triggers.len() > 10);
    for row in triggers {
        let name: &str = row.get(0);
        let attach = format!("CREATE TRIGGER bait AFTER DELETE ON bait EXECUTE FUNCTION weir.{name}()");
        assert_eq!(
            refusal(&client, &attach).await,
            format!("permission denied for function weir.{name}")
        );
    }
    drop(client);
    stranger.drop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_from_default_privileges_are_revoked_and_named() {
    let weir = Weir::made(&[], async |url| {
        let client = Database::at(url).unwrap().connect().await.unwrap();
        let role = format!("anon_{}", Uuid::new_v4().simple());
        for objects in ["FUNCTIONS", "TABLES", "SEQUENCES", "TYPES"] {
            let grant = format!("ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON {objects} TO {role}");
            client
                .batch_execute(&format!(
                    "DO $$ BEGIN CREATE ROLE {role} NOLOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$; {grant}"
                ))
                .await
                .unwrap();
        }
        let output = self::weir(url, &["migrate"], &[]);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{output:?}");
        for right in ["EXECUTE on weir_submit(", "SELECT, TRIGGER, TRUNCATE, UPDATE on webhooks", "on admin_log_id_seq"] {
            assert!(printed.contains(right), "{right}: {printed}");
        }
        assert!(printed.contains(&format!("from {role}")), "{printed}");
        client.batch_execute(&format!("SET ROLE {role}")).await.unwrap();
        for attempt in [
            "SELECT weir_submit('victim', 'analysis', '{}')",
            "SELECT weir_claim('analysis_default', 'x')",
            "SELECT secret FROM webhooks",
        ] {
            assert!(
                refusal(&client, attempt).await.starts_with("permission denied"),
                "{attempt}"
            );
        }
        client
            .batch_execute(&format!("RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}"))
            .await
            .unwrap();
    })
    .await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_that_the_owner_cannot_revoke_stop_the_migration() {
    let weir = Weir::new().await;
    let (owner, other) = (Role::new(&weir).await, Role::new(&weir).await);
    // A table that an administrator took ownership of by hand, and shared.
    owner
        .run("GRANT ALL ON SCHEMA public TO {}; GRANT ALL ON ALL TABLES IN SCHEMA public TO {}; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {}; GRANT SET ON PARAMETER session_replication_role TO {}")
        .await;
    other.run("GRANT SELECT ON users TO {}").await;
    let mut url = reqwest::Url::parse(weir.url()).unwrap();
    url.set_username(&owner.name).unwrap();
    url.set_password(Some("secret")).unwrap();
    let database = Database::at(url.as_str()).unwrap();
    let error = migrate::migrate(&database).await.unwrap_err().to_string();
    assert!(
        error.contains("run: REVOKE ALL ON TABLE users FROM"),
        "the command that mends it: {error}"
    );
    other.drop().await;
    owner.drop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workers_role_reaches_jobs_of_services_but_not_webhooks() {
    let weir = Weir::with(&[("WEBHOOK_PRIVATE_NETWORKS", "true")]).await;
    let client = weir.client().await;
    client
        .batch_execute(
            "INSERT INTO webhooks (url, events, secret) VALUES ('http://127.0.0.1:9/', '{job.completed}', 'whsec_x'); \
             SELECT deliver(ARRAY[w.id], ARRAY[NULL::uuid], ARRAY['evt_1'], ARRAY['{\"id\": \"evt_1\"}']) FROM webhooks w",
        )
        .await
        .unwrap();
    let row = client
        .query_one("SELECT id, queue FROM river_job", &[])
        .await
        .unwrap();
    let (id, queue): (i64, String) = (row.get(0), row.get(1));
    let worker = Role::new(&weir).await;
    worker.run("GRANT weir_worker TO {}").await;
    let caller = worker.connect(&weir).await;
    let claimed = caller
        .query("SELECT * FROM weir_claim($1, 'x')", &[&queue])
        .await
        .unwrap();
    assert!(claimed.is_empty(), "a delivery was claimed");
    weir.start_elsewhere(id).await;
    for settle in [
        "SELECT outcome FROM weir_complete($1, 1)",
        "SELECT weir_fail($1, 1, 'no')",
        "SELECT weir_progress($1, 1, 0.5)",
        "SELECT outcome FROM weir_extend($1, 1, 5)",
    ] {
        let row = caller.query_one(settle, &[&id]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), "fenced_out", "{settle}");
    }
    let row = client
        .query_one("SELECT state::text FROM river_job", &[])
        .await
        .unwrap();
    assert_eq!(row.get::<_, &str>(0), "running");
    drop(caller);
    worker.drop().await;
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subject_that_is_an_addresss_id_is_refused() {
    let weir = Weir::new().await;
    weir.analyse(Who::Address("198.51.100.9"), "a_test.go", GO_TESTS)
        .await;
    let client = weir.client().await;
    let row = client
        .query_one("SELECT holder::text FROM holders", &[])
        .await
        .unwrap();
    let holder = row.get::<_, String>(0).leak() as &'static str;
    let submit = format!("SELECT weir_submit('{holder}', 'analysis', '{{}}', 60)");
    let refused = refusal(&client, &submit).await;
    assert!(refused.contains("the id of a client address"), "{refused}");
    let unreadable = serde_json::from_value::<weir_policy::subject::Subject>(json!(holder));
    unreadable.expect_err("no assertion and no header names it");
    let id: Uuid = holder.parse().unwrap();
    let insert = "INSERT INTO holders (holder, event_type, user_id) VALUES ($1, 'specview', $1)";
    client
        .execute("INSERT INTO users (id) VALUES ($1)", &[&id])
        .await
        .expect_err("no user has the id of an address");
    client.execute(insert, &[&id]).await.expect_err("nor an account");
    assert_eq!(weir.count("holders").await, 1);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_rights_on_rivers_tables_are_named_before_anything_starts() {
    let weir = Weir::with(&[("WEIR_SCHEMA", "weir"), ("RIVER_SCHEMA", "public")]).await;
    let role = Role::new(&weir).await;
    // Weir's own role, and another role's River.
    role.run(
        "DO $$ DECLARE o record; BEGIN \
             FOR o IN SELECT c.oid::regclass AS name FROM pg_class c \
                      WHERE c.relnamespace = 'weir'::regnamespace AND c.relkind IN ('r', 'v') LOOP \
                 EXECUTE format('ALTER TABLE %s OWNER TO {}', o.name); END LOOP; \
             FOR o IN SELECT p.oid::regprocedure AS name FROM pg_proc p WHERE p.pronamespace = 'weir'::regnamespace LOOP \
                 EXECUTE format('ALTER ROUTINE %s OWNER TO {}', o.name); END LOOP; \
         END $$; ALTER SCHEMA weir OWNER TO {}",
    )
    .await;
    let mut url = reqwest::Url::parse(weir.url()).unwrap();
    url.set_username(&role.name).unwrap();
    url.set_password(Some("secret")).unwrap();
    let schemas = [("WEIR_SCHEMA", "weir"), ("RIVER_SCHEMA", "public")];
    let printed = async |arguments: &[&str]| {
        let output = self::weir(url.as_str(), arguments, &schemas);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for arguments in [&["migrate"][..], &["work"], &["schedule"], &["status"]] {
        let printed = printed(arguments).await;
        for grant in [
            "GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE public.river_job TO",
            "GRANT USAGE ON SEQUENCE public.river_job_id_seq TO",
        ] {
            assert!(printed.contains(grant), "{arguments:?}: {grant}: {printed}");
        }
    }
    // The commands that it prints.
    let grants = printed(&["status"]).await;
    let grants = grants.split_once("ask their owner to run: ").unwrap().1.trim();
    role.run(grants).await;
    let output = self::weir(url.as_str(), &["status"], &schemas);
    assert!(output.status.success(), "{output:?}");
    role.run("DO $$ BEGIN EXECUTE format('REASSIGN OWNED BY {} TO %I', current_user); END $$")
        .await;
    role.drop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordinary_role_installs_weir_and_works_with_it() {
    let weir = Weir::made(&[], async |url| {
        let client = Database::at(url).unwrap().connect().await.unwrap();
        let role = format!("product_{}", Uuid::new_v4().simple());
        client
            .batch_execute(&format!(
                "CREATE ROLE {role} LOGIN PASSWORD 'secret'; GRANT ALL ON SCHEMA public TO {role}"
            ))
            .await
            .unwrap();
        let mut own = reqwest::Url::parse(url).unwrap();
        own.set_username(&role).unwrap();
        own.set_password(Some("secret")).unwrap();
        for arguments in [&["migrate"][..], &["migrate"], &["status"]] {
            let output = self::weir(own.as_str(), arguments, &[]);
            assert!(output.status.success(), "{arguments:?}: {output:?}");
        }
        let (product, connection) = tokio_postgres::connect(own.as_str(), NoTls).await.unwrap();
        tokio::spawn(connection);
        for work in [
            "SELECT outcome FROM weir_submit('anne', 'analysis', '{}')",
            "SELECT outcome FROM weir_complete((SELECT job_id FROM weir_claim('analysis_default', 'x')), 1)",
        ] {
            product.query_one(work, &[]).await.unwrap();
        }
        let audit = self::weir(own.as_str(), &["audit"], &[]);
        assert!(audit.status.success(), "{audit:?}");
        drop(product);
        client
            .batch_execute(&format!(
                "DO $$ BEGIN EXECUTE format('REASSIGN OWNED BY {role} TO %I', current_user); END $$; \
                 DROP OWNED BY {role}; DROP ROLE {role}"
            ))
            .await
            .unwrap();
    })
    .await;
    weir.abandon().await;
}
