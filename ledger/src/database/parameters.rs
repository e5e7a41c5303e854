//! Connection parameters, as libpq documents them: URLs, keywords with values, and environment variables.
//!
//! A parameter either has libpq's meaning or is refused by its name. This module only parses text.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::SecretString;

use super::error::DatabaseError;
use super::tls::{Roots, SslMode, TlsOptions};

/// Parameters by keyword.
type Parameters = BTreeMap<String, String>;

/// The supported parameters, and the variables that set them.
const SUPPORTED: [(&str, Option<&str>); 26] = [
    ("host", Some("PGHOST")),
    ("hostaddr", Some("PGHOSTADDR")),
    ("port", Some("PGPORT")),
    ("dbname", Some("PGDATABASE")),
    ("user", Some("PGUSER")),
    ("password", Some("PGPASSWORD")),
    ("passfile", Some("PGPASSFILE")),
    ("options", Some("PGOPTIONS")),
    ("application_name", Some("PGAPPNAME")),
    ("fallback_application_name", None),
    ("connect_timeout", Some("PGCONNECT_TIMEOUT")),
    ("client_encoding", None),
    ("target_session_attrs", Some("PGTARGETSESSIONATTRS")),
    ("load_balance_hosts", Some("PGLOADBALANCEHOSTS")),
    ("channel_binding", Some("PGCHANNELBINDING")),
    ("sslmode", Some("PGSSLMODE")),
    ("sslnegotiation", Some("PGSSLNEGOTIATION")),
    ("sslrootcert", Some("PGSSLROOTCERT")),
    ("sslcert", Some("PGSSLCERT")),
    ("sslkey", Some("PGSSLKEY")),
    ("sslcertmode", Some("PGSSLCERTMODE")),
    ("sslsni", Some("PGSSLSNI")),
    ("sslcompression", Some("PGSSLCOMPRESSION")),
    ("ssl_min_protocol_version", Some("PGSSLMINPROTOCOLVERSION")),
    ("ssl_max_protocol_version", Some("PGSSLMAXPROTOCOLVERSION")),
    ("gssencmode", Some("PGGSSENCMODE")),
];

/// The refused parameters, the variables that set them, and the alternatives.
const REFUSED: [(&str, Option<&str>, &str); 26] = [
    (
        "service",
        Some("PGSERVICE"),
        "write its parameters into DATABASE_URL",
    ),
    (
        "servicefile",
        Some("PGSERVICEFILE"),
        "write the service's parameters into DATABASE_URL",
    ),
    (
        "sslpassword",
        None,
        "decrypt the key into a file that only Weir's user can read: openssl pkey",
    ),
    (
        "sslcrl",
        Some("PGSSLCRL"),
        "to revoke a certificate, replace the authority in sslrootcert",
    ),
    (
        "sslcrldir",
        Some("PGSSLCRLDIR"),
        "to revoke a certificate, replace the authority in sslrootcert",
    ),
    ("sslkeylogfile", None, "remove it"),
    (
        "requirepeer",
        Some("PGREQUIREPEER"),
        "restrict write access to the socket's folder",
    ),
    (
        "require_auth",
        Some("PGREQUIREAUTH"),
        "use sslmode=verify-full, so that only the verified server receives credentials",
    ),
    ("requiressl", Some("PGREQUIRESSL"), "use sslmode=require"),
    (
        "krbsrvname",
        Some("PGKRBSRVNAME"),
        "use a password or a client certificate",
    ),
    (
        "gsslib",
        Some("PGGSSLIB"),
        "use a password or a client certificate",
    ),
    (
        "gssdelegation",
        Some("PGGSSDELEGATION"),
        "use a password or a client certificate",
    ),
    (
        "replication",
        None,
        "remove it: Weir does not read a replication stream",
    ),
    ("keepalives", None, "remove it: Weir sets this itself"),
    ("keepalives_idle", None, "remove it: Weir sets this itself"),
    (
        "keepalives_interval",
        None,
        "set the kernel parameter net.ipv4.tcp_keepalive_intvl",
    ),
    (
        "keepalives_count",
        None,
        "set the kernel parameter net.ipv4.tcp_keepalive_probes",
    ),
    ("tcp_user_timeout", None, "remove it: Weir sets this itself"),
    (
        "min_protocol_version",
        Some("PGMINPROTOCOLVERSION"),
        "remove it: Weir uses protocol version 3.0",
    ),
    (
        "max_protocol_version",
        Some("PGMAXPROTOCOLVERSION"),
        "remove it: Weir uses protocol version 3.0",
    ),
    ("scram_client_key", None, "set the password"),
    ("scram_server_key", None, "set the password"),
    ("oauth_issuer", None, "use a password or a client certificate"),
    ("oauth_client_id", None, "use a password or a client certificate"),
    (
        "oauth_client_secret",
        None,
        "use a password or a client certificate",
    ),
    ("oauth_scope", None, "use a password or a client certificate"),
];

