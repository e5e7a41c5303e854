//! Connections through a pooler in transaction mode. Each transaction may get another session, which other programs also
//! use.
//!
//! A driver connects to the relay, which changes what it sends in two ways:
//!
//! - Each transaction starts with the settings that its connection needs. They end with the transaction, so they do not
//!   affect other programs. They override the settings of other programs. A statement outside of a transaction block is
//!   a transaction too.
//! - A prepared statement is parsed again before each use, without a name, because the session may not have it.
//!
//! The additional messages travel with those of the driver, so they cost no round trip. Their answers are removed.
//!
//! Both drivers end each sequence of the extended protocol with one Sync, so each Sync has one answer. `COPY … FROM STDIN`
//! would break this, because the server ignores a Sync during it. Neither Weir nor River uses it.
//!
//! A driver may send a request before the answer to the previous one. Within a transaction, the relay forwards it
//! immediately. Between transactions, it waits for the answer. PgBouncer before 1.21 counts only complete requests. At the
//! end of a transaction, it gives the session to another client, even if a part of the next request was forwarded already.
//! That client then gets the answers to this part.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::sync::Notify;

/// The code of a request to cancel a statement, in the place of the protocol's version.
const CANCEL: [u8; 4] = 80_877_102_u32.to_be_bytes();

/// The maximum time for the pooler to pass on a request to cancel.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum wait for the answers to all requests. No use of a connection takes as long, so its driver is gone.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The startup parameter with the settings. Poolers refuse it, so it ends here.
const SETTINGS: &[u8] = b"options";

/// The start of the statement with the settings.
const STATEMENT: &[u8] = b"SELECT ";

/// The maximum length of a startup message, as PostgreSQL's.
const MAX_STARTUP: u32 = 10_000;

/// The number of bytes after which a part is forwarded.
const CHUNK: usize = 64 * 1024;

/// Overrides the session's default for this transaction. Must precede all statements that read. Outside of a transaction
/// block, the server would log a warning about `SET LOCAL`.
const ISOLATION: &[u8] = b"SET transaction_isolation = 'read committed'";

/// The kind of the last message of a driver, which has no answer.
const TERMINATE: u8 = b'X';

/// The number of statements before the driver's first one in a transaction: [`ISOLATION`] and the settings.
const PREFIX: u8 = 2;

/// Forwards everything between a driver and a pooler until one of them closes the connection.
pub(super) async fn forward(
    mut driver: impl AsyncRead + AsyncWrite + Unpin,
    mut pooler: impl AsyncRead + AsyncWrite + Unpin,
) -> io::Result<()> {
    let length = driver.read_u32().await?;
    if !(8..=MAX_STARTUP).contains(&length) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut startup = vec![0; length as usize - 4];
    driver.read_exact(&mut startup).await?;
    if startup.starts_with(&CANCEL) {
        pooler
            .write_all(&[&length.to_be_bytes(), &*startup].concat())
            .await?;
        pooler.flush().await?;
        // The driver closes its end immediately. PgBouncer ignores requests of clients that are gone.
        let mut ignored = tokio::io::sink();
        let closed = tokio::io::copy(&mut pooler, &mut ignored);
        let _ = tokio::time::timeout(CANCEL_TIMEOUT, closed).await;
        return Ok(());
    }
    let (startup, settings) = without_settings(&startup);
    // An empty statement has no result, so the first result of the driver's would be removed instead.
    if settings.is_empty() {
        return Err(io::Error::other("a connection without settings"));
    }
    pooler.write_all(&startup).await?;
    let exchange = Mutex::new(Exchange::default());
    let answered = Notify::new();
    let mut requests = Requests {
        exchange: &exchange,
        settings,
        is_open: false,
        statements: HashMap::new(),
        parsed: None,
    };
    let (from_driver, mut to_driver) = tokio::io::split(driver);
    let (from_pooler, mut to_pooler) = tokio::io::split(pooler);
    // A driver that is gone needs no answer, and a pooler that is gone gives none.
    tokio::select! {
        ended = pump(from_driver, &mut to_pooler, &answered, |kind, body, out| {
            if requests.must_wait(kind) {
                return Step::Wait;
            }
            requests.rewrite(kind, body, out);
            Step::Next
        }) => ended,
        ended = pump(from_pooler, &mut to_driver, &answered, |kind, body, out| {
            let mut exchange = exchange.lock();
            let step = exchange.answer(kind, body, out);
            if exchange.answers.is_empty() {
                answered.notify_one();
            }
            step
        }) => ended,
    }
}

