//! `weir migrate` checks the server, the database and the role before it changes anything.

use crate::common::others::weir;
use crate::common::server::Server;
use crate::common::skip::skip;

const HBA: &str = "local all all trust\nhost all all 127.0.0.1/32 trust\n";

async fn server() -> Option<Server> {
    let server = Server::start(&[("listen_addresses", "127.0.0.1")], HBA, &[]).await;
    if server.is_none() {
        skip("the programs of the server cannot be run here");
    }
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn every_problem_of_the_database_is_listed_before_changes() {
    let Some(server) = server().await else {
        return;
    };
    let admin = server.admin().await;
    admin.batch_execute("CREATE ROLE product LOGIN").await.unwrap();
    for encoding in ["LATIN1", "SQL_ASCII"] {
        let create = format!(
            "CREATE DATABASE {encoding} TEMPLATE template0 ENCODING '{encoding}' LOCALE_PROVIDER libc LOCALE 'C'"
        );
        admin.batch_execute(&create).await.unwrap();
        let name = encoding.to_lowercase();
        let url = |user: &str| format!("postgres://{user}@127.0.0.1:{}/{name}", server.port);
        let refused = |url: &str, variables: &[(&str, &str)]| {
            let output = weir(url, &["migrate"], variables);
            assert_eq!(output.status.code(), Some(2), "{output:?}");
            String::from_utf8(output.stderr).unwrap()
        };
        let encoding = format!(
            "the database \"{name}\" has the encoding {encoding}, which cannot store every text; create one with: CREATE \
             DATABASE name TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C.UTF-8'"
        );
        let nothing = "weir: nothing was changed, because the database does not meet Weir's requirements:";
        assert_eq!(
            refused(&url("postgres"), &[]),
            format!("{nothing}\n  - {encoding}\n")
        );
        assert_eq!(
            refused(&url("product"), &[]),
            format!(
                "{nothing}\n  - {encoding}\n  - the role \"product\" may not create tables in schema \"public\"; as the \
                 schema's owner or a superuser, run: GRANT USAGE, CREATE ON SCHEMA \"public\" TO \"product\"\n"
            )
        );
        let own = [("WEIR_SCHEMA", "weir"), ("RIVER_SCHEMA", "river")];
        let missing = ["weir", "river"].map(|schema| {
            format!(
                "\n  - the schema \"{schema}\" is missing, and the role \"product\" may not create it; as a superuser, \
                 run: CREATE SCHEMA \"{schema}\" AUTHORIZATION \"product\""
            )
        });
        let [missing_weir, missing_river] = missing;
        assert_eq!(
            refused(&url("product"), &own),
            format!("{nothing}\n  - {encoding}{missing_weir}{missing_river}\n")
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_createrole_can_install_and_is_shown_what_is_missing() {
    let Some(server) = server().await else {
        return;
    };
    let admin = server.admin().await;
    for statement in ["CREATE ROLE product LOGIN", "CREATE DATABASE shop OWNER product"] {
        admin.batch_execute(statement).await.unwrap();
    }
    let url = format!("postgres://product@127.0.0.1:{}/shop", server.port);
    let migrate = |url: &str| {
        let output = weir(url, &["migrate"], &[]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let advice = "note: the roles weir_submitter, weir_worker do not exist, and the role product may not create them; as a \
                  superuser or a role with CREATEROLE, run: CREATE ROLE weir_submitter NOLOGIN; CREATE ROLE weir_worker \
                  NOLOGIN; then run `weir migrate` again. Until then, all of Weir's processes work, and only product can \
                  call Weir's functions in SQL\n";
    let printed = migrate(&url);
    assert!(printed.contains(advice), "{printed}");
    let status = weir(&url, &["status"], &[]);
    assert!(status.status.success(), "{status:?}");

    admin
        .batch_execute("CREATE ROLE weir_submitter NOLOGIN; CREATE ROLE weir_worker NOLOGIN")
        .await
        .unwrap();
    let printed = migrate(&url);
    assert!(!printed.contains("note:"), "{printed}");
    admin
        .batch_execute("CREATE DATABASE other_shop OWNER product")
        .await
        .unwrap();
    let hides = weir(
        &url.replace("/shop", "/other_shop"),
        &["migrate"],
        &[("WEIR_SCHEMA", "product")],
    );
    let hides = String::from_utf8(hides.stdout).unwrap();
    assert!(
        hides.contains("note: schema product has the name of the role product")
            && hides.contains("ALTER ROLE product SET search_path = public"),
        "{hides}"
    );
    let granted = "SELECT rolname::text FROM pg_roles WHERE rolname ~ '^weir_' AND has_function_privilege(rolname, \
                   'public.weir_holder(text)', 'EXECUTE')";
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    assert_eq!(client.query(granted, &[]).await.unwrap().len(), 2);

    // Another role, which does not own the tables.
    admin.batch_execute("CREATE ROLE other LOGIN").await.unwrap();
    client
        .batch_execute(
            "GRANT ALL ON ALL TABLES IN SCHEMA public TO other; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO other; \
             UPDATE weir_schema SET files = '{}'",
        )
        .await
        .unwrap();
    let other = format!("postgres://other@127.0.0.1:{}/shop", server.port);
    let output = weir(&other, &["migrate"], &[]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(
        message.contains(
            "Weir's tables in schema \"public\" belong to the role product; connect as that role, or run as it or a \
             superuser: GRANT product TO \"other\""
        ),
        "{message}"
    );
}