/// The default of `connect_timeout`.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection is closed when the peer has not acknowledged data for this long.
pub(super) const TCP_USER_TIMEOUT: Duration = Duration::from_secs(10);

/// A silent connection is probed after this long.
pub(super) const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);

/// The maximum of `connect_timeout`, in seconds.
const MAX_CONNECT_TIMEOUT: u64 = 60;

/// The socket's folder if no host is named: Debian's packages, or PostgreSQL's source.
const SOCKET_FOLDERS: [&str; 2] = ["/var/run/postgresql", "/tmp"];

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) host: Host,
    pub(super) port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Host {
    /// A name or an address, and the address to connect to instead of resolving the name.
    Tcp(String, Option<IpAddr>),
    /// The folder of a socket.
    Unix(PathBuf),
}

/// Which of several servers to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Session {
    Any,
    /// The first one that accepts writes.
    Writable,
}

/// The parameters of a connection.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) servers: Vec<Server>,
    pub(super) user: Option<String>,
    pub(super) password: Option<SecretString>,
    /// The password file, if the password is not given.
    pub(super) passfile: Option<PathBuf>,
    pub(super) database: Option<String>,
    pub(super) options: Option<String>,
    pub(super) application_name: Option<String>,
    pub(super) connect_timeout: Duration,
    pub(super) session: Session,
    pub(super) tls: TlsOptions,
}

fn refused(fault: impl Into<String>) -> DatabaseError {
    DatabaseError::Url(fault.into())
}

fn is_one_of(value: &str, accepted: &[&str]) -> bool {
    accepted.iter().any(|one| one.eq_ignore_ascii_case(value))
}

