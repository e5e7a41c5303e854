//! A database with the tables of a product and its River.

use std::process::{Command, Output, Stdio};

use riverqueue::migrate::{Direction, MigrateOpts, PostgresMigrator};
use tokio_postgres::Client;

/// A product's tables, some of them with the same names as Weir's tables.
pub const THEIR_TABLES: &str = "\
    CREATE TABLE users (id bigint PRIMARY KEY, email text UNIQUE); \
    CREATE TABLE subscriptions (id bigint PRIMARY KEY, user_id bigint REFERENCES users, updated_at timestamptz); \
    CREATE TABLE processes (id serial PRIMARY KEY, name text); \
    CREATE TABLE grants (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), user_id bigint REFERENCES users); \
    CREATE INDEX holders_newest ON grants (user_id); \
    CREATE FUNCTION touch_updated_at() RETURNS trigger LANGUAGE plpgsql AS \
        $$ BEGIN NEW.updated_at := now(); RETURN NEW; END $$; \
    CREATE TRIGGER touch BEFORE UPDATE ON subscriptions FOR EACH ROW EXECUTE FUNCTION touch_updated_at(); \
    INSERT INTO users VALUES (1, 'a@example.org'), (2, 'b@example.org'); \
    INSERT INTO subscriptions VALUES (1, 1, '2026-01-01'); \
    INSERT INTO processes (name) VALUES ('mailer'); \
    INSERT INTO grants (user_id) VALUES (2)";

/// The contents of `public`, except for names that match this pattern.
pub async fn contents(client: &Client, except: &str) -> String {
    let except = if except.is_empty() { "^$" } else { except };
    // Names are printed as the path finds them, and a schema with the role's name would come first.
    client.batch_execute("SET search_path = public").await.unwrap();
    client
        .query_one(include_str!("others.sql"), &[&"public", &except])
        .await
        .unwrap()
        .get(0)
}

/// Creates River's tables in `public`, at this version.
pub async fn river_at(url: &str, version: i64) {
    let pool = sqlx::PgPool::connect(url).await.unwrap();
    let opts = MigrateOpts::default().with_target_version(version);
    PostgresMigrator::new(pool.clone())
        .migrate(Direction::Up, opts)
        .await
        .unwrap();
    pool.close().await;
}

/// The binary's output for these arguments and this database.
pub fn weir(url: &str, arguments: &[&str], more: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(arguments)
        .env("DATABASE_URL", url)
        .env("WEIR_CONFIG", "native/tests/process.toml")
        .envs(more.iter().copied())
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .stdin(Stdio::null())
        .output()
        .unwrap()
}