/// The next action after a message.
#[derive(Debug, PartialEq)]
enum Step {
    Next,
    /// The message must wait until all requests are answered.
    Wait,
    /// The connection must not be used any longer.
    Close,
}

/// The startup message without the settings, and the settings.
fn without_settings(startup: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (version, parameters) = startup.split_at(4);
    let mut texts = parameters.split(|byte| *byte == 0);
    let (mut kept, mut settings) = (version.to_vec(), Vec::new());
    while let (Some(name), Some(value)) = (texts.next().filter(|name| !name.is_empty()), texts.next()) {
        if name == SETTINGS {
            // SQLx puts PGOPTIONS in front of them.
            let start = value.windows(STATEMENT.len()).position(|part| part == STATEMENT);
            settings = value[start.unwrap_or_default()..].to_vec();
        } else {
            kept.extend([name, b"\0", value, b"\0"].concat());
        }
    }
    kept.push(0);
    let mut message = Vec::new();
    push(&mut message, None, &[&kept]);
    (message, settings)
}

/// Passes each message through `change`, which appends what to send instead, until it closes the connection.
async fn pump(
    from: impl AsyncRead + Unpin,
    to: &mut (impl AsyncWrite + Unpin),
    answered: &Notify,
    mut change: impl FnMut(u8, &[u8], &mut Vec<u8>) -> Step,
) -> io::Result<()> {
    let mut from = BufReader::with_capacity(CHUNK, from);
    let (mut body, mut out) = (Vec::new(), Vec::new());
    while let Some(kind) = read_message(&mut from, &mut body).await? {
        let mut step = change(kind, &body, &mut out);
        while step == Step::Wait {
            send(to, &mut out).await?;
            tokio::time::timeout(ANSWER_TIMEOUT, answered.notified()).await?;
            step = change(kind, &body, &mut out);
        }
        if step == Step::Close || from.buffer().is_empty() || out.len() > CHUNK {
            send(to, &mut out).await?;
        }
        if step == Step::Close {
            break;
        }
    }
    Ok(())
}

async fn send(to: &mut (impl AsyncWrite + Unpin), out: &mut Vec<u8>) -> io::Result<()> {
    to.write_all(out).await?;
    to.flush().await?;
    out.clear();
    Ok(())
}