/// Adds the settings from the environment that the text does not have. Returns the text itself when there are none.
/// `environment` reads a variable, `exists` checks for a file, and `user` is the user of this process.
///
/// # Errors
///
/// When a parameter is refused. `None` as the text means that everything comes from the environment.
pub fn with_environment(
    text: Option<&str>,
    environment: impl Fn(&str) -> Option<String>,
    exists: impl Fn(&Path) -> bool,
    user: Option<&str>,
) -> Result<String, DatabaseError> {
    let mut parameters = match text {
        Some(text) => parse(text)?,
        None => Parameters::new(),
    };
    let before = parameters.len();
    for (_, variable, instead) in REFUSED {
        if let Some(variable) = variable.filter(|variable| environment(variable).is_some()) {
            return Err(refused(format!(
                "{variable} is not supported; unset it, and {instead}"
            )));
        }
    }
    for (keyword, variable) in SUPPORTED {
        let Some((variable, value)) = variable.and_then(|name| Some((name, environment(name)?))) else {
            continue;
        };
        match parameters.get(keyword) {
            None => {
                parameters.insert(keyword.to_owned(), value);
            }
            // River's driver also adds the variable.
            Some(other) if keyword == "options" && *other != value => {
                return Err(refused(format!(
                    "it has options, but {variable} is also set; unset {variable}"
                )));
            }
            Some(_) => {}
        }
    }
    let home = environment("HOME").map(PathBuf::from);
    let has_password = parameters.contains_key("password");
    let mut add = |keyword: &str, path: &str| {
        let file = home.as_ref().map(|home| home.join(path));
        if let Some(file) = file.filter(|file| !parameters.contains_key(keyword) && exists(file)) {
            parameters.insert(keyword.to_owned(), file.display().to_string());
        }
    };
    if !has_password {
        add("passfile", ".pgpass");
    }
    add("sslrootcert", ".postgresql/root.crt");
    add("sslcert", ".postgresql/postgresql.crt");
    add("sslkey", ".postgresql/postgresql.key");
    if let Some(text) = text.filter(|_| parameters.len() == before) {
        return Ok(text.to_owned());
    }
    if let Some(user) = user {
        parameters
            .entry("user".to_owned())
            .or_insert_with(|| user.to_owned());
    }
    let quoted = |value: &str| value.replace('\\', "\\\\").replace('\'', "\\'");
    let words = parameters
        .iter()
        .map(|(keyword, value)| format!("{keyword}='{}'", quoted(value)));
    Ok(words.collect::<Vec<_>>().join(" "))
}

/// Parses the parameters of a text.
fn parse(text: &str) -> Result<Parameters, DatabaseError> {
    let text = text.trim();
    let url = ["postgres://", "postgresql://"]
        .iter()
        .find_map(|scheme| text.strip_prefix(scheme));
    let parameters = match url {
        Some(rest) => parse_url(rest)?,
        None => parse_keywords(text).ok_or_else(no_url)?,
    };
    for keyword in parameters.keys() {
        if let Some((_, _, instead)) = REFUSED.iter().find(|(refused, ..)| refused == keyword) {
            return Err(refused(format!("{keyword} is not supported; {instead}")));
        }
        if !SUPPORTED.iter().any(|(supported, _)| supported == keyword) {
            // The text may be part of a password.
            let is_name = keyword
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            return Err(if is_name {
                refused(format!("{keyword} is not a connection parameter"))
            } else {
                no_url()
            });
        }
    }
    Ok(parameters)
}

fn no_url() -> DatabaseError {
    refused(
        "it must be a URL such as postgres://user@host:5432/name, or keywords such as host=/run/postgresql dbname=name",
    )
}

/// `user:password@host:port,host:port/name?keyword=value&…`, percent-encoded.
fn parse_url(text: &str) -> Result<Parameters, DatabaseError> {
    let (text, query) = text.split_once('?').unwrap_or((text, ""));
    let (authority, name) = text.split_once('/').unwrap_or((text, ""));
    let (credentials, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
    let (mut names, mut ports) = (Vec::new(), Vec::new());
    for host in hosts.split(',') {
        let (host, port) = match host.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest
                    .split_once(']')
                    .ok_or_else(|| refused("an IPv6 address has no closing bracket"))?;
                (host, after.strip_prefix(':').unwrap_or(after))
            }
            None => host.split_once(':').unwrap_or((host, "")),
        };
        names.push(decoded(host)?);
        ports.push(decoded(port)?);
    }
    let mut parameters = Parameters::new();
    let mut set = |keyword: &str, value: String| {
        if value.bytes().any(|byte| byte != b',') {
            parameters.insert(keyword.to_owned(), value);
        }
    };
    set("user", decoded(user)?);
    set("password", decoded(password)?);
    set("dbname", decoded(name)?);
    set("host", names.join(","));
    set("port", ports.join(","));
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (keyword, value) = pair
            .split_once('=')
            .ok_or_else(|| refused("a parameter after the question mark has no value"))?;
        let (keyword, value) = (decoded(keyword)?, decoded(value)?);
        // JDBC's spelling, which libpq accepts too.
        if keyword == "ssl" && value == "true" {
            parameters.insert("sslmode".to_owned(), "require".to_owned());
        } else {
            parameters.insert(keyword, value);
        }
    }
    Ok(parameters)
}

