//! Every test has its own Weir: a fresh database, the real API, real River workers.

pub mod beside;
pub mod fleet;
pub mod gate;
pub mod later;
pub mod others;
pub mod process;
pub mod programs;
pub mod proxy;
pub mod receiver;
pub mod river_worker;
pub mod sample;
pub mod server;
pub mod services_file;
pub mod skip;
pub mod submissions;
mod template;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use uuid::Uuid;
use weir::api::probes::{self, Probes};
use weir::api::serve;
use weir::config::{Settings, Variables};
use weir::context::Context;
use weir::work::reconcile::Reconciler;
use weir::work::{Role, Working};
use weir_ledger::database::{Database, PreparedClient, Schemas};
use weir_ledger::{audit, catalogue, migrate, plans};
use weir_policy::assertion::{self, AssertionKey, Caller};
use weir_policy::subject::Identity;

use sample::with_samples;
use server::Server;
use services_file::ServicesFile;

/// The plans of the shipped catalogue.
pub const PLANS: [&str; 4] = ["free", "pro", "pro_plus", "enterprise"];

/// The setting for two services that other programs work, and one that Weir works.
pub const EXTERNAL: (&str, &str) = (
    "WEIR_CONFIG",
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/external.toml"),
);

pub const EDGE_SECRET: &str = "a secret of the edge that only tests use";

