//! The configurations of nginx and Caddy in docs/how-to/deploy.md, with the real programs in front of a real origin.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::process::{KilledOnDrop, Process, ask, free_port};
use crate::common::programs::debian;
use crate::common::{EDGE_SECRET, GO_TESTS, Weir, Who, files};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use weir_policy::assertion;

/// The only block of the page in this language.
fn block(language: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/how-to/deploy.md");
    let page = std::fs::read_to_string(page).unwrap();
    let start = format!("```{language}\n");
    let mut blocks = page.split(&start).skip(1);
    let block = blocks.next().unwrap().split("```").next().unwrap().to_owned();
    assert!(blocks.next().is_none(), "one block of {language}");
    block
}

/// Replaces a part of the text, which must exist.
fn replaced(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from} in {text}");
    text.replace(from, to)
}

fn folder() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("weir-proxy-{}", uuid::Uuid::new_v4()));
    std::fs::create_dir(&folder).unwrap();
    folder
}

/// Checks the responses through the proxy at this port.
async fn behaves(port: u16, weir: &Weir) {
    let who = Who::User(weir.user("free").await);
    weir.until("the proxy to answer", async || {
        let reply = ask(port, "GET", "/healthz", &[], "").await?;
        (reply.status == 200).then_some(())
    })
    .await;
    let signed = |method, path| who.assertion(EDGE_SECRET, method, path, "request-1");

    // As the edge signs it: the path arrives unchanged.
    let path = "/api/jobs/analysis?note=a%2Fb%20c";
    let headers = [(assertion::HEADER, &*signed("POST", path))];
    let body = files(&[("a_test.go", GO_TESTS)]).to_string();
    let reply = ask(port, "POST", path, &headers, &body).await.unwrap();
    assert_eq!(reply.status, 202, "{}", reply.text);

    let path = "/api/jobs/analysis";
    let headers = [(assertion::HEADER, &*signed("POST", path))];
    let large = format!(r#"{{"text": "{}"}}"#, "x".repeat(300 * 1024));
    let reply = ask(port, "POST", path, &headers, &large).await.unwrap();
    assert_eq!(reply.status, 413);
    assert!(reply.text.contains("256 KiB"), "the origin's own: {}", reply.text);
    let huge = "x".repeat(8 * 1024 * 1024);
    // The proxy may disconnect before it has the whole request.
    if let Some(reply) = ask(port, "POST", path, &headers, &huge).await {
        assert!(matches!(reply.status, 413 | 502), "{}", reply.status);
    }

    let path = "/api/jobs/events";
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: origin.example.com\r\n{}: {}\r\n\r\n",
        assertion::HEADER,
        signed("GET", path)
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut read = Vec::new();
    let first = async {
        while !String::from_utf8_lossy(&read).contains("event: job") {
            assert!(stream.read_buf(&mut read).await.unwrap() > 0, "the stream ended");
        }
    };
    // A proxy with a buffer keeps the first event until more follows. The origin sends nothing else for 15 s.
    let first = tokio::time::timeout(Duration::from_secs(10), first).await;
    assert!(first.is_ok(), "{}", String::from_utf8_lossy(&read));

    for path in ["/metrics", "/console", "/console/jobs"] {
        let reply = ask(port, "GET", path, &[("host", "localhost")], "")
            .await
            .unwrap();
        assert_eq!(reply.status, 404, "{path}");
    }
}

async fn origin() -> (Weir, Process, String) {
    let weir = Weir::new().await;
    let process = Process::start(&weir, &["serve"], &[]);
    process.ready().await;
    let address = format!("127.0.0.1:{}", process.port());
    (weir, process, address)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_of_nginx_carries_submissions_and_event_streams() {
    let Some(nginx) = debian("nginx", "usr/sbin/nginx") else {
        return;
    };
    let (weir, process, address) = origin().await;
    let (folder, port) = (folder(), free_port());
    let block = replaced(&block("nginx"), "127.0.0.1:8080", &address);
    let block = replaced(&block, "listen 8000;", &format!("listen 127.0.0.1:{port};"));
    let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {};\n", folder.join(name).display()))
        .concat();
    let config = format!(
        "daemon off;\nmaster_process off;\npid {0}/pid;\nerror_log {0}/error.log;\nevents {{}}\n\
         http {{\naccess_log off;\n{paths}{block}}}\n",
        folder.display()
    );
    let file = folder.join("nginx.conf");
    std::fs::write(&file, config).unwrap();
    let child = Command::new(nginx)
        .arg("-p")
        .arg(&folder)
        .arg("-e")
        .arg(folder.join("start.log"))
        .arg("-c")
        .arg(&file)
        .stderr(Stdio::null())
        .spawn();
    let nginx = KilledOnDrop(child.unwrap());
    behaves(port, &weir).await;
    drop(nginx);
    assert_eq!(process.stop().await, Some(0));
    std::fs::remove_dir_all(folder).unwrap();
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_of_caddy_carries_submissions_and_event_streams() {
    let Some(caddy) = debian("caddy", "usr/bin/caddy") else {
        return;
    };
    let (weir, process, address) = origin().await;
    let (folder, port) = (folder(), free_port());
    let block = replaced(&block("caddyfile"), "127.0.0.1:8080", &address);
    let block = replaced(
        &block,
        "origin.example.com {",
        &format!("http://:{port} {{\n    bind 127.0.0.1"),
    );
    let file = folder.join("Caddyfile");
    std::fs::write(&file, format!("{{\n    admin off\n}}\n{block}")).unwrap();
    let child = Command::new(caddy)
        .args(["run", "--adapter", "caddyfile", "--config"])
        .arg(&file)
        .env("HOME", &folder)
        .env("XDG_DATA_HOME", &folder)
        .env("XDG_CONFIG_HOME", &folder)
        .stderr(Stdio::null())
        .spawn();
    let caddy = KilledOnDrop(child.unwrap());
    behaves(port, &weir).await;
    drop(caddy);
    assert_eq!(process.stop().await, Some(0));
    std::fs::remove_dir_all(folder).unwrap();
    weir.end().await;
}