/// Decodes percent-encoding. A plus stays a plus.
fn decoded(text: &str) -> Result<String, DatabaseError> {
    let wrong = || refused("write a literal percent sign as %25");
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|byte| char::from(byte).to_digit(16));
        let (high, low) = (digit().ok_or_else(wrong)?, digit().ok_or_else(wrong)?);
        decoded.push(u8::try_from(high * 16 + low).map_err(|_| wrong())?);
    }
    if decoded.contains(&0) {
        return Err(refused("it has a null character"));
    }
    String::from_utf8(decoded).map_err(|_| refused("its percent-encoding is not UTF-8"))
}

/// `keyword=value keyword='another value'`. `None` for any other text.
fn parse_keywords(text: &str) -> Option<Parameters> {
    let mut parameters = Parameters::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (keyword, after) = rest.split_once('=')?;
        let keyword = keyword.trim_end();
        if keyword.is_empty() || keyword.contains(char::is_whitespace) {
            return None;
        }
        let mut characters = after.trim_start().chars();
        let mut value = String::new();
        let is_quoted = characters.as_str().starts_with('\'');
        if is_quoted {
            characters.next();
        }
        loop {
            match characters.next() {
                Some('\\') => value.push(characters.next()?),
                Some('\'') if is_quoted => break,
                Some(space) if !is_quoted && space.is_whitespace() => break,
                Some(character) => value.push(character),
                None if is_quoted => return None,
                None => break,
            }
        }
        parameters.insert(keyword.to_owned(), value);
        rest = characters.as_str().trim_start();
    }
    Some(parameters)
}

impl Target {
    /// Parses a text. Reads nothing from the environment.
    pub(super) fn of(text: &str) -> Result<Self, DatabaseError> {
        let parameters = parse(text)?;
        let get = |keyword: &str| {
            parameters
                .get(keyword)
                .map(String::as_str)
                .filter(|value| !value.is_empty())
        };
        let text = |keyword: &str| get(keyword).map(str::to_owned);
        // Parameters with one value that drivers support, which is the default or equivalent to it.
        let fixed: [(&str, &[&str], &str); 9] = [
            (
                "client_encoding",
                &["UTF8", "UTF-8", "auto"],
                "remove it: Weir sends UTF-8",
            ),
            ("load_balance_hosts", &["disable"], "remove it"),
            (
                "channel_binding",
                &["prefer", "disable"],
                "River's driver does not support it; remove it and use sslmode=verify-full, which also prevents \
                 man-in-the-middle attacks",
            ),
            ("sslnegotiation", &["postgres"], "remove it"),
            ("sslcertmode", &["allow", "disable"], "remove it"),
            ("sslsni", &["1"], "remove it"),
            (
                "ssl_min_protocol_version",
                &["TLSv1", "TLSv1.1", "TLSv1.2"],
                "set ssl_min_protocol_version on the server",
            ),
            (
                "ssl_max_protocol_version",
                &["TLSv1.3"],
                "set ssl_max_protocol_version on the server",
            ),
            ("gssencmode", &["disable", "prefer"], "remove it, and use sslmode"),
        ];
        for (keyword, accepted, instead) in fixed {
            if let Some(value) = get(keyword).filter(|value| !is_one_of(value, accepted)) {
                return Err(refused(format!("{keyword}={value} is not supported; {instead}")));
            }
        }
        let servers = servers(get("host"), get("hostaddr"), get("port"))?;
        let session = match get("target_session_attrs") {
            None | Some("any") => Session::Any,
            Some("read-write" | "primary") => Session::Writable,
            Some(other) => {
                return Err(refused(format!(
                    "target_session_attrs={other} is not supported; use read-write, because Weir writes"
                )));
            }
        };
        let connect_timeout = match get("connect_timeout") {
            None => CONNECT_TIMEOUT,
            Some(text) => match text.trim().parse() {
                Ok(seconds @ 1..=MAX_CONNECT_TIMEOUT) => Duration::from_secs(seconds),
                _ => {
                    return Err(refused(format!(
                        "connect_timeout={text} is not supported; use 1 to {MAX_CONNECT_TIMEOUT} seconds"
                    )));
                }
            },
        };
        Ok(Self {
            servers,
            user: text("user"),
            password: text("password").map(SecretString::from),
            passfile: text("passfile").map(PathBuf::from),
            database: text("dbname"),
            options: text("options"),
            application_name: text("application_name").or_else(|| text("fallback_application_name")),
            connect_timeout,
            session,
            tls: tls(&get)?,
        })
    }

