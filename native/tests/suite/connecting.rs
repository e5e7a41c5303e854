//! Connections as libpq documents them: each parameter and spelling, with both drivers, to real servers.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tokio_postgres::SimpleQueryMessage;
use weir_ledger::database::{Database, with_environment};

use crate::common::others::weir;
use crate::common::server::Server;
use crate::common::skip::skip;

/// The user, the server and the encryption of a connection.
const CONNECTED: &str = "SELECT concat_ws(' ', session_user, current_database(), CASE WHEN inet_server_addr() IS NULL THEN \
                         'socket' WHEN (SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()) THEN 'tls' ELSE 'plain' \
                         END, current_setting('work_mem'), current_setting('cluster_name'))";

const HBA: &str = "\
local all all trust
hostssl all certified all cert
host all secret all scram-sha-256
host all all 127.0.0.1/32 trust
host all all ::1/128 trust
";

/// `DATABASE_URL`, the environment's variables, and the result.
type Row<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str);

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// A certificate and its key.
    fn certify(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

/// A server with a certificate of a private authority for `localhost`, and the clients' files.
struct Stage {
    server: Server,
    read_only: Server,
}

impl Stage {
    async fn new() -> Option<Self> {
        let authority = Authority::new();
        let (certificate, key) = authority.certify("localhost");
        let files = [
            ("server.crt", certificate.as_str()),
            ("server.key", &key),
            ("root.crt", &authority.pem),
        ];
        let settings = |name| {
            [
                ("listen_addresses", "127.0.0.1,::1"),
                ("ssl", "on"),
                ("ssl_ca_file", "root.crt"),
                ("cluster_name", name),
            ]
        };
        let server = Server::start(&settings("one"), HBA, &files).await?;
        let more = [&settings("two")[..], &[("default_transaction_read_only", "on")]].concat();
        let read_only = Server::start(&more, HBA, &files).await?;
        for server in [&server, &read_only] {
            let statements = [
                "SET transaction_read_only = off; CREATE ROLE certified LOGIN; CREATE ROLE secret LOGIN PASSWORD 'p@:\\ '''",
                "CREATE DATABASE shop",
            ];
            let admin = server.admin().await;
            admin
                .batch_execute("SET default_transaction_read_only = off")
                .await
                .unwrap();
            for statement in statements {
                admin.batch_execute(statement).await.unwrap();
            }
        }
        let (certificate, key) = authority.certify("certified");
        let folder = server.folder();
        std::fs::write(folder.join("ca.pem"), &authority.pem).unwrap();
        std::fs::write(folder.join("client.crt"), certificate).unwrap();
        std::fs::write(folder.join("client.key"), key).unwrap();
        std::fs::write(folder.join("other.pem"), Authority::new().pem).unwrap();
        let passwords = format!("localhost:{}:*:secret:p@\\:\\\\ '\n", server.port);
        std::fs::write(folder.join("pass"), passwords).unwrap();
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(folder.join("pass"), mode).unwrap();
        Some(Self { server, read_only })
    }

    /// Replaces the placeholders with this server's values.
    fn filled(&self, text: &str) -> String {
        let folder = self.server.folder().display().to_string();
        text.replace("{port}", &self.server.port.to_string())
            .replace("{other}", &self.read_only.port.to_string())
            .replace("{encoded}", &folder.replace('/', "%2F"))
            .replace("{folder}", &folder)
    }

    /// The connections of both drivers, Weir's first, or their errors.
    async fn connected(&self, text: &str, variables: &[(&str, &str)]) -> [Result<String, String>; 2] {
        let text = self.filled(text);
        let text = Some(text.as_str()).filter(|text| !text.is_empty());
        let environment = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| self.filled(value))
        };
        let database = with_environment(text, environment, Path::exists, Some("postgres"))
            .and_then(|text| Database::at(&text));
        let database = match database {
            Ok(database) => database,
            Err(error) => return [Err(error.to_string()), Err(error.to_string())],
        };
        let ours = async {
            let client = database.connect().await?;
            let rows = client.simple_query(CONNECTED).await?;
            let row = rows.iter().find_map(|row| match row {
                SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                _ => None,
            });
            Ok::<_, weir_ledger::database::DatabaseError>(row.unwrap())
        };
        let pool = database.river_pool(1).unwrap();
        let rivers = sqlx::query_scalar(CONNECTED).fetch_one(&pool).await;
        pool.close().await;
        let own = database.pool(1).query(CONNECTED, &[]).await;
        let ours = ours.await;
        assert_eq!(own.is_ok(), ours.is_ok(), "{text:?}: the pool differs: {own:?}");
        [
            ours.map_err(|error| error.to_string()),
            rivers.map_err(|error: sqlx::Error| error.to_string()),
        ]
    }
}

/// Without TLS.
const PLAIN: &[(&str, &str)] = &[("PGSSLMODE", "disable")];

