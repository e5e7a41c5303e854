//! `weir uninstall`: a product continues with River alone.

use std::collections::BTreeMap;
use std::process::Output;
use std::sync::{Arc, Mutex};

use riverqueue::{Client, InsertOpts, Job, QueueConfig, WorkContext, WorkOutcome, Workers};
use serde_json::Value;

use crate::common::gate::{Gate, KIND};
use crate::common::process::{Process, command};
use crate::common::{GO_TESTS, Weir, Who, files};
use weir::work::Role;

const SCHEMAS: [(&str, &str); 2] = [("WEIR_SCHEMA", "weir"), ("RIVER_SCHEMA", "public")];

#[derive(serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
struct Analysis(Value);

impl riverqueue::JobArgs for Analysis {
    const KIND: &'static str = KIND;
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Mail {}

impl riverqueue::JobArgs for Mail {
    const KIND: &'static str = "product:mail";
}

fn uninstall(weir: &Weir, arguments: &[&str]) -> Output {
    let output = command(weir, &[&["uninstall"], arguments].concat()).output();
    output.unwrap()
}

fn printed(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn error(output: &Output) -> &str {
    assert!(!output.status.success());
    std::str::from_utf8(&output.stderr).unwrap()
}

/// The names of the objects in a schema.
async fn objects(weir: &Weir, schema: &str) -> Vec<String> {
    let sql = "SELECT c.relname::text AS name FROM pg_class c WHERE c.relnamespace = to_regnamespace($1) \
               UNION SELECT p.proname FROM pg_proc p WHERE p.pronamespace = to_regnamespace($1) \
               UNION SELECT t.typname FROM pg_type t WHERE t.typnamespace = to_regnamespace($1) ORDER BY 1";
    let rows = weir.client_as_it_is().await.query(sql, &[&schema]).await.unwrap();
    rows.iter().map(|row| row.get("name")).collect()
}

/// The jobs that this product's own River client finishes, by kind, until none is left.
async fn finish_by_river(weir: &Weir) -> BTreeMap<String, usize> {
    let done = Arc::new(Mutex::new(BTreeMap::new()));
    let count = |done: &Arc<Mutex<BTreeMap<String, usize>>>, kind: &str| {
        *done.lock().unwrap().entry(kind.to_owned()).or_default() += 1;
    };
    let mut workers = Workers::new();
    let (analyses, mails) = (Arc::clone(&done), Arc::clone(&done));
    workers
        .add_fn::<Analysis, _, _, _>(move |_: WorkContext, _: Job<Analysis>| {
            count(&analyses, "analysis");
            async { Ok::<_, std::convert::Infallible>(WorkOutcome::Complete) }
        })
        .unwrap();
    workers
        .add_fn::<Mail, _, _, _>(move |_: WorkContext, _: Job<Mail>| {
            count(&mails, "mail");
            async { Ok::<_, std::convert::Infallible>(WorkOutcome::Complete) }
        })
        .unwrap();
    let client = Client::builder(weir.context.database.river_pool(4).unwrap())
        .workers(workers)
        .queue("default", QueueConfig::new(10))
        .build()
        .unwrap();
    let mut run = client.start().unwrap();
    weir.all_finished().await;
    run.stop().await.unwrap();
    let done = done.lock().unwrap();
    done.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_products_own_river_client_finishes_all_jobs_after_an_uninstallation() {
    let weir = Weir::with(&SCHEMAS).await;
    let product = weir.client_as_it_is().await;
    product
        .batch_execute(
            "CREATE TABLE public.orders (id int PRIMARY KEY); INSERT INTO public.orders VALUES (1)",
        )
        .await
        .unwrap();
    let river = weir.river();
    for _ in 0..3 {
        river.insert(Mail {}).await.unwrap();
    }
    // Three jobs of a Free user, of which two are parked, and one for later.
    let who = Who::User(weir.user("free").await);
    for _ in 0..3 {
        weir.analyse(who, "a_test.go", GO_TESTS).await;
    }
    // Later than the uninstallation on any machine. Whole seconds, because PostgreSQL rounds nanoseconds.
    let later_at = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second() + 3600).unwrap();
    let run_at = later_at.to_string();
    let body = files(&[("b_test.go", GO_TESTS)]).to_string().into_bytes();
    let later = weir
        .call(
            "POST",
            "/api/jobs/analysis",
            who,
            &[("weir-run-at", &run_at)],
            body,
        )
        .await;
    assert_eq!(later.status, 202, "{}", later.body);
    // A job whose worker died.
    let pro = Who::User(weir.user("pro").await);
    let lost = weir.analyse(pro, "a_test.go", GO_TESTS).await;
    product
        .batch_execute(&format!(
            "INSERT INTO weir.processes (client_id, beat_at) VALUES ('weir_dead', now() - interval '1 minute'); \
             UPDATE river_job SET state = 'running', attempt = 1, attempted_at = now() - interval '1 minute', \
                 attempted_by = '{{weir_dead}}' WHERE id = {lost}"
        ))
        .await
        .unwrap();

    let before = objects(&weir, "weir").await;
    let preview = uninstall(&weir, &[]);
    assert!(preview.status.success(), "{preview:?}");
    assert_eq!(
        printed(&preview),
        "will drop \"weir\": users, plans, usage, webhooks, the audit log\n\
         jobs made available: 3 (they waited for a slot or an answer, or lost the worker)\n\
         jobs scheduled for the time they wait for: 1\n\
         jobs discarded, because they lost the worker in the last attempt: 0\n\
         deliveries to webhooks cancelled: 0\n\
         queues with unfinished jobs for your River client: analysis_default, analysis_priority\n\
         will drop the roles weir_submitter and weir_worker, unless another database uses them\n\
         nothing was changed; `weir uninstall --yes` does this\n"
    );
    assert_eq!(objects(&weir, "weir").await, before);

    let done = uninstall(&weir, &["--queue", "default", "--yes"]);
    assert!(done.status.success(), "{done:?}");
    let text = printed(&done);
    assert!(
        text.contains("queues with unfinished jobs for your River client: default\n"),
        "{text}"
    );
    assert!(text.contains("dropped \"weir\": "), "{text}");
    let left: Vec<String> = objects(&weir, "weir").await;
    assert_eq!(left, Vec::<String>::new());
    let orders: i64 = product
        .query_one("SELECT count(*) FROM public.orders", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(orders, 1);
    let scheduled = product
        .query(
            "SELECT scheduled_at FROM public.river_job WHERE state = 'scheduled'",
            &[],
        )
        .await
        .unwrap();
    let times: Vec<jiff::Timestamp> = scheduled.iter().map(|row| row.get(0)).collect();
    assert_eq!(times, [later_at]);

    let due = "UPDATE public.river_job SET scheduled_at = now() WHERE state = 'scheduled'";
    product.batch_execute(due).await.unwrap();
    let finished = finish_by_river(&weir).await;
    assert_eq!(
        finished,
        BTreeMap::from([("analysis".to_owned(), 5), ("mail".to_owned(), 3)])
    );
    assert!(error(&uninstall(&weir, &["--yes"])).contains("has no Weir to uninstall"));
    // A new start in the same database.
    assert!(command(&weir, &["migrate"]).output().unwrap().status.success());
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_uninstallation_leaves_the_other_objects_of_a_shared_schema() {
    let weir = Weir::new().await;
    let product = weir.client().await;
    product
        .batch_execute(
            "CREATE TABLE orders (id int); CREATE FUNCTION total() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        )
        .await
        .unwrap();
    weir.river()
        .insert(Mail {})
        .opts(InsertOpts::default())
        .await
        .unwrap();
    let done = uninstall(&weir, &["--yes"]);
    assert!(done.status.success(), "{done:?}");
    let left = objects(&weir, "public").await;
    for name in ["orders", "total", "river_job", "river_migration"] {
        assert!(left.iter().any(|object| object == name), "{name}: {left:?}");
    }
    let weirs: Vec<_> = left
        .iter()
        .filter(|name| {
            !name.starts_with("river_") && !["orders", "_orders", "total"].contains(&name.as_str())
        })
        .filter(|name| !name.starts_with("_river_"))
        .collect();
    assert_eq!(weirs, Vec::<&String>::new());
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_uninstalled_while_weir_or_another_object_uses_it() {
    let weir = Weir::with(&SCHEMAS).await;
    let before = objects(&weir, "weir").await;
    let process = Process::start(&weir, &["serve"], &[]);
    process.ready().await;
    assert!(
        error(&uninstall(&weir, &["--yes"])).contains("stop these processes first:\n  - weir serve, with ")
    );
    process.stop().await;
    let gate = Gate::new();
    let working = gate.work(weir.another(&[]), Role::Work).await;
    let refusal = uninstall(&weir, &[]);
    assert!(
        error(&refusal).contains("stop these processes first:\n  - weir_"),
        "{refusal:?}"
    );
    gate.open();
    working.stop().await;

    let product = weir.client_as_it_is().await;
    let view = "CREATE VIEW public.paid AS SELECT user_id FROM weir.user_subscriptions";
    product.batch_execute(view).await.unwrap();
    let refusal = uninstall(&weir, &["--yes"]);
    let text = error(&refusal);
    assert!(
        text.contains("nothing was changed") && text.contains("view paid depends on"),
        "{text}"
    );
    assert_eq!(objects(&weir, "weir").await, before);
    weir.end().await;
}