    /// Reads the password from the password file, if there is one and no password is given.
    pub(super) fn password_from(&mut self, file: &str) {
        let user = self.user.clone().unwrap_or_default();
        let database = self.database.clone().unwrap_or_else(|| user.clone());
        let found = self.servers.iter().find_map(|server| {
            let host = match &server.host {
                Host::Tcp(name, _) => name.clone(),
                Host::Unix(folder) if SOCKET_FOLDERS.iter().any(|default| Path::new(default) == folder) => {
                    "localhost".to_owned()
                }
                Host::Unix(folder) => folder.display().to_string(),
            };
            password_in(file, [&host, &server.port.to_string(), &database, &user])
        });
        self.password = found.map(SecretString::from);
    }
}

fn servers(
    hosts: Option<&str>,
    addresses: Option<&str>,
    ports: Option<&str>,
) -> Result<Vec<Server>, DatabaseError> {
    let split = |text: Option<&str>| -> Vec<String> {
        let parts = text.map(|text| text.split(',').map(|part| part.trim().to_owned()).collect());
        parts.unwrap_or_default()
    };
    let (hosts, addresses, ports) = (split(hosts), split(addresses), split(ports));
    let count = hosts.len().max(addresses.len()).max(1);
    if !addresses.is_empty() && !hosts.is_empty() && addresses.len() != hosts.len() {
        return Err(refused("hostaddr must have as many entries as host"));
    }
    if ports.len() > 1 && ports.len() != count {
        return Err(refused("port must have one entry, or as many as host"));
    }
    let of = |index: usize| {
        let port = match ports
            .get(index)
            .or(ports.first().filter(|_| ports.len() == 1))
            .map(String::as_str)
        {
            None | Some("") => 5432,
            Some(text) => match text.parse() {
                Ok(port) if port > 0 => port,
                _ => return Err(refused(format!("port {text:?} is not a number from 1 to 65535"))),
            },
        };
        let address: Option<IpAddr> = match addresses.get(index).map(String::as_str) {
            None => None,
            Some(text) => Some(
                text.parse()
                    .map_err(|_| refused(format!("hostaddr {text:?} is not an IP address")))?,
            ),
        };
        let host = match (hosts.get(index).map(String::as_str), address) {
            (None | Some(""), Some(address)) => Host::Tcp(address.to_string(), None),
            (None | Some(""), None) => {
                let folder = SOCKET_FOLDERS.iter().find(|folder| Path::new(folder).is_dir());
                Host::Unix(folder.unwrap_or(&SOCKET_FOLDERS[0]).into())
            }
            (Some(folder), None) if folder.starts_with('/') => Host::Unix(folder.into()),
            (Some(name), address) => Host::Tcp(name.to_owned(), address),
        };
        Ok(Server { host, port })
    };
    (0..count).map(of).collect()
}