/// The number of times that a test checks a condition: for about 25 s, which is less than a snooze. On a busy machine,
/// each check also takes longer.
const PATIENCE: u32 = 1000;
const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// A test's own database and settings. The database is dropped at the end.
pub struct Weir {
    pub context: Context,
    pub router: Router,
    pub stopping: CancellationToken,
    server: tokio_postgres::Config,
    name: String,
    variables: Variables,
    /// The services file of this test alone.
    services: Option<ServicesFile>,
    /// The tokens of anonymous jobs, by submitter.
    tokens: Mutex<HashMap<(&'static str, i64), String>>,
}

pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Weir {
    pub async fn new() -> Self {
        Self::with(&[]).await
    }

    /// A Weir with these environment variables in addition to the defaults.
    pub async fn with(pairs: &[(&str, &str)]) -> Self {
        let schema = |variable| {
            let named = pairs.iter().find(|(name, _)| *name == variable);
            named.map(|(_, schema)| (*schema).to_owned())
        };
        let schemas = Schemas {
            weir: schema("WEIR_SCHEMA"),
            river: schema("RIVER_SCHEMA"),
        };
        let weir = match schemas {
            Schemas {
                weir: None,
                river: None,
            } => Self::copied(pairs).await,
            schemas => {
                Self::made(pairs, async |database| {
                    let database = Database::at(database).unwrap().in_schemas(schemas);
                    migrate::migrate(&database).await.unwrap();
                })
                .await
            }
        };
        weir.with_catalogue().await
    }

    /// A Weir with these services.
    pub async fn serving(services: &str, more: &[(&str, &str)]) -> Self {
        let file = ServicesFile::new(services);
        let mut weir = Self::with(&[&[("WEIR_CONFIG", file.name())], more].concat()).await;
        weir.services = Some(file);
        weir
    }

    /// Applies the catalogue of the settings, as `weir migrate` does.
    async fn with_catalogue(self) -> Self {
        let wanted = &self.context.settings.catalogue;
        let mut client = self.client().await;
        catalogue::apply(&mut client, wanted).await.unwrap();
        let settings = &self.context.settings;
        catalogue::services::apply(&mut client, &settings.service_entries(), &settings.rules())
            .await
            .unwrap();
        self
    }

    /// A Weir on a copy of a migrated database.
    async fn copied(pairs: &[(&str, &str)]) -> Self {
        let server = template::server();
        let (name, url) = template::copy(&server).await;
        Self::over(server.parse().unwrap(), name, &url, pairs).await
    }

    /// A Weir on an empty database that `make` migrates.
    pub async fn made(pairs: &[(&str, &str)], make: impl AsyncFnOnce(&str)) -> Self {
        Self::made_on(&template::server(), pairs, make).await
    }

    /// The same on another server.
    async fn made_on(server: &str, pairs: &[(&str, &str)], make: impl AsyncFnOnce(&str)) -> Self {
        let (name, url) = template::empty(server).await;
        make(&url).await;
        Self::over(server.parse().unwrap(), name, &url, pairs).await
    }

    /// A Weir in a new database of this server.
    pub async fn on(server: &Server, pairs: &[(&str, &str)]) -> Self {
        let migrate = async |database: &str| {
            migrate::migrate(&Database::at(database).unwrap()).await.unwrap();
        };
        Self::made_on(&server.url(), pairs, migrate)
            .await
            .with_catalogue()
            .await
    }

    /// Another Weir in the same database, separated by these environment variables. Migrates it.
    pub async fn beside(&self, pairs: &[(&str, &str)]) -> Self {
        migrate::migrate(&self.another(pairs).database).await.unwrap();
        Self::over(self.server.clone(), self.name.clone(), self.url(), pairs).await
    }

    async fn over(server: tokio_postgres::Config, name: String, url: &str, pairs: &[(&str, &str)]) -> Self {
        let mut variables: Variables = BTreeMap::from_iter(
            [
                ("DATABASE_URL", url),
                ("EDGE_SECRET", EDGE_SECRET),
                ("JWT_SECRET", "a secret for tokens that only tests use"),
                ("WEIR_DRAIN_TIMEOUT", "2s"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        variables.extend(
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        let context = with_samples(Context::new(settings(&variables)).unwrap());
        let stopping = CancellationToken::new();
        let metrics = metrics_exporter_prometheus::PrometheusBuilder::new()
            .build_recorder()
            .handle();
        let probes = Probes::new(&context, metrics, stopping.clone());
        let router = serve::router(&context, stopping.clone()).await.unwrap();
        Self {
            router: router.merge(probes::router(Arc::new(probes))),
            context,
            stopping,
            server,
            name,
            variables,
            services: None,
            tokens: Mutex::default(),
        }
    }

    /// Another process on the same database.
    pub fn another(&self, pairs: &[(&str, &str)]) -> Context {
        let mut variables = self.variables.clone();
        variables.extend(
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        with_samples(Context::new(settings(&variables)).unwrap())
    }

    /// The environment of a process on the same database.
    pub fn variables(&self) -> &Variables {
        &self.variables
    }

    /// The database's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A connection to the server, not to the test's database.
    pub async fn admin(&self) -> tokio_postgres::Client {
        let (admin, connection) = self.server.connect(tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        admin
    }

    pub fn url(&self) -> &str {
        &self.variables["DATABASE_URL"]
    }

    pub async fn work(&self) -> Working {
        Working::start(&self.context, Role::Both, &self.context.settings.services)
            .await
            .unwrap()
    }

    pub async fn client(&self) -> tokio_postgres::Client {
        self.context.database.connect().await.unwrap()
    }

    /// A session that holds a snapshot of now until its transaction ends, like that of a report or a dump.
    pub async fn snapshot(&self) -> tokio_postgres::Client {
        let client = self.client().await;
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1";
        client.batch_execute(begin).await.unwrap();
        client
    }

    /// A session with the defaults of the server, the database and the role.
    pub async fn client_as_it_is(&self) -> tokio_postgres::Client {
        let (client, connection) = tokio_postgres::connect(self.url(), tokio_postgres::NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        client
    }

    pub async fn user(&self, plan: &str) -> Uuid {
        Self::user_by(&self.client().await, plan).await
    }

    /// A user, created by this session. Many new sessions at once would time out.
    pub async fn user_by(client: &tokio_postgres::Client, plan: &str) -> Uuid {
        let user = Uuid::new_v4();
        assert!(
            plans::ensure_user(client, user, plan).await.unwrap(),
            "unknown plan {plan}"
        );
        user
    }

    /// The id of the holder with this subject.
    pub async fn holder(&self, subject: &str) -> Uuid {
        let sql = "SELECT weir_holder($1)";
        self.client()
            .await
            .query_one(sql, &[&subject])
            .await
            .unwrap()
            .get(0)
    }

    /// The slots that the catalogue gives a plan.
    pub fn slots_of(&self, plan: &str) -> u32 {
        self.context.settings.catalogue.plans[plan].meters["analysis"].slots
    }

    /// Inserts earlier usage that nothing accepted.
    pub async fn use_up(&self, user: Uuid, meter: &str, amount: i64) {
        self.use_up_at(user, meter, amount, jiff::Timestamp::now()).await;
    }

    pub async fn use_up_at(&self, user: Uuid, meter: &str, amount: i64, at: jiff::Timestamp) {
        self.client()
            .await
            .execute(
                "INSERT INTO usage_events (user_id, event_type, quota_amount, created_at, period_start, windows) \
                 SELECT $1, $2::text::usage_event_type, $3, $4, period_start_of($1, $4), max(counted) \
                 FROM plan_limits WHERE event_type = $2::text",
                &[&user, &meter, &amount, &at],
            )
            .await
            .unwrap();
        self.recount().await;
    }

    /// Makes the counters right after a test wrote reservations or usage events itself.
    pub async fn recount(&self) {
        weir_ledger::audit::repair(&mut self.client().await)
            .await
            .unwrap();
    }

    pub async fn call(
        &self,
        method: &str,
        path: &str,
        who: Who,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Answer {
        let assertion = who.assertion(EDGE_SECRET, method, path, "request-1");
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(assertion::HEADER, assertion);
        if let Some(token) = self.job_token(path, who) {
            request = request.header("weir-job-token", token);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = self.send(request.body(Body::from(body)).unwrap()).await;
        let id = answer.body["job"]["id"].as_i64();
        if let (Who::Address(address), Some(token), Some(id)) = (who, answer.body["token"].as_str(), id) {
            self.tokens
                .lock()
                .unwrap()
                .insert((address, id), token.to_owned());
        }
        answer
    }

    /// A backend's request with a service key, for the user `anne`.
    pub async fn with_key(&self, method: &str, path: &str, bearer: &str, key: &str, body: &str) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", bearer)
            .header("weir-on-behalf-of", "anne")
            .header("idempotency-key", key);
        self.send(request.body(Body::from(body.to_owned())).unwrap())
            .await
    }

    /// The token of the job at this path, if this caller submitted it.
    fn job_token(&self, path: &str, who: Who) -> Option<String> {
        let Who::Address(address) = who else { return None };
        let id = path.strip_prefix("/api/jobs/")?.split('/').next()?.parse().ok()?;
        self.tokens.lock().unwrap().get(&(address, id)).cloned()
    }

    pub async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        Answer {
            status: parts.status,
            headers: parts.headers,
            body,
        }
    }

    /// A response with an unlimited body.
    pub async fn stream(&self, path: &str, who: Who) -> Response<Body> {
        let mut request = Request::builder().uri(path);
        if let Some(token) = self.job_token(path, who) {
            request = request.header("weir-job-token", token);
        }
        let assertion = who.assertion(EDGE_SECRET, "GET", path, "request-1");
        let request = request.header(assertion::HEADER, assertion).body(Body::empty());
        self.router.clone().oneshot(request.unwrap()).await.unwrap()
    }

    /// Such a response for a user with a token that expires at this time, in seconds since the Unix epoch.
    pub async fn stream_until(&self, path: &str, who: Who, token_expires_at: u64) -> Response<Body> {
        let caller = Caller {
            token_expires_at: Some(token_expires_at),
            ..who.caller()
        };
        let assertion = signed(EDGE_SECRET, &caller, "GET", path, "request-1");
        let request = Request::builder()
            .uri(path)
            .header(assertion::HEADER, assertion)
            .body(Body::empty());
        self.router.clone().oneshot(request.unwrap()).await.unwrap()
    }

    /// Status and headers of such a response.
    pub async fn head_of(&self, path: &str, who: Who) -> Answer {
        let response = self.stream(path, who).await;
        Answer {
            status: response.status(),
            headers: response.headers().clone(),
            body: Value::Null,
        }
    }

    /// The body of a public route, byte by byte.
    pub async fn text_of(&self, path: &str) -> String {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let body = axum::body::to_bytes(response.into_body(), usize::MAX)
            .await
            .unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    }

    pub async fn get(&self, path: &str, who: Who) -> Answer {
        self.call("GET", path, who, &[], Vec::new()).await
    }

    pub async fn post(&self, path: &str, who: Who, body: &Value) -> Answer {
        self.call("POST", path, who, &[], body.to_string().into_bytes())
            .await
    }

    /// Submits an analysis of one file and expects it to be accepted.
    pub async fn analyse(&self, who: Who, file: &str, content: &str) -> i64 {
        let answer = self
            .post("/api/jobs/analysis", who, &files(&[(file, content)]))
            .await;
        assert_eq!(answer.status, 202, "{}", answer.body);
        answer.body["job"]["id"].as_i64().unwrap()
    }

    /// Waits until the job runs.
    pub async fn running(&self, id: i64, who: Who) {
        self.until("it to run", async || {
            (self.get(&format!("/api/jobs/{id}"), who).await.body["status"] == "running").then_some(())
        })
        .await;
    }

    /// Waits until nothing of the caller's quota is reserved.
    pub async fn released(&self, who: Who, service: &str) {
        self.until("its quota to be free", async || {
            (self.quota(who, service).await["reserved"] == 0).then_some(())
        })
        .await;
    }

    /// The job once it is finished.
    pub async fn finished(&self, id: i64, who: Who) -> Value {
        self.until(&format!("job {id} to finish"), async || {
            let job = self.get(&format!("/api/jobs/{id}"), who).await.body;
            ["completed", "failed", "cancelled"]
                .contains(&job["status"].as_str().unwrap())
                .then_some(job)
        })
        .await
    }

    /// The number of jobs in all states.
    pub async fn jobs(&self) -> i64 {
        self.count("river_job").await
    }

    /// The number of a table's rows.
    pub async fn count(&self, table: &str) -> i64 {
        let count = format!("SELECT count(*) FROM {table}");
        self.client().await.query_one(&count, &[]).await.unwrap().get(0)
    }

    /// Starts a job's first attempt as other clients do, with their own SQL.
    pub async fn start_elsewhere(&self, id: i64) {
        let begin = "UPDATE river_job SET state = 'running', attempt = 1, attempted_at = now(), \
                     attempted_by = '{elsewhere}' WHERE id = $1";
        self.client().await.execute(begin, &[&id]).await.unwrap();
    }

    /// Ends a job as other clients do, with their own SQL.
    pub async fn ended_by_other_client(&self, id: i64, state: &str) {
        let end =
            "UPDATE river_job SET state = $2::text::river_job_state, finalized_at = now() WHERE id = $1";
        self.client().await.execute(end, &[&id, &state]).await.unwrap();
    }

    /// Waits until there is nothing left to do, as long as jobs keep ending.
    pub async fn all_finished(&self) {
        let client = self.client().await;
        let (mut left, mut looks) = (i64::MAX, 0);
        while looks < PATIENCE {
            let open: i64 = client
                .query_one("SELECT count(*) FROM river_job WHERE finalized_at IS NULL", &[])
                .await
                .unwrap()
                .get(0);
            if open == 0 {
                return;
            }
            looks = if open < left { 0 } else { looks + 1 };
            left = open;
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        panic!("of {left} jobs that are left none has ended for {PATIENCE} looks")
    }

    /// A River client, as another program has one.
    pub fn river(&self) -> riverqueue::Client {
        let pool = self.context.database.river_pool(1).unwrap();
        riverqueue::Client::builder(pool).build().unwrap()
    }

    /// Inserts an analysis as another River client would, without the API.
    pub async fn insert_by_river(&self, args: Value, queue: &str) -> i64 {
        #[derive(serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        struct Args(Value);
        impl riverqueue::JobArgs for Args {
            const KIND: &'static str = "analysis:analyze";
        }
        let river = self.river();
        let opts = riverqueue::InsertOpts::default().with_queue(queue);
        river.insert(Args(args)).opts(opts).await.unwrap().job.row.id
    }

    pub async fn quota(&self, who: Who, service: &str) -> Value {
        self.get("/api/usage", who).await.body[service].clone()
    }

    /// Calls `ask` until it returns an answer, at most [`PATIENCE`] times.
    pub async fn until<T>(&self, what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
        for _ in 0..PATIENCE {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        panic!("waited for {what}, and looked {PATIENCE} times")
    }

    pub async fn maintenance_started(&self) {
        let client = self.client().await;
        let begun = async || {
            let row = client
                .query_opt("SELECT 1 FROM maintenance_lease LIMIT 1", &[])
                .await
                .unwrap();
            row.map(|_| ())
        };
        self.until("maintenance", begun).await;
    }

    pub async fn reconcile(&self) {
        let client = self.writer_session().await;
        Reconciler::new(&self.context).everything(&client).await;
    }

    /// A connection like that of reconciliation.
    pub async fn writer_session(&self) -> PreparedClient {
        let patience = Duration::from_secs(1);
        self.context.database.connect_prepared(patience).await.unwrap()
    }

    /// The findings of `weir audit`.
    pub async fn complaints(&self) -> Vec<String> {
        let mut client = self.client().await;
        let findings = audit::audit(&mut client, Duration::ZERO).await.unwrap();
        findings
            .into_iter()
            .flat_map(|finding| {
                finding
                    .violations
                    .into_iter()
                    .map(move |one| format!("{}: {one}", finding.invariant))
            })
            .collect()
    }

    /// Waits until `weir audit` has no findings, as long as a settlement may take.
    pub async fn is_clean(&self) {
        let mut looks = 0;
        loop {
            let complaints = self.complaints().await;
            if complaints.is_empty() {
                return;
            }
            looks += 1;
            assert!(looks < 100, "{complaints:#?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Checks the invariants and drops the database. A failing test leaves its database to the server, which ends after
    /// the tests.
    pub async fn end(self) {
        self.is_clean().await;
        self.abandon().await;
    }

    /// Drops the database in any state.
    pub async fn abandon(self) {
        self.stopping.cancel();
        let (admin, connection) = self.server.connect(tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        admin
            .batch_execute(&format!("DROP DATABASE {} WITH (FORCE)", self.name))
            .await
            .unwrap();
    }
}

fn settings(variables: &Variables) -> Settings {
    let services = variables
        .get("WEIR_CONFIG")
        .map_or("../weir.toml", String::as_str);
    Settings::read(variables, &Path::new(env!("CARGO_MANIFEST_DIR")).join(services)).unwrap()
}

/// A caller.
#[derive(Clone, Copy, Debug)]
pub enum Who {
    User(Uuid),
    /// By the token's subject.
    Subject(&'static str),
    /// A member of an organisation: the organisation and the member.
    Member(&'static str, &'static str),
    Address(&'static str),
}

impl Who {
    /// The edge's assertion about this caller.
    pub fn assertion(self, secret: &str, method: &str, path: &str, request_id: &str) -> String {
        signed(secret, &self.caller(), method, path, request_id)
    }

    fn caller(self) -> Caller {
        match self {
            Self::User(id) => Caller {
                user: Some(id.into()),
                client_address: "192.0.2.1".to_owned(),
                token_expires_at: None,
            },
            Self::Subject(subject) => Self::Member(subject, subject).caller(),
            Self::Member(holder, subject) => Caller {
                user: Some(Identity {
                    holder: holder.parse().unwrap(),
                    subject: subject.parse().unwrap(),
                }),
                client_address: "192.0.2.1".to_owned(),
                token_expires_at: None,
            },
            Self::Address(address) => Caller {
                user: None,
                client_address: address.to_owned(),
                token_expires_at: None,
            },
        }
    }
}

fn signed(secret: &str, caller: &Caller, method: &str, path: &str, request_id: &str) -> String {
    let key = AssertionKey::new(secret.as_bytes()).unwrap();
    let now = jiff::Timestamp::now().as_second().unsigned_abs();
    assertion::sign(&key, caller, method, path, request_id, now).unwrap()
}

/// Locks a holder's row, like another open transaction, until that ends.
pub async fn lock_holder(
    client: &mut tokio_postgres::Client,
    holder: Uuid,
) -> tokio_postgres::Transaction<'_> {
    let open = client.transaction().await.unwrap();
    let lock = "SELECT 1 FROM holders WHERE holder = $1 FOR UPDATE";
    assert_eq!(open.execute(lock, &[&holder]).await.unwrap(), 1);
    open
}

pub fn files(files: &[(&str, &str)]) -> Value {
    let files: Vec<Value> = files
        .iter()
        .map(|(path, content)| json!({ "path": path, "content": content }))
        .collect();
    json!({ "files": files })
}

pub const GO_TESTS: &str =
    "package a\n\nfunc TestAdd(t *testing.T) {}\n\nfunc TestSubtract(t *testing.T) {}\n";