/// Connections that both drivers make: the text, the variables, and what the session has: user, database, transport,
/// `work_mem` and server.
const ACCEPTED: &[Row<'_>] = &[
    // A distribution's stock server has a self-signed certificate.
    (
        "postgres://postgres@127.0.0.1:{port}/shop",
        &[],
        "postgres shop tls 4MB one",
    ),
    (
        "postgresql://postgres@localhost:{port}/shop?sslmode=prefer",
        &[],
        "postgres shop tls 4MB one",
    ),
    (
        "postgres://postgres@127.0.0.1:{port}?sslmode=disable",
        &[],
        "postgres postgres plain 4MB one",
    ),
    (
        "postgres://postgres@127.0.0.1:{port}/shop?sslmode=require",
        &[],
        "postgres shop tls 4MB one",
    ),
    (
        "postgres://postgres@127.0.0.1:{port}/shop?ssl=true",
        &[],
        "postgres shop tls 4MB one",
    ),
    // A private authority.
    (
        "postgres://postgres@127.0.0.1:{port}/shop?sslmode=require&sslrootcert={folder}/ca.pem",
        &[],
        "postgres shop tls 4MB one",
    ),
    (
        "postgres://postgres@127.0.0.1:{port}/shop?sslmode=verify-ca&sslrootcert={folder}/ca.pem",
        &[],
        "postgres shop tls 4MB one",
    ),
    (
        "postgres://postgres@localhost:{port}/shop?sslmode=verify-full&sslrootcert={folder}/ca.pem",
        &[],
        "postgres shop tls 4MB one",
    ),
    (
        "host=localhost hostaddr=127.0.0.1 port={port} user=postgres dbname=shop sslmode=verify-full \
         sslrootcert={folder}/ca.pem",
        &[],
        "postgres shop tls 4MB one",
    ),
    (
        "postgres://localhost:{port}/shop",
        &[
            ("PGUSER", "postgres"),
            ("PGSSLMODE", "verify-full"),
            ("PGSSLROOTCERT", "{folder}/ca.pem"),
        ],
        "postgres shop tls 4MB one",
    ),
    // A client's certificate.
    (
        "postgres://certified@localhost:{port}/shop?sslmode=verify-full&sslrootcert={folder}/ca.pem&\
         sslcert={folder}/client.crt&sslkey={folder}/client.key",
        &[],
        "certified shop tls 4MB one",
    ),
    (
        "postgres://certified@localhost:{port}/shop",
        &[
            ("PGSSLCERT", "{folder}/client.crt"),
            ("PGSSLKEY", "{folder}/client.key"),
        ],
        "certified shop tls 4MB one",
    ),
    // Sockets have no TLS.
    (
        "host={folder} port={port} user=postgres dbname=shop",
        &[],
        "postgres shop socket 4MB one",
    ),
    (
        "postgres:///shop?host={folder}&port={port}&user=postgres",
        &[],
        "postgres shop socket 4MB one",
    ),
    (
        "postgres://postgres@{encoded}:{port}/shop",
        &[],
        "postgres shop socket 4MB one",
    ),
    (
        "postgres://postgres@{encoded}:{port}/shop?sslmode=verify-full",
        &[],
        "postgres shop socket 4MB one",
    ),
    (
        "",
        &[
            ("PGHOST", "{folder}"),
            ("PGPORT", "{port}"),
            ("PGDATABASE", "shop"),
        ],
        "postgres shop socket 4MB one",
    ),
    // IPv6.
    (
        "postgres://postgres@[::1]:{port}/shop",
        &[],
        "postgres shop tls 4MB one",
    ),
    (
        "host=::1 port={port} user=postgres dbname=shop",
        PLAIN,
        "postgres shop plain 4MB one",
    ),
    // Options of the session.
    (
        "postgres://postgres@127.0.0.1:{port}/shop?options=-c%20work_mem%3D5MB&sslmode=disable",
        &[],
        "postgres shop plain 5MB one",
    ),
    (
        "postgres://postgres@127.0.0.1:{port}/shop?sslmode=disable",
        &[("PGOPTIONS", "-c work_mem=6MB")],
        "postgres shop plain 6MB one",
    ),
    // Passwords.
    (
        "postgres://secret:p%40:%5C%20'@127.0.0.1:{port}/shop",
        &[],
        "secret shop tls 4MB one",
    ),
    (
        "host=127.0.0.1 port={port} user=secret password='p@:\\\\ \\'' dbname=shop",
        &[],
        "secret shop tls 4MB one",
    ),
    (
        "postgres://secret@127.0.0.1:{port}/shop",
        &[("PGPASSWORD", "p@:\\ '")],
        "secret shop tls 4MB one",
    ),
    (
        "postgres://secret@localhost:{port}/shop",
        &[("PGPASSFILE", "{folder}/pass")],
        "secret shop tls 4MB one",
    ),
    (
        "postgres://secret@localhost:{port}/shop?passfile={folder}/pass",
        &[],
        "secret shop tls 4MB one",
    ),
    // Several servers, one of which accepts writes.
    (
        "postgres://postgres@127.0.0.1:{other},localhost:{port}/shop?target_session_attrs=read-write",
        &[],
        "postgres shop tls 4MB one",
    ),
    (
        "postgres://postgres@127.0.0.1:{other},localhost:{port}/shop?target_session_attrs=primary&sslmode=verify-ca&\
         sslrootcert={folder}/ca.pem",
        &[],
        "postgres shop tls 4MB one",
    ),
    (
        "host=127.0.0.1,127.0.0.1 port=1,{port} user=postgres dbname=shop",
        PLAIN,
        "postgres shop plain 4MB one",
    ),
    (
        "postgres://postgres@127.0.0.1:{port}/shop?connect_timeout=3",
        PLAIN,
        "postgres shop plain 4MB one",
    ),
];