fn tls<'a>(get: &impl Fn(&str) -> Option<&'a str>) -> Result<TlsOptions, DatabaseError> {
    let root = get("sslrootcert");
    let roots = match root {
        None | Some("system") => Roots::System,
        Some(path) => Roots::File(path.to_owned()),
    };
    let mode = match (get("sslmode"), root) {
        (None, Some("system")) => SslMode::VerifyFull,
        (None | Some("prefer"), _) => SslMode::Prefer,
        (Some("disable"), _) => SslMode::Disable,
        // As in libpq: a given authority is used.
        (Some("require"), Some(_)) => SslMode::VerifyCa,
        (Some("require"), None) => SslMode::Require,
        (Some("verify-ca"), _) => SslMode::VerifyCa,
        (Some("verify-full"), _) => SslMode::VerifyFull,
        (Some("allow"), _) => {
            return Err(refused("sslmode=allow is not supported; use prefer"));
        }
        (Some(other), _) => {
            return Err(refused(format!(
                "sslmode is {other:?}, but must be disable, prefer, require, verify-ca or verify-full"
            )));
        }
    };
    if root == Some("system") && mode != SslMode::VerifyFull {
        return Err(refused("sslrootcert=system needs sslmode=verify-full"));
    }
    let client = match (get("sslcert"), get("sslkey")) {
        _ if get("sslcertmode") == Some("disable") => None,
        (Some(certificate), Some(key)) => Some((certificate.to_owned(), key.to_owned())),
        (None, None) => None,
        _ => return Err(refused("sslcert and sslkey must be set together")),
    };
    Ok(TlsOptions { mode, roots, client })
}

