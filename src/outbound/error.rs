//! What can go wrong with an outbound request, in words fit for a status message.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use http::StatusCode;
use url::Url;

use super::address::AddressClass;

/// A URL without user information, query and fragment: the parts that may carry credentials never reach a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedactedUrl(String);

impl From<&Url> for RedactedUrl {
    fn from(url: &Url) -> Self {
        let Some(host) = url.host_str() else {
            // `data:` and the like keep their whole content in the path.
            return Self(format!("{}:...", url.scheme()));
        };
        let port = url.port().map(|p| format!(":{p}")).unwrap_or_default();
        Self(format!("{}://{host}{port}{}", url.scheme(), url.path()))
    }
}

impl fmt::Display for RedactedUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why the guard refused to contact a URL (contract 13.1 to 13.3). Nothing was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Only http and https are spoken.
    #[error("scheme {scheme:?} is not http or https")]
    Scheme {
        /// The scheme of the URL.
        scheme: String,
    },
    /// The URL names no host.
    #[error("it names no host")]
    NoHost,
    /// The host is `localhost` or below it.
    #[error("host {host:?} is the controller's own machine")]
    Localhost {
        /// The host, lower case.
        host: String,
    },
    /// The host is a literal address of a forbidden class.
    #[error("{address} is {class}")]
    Address {
        /// The literal address.
        address: IpAddr,
        /// Why it is forbidden.
        class: AddressClass,
    },
    /// The host's name resolved to at least one forbidden address.
    #[error("host {host:?} resolves to {address}, which is {class}")]
    Resolved {
        /// The host that was looked up.
        host: String,
        /// The first forbidden address of the answer.
        address: IpAddr,
        /// Why it is forbidden.
        class: AddressClass,
    },
    /// There is an allowlist, and the host is not on it.
    #[error("host {host:?} matches no entry of --allowed-action-hosts")]
    NotAllowed {
        /// The host, lower case, without port.
        host: String,
    },
    /// A request that carries secrets was redirected from https to http.
    #[error("the redirect leaves https, and the request carries secrets")]
    Downgrade,
    /// A request that carries secrets was redirected to another host or port.
    #[error("the redirect leads to another host, and the request carries secrets")]
    ForeignRedirect,
}

/// Which wait ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// TCP connect and TLS handshake.
    Connect,
    /// No byte arrived for the read timeout.
    Read,
    /// The whole request, redirects included.
    Total,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "no connection",
            Self::Read => "no data",
            Self::Total => "not finished",
        })
    }
}

/// A failed outbound request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The text is no URL. It is not repeated: a malformed URL cannot be redacted.
    #[error("the URL cannot be parsed: {cause}")]
    InvalidUrl {
        /// The parser's reason.
        cause: String,
    },
    /// The guard refused the URL, a redirect, or an address behind the name.
    #[error("refused to contact {url}{}: {refusal}", redirected(from.as_ref()))]
    Refused {
        /// What would have been contacted.
        url: RedactedUrl,
        /// The URL that redirected here, on a redirect hop.
        from: Option<RedactedUrl>,
        /// Why.
        refusal: Refusal,
    },
    /// More redirects than the client follows.
    #[error("{url} redirected more than {limit} times")]
    TooManyRedirects {
        /// The first URL.
        url: RedactedUrl,
        /// How many are followed.
        limit: usize,
    },
    /// A redirect whose target is absent or no URL.
    #[error("{url} answered {status} without a usable Location")]
    BadRedirect {
        /// Who redirected.
        url: RedactedUrl,
        /// The redirect status.
        status: StatusCode,
    },
    /// 404 or 410: the server no longer has it.
    #[error("{url} answered {status}")]
    NotFound {
        /// What was asked for.
        url: RedactedUrl,
        /// 404 or 410.
        status: StatusCode,
    },
    /// Any other status than the wanted one.
    #[error("{url} answered {status}")]
    Status {
        /// What was asked for.
        url: RedactedUrl,
        /// The answer.
        status: StatusCode,
    },
    /// A time cap ran out.
    #[error("{url}: {phase} after {}", seconds(*after))]
    Timeout {
        /// What was asked for.
        url: RedactedUrl,
        /// Which wait.
        phase: Phase,
        /// The cap.
        after: Duration,
    },
    /// The body trickles.
    #[error("{url}: only {bytes} bytes within {}; at least {rate} bytes a second are asked of a server", seconds(*took))]
    TooSlow {
        /// What was asked for.
        url: RedactedUrl,
        /// What arrived.
        bytes: usize,
        /// In this time.
        took: Duration,
        /// Bytes of a second.
        rate: u32,
    },
    /// The body is larger than the cap; reading stopped there.
    #[error("{url} sent more than the allowed {limit} bytes")]
    TooLarge {
        /// What was asked for.
        url: RedactedUrl,
        /// The cap in bytes.
        limit: u64,
    },
    /// The host's name could not be looked up.
    #[error("{url}: host {host:?} cannot be resolved: {cause}")]
    Unresolvable {
        /// What was asked for.
        url: RedactedUrl,
        /// The name.
        host: String,
        /// The resolver's reason.
        cause: String,
    },
    /// Connection refused, reset, TLS failure, malformed response.
    #[error("{url}: {cause}")]
    Transport {
        /// What was asked for.
        url: RedactedUrl,
        /// The chain of causes, without URLs.
        cause: String,
    },
    /// The client itself could not be set up.
    #[error("the HTTP client cannot be set up: {cause}")]
    Setup {
        /// The library's reason.
        cause: String,
    },
}

impl Error {
    /// Whether repeating the same request cannot help: the URL or the size has to change first (contract 13.2).
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        matches!(
            self,
            Self::InvalidUrl { .. } | Self::Refused { .. } | Self::TooLarge { .. }
        )
    }
}

fn redirected(from: Option<&RedactedUrl>) -> String {
    from.map(|url| format!(" (redirected from {url})")).unwrap_or_default()
}

fn seconds(duration: Duration) -> String {
    format!("{} s", (duration.as_secs_f64() * 1000.0).round() / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_a_url_are_left_out() {
        let url = Url::parse("https://user:hunter2@host.example:8443/a/b?token=hunter2#hunter2").expect("a URL");
        assert_eq!(RedactedUrl::from(&url).to_string(), "https://host.example:8443/a/b");
        let data = Url::parse("data:text/plain,hunter2").expect("a URL");
        assert_eq!(RedactedUrl::from(&data).to_string(), "data:...");
    }
}
