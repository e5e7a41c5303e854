//! The parts of a request's URL.

/// The parts of a request's URL, which the runtime has parsed and normalised: no `..` segment is left in its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target<'a> {
    scheme: &'a str,
    origin: &'a str,
    host: &'a str,
    path_and_query: &'a str,
    path: &'a str,
}

impl<'a> Target<'a> {
    /// The parts of an absolute URL; `None` for any other text.
    pub(crate) fn of(url: &'a str) -> Option<Self> {
        let url = url.split_once('#').map_or(url, |(before, _)| before);
        let (scheme, rest) = url.split_once("://")?;
        let slash = rest.find('/').unwrap_or(rest.len());
        let host = rest.get(..slash)?;
        let path_and_query = rest.get(slash..).filter(|path| !path.is_empty()).unwrap_or("/");
        // An empty query is dropped. Some parser on the way would drop its question mark, and the path at the origin
        // would differ from the signed one.
        let (path, path_and_query) = match path_and_query.split_once('?') {
            Some((path, "")) => (path, path),
            Some((path, _)) => (path, path_and_query),
            None => (path_and_query, path_and_query),
        };
        let origin = url.get(..scheme.len() + "://".len() + slash)?;
        Some(Self {
            scheme,
            origin,
            host,
            path_and_query,
            path,
        })
    }

    pub(crate) fn scheme(&self) -> &'a str {
        self.scheme
    }

    /// Scheme, host and port, as in the `Origin` header.
    pub(crate) fn origin(&self) -> &'a str {
        self.origin
    }

    pub(crate) fn host(&self) -> &'a str {
        self.host
    }

    pub(crate) fn path(&self) -> &'a str {
        self.path
    }

    /// The path and query that are forwarded and signed.
    pub(crate) fn path_and_query(&self) -> &'a str {
        self.path_and_query
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_split_into_its_parts() {
        let target = Target::of("https://weir.example:8443/api/jobs/analysis?a=1&b=?#top").unwrap();
        assert_eq!(target.scheme(), "https");
        assert_eq!(target.origin(), "https://weir.example:8443");
        assert_eq!(target.host(), "weir.example:8443");
        assert_eq!(target.path(), "/api/jobs/analysis");
        assert_eq!(target.path_and_query(), "/api/jobs/analysis?a=1&b=?");
        assert_eq!(
            Target::of("http://x/api/jobs?").map(|target| target.path_and_query()),
            Some("/api/jobs")
        );
    }
}
