//! The Go package with database/sql, and its batches.

use serde_json::json;

use crate::common::fleet::row_count;
use crate::common::programs::{GO_MODULE, GoProgram};
use crate::common::{Weir, Who};

#[tokio::test(flavor = "multi_thread")]
async fn go_submits_with_database_sql_and_in_batches() {
    let Some(program) = GoProgram::built(GO_MODULE, "./drivers").await else {
        return;
    };
    for schema in [None, Some("Odd-Schema")] {
        let weir = Weir::with(schema.map(|name| ("WEIR_SCHEMA", name)).as_slice()).await;
        let client = weir.client().await;
        let table = "CREATE TABLE public.orders (number int NOT NULL)";
        client.batch_execute(table).await.unwrap();
        let user = weir.user("free").await.to_string();
        let mut submits = tokio::process::Command::new(&program.path);
        submits
            .arg(&user)
            .env("DATABASE_URL", weir.url())
            .env("SCHEMA", schema.unwrap_or_default());
        let output = submits.output().await.unwrap();
        assert!(output.status.success(), "{output:?}");
        let printed = String::from_utf8(output.stdout).unwrap();
        assert_eq!(
            printed,
            "admitted true 1\n\
             admitted true 1\n\
             \"parked\" true \"over_quota\" false \"parked\" true \n\
             \"\" false \"over_quota\" false \"\" false \n"
        );
        assert_eq!(row_count(&client, "public.orders").await, 1);
        let same = "river_job WHERE args ->> 'text' = E'it''s 100% :sure, $1 \\\\ \u{2713}' AND tags = '{abc}' \
                    AND metadata -> 'weir:expires_in' = '600'";
        for jobs in ["river_job", same] {
            assert_eq!(row_count(&client, jobs).await, 3, "{jobs}");
        }
        assert_eq!(
            weir.quota(Who::User(user.parse().unwrap()), "analysis").await["reserved"],
            json!(3)
        );
        weir.abandon().await;
    }
}