/// Reads a message's kind and body; `None` at the end.
async fn read_message(from: &mut (impl AsyncBufRead + Unpin), body: &mut Vec<u8>) -> io::Result<Option<u8>> {
    let kind = match from.read_u8().await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        kind => kind?,
    };
    let length = from.read_u32().await?.checked_sub(4);
    let length = length.ok_or(io::ErrorKind::InvalidData)?;
    body.clear();
    // Grows with the data that arrives.
    let read = from.take(length.into()).read_to_end(body).await?;
    match read == length as usize {
        true => Ok(Some(kind)),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Appends a message. A startup message has no kind.
fn push(out: &mut Vec<u8>, kind: Option<u8>, body: &[&[u8]]) {
    let length: usize = body.iter().map(|part| part.len()).sum();
    out.extend(kind);
    out.extend(u32::try_from(length + 4).unwrap_or(u32::MAX).to_be_bytes());
    out.extend(body.iter().copied().flatten());
}

/// The first text of a body, and the rest after its end.
fn text(body: &[u8]) -> (&[u8], &[u8]) {
    let end = body.iter().position(|byte| *byte == 0).unwrap_or(body.len());
    (&body[..end], body.get(end + 1..).unwrap_or_default())
}

/// The state that both directions share.
#[derive(Default)]
struct Exchange {
    /// The answers that are still to come, each up to its ReadyForQuery.
    answers: VecDeque<Answer>,
    /// Whether the next message arrives inside a transaction block.
    in_block: bool,
}

/// The parts of an answer that the driver must not see.
#[derive(Default)]
struct Answer {
    /// The results of this many statements, at the start.
    hidden: u8,
    /// For each Parse after that, whether it was added.
    parses: VecDeque<bool>,
    /// Whether it is the answer to BEGIN with the settings.
    begins: bool,
}

impl Exchange {
    /// Forwards a message of the pooler's. Closes the connection when the settings fail after BEGIN, because the driver
    /// believes that no transaction is open.
    fn answer(&mut self, kind: u8, body: &[u8], out: &mut Vec<u8>) -> Step {
        let fails_to_begin = kind == b'E' && self.answers.front().is_some_and(|answer| answer.begins);
        let is_shown = match (self.answers.front_mut(), kind) {
            // Notices, changes of settings, and notifications may arrive at any time.
            (None, _) | (_, b'N' | b'S' | b'A') => true,
            (_, b'Z') => {
                self.answers.pop_front();
                if self.answers.is_empty() {
                    self.in_block = body != b"I";
                }
                true
            }
            // After an error, the rest is skipped.
            (Some(answer), b'E') => {
                answer.hidden = 0;
                true
            }
            (Some(answer), _) if answer.hidden > 0 => {
                // The end of a statement's result.
                answer.hidden -= u8::from(kind == b'C');
                false
            }
            (Some(answer), b'1') => !answer.parses.pop_front().unwrap_or(false),
            (Some(_), _) => true,
        };
        if is_shown {
            push(out, Some(kind), &[body]);
        }
        match fails_to_begin {
            true => Step::Close,
            false => Step::Next,
        }
    }
}

/// The direction from the driver to the pooler.
struct Requests<'a> {
    exchange: &'a Mutex<Exchange>,
    /// The statement that sets all settings of a transaction.
    settings: Vec<u8>,
    /// Whether messages of the extended protocol were sent without a Sync yet.
    is_open: bool,
    /// The driver's prepared statements: the text and the types of each.
    statements: HashMap<Vec<u8>, Vec<u8>>,
    /// The one that was parsed last, until the next Sync.
    parsed: Option<Vec<u8>>,
}