/// Connections that both drivers refuse: the text, the variables, and a part of the message.
const REFUSED: &[Row<'_>] = &[
    (
        "postgres://postgres@localhost:{port}/shop?sslmode=require&sslrootcert={folder}/other.pem",
        &[],
        "certificate",
    ),
    (
        "postgres://postgres@localhost:{port}/shop?sslmode=verify-ca&sslrootcert={folder}/other.pem",
        &[],
        "certificate",
    ),
    (
        "postgres://postgres@127.0.0.1:{port}/shop?sslmode=verify-full&sslrootcert={folder}/ca.pem",
        &[],
        "certificate",
    ),
    (
        "postgres://postgres@localhost:{port}/shop?sslmode=verify-full",
        &[],
        "certificate",
    ),
    (
        "postgres://postgres@localhost:{port}/shop?sslrootcert=system",
        &[],
        "certificate",
    ),
    (
        "postgres://certified@localhost:{port}/shop?sslmode=require",
        &[],
        "certificate",
    ),
    (
        "postgres://secret@localhost:{port}/shop",
        &[("PGPASSWORD", "wrong")],
        "password",
    ),
    (
        "postgres://postgres@127.0.0.1:{other}/shop?target_session_attrs=read-write",
        &[],
        "does not allow writes",
    ),
    (
        "postgres://postgres@localhost:{port}/shop?channel_binding=require",
        &[],
        "channel_binding=require is not",
    ),
    (
        "postgres://postgres@localhost:{port}/shop",
        &[("PGCHANNELBINDING", "require")],
        "channel_binding=require is not",
    ),
    (
        "postgres://postgres@localhost:{port}/shop",
        &[("PGSERVICE", "shop")],
        "PGSERVICE is not supported",
    ),
    (
        "postgres://postgres@localhost:{port}/shop?sslcrl=/x",
        &[],
        "sslcrl is not supported",
    ),
    (
        "postgres://postgres@localhost:{port}/shop?pgbouncer=true",
        &[],
        "pgbouncer is not a connection parameter",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn both_drivers_connect_as_libpq_documents_it() {
    let Some(stage) = Stage::new().await else {
        return skip("the programs of the server cannot be run here");
    };
    for (text, variables, wanted) in ACCEPTED {
        let [ours, rivers] = stage.connected(text, variables).await;
        assert_eq!(ours.as_deref(), Ok(*wanted), "our driver: {text} {variables:?}");
        assert_eq!(
            rivers.as_deref(),
            Ok(*wanted),
            "River's driver: {text} {variables:?}"
        );
    }
    for (text, variables, expected) in REFUSED {
        let [ours, rivers] = stage.connected(text, variables).await;
        let message = ours.expect_err(text);
        assert!(message.contains(expected), "{text}: {message}");
        assert!(rivers.is_err(), "River's driver: {text} {variables:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_url_comes_from_a_file_or_libpq_variables() {
    let Some(server) = Server::start(&[("listen_addresses", "")], HBA, &[]).await else {
        return skip("the programs of the server cannot be run here");
    };
    let (folder, port) = (server.folder().display().to_string(), server.port.to_string());
    let migrate = |variables: &[(&str, &str)]| {
        let mut all = vec![("DATABASE_URL", "")];
        all.extend_from_slice(variables);
        let output = weir("", &["migrate"], &all);
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let libpq = [
        ("PGHOST", folder.as_str()),
        ("PGPORT", &port),
        ("PGUSER", "postgres"),
    ];
    assert_eq!(migrate(&libpq), (Some(0), String::new()));
    let file = server.folder().join("url");
    std::fs::write(&file, format!("host={folder} port={port} user=postgres\n")).unwrap();
    let named = [("DATABASE_URL_FILE", file.to_str().unwrap())];
    assert_eq!(migrate(&named), (Some(0), String::new()));
    for (variables, fault) in [
        (
            vec![("DATABASE_URL", "postgres:///x"), named[0]],
            "DATABASE_URL and DATABASE_URL_FILE are both set; unset one",
        ),
        (
            vec![("DATABASE_URL_FILE", "/no/such/file")],
            "DATABASE_URL_FILE is \"/no/such/file\", which cannot be read: No such file or directory",
        ),
        (
            vec![
                named[0],
                ("EDGE_SECRET_FILE", file.to_str().unwrap()),
                ("JWT_SECRET_FILE", "/no/such/file"),
            ],
            "JWT_SECRET_FILE is",
        ),
    ] {
        let (code, message) = migrate(&variables);
        assert_eq!(code, Some(2), "{message}");
        assert!(
            message.starts_with("weir: the configuration has an error:") && message.contains(fault),
            "{message}"
        );
    }
}