/// The password of the first line that matches: `host:port:database:user:password`, where `*` matches everything.
fn password_in(file: &str, wanted: [&str; 4]) -> Option<String> {
    let fields = |line: &str| {
        let mut fields = vec![String::new()];
        let mut characters = line.chars();
        while let Some(character) = characters.next() {
            let field = fields.last_mut()?;
            match character {
                '\\' => field.extend(characters.next()),
                ':' => fields.push(String::new()),
                character => field.push(character),
            }
        }
        Some(fields)
    };
    let lines = file.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(fields).find_map(|fields| {
        let [host, port, database, user, password @ ..] = fields.as_slice() else {
            return None;
        };
        let matches = [host, port, database, user]
            .into_iter()
            .zip(wanted)
            .all(|(field, wanted)| field == "*" || field == wanted);
        (matches && !password.is_empty()).then(|| password.join(":"))
    })
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn of(text: &str) -> Target {
        Target::of(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn fault(text: &str) -> String {
        Target::of(text).expect_err(text).to_string()
    }

    fn tcp(name: &str, port: u16) -> Server {
        Server {
            host: Host::Tcp(name.to_owned(), None),
            port,
        }
    }

    fn unix(folder: &str, port: u16) -> Server {
        Server {
            host: Host::Unix(folder.into()),
            port,
        }
    }

    #[test]
    fn hosts_are_read_in_every_spelling() {
        for (text, servers) in [
            ("postgres://db.example/weir", vec![tcp("db.example", 5432)]),
            ("postgresql://u@db.example:6432", vec![tcp("db.example", 6432)]),
            ("postgres://u@[::1]:5433/weir", vec![tcp("::1", 5433)]),
            ("host=::1 port=5433", vec![tcp("::1", 5433)]),
            ("hostaddr=192.0.2.1", vec![tcp("192.0.2.1", 5432)]),
            (
                "host=db hostaddr=192.0.2.1",
                vec![Server {
                    host: Host::Tcp("db".to_owned(), Some([192, 0, 2, 1].into())),
                    port: 5432,
                }],
            ),
            ("postgres://a:1,b:2/weir", vec![tcp("a", 1), tcp("b", 2)]),
            ("postgres://a,b:2/weir", vec![tcp("a", 5432), tcp("b", 2)]),
            ("host=a,b port=7", vec![tcp("a", 7), tcp("b", 7)]),
            (
                "host=/run/postgresql dbname=weir",
                vec![unix("/run/postgresql", 5432)],
            ),
            (
                "postgres:///weir?host=/run/postgresql&port=5433",
                vec![unix("/run/postgresql", 5433)],
            ),
            (
                "postgres://u@%2Frun%2Fpostgresql:5433/weir",
                vec![unix("/run/postgresql", 5433)],
            ),
            ("postgres://db?port=6432", vec![tcp("db", 6432)]),
        ] {
            assert_eq!(of(text).servers, servers, "{text}");
        }
    }

    #[test]
    fn values_are_decoded() {
        let target = of("postgres://we%40ir:p%3A+@db/sh%2Fop?options=-c%20a.b%3D1+2&application_name=x%26y");
        assert_eq!(target.user.as_deref(), Some("we@ir"));
        assert_eq!(target.password.unwrap().expose_secret(), "p:+");
        assert_eq!(target.database.as_deref(), Some("sh/op"));
        assert_eq!(target.options.as_deref(), Some("-c a.b=1+2"));
        assert_eq!(target.application_name.as_deref(), Some("x&y"));
        let target = of(r"user = 'o\'brien'  password=a\ b\\ dbname='' connect_timeout=7");
        assert_eq!(target.user.as_deref(), Some("o'brien"));
        assert_eq!(target.password.unwrap().expose_secret(), r"a b\");
        assert_eq!(target.database, None);
        assert_eq!(target.connect_timeout, Duration::from_secs(7));
        assert_eq!(of("host=a").connect_timeout, CONNECT_TIMEOUT);
    }

    #[test]
    fn ssl_parameters_mean_what_libpq_documents() {
        for (text, mode, roots) in [
            ("", SslMode::Prefer, Roots::System),
            ("sslmode=disable", SslMode::Disable, Roots::System),
            ("sslmode=require", SslMode::Require, Roots::System),
            (
                "sslmode=require sslrootcert=/ca",
                SslMode::VerifyCa,
                Roots::File("/ca".to_owned()),
            ),
            (
                "sslmode=verify-ca sslrootcert=/ca",
                SslMode::VerifyCa,
                Roots::File("/ca".to_owned()),
            ),
            ("sslmode=verify-full", SslMode::VerifyFull, Roots::System),
            ("sslrootcert=system", SslMode::VerifyFull, Roots::System),
            ("sslrootcert=/ca", SslMode::Prefer, Roots::File("/ca".to_owned())),
        ] {
            let tls = of(&format!("host=db {text}")).tls;
            assert_eq!((tls.mode, tls.roots), (mode, roots), "{text}");
        }
        assert_eq!(of("postgres://db/x?ssl=true").tls.mode, SslMode::Require);
        let client = of("host=db sslcert=/c sslkey=/k").tls.client;
        assert_eq!(client, Some(("/c".to_owned(), "/k".to_owned())));
    }

    #[test]
    fn every_documented_parameter_is_supported_or_refused_by_name() {
        for (keyword, _, instead) in REFUSED {
            let wanted = format!("{keyword} is not supported; {instead}");
            assert!(
                fault(&format!("host=db {keyword}=x")).contains(&wanted),
                "{keyword}"
            );
        }
        for (text, wanted) in [
            (
                "channel_binding=require",
                "channel_binding=require is not supported; River's driver",
            ),
            ("target_session_attrs=standby", "use read-write"),
            ("sslnegotiation=direct", "sslnegotiation=direct is not supported"),
            ("gssencmode=require", "use sslmode"),
            ("sslmode=allow", "use prefer"),
            ("sslmode=require sslrootcert=system", "needs sslmode=verify-full"),
            ("sslcert=/c", "must be set together"),
            ("connect_timeout=0", "use 1 to 60 seconds"),
            ("client_encoding=LATIN1", "Weir sends UTF-8"),
            ("port=x", "port \"x\""),
            ("pool_timeout=3", "pool_timeout is not a connection parameter"),
        ] {
            let message = fault(&format!("host=db {text}"));
            assert!(message.contains(wanted), "{text}: {message}");
        }
        for text in [
            "mysql://root:hunter2@db/weir",
            "mysql://root:hunter2@db/weir?a=b",
            "hunter2",
            "a='hunter2",
        ] {
            let message = fault(text);
            assert!(
                message.contains("it must be a URL") && !message.contains("hunter2"),
                "{message}"
            );
        }
    }

    #[test]
    fn the_page_lists_every_parameter_and_its_urls_are_valid() {
        let page = include_str!("../../../docs/how-to/connect.md");
        let keywords = SUPPORTED.iter().map(|(keyword, _)| keyword);
        for keyword in keywords.chain(REFUSED.iter().map(|(keyword, ..)| keyword)) {
            assert!(page.contains(&format!("`{keyword}`")), "{keyword}");
        }
        for variable in SUPPORTED.iter().filter_map(|(_, variable)| *variable) {
            assert!(page.contains(&format!("`{variable}`")), "{variable}");
        }
        let urls: Vec<_> = page
            .split(['`', '\''])
            .filter(|text| text.starts_with("postgres://"))
            .collect();
        assert_eq!(urls.len(), 14, "{urls:?}");
        for url in urls {
            // Those of providers are on other machines: their servers are verified, or are behind a socket.
            let target = of(url);
            let is_socket = matches!(target.servers[0].host, Host::Unix(_));
            assert!(
                is_socket || target.tls.mode.verifies() || target.session == Session::Writable,
                "{url}"
            );
        }
    }

    #[test]
    fn environment_variables_fill_in_missing_parameters() {
        let variables = [
            ("PGHOST", "elsewhere"),
            ("PGPORT", "6432"),
            ("PGUSER", "o'brien"),
            ("PGPASSWORD", r"a\b c"),
            ("PGSSLMODE", "require"),
            ("HOME", "/home/weir"),
        ];
        let read = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let text = with_environment(Some("postgres://db/weir"), read, |_| false, Some("root")).unwrap();
        let target = of(&text);
        assert_eq!(target.servers, [tcp("db", 6432)]);
        assert_eq!(target.user.as_deref(), Some("o'brien"));
        assert_eq!(target.password.unwrap().expose_secret(), r"a\b c");
        assert_eq!(target.tls.mode, SslMode::Require);
        let all = with_environment(None, read, |_| true, Some("root")).unwrap();
        let target = of(&all);
        assert_eq!(target.servers, [tcp("elsewhere", 6432)]);
        assert_eq!(target.passfile, None, "there is a password");
        assert_eq!(
            target.tls.roots,
            Roots::File("/home/weir/.postgresql/root.crt".to_owned())
        );
        let nothing = with_environment(Some("host=db"), |_| None, |_| true, Some("root")).unwrap();
        assert_eq!(nothing, "host=db");
        let service = with_environment(
            None,
            |name| (name == "PGSERVICE").then(String::new),
            |_| false,
            None,
        );
        assert!(
            service
                .unwrap_err()
                .to_string()
                .contains("PGSERVICE is not supported")
        );
    }

    #[test]
    fn the_password_comes_from_the_first_matching_line() {
        let file = "# comment\ndb:5432:shop:anne:first\n*:*:*:anne:a\\:b:c\n/tmp:*:*:bert:socket\nlocalhost:*:*:bert:local\n";
        for (text, password) in [
            ("host=db user=anne dbname=shop", Some("first")),
            ("host=other user=anne", Some("a:b:c")),
            ("host=/var/run/postgresql user=bert", Some("local")),
            ("host=/srv user=bert", None),
            ("host=db user=carl", None),
        ] {
            let mut target = of(text);
            target.password_from(file);
            assert_eq!(
                target.password.as_ref().map(ExposeSecret::expose_secret),
                password,
                "{text}"
            );
        }
    }
}