impl Requests<'_> {
    /// Whether this message starts another transaction, while an answer to the previous one is still to come.
    fn must_wait(&self, kind: u8) -> bool {
        let exchange = self.exchange.lock();
        kind != TERMINATE && !self.is_open && !exchange.in_block && !exchange.answers.is_empty()
    }

    /// Forwards a message of the driver's.
    fn rewrite(&mut self, kind: u8, body: &[u8], out: &mut Vec<u8>) {
        let mut exchange = self.exchange.lock();
        match kind {
            b'Q' => {
                let sent = text(body).0;
                let was_in_block = exchange.in_block;
                let hidden = self.query(sent, &mut exchange.in_block, out);
                let begins = exchange.in_block && !was_in_block;
                exchange.answers.push_back(Answer {
                    hidden,
                    begins,
                    ..Answer::default()
                });
                return;
            }
            b'S' => {
                if !self.is_open {
                    exchange.answers.push_back(Answer::default());
                }
                (self.is_open, self.parsed) = (false, None);
            }
            b'P' | b'B' | b'D' | b'E' | b'C' | b'F' | b'H' if !self.is_open => {
                self.is_open = true;
                let mut answer = Answer::default();
                if !exchange.in_block {
                    answer.hidden = PREFIX;
                    for statement in [ISOLATION, &self.settings] {
                        push(out, Some(b'P'), &[b"\0", statement, b"\0\0\0"]);
                        push(out, Some(b'B'), &[b"\0\0\0\0\0\0\0\0"]);
                        push(out, Some(b'E'), &[b"\0\0\0\0\0"]);
                    }
                }
                exchange.answers.push_back(answer);
            }
            _ => {}
        }
        let Some(answer) = exchange.answers.back_mut().filter(|_| self.is_open) else {
            return push(out, Some(kind), &[body]);
        };
        match (kind, body) {
            (b'P', _) => {
                let (name, parse) = text(body);
                self.statements.insert(name.to_vec(), parse.to_vec());
                self.parsed = Some(name.to_vec());
                answer.parses.push_back(false);
                push(out, Some(b'P'), &[b"\0", parse]);
            }
            (b'B', _) => {
                let (portal, rest) = text(body);
                let (name, rest) = text(rest);
                match self.parse(name, answer, out) {
                    true => push(out, Some(b'B'), &[portal, b"\0\0", rest]),
                    false => push(out, Some(b'B'), &[body]),
                }
            }
            (b'D', [b'S', name @ ..]) => match self.parse(text(name).0, answer, out) {
                true => push(out, Some(b'D'), &[b"S\0"]),
                false => push(out, Some(b'D'), &[body]),
            },
            (b'C', [b'S', name @ ..]) => {
                self.statements.remove(text(name).0);
                self.parsed = None;
                push(out, Some(b'C'), &[b"S\0"]);
            }
            _ => push(out, Some(kind), &[body]),
        }
    }

    /// Parses a prepared statement again, unless it was the last one. Returns false for an unknown statement, which the
    /// server then refuses by its name.
    fn parse(&mut self, name: &[u8], answer: &mut Answer, out: &mut Vec<u8>) -> bool {
        let Some(parse) = self.statements.get(name) else {
            return false;
        };
        if self.parsed.as_deref() != Some(name) {
            self.parsed = Some(name.to_vec());
            answer.parses.push_back(true);
            push(out, Some(b'P'), &[b"\0", parse]);
        }
        true
    }

    /// Forwards statements of the simple protocol. Returns the number of results to hide.
    fn query(&self, sent: &[u8], in_block: &mut bool, out: &mut Vec<u8>) -> u8 {
        let upper = sent.trim_ascii_start().to_ascii_uppercase();
        let is_end = [&b"COMMIT"[..], b"ROLLBACK", b"END", b"ABORT"]
            .iter()
            .any(|word| upper.starts_with(word))
            && !upper.starts_with(b"ROLLBACK TO");
        let begins = upper.starts_with(b"BEGIN") || upper.starts_with(b"START TRANSACTION");
        let (parts, hidden): (&[&[u8]], _) = match (*in_block, begins) {
            (false, true) => {
                *in_block = true;
                let has_isolation = upper.windows(9).any(|word| word == b"ISOLATION");
                let isolation = if has_isolation { b"" } else { ISOLATION };
                (&[sent, b"; ", isolation, b"; ", &self.settings], 0)
            }
            (false, false) if !is_end => (&[ISOLATION, b"; ", &self.settings, b"; ", sent], PREFIX),
            _ => {
                *in_block &= !is_end;
                (&[sent], 0)
            }
        };
        push(out, Some(b'Q'), &[&parts.concat(), b"\0"]);
        hidden
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncBufReadExt as _;

    use super::*;

    /// The kinds of messages that are sent for these, and whether a transaction block is open then.
    struct Driver<'a>(Requests<'a>);

    impl Driver<'_> {
        fn send(&mut self, messages: &[(u8, &[u8])]) -> Vec<(u8, String)> {
            let mut out = Vec::new();
            for (kind, body) in messages {
                self.0.rewrite(*kind, body, &mut out);
            }
            parts(&out)
        }

        fn receive(&self, kinds: &[u8]) -> String {
            let mut out = Vec::new();
            for kind in kinds {
                let (kind, body): (_, &[u8]) = match kind {
                    b'T' | b'I' => (b'Z', std::slice::from_ref(kind)),
                    kind => (*kind, b""),
                };
                if self.0.exchange.lock().answer(kind, body, &mut out) == Step::Close {
                    push(&mut out, Some(b'!'), &[]);
                }
            }
            parts(&out).iter().map(|(kind, _)| char::from(*kind)).collect()
        }
    }

    fn parts(mut out: &[u8]) -> Vec<(u8, String)> {
        let mut parts = Vec::new();
        while let [kind, a, b, c, d, rest @ ..] = out {
            let (body, after) = rest.split_at(u32::from_be_bytes([*a, *b, *c, *d]) as usize - 4);
            parts.push((*kind, String::from_utf8_lossy(body).replace('\0', "")));
            out = after;
        }
        parts
    }

    fn driver(exchange: &Mutex<Exchange>) -> Driver<'_> {
        Driver(Requests {
            exchange,
            settings: b"SELECT settings".to_vec(),
            is_open: false,
            statements: HashMap::new(),
            parsed: None,
        })
    }

    fn texts(sent: &[(u8, String)]) -> Vec<&str> {
        sent.iter().map(|(_, text)| text.as_str()).collect()
    }

    const ISOLATION: &str = "SET transaction_isolation = 'read committed'";

    #[test]
    fn settings_precede_each_transaction_and_nothing_else() {
        let exchange = Mutex::default();
        let mut driver = driver(&exchange);
        let sent = driver.send(&[
            (b'Q', b"BEGIN\0"),
            (b'Q', b"SELECT 1\0"),
            (b'Q', b"COMMIT\0"),
            (b'Q', b"SELECT 2\0"),
        ]);
        let begin = format!("BEGIN; {ISOLATION}; SELECT settings");
        let alone = format!("{ISOLATION}; SELECT settings; SELECT 2");
        assert_eq!(texts(&sent), [&begin, "SELECT 1", "COMMIT", &alone]);
        assert_eq!(driver.receive(b"CCDCT"), "CCDCZ");
        assert_eq!(driver.receive(b"DCT"), "DCZ");
        assert_eq!(driver.receive(b"CI"), "CZ");
        // The results of the settings are hidden.
        assert_eq!(driver.receive(b"CDCDCI"), "DCZ");
        let sent = driver.send(&[(b'Q', b"START TRANSACTION ISOLATION LEVEL REPEATABLE READ\0")]);
        assert!(!sent[0].1.contains(ISOLATION), "{sent:?}");
        driver.receive(b"CDCT");
        let sent = driver.send(&[
            (b'Q', b"ROLLBACK TO sp_1\0"),
            (b'Q', b"SELECT 1\0"),
            (b'Q', b"ROLLBACK\0"),
        ]);
        assert_eq!(texts(&sent), ["ROLLBACK TO sp_1", "SELECT 1", "ROLLBACK"]);
    }

    #[test]
    fn prepared_statements_are_parsed_again_without_a_name() {
        let exchange = Mutex::default();
        let mut driver = driver(&exchange);
        let kinds =
            |sent: &[(u8, String)]| -> String { sent.iter().map(|(kind, _)| char::from(*kind)).collect() };
        let sent = driver.send(&[(b'P', b"s0\0SELECT 1\0\0\0"), (b'D', b"Ss0\0"), (b'S', b"")]);
        assert_eq!(kinds(&sent), "PBEPBEPDS");
        assert_eq!(sent[6].1, "SELECT 1");
        assert_eq!(driver.receive(b"12C12DC1tnI"), "1tnZ");
        let bind: (u8, &[u8]) = (b'B', b"\0s0\0\0\0\0\0\0\0");
        let sent = driver.send(&[bind, (b'E', b"\0\0\0\0\0"), (b'S', b"")]);
        assert_eq!(kinds(&sent), "PBEPBEPBES");
        assert_eq!(driver.receive(b"12C12DC12DCI"), "2DCZ");
        // In a block, the settings apply already. An error ends what is hidden.
        driver.send(&[(b'Q', b"BEGIN\0")]);
        let sent = driver.send(&[bind, (b'E', b"\0\0\0\0\0"), (b'S', b"")]);
        assert_eq!(kinds(&sent), "PBES");
        assert_eq!(driver.receive(b"CCDCT"), "CCDCZ");
        assert_eq!(driver.receive(b"1ET"), "EZ");
        // The server refuses an unknown statement.
        let sent = driver.send(&[(b'B', b"\0s9\0\0\0\0\0\0\0"), (b'S', b"")]);
        assert_eq!(sent[0].1, "s9");
        driver.receive(b"ET");
        driver.send(&[(b'Q', b"ROLLBACK\0")]);
        driver.receive(b"CI");
    }

    #[test]
    fn a_connection_ends_when_settings_fail_after_begin() {
        let exchange = Mutex::default();
        let mut driver = driver(&exchange);
        driver.send(&[(b'Q', b"BEGIN\0")]);
        assert_eq!(driver.receive(b"CE"), "CE!");
        // Not after an error of the driver's own statement.
        let exchange = Mutex::default();
        let mut driver = self::driver(&exchange);
        driver.send(&[(b'Q', b"BEGIN\0"), (b'Q', b"SELECT 1\0")]);
        assert_eq!(driver.receive(b"CCDCT"), "CCDCZ");
        assert_eq!(driver.receive(b"ET"), "EZ");
    }

    #[test]
    fn the_startup_message_keeps_everything_but_the_settings() {
        let startup = b"\0\x03\0\0user\0weir\0options\0-c geqo=off SELECT 1\0application_name\0\0\0";
        let (message, settings) = without_settings(startup);
        assert_eq!(settings, b"SELECT 1");
        let kept = b"\0\x03\0\0user\0weir\0application_name\0\0\0";
        assert_eq!(message[..4], u32::try_from(kept.len() + 4).unwrap().to_be_bytes());
        assert_eq!(message[4..], kept[..]);
    }

    #[tokio::test]
    async fn requests_wait_for_answers_between_transactions_but_not_in_one() {
        let (driver, of_driver) = tokio::io::duplex(1024);
        let (pooler, of_pooler) = tokio::io::duplex(1024);
        let relay = tokio::spawn(forward(of_driver, of_pooler));
        let (mut from_relay, mut to_relay) = tokio::io::split(driver);
        let (from_driver, mut to_driver) = tokio::io::split(pooler);
        let mut from_driver = BufReader::new(from_driver);
        let mut sent = Vec::new();
        push(&mut sent, None, &[b"\0\x03\0\0options\0SELECT settings\0\0"]);
        // A driver closes a statement that it no longer needs, and does not wait for the answer.
        let requests: [(u8, &[u8]); 8] = [
            (b'C', b"Ss0\0"),
            (b'S', b""),
            (b'Q', b"BEGIN\0"),
            (b'Q', b"SELECT 1\0"),
            (b'Q', b"COMMIT\0"),
            (b'P', b"s1\0SELECT 2\0\0\0"),
            (b'S', b""),
            (b'X', b""),
        ];
        for (kind, body) in &requests {
            push(&mut sent, Some(*kind), &[body]);
        }
        to_relay.write_all(&sent).await.unwrap();
        let length = from_driver.read_u32().await.unwrap();
        let mut startup = vec![0; length as usize - 4];
        from_driver.read_exact(&mut startup).await.unwrap();
        for (forwarded, answer) in [
            ("PBEPBECS", "12C12DC3I"),
            ("QQQ", "CCDCTDCTCI"),
            ("PBEPBEPSX", ""),
        ] {
            let (mut kinds, mut body) = (String::new(), Vec::new());
            while kinds.len() < forwarded.len() {
                let kind = read_message(&mut from_driver, &mut body).await.unwrap().unwrap();
                kinds.push(char::from(kind));
            }
            assert_eq!(kinds, forwarded);
            let early = tokio::time::timeout(Duration::from_millis(50), from_driver.fill_buf()).await;
            assert!(early.is_err(), "sent before the answer: {early:?}");
            let mut answers = Vec::new();
            for kind in answer.bytes() {
                match kind {
                    b'T' | b'I' => push(&mut answers, Some(b'Z'), &[&[kind]]),
                    kind => push(&mut answers, Some(kind), &[]),
                }
            }
            to_driver.write_all(&answers).await.unwrap();
        }
        drop((from_relay.read_u8().await, to_relay));
        relay.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_when_a_request_waits_too_long() {
        let (mut driver, of_driver) = tokio::io::duplex(1024);
        let (_pooler, of_pooler) = tokio::io::duplex(1024);
        let mut sent = Vec::new();
        push(&mut sent, None, &[b"\0\x03\0\0options\0SELECT settings\0\0"]);
        push(&mut sent, Some(b'Q'), &[b"SELECT 1\0"]);
        push(&mut sent, Some(b'Q'), &[b"SELECT 2\0"]);
        driver.write_all(&sent).await.unwrap();
        let ended = forward(of_driver, of_pooler).await;
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_connection_without_settings_is_refused() {
        let (mut driver, of_driver) = tokio::io::duplex(64);
        let (_pooler, of_pooler) = tokio::io::duplex(64);
        driver.write_all(b"\0\0\0\x0d\0\x03\0\0a\0b\0\0").await.unwrap();
        drop(driver);
        assert!(forward(of_driver, of_pooler).await.is_err());
    }
}
