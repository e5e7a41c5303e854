//! The tests' databases. A migrated template is created once per server, because copying it takes a fraction of the
//! time of another migration.

use std::path::Path;

use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;
use uuid::Uuid;
use weir_ledger::database::Database;
use weir_ledger::migrate;

/// Keeps two processes from creating the template at once.
const LOCK: &str = "SELECT pg_advisory_lock(hashtext('the template of tests'))";
const UNLOCK: &str = "SELECT pg_advisory_unlock(hashtext('the template of tests'))";

static TEMPLATE: OnceCell<String> = OnceCell::const_new();

/// The tests' server.
pub fn server() -> String {
    std::env::var("WEIR_TEST_DATABASE_URL").expect(
        "WEIR_TEST_DATABASE_URL is not set: run the tests with `npm test`, which starts a PostgreSQL for them",
    )
}

/// A new, empty database: its name and its URL.
pub async fn empty(server: &str) -> (String, String) {
    create(server, "").await
}

/// A new, migrated database.
pub async fn copy(server: &str) -> (String, String) {
    let template = TEMPLATE.get_or_init(|| made(server)).await;
    create(server, &format!("TEMPLATE {template}")).await
}

async fn create(server: &str, how: &str) -> (String, String) {
    let name = format!("weir_{}", Uuid::new_v4().simple());
    let admin = Database::at(server).unwrap().connect().await.unwrap();
    admin
        .batch_execute(&format!("CREATE DATABASE {name} {how}"))
        .await
        .unwrap();
    let url = with_database(server, &name);
    (name, url)
}

/// Creates the template of this schema, if it is missing.
async fn made(server: &str) -> String {
    let name = format!("weir_template_{}", schema_hash());
    let admin = Database::at(server).unwrap().connect().await.unwrap();
    admin.batch_execute(LOCK).await.unwrap();
    let is_there = "SELECT 1 FROM pg_database WHERE datname = $1 AND datistemplate";
    if admin.query_opt(is_there, &[&name]).await.unwrap().is_none() {
        for statement in ["DROP DATABASE IF EXISTS", "CREATE DATABASE"] {
            admin.batch_execute(&format!("{statement} {name}")).await.unwrap();
        }
        let database = Database::at(&with_database(server, &name)).unwrap();
        migrate::migrate(&database).await.unwrap();
        admin
            .batch_execute(&format!("ALTER DATABASE {name} IS_TEMPLATE true"))
            .await
            .unwrap();
    }
    admin.batch_execute(UNLOCK).await.unwrap();
    name
}

/// Identifies the schema: Weir's migrations, and the version of River.
fn schema_hash() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let hash = weir_ledger::migrate::Schema::present()
        .files
        .iter()
        .fold(Sha256::new(), |hash, file| hash.chain_update(&file.sql));
    let queries = std::fs::read_dir(root.join("ledger/src/migrate/sql")).unwrap();
    let mut queries: Vec<_> = queries.map(|file| file.unwrap().path()).collect();
    queries.sort();
    queries.push(root.join("Cargo.lock"));
    let hash = queries
        .iter()
        .fold(hash, |hash, file| hash.chain_update(std::fs::read(file).unwrap()))
        .finalize();
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn with_database(server: &str, name: &str) -> String {
    let (base, query) = server
        .split_once('?')
        .map_or((server, None), |(base, query)| (base, Some(query)));
    let scheme = base.find("://").unwrap() + 3;
    let base = base[scheme..]
        .find('/')
        .map_or(base, |slash| &base[..scheme + slash]);
    query.map_or_else(
        || format!("{base}/{name}"),
        |query| format!("{base}/{name}?{query}"),
    )
}
