//! Processes start and end: how they stop, and how they handle the death of another one and a database without free
//! connections.

use std::time::{Duration, Instant};

use crate::common::process::{KilledOnDrop, Process, command, free_port};
use crate::common::proxy::{Cut, Proxy};
use crate::common::services_file::service;
use crate::common::skip::skip;
use crate::common::{EDGE_SECRET, GO_TESTS, Weir, Who, files};
use axum::Router;
use axum::routing::get;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use weir::api::listen::{self, Patience};
use weir_policy::assertion;

/// Services that run programs which take a while.
const NAPS: [(&str, &str); 1] = [("WEIR_CONFIG", "native/tests/crash.toml")];

async fn naps() -> Weir {
    Weir::with(&[("WEIR_CONFIG", "tests/crash.toml")]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_leader_dies_another_process_takes_over() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let leader = async || -> Option<String> {
        let row = client
            .query_opt("SELECT leader_id FROM river_leader WHERE expires_at > now()", &[])
            .await
            .unwrap();
        row.map(|row| row.get("leader_id"))
    };
    let first = Process::start(&weir, &["schedule"], &[]);
    let before = weir.until("a leader", async || leader().await).await;
    let second = Process::start(&weir, &["schedule"], &[]);
    second.ready().await;
    // Killed, as by `kill -9`, without resigning.
    drop(first);
    let user = weir.user("free").await;
    let id = weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
    weir.ended_by_other_client(id, "cancelled").await;
    weir.released(Who::User(user), "analysis").await;
    weir.until("River's maintenance to be another one's", async || {
        leader().await.filter(|now| *now != before)
    })
    .await;
    assert_eq!(second.stop().await, Some(0));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocked_log_pipes_do_not_stop_processes() {
    let weir = naps().await;
    let unheard = Process::unheard(&weir, &["up"], &NAPS);
    unheard.ready().await;
    let user = weir.user("free").await;
    let submitted = unheard
        .call("POST", "/api/jobs/nap", Who::User(user), "unheard", "{}")
        .await;
    assert_eq!(submitted.status, 202, "{}", submitted.text);
    weir.all_finished().await;
    let used = unheard
        .call("GET", "/api/usage", Who::User(user), "unheard", "")
        .await;
    assert_eq!(used.status, 200, "{}", used.text);
    assert_eq!(unheard.stop().await, Some(0));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_worker_finishes_running_jobs_and_does_not_start_new_ones() {
    // The job runs until this file exists, so that it cannot end before the signal.
    let file = std::env::temp_dir().join(format!("weir-held-{}", uuid::Uuid::new_v4()));
    let handler = format!(
        "timeout = '120s'\nmax_attempts = 3\nhandler = {{ type = 'exec', command = ['sh', '-c', \
         'until [ -e {} ]; do sleep 0.1; done; echo {{}}'] }}",
        file.display()
    );
    let services = service("held", "analysis", &handler).replace("_workers = 2", "_workers = 1");
    let weir = Weir::serving(&services, &[]).await;
    let client = weir.client().await;
    let submit = async |who: Who| {
        let answer = weir.post("/api/jobs/held", who, &json!({})).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
        answer.body["job"]["id"].as_i64().unwrap()
    };
    let users = [weir.user("free").await, weir.user("free").await].map(Who::User);
    let _scheduler = Process::start(&weir, &["schedule"], &[]);
    let worker = Process::start(&weir, &["work"], &[("WEIR_DRAIN_TIMEOUT", "20s")]);
    let running = submit(users[0]).await;
    weir.running(running, users[0]).await;
    // It waits for the lane's only worker.
    let waiting = submit(users[1]).await;
    worker.terminate();
    worker.stopping(&weir).await;
    std::fs::write(&file, "").unwrap();
    assert_eq!(worker.ended().await, Some(0));
    std::fs::remove_file(&file).unwrap();
    let row = client
        .query_one(
            "SELECT (SELECT state::text FROM river_job WHERE id = $1) AS first, \
                    (SELECT attempt FROM river_job WHERE id = $1) AS attempt, \
                    (SELECT state::text FROM river_job WHERE id = $2) AS second, \
                    (SELECT count(*) FROM processes) AS processes",
            &[&running, &waiting],
        )
        .await
        .unwrap();
    assert_eq!(
        (
            row.get::<_, &str>("first"),
            row.get::<_, i16>("attempt"),
            row.get::<_, &str>("second")
        ),
        ("completed", 1, "available")
    );
    assert_eq!(row.get::<_, i64>("processes"), 0, "it has signed off");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_api_ends_its_event_streams() {
    let weir = Weir::new().await;
    let process = Process::start(&weir, &["serve"], &[]);
    process.ready().await;
    let user = weir.user("free").await;
    let mut streams = Vec::new();
    for path in ["/api/lanes/events", "/api/jobs/events"] {
        let assertion = Who::User(user).assertion(EDGE_SECRET, "GET", path, "request-1");
        let mut stream = TcpStream::connect(("127.0.0.1", process.port())).await.unwrap();
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: origin\r\n{}: {assertion}\r\n\r\n",
            assertion::HEADER
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut first = vec![0; 64 * 1024];
        let read = stream.read(&mut first).await.unwrap();
        assert!(
            first[..read].starts_with(b"HTTP/1.1 200"),
            "{}",
            String::from_utf8_lossy(&first[..read])
        );
        streams.push(stream);
    }
    let started = Instant::now();
    assert_eq!(process.stop().await, Some(0));
    assert!(
        started.elapsed() < Duration::from_secs(15),
        "{:?}",
        started.elapsed()
    );
    for mut stream in streams {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        let end = String::from_utf8_lossy(&rest);
        assert!(
            end.ends_with("0\r\n\r\n"),
            "a whole answer, and not a broken one: {end}"
        );
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_send_a_complete_head_is_disconnected() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/", get(async || "hello"));
    let stopping = CancellationToken::new();
    let patience = Patience {
        head: Duration::from_secs(1),
        ..Patience::default()
    };
    let answering = tokio::spawn(listen::answer(listener, router, patience, stopping.clone()));
    for sent in [
        "",
        "GET / HTTP/1.1\r\nHost: o",
        "GET / HTTP/1.1\r\nHost: origin\r\n\r\n",
    ] {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(sent.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(30), client.read_to_end(&mut answer)).await;
        assert!(read.is_ok(), "{sent:?} keeps its connection");
        // Every request was answered before.
        assert_eq!(answer.ends_with(b"hello"), sent.ends_with("\r\n\r\n"));
    }
    stopping.cancel();
    answering.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_is_disconnected() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // More than all buffers on the way can hold.
    let router = Router::new().route("/", get(async || vec![b'x'; 64 * 1024 * 1024]));
    let stopping = CancellationToken::new();
    let patience = Patience {
        write: Duration::from_secs(1),
        ..Patience::default()
    };
    let answering = tokio::spawn(listen::answer(listener, router, patience, stopping.clone()));
    let request = b"GET / HTTP/1.1\r\nHost: origin\r\nConnection: close\r\n\r\n";
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(request).await.unwrap();
    let started = Instant::now();
    // A write shows it without reading data: a client that disconnected has reset the connection.
    let hung_up = async {
        while client.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let hung_up = tokio::time::timeout(Duration::from_secs(30), hung_up).await;
    assert!(hung_up.is_ok(), "the answer stays in memory");
    assert!(started.elapsed() >= patience.write, "{:?}", started.elapsed());
    stopping.cancel();
    answering.await.unwrap();
}

/// The role of a process that may open no more connections than it has. Superusers have no such limit.
async fn limited_role(weir: &Weir) -> (String, String) {
    let role = format!("limited_{}", weir.name());
    let client = weir.client().await;
    client
        .batch_execute(&format!(
            "CREATE ROLE {role} LOGIN PASSWORD 'limited'; \
             DO $$ BEGIN EXECUTE format('GRANT %I TO {role}', current_user); END $$"
        ))
        .await
        .unwrap();
    let (_, place) = weir.url().split_once('@').unwrap();
    let url = format!("postgres://{role}:limited@{place}");
    (role, url)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_survives_when_the_server_is_out_of_connections() {
    let weir = Weir::new().await;
    let (role, url) = limited_role(&weir).await;
    let client = weir.client().await;
    let who = Who::User(weir.user("free").await);
    let process = Process::start(&weir, &["up"], &[("DATABASE_URL", &url)]);
    process.ready().await;
    let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
    weir.finished(id, who).await;
    // From here on, new connections are refused.
    client
        .batch_execute(&format!("ALTER ROLE {role} CONNECTION LIMIT 1"))
        .await
        .unwrap();
    // Longer than a process lives without a heartbeat.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let row = client
        .query_one(
            "SELECT extract(epoch FROM clock_timestamp() - max(beat_at))::float8 AS age FROM processes",
            &[],
        )
        .await
        .unwrap();
    let age: Option<f64> = row.get("age");
    assert!(
        age.is_some_and(|age| age < 8.0),
        "its last heartbeat: {age:?} s ago"
    );
    let id = weir.analyse(who, "b_test.go", GO_TESTS).await;
    assert_eq!(weir.finished(id, who).await["status"], "completed");
    assert_eq!(process.stop().await, Some(0));
    let admin = weir.admin().await;
    weir.end().await;
    admin.batch_execute(&format!("DROP ROLE {role}")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_do_not_read_do_not_delay_a_stop() {
    let weir = Weir::new().await;
    let process = Process::start(&weir, &["serve"], &[]);
    process.ready().await;
    let path = "/api/openapi.json";
    let assertion = Who::Address("192.0.2.1").assertion(EDGE_SECRET, "GET", path, "request-1");
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: origin\r\n{}: {assertion}\r\n\r\n",
        assertion::HEADER
    );
    let mut silent = TcpStream::connect(("127.0.0.1", process.port())).await.unwrap();
    // More responses than the kernel buffers for it.
    silent.write_all(head.repeat(300).as_bytes()).await.unwrap();
    let mut half = TcpStream::connect(("127.0.0.1", process.port())).await.unwrap();
    half.write_all(b"GET / HTTP/1.1\r\nHost: o").await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    // `stop` waits for 20 s.
    assert_eq!(process.stop().await, Some(0));
    drop((silent, half));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_stop_signal_ends_the_process_immediately() {
    let weir = naps().await;
    let who = Who::User(weir.user("free").await);
    let more = [NAPS[0], ("WEIR_DRAIN_TIMEOUT", "10m")];
    let process = Process::start(&weir, &["up"], &more);
    process.ready().await;
    let answer = weir.post("/api/jobs/lasting", who, &json!({})).await;
    let id = answer.body["job"]["id"].as_i64().unwrap();
    weir.running(id, who).await;
    process.terminate();
    // Two signals count as one if both arrive before the first is handled.
    process.stopping(&weir).await;
    assert_eq!(process.stop().await, Some(130));
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_claim_is_taken_over_from_a_living_process() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    let working = weir.work().await;
    let mut client = weir.client().await;
    let submitted = client.transaction().await.unwrap();
    let submit = "SELECT job_id FROM weir_submit($1, 'analysis', $2)";
    let args = files(&[("a_test.go", GO_TESTS)]);
    let row = submitted.query_one(submit, &[&user.to_string(), &args]).await;
    let lost: i64 = row.unwrap().get(0);
    // River's claim has taken effect, but its answer was lost with the connection.
    let claim = "UPDATE river_job SET state = 'running', attempt = 1, attempted_at = clock_timestamp(), \
                 attempted_by = ARRAY[$2], max_attempts = 1 WHERE id = $1";
    submitted.execute(claim, &[&lost, &working.id()]).await.unwrap();
    submitted.commit().await.unwrap();
    let next = weir.analyse(Who::User(user), "b_test.go", GO_TESTS).await;
    for job in [lost, next] {
        let job = weir.finished(job, Who::User(user)).await;
        assert_eq!(
            job["status"], "completed",
            "it has the only slot, or waits for it"
        );
    }
    assert_eq!(weir.quota(Who::User(user), "analysis").await["used"], 2);
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unready_api_answers_for_the_stop_delay() {
    let weir = Weir::new().await;
    let process = Process::start(&weir, &["serve"], &[("WEIR_STOP_DELAY", "8s")]);
    process.ready().await;
    let user = weir.user("free").await;
    let started = Instant::now();
    process.terminate();
    weir.until("it to be unready", async || {
        let reply = process.get("/readyz").await.expect("it still listens");
        (reply.status == 503 && reply.text.contains("\"stopping\":true")).then_some(())
    })
    .await;
    let body = files(&[("a_test.go", GO_TESTS)]).to_string();
    let submitted = process
        .call("POST", "/api/jobs/analysis", Who::User(user), "request-1", &body)
        .await;
    assert_eq!(submitted.status, 202, "{}", submitted.text);
    weir.until("it to end", async || {
        process.get("/healthz").await.is_none().then_some(())
    })
    .await;
    let took = started.elapsed();
    assert!(took >= Duration::from_secs(8), "{took:?}");
    assert!(took < Duration::from_secs(20), "{took:?}");
    weir.end().await;
}

/// A server that accepts connections but never sends anything.
fn silent_server() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let _kept: Vec<_> = listener.incoming().collect();
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_stops_within_its_drain_time_from_its_start_on() {
    let weir = Weir::new().await;
    let silent = format!("postgres://weir@127.0.0.1:{}/weir", silent_server());
    for url in [weir.url(), &silent] {
        for delay in [0, 50, 200] {
            let stops = ["serve", "work", "schedule", "up", "migrate"].map(async |command| {
                let process = Process::start(&weir, &[command], &[("DATABASE_URL", url)]);
                tokio::time::sleep(Duration::from_millis(delay)).await;
                let started = Instant::now();
                let code = process.stop().await;
                let took = started.elapsed();
                // The drain time is 2 s here. A signal before the start of any work ends the process.
                assert!(
                    took < Duration::from_secs(4),
                    "{command} after {delay} ms: {took:?}"
                );
                assert!(matches!(code, Some(0) | None), "{command}: {code:?}");
            });
            futures_util::future::join_all(stops).await;
        }
    }
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_stop_within_their_drain_time_without_the_database() {
    let weir = Weir::new().await;
    let stops = ["serve", "work", "schedule", "up"].map(async |command| {
        let proxy = Proxy::start(&weir, Cut::Never, 0).await;
        let url = proxy.url(&weir);
        let process = Process::start(&weir, &[command], &[("DATABASE_URL", &url)]);
        process.ready().await;
        proxy.freeze();
        tokio::time::sleep(Duration::from_millis(200)).await;
        let started = Instant::now();
        let code = process.stop().await;
        let took = started.elapsed();
        eprintln!("{command}: {code:?} after {took:?}");
        // The drain time is 2 s here.
        assert!(took < Duration::from_secs(5), "{command}: {took:?}");
        assert_eq!(code, Some(0), "{command}");
    });
    futures_util::future::join_all(stops).await;
    weir.abandon().await;
}

/// Process ids, states and parents of all processes.
fn processes() -> Vec<(u32, String, u32)> {
    let stats = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let stat = std::fs::read_to_string(entry.ok()?.path().join("stat")).ok()?;
        let (pid, rest) = stat.split_once(' ')?;
        let mut fields = rest.rsplit_once(") ")?.1.split(' ');
        Some((
            pid.parse().ok()?,
            fields.next()?.to_owned(),
            fields.next()?.parse().ok()?,
        ))
    });
    stats.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_end_with_a_killed_worker() {
    let mark = uuid::Uuid::new_v4();
    // A child in another session, and one without the environment.
    let script =
        format!("(setsid sh -c \"sleep 60; : {mark}\" &); env -i sh -c \"sleep 60; : {mark}\"; : {mark}");
    let handler = format!(
        "timeout = '5m'\nmax_attempts = 1\nhandler = {{ type = 'exec', command = ['sh', '-c', '{script}'], amount = 1 }}"
    );
    let weir = Weir::serving(&service("long", "analysis", &handler), &[]).await;
    let running = || {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let lines = all.filter_map(|process| std::fs::read_to_string(process.path().join("cmdline")).ok());
        lines.filter(|line| line.contains(&format!(": {mark}"))).count()
    };
    let count = async |wanted: usize| {
        let what = format!("{wanted} processes of the program");
        weir.until(&what, async || (running() == wanted).then_some(()))
            .await;
    };
    let submit = async || {
        let user = Who::User(weir.user("free").await);
        let answer = weir.post("/api/jobs/long", user, &json!({})).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
    };
    let work = Process::start(&weir, &["work"], &[]);
    submit().await;
    count(3).await;
    let killed = std::time::Instant::now();
    // Dropping it kills it, as `kill -9` does.
    drop(work);
    count(0).await;
    assert!(
        killed.elapsed() < Duration::from_secs(5),
        "{:?}",
        killed.elapsed()
    );
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn as_the_first_process_weir_reaps_orphans() {
    let namespace = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    let possible = std::process::Command::new("unshare")
        .args(namespace)
        .arg("true")
        .output();
    if !possible.is_ok_and(|output| output.status.success()) {
        return skip("unshare cannot make a process namespace here");
    }
    let handler = "timeout = '30s'\nmax_attempts = 1\n\
                   handler = { type = 'exec', command = ['sh', '-c', '(setsid sleep 0.3 &); echo {}'], amount = 1 }";
    let weir = Weir::serving(&service("leaving", "analysis", handler), &[]).await;
    let who = Who::User(weir.user("enterprise").await);
    let plain = command(&weir, &["up"]);
    let port = free_port().to_string();
    let child = std::process::Command::new("unshare")
        .args(namespace)
        .arg(plain.get_program())
        .args(plain.get_args())
        .current_dir(plain.get_current_dir().unwrap())
        .envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .env("WEIR_ORIGIN_PORT", &port)
        .stderr(std::process::Stdio::null())
        .spawn();
    let mut outer = KilledOnDrop(child.unwrap());
    for _ in 0..3 {
        let answer = weir.post("/api/jobs/leaving", who, &json!({})).await;
        let id = answer.body["job"]["id"].as_i64().unwrap();
        assert_eq!(weir.finished(id, who).await["status"], "completed");
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let all = processes();
    let (first, ..) = all
        .iter()
        .find(|(_, _, parent)| *parent == outer.0.id())
        .expect("the first process of the namespace");
    let zombies: Vec<_> = all
        .iter()
        .filter(|(_, state, parent)| state == "Z" && parent == first)
        .collect();
    assert!(zombies.is_empty(), "{zombies:?}");
    let pid = nix::unistd::Pid::from_raw(i32::try_from(*first).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let status = weir
        .until("it to stop", async || outer.0.try_wait().unwrap())
        .await;
    assert_eq!(status.code(), Some(0));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn as_the_first_process_weir_stops_gracefully_at_the_terminals_ctrl_c() {
    let namespace = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    // `script` runs it in a terminal.
    let in_terminal = |program: &str| {
        let line = format!("exec unshare {} {program}", namespace.join(" "));
        let mut script = std::process::Command::new("script");
        script.args(["--quiet", "--flush", "--return", "--command", &line, "/dev/null"]);
        script
    };
    if !in_terminal("true")
        .output()
        .is_ok_and(|output| output.status.success())
    {
        return skip("unshare cannot make a process namespace here, or script is missing");
    }
    let weir = naps().await;
    let plain = command(&weir, &["up"]);
    let port = free_port().to_string();
    let mut terminal = in_terminal(&format!("{} up", plain.get_program().display()));
    let child = terminal
        .current_dir(plain.get_current_dir().unwrap())
        .envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .envs(NAPS)
        .env("WEIR_ORIGIN_PORT", &port)
        .env("WEIR_DRAIN_TIMEOUT", "20s")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn();
    let mut outer = KilledOnDrop(child.unwrap());
    let user = Who::User(weir.user("free").await);
    let answer = weir.post("/api/jobs/brittle", user, &json!({})).await;
    let id = answer.body["job"]["id"].as_i64().unwrap();
    let client = weir.client().await;
    weir.until("the job to run", async || {
        let sql = "SELECT state::text FROM river_job WHERE id = $1";
        let row = client.query_one(sql, &[&id]).await.unwrap();
        (row.get::<_, &str>(0) == "running").then_some(())
    })
    .await;
    // The first process is as slow as on a busy machine: the terminal has stopped the child by then.
    let child_of = |of: u32| {
        let all = processes();
        let (pid, ..) = all.iter().find(|(_, _, parent)| *parent == of).unwrap();
        *pid
    };
    let first = i32::try_from(child_of(child_of(outer.0.id()))).unwrap();
    let first = nix::unistd::Pid::from_raw(first);
    nix::sys::signal::kill(first, nix::sys::signal::Signal::SIGSTOP).unwrap();
    let mut keyboard = outer.0.stdin.take().unwrap();
    std::io::Write::write_all(&mut keyboard, b"\x03").unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    nix::sys::signal::kill(first, nix::sys::signal::Signal::SIGCONT).unwrap();
    let status = weir
        .until("it to stop", async || outer.0.try_wait().unwrap())
        .await;
    assert_eq!(status.code(), Some(0), "130: it was asked twice");
    // Its program ended on its own, and failed.
    let sql = "SELECT cardinality(errors) AS errors FROM river_job WHERE id = $1";
    let row = client.query_one(sql, &[&id]).await.unwrap();
    assert_eq!(row.get::<_, Option<i32>>("errors"), Some(1));
    drop(keyboard);
    weir.end().await;
}
