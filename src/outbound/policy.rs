//! What may be contacted: the address rule, `localhost`, and an allowlist of hosts.

use std::net::IpAddr;
use std::sync::Arc;

use regex::{Regex, RegexBuilder};
use url::{Host, Url};

use super::address::{AddressClass, classify};
use super::error::Refusal;

/// The rule every outbound request is held to, on the first URL and on each redirect (contract 13.1 to 13.4).
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// Opens loopback and nothing else; for local development and tests (`--insecure-allow-loopback`).
    pub allow_loopback: bool,
    /// Hosts that may be reached; `None` means every host whose address is not forbidden. Listing a forbidden address
    /// does not open it.
    pub allowed_hosts: Option<AllowedHosts>,
}

impl Policy {
    /// Checks one address that is about to be dialled.
    ///
    /// # Errors
    /// The class that forbids it.
    pub fn check_address(&self, address: IpAddr) -> Result<(), AddressClass> {
        match classify(address) {
            Some(AddressClass::Loopback) if self.allow_loopback => Ok(()),
            Some(class) => Err(class),
            None => Ok(()),
        }
    }

    /// Checks what can be known of a URL without a look-up: scheme, host, literal address, allowlist. The `url` crate
    /// has normalised the old IPv4 spellings (one integer, hexadecimal, octal, fewer than four parts) by now.
    ///
    /// # Errors
    /// The first [`Refusal`] that applies.
    pub fn check_url(&self, url: &Url) -> Result<(), Refusal> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Refusal::Scheme {
                scheme: url.scheme().to_owned(),
            });
        }
        let host = url.host().ok_or(Refusal::NoHost)?;
        let name = match &host {
            Host::Domain(domain) => normalise(domain),
            Host::Ipv4(v4) => v4.to_string(),
            Host::Ipv6(v6) => v6.to_string(),
        };
        match host {
            Host::Domain(_) => self.check_domain(&name)?,
            Host::Ipv4(v4) => self.check_literal(v4.into())?,
            Host::Ipv6(v6) => self.check_literal(v6.into())?,
        }
        match &self.allowed_hosts {
            Some(allowed) if !allowed.contains(&name) => Err(Refusal::NotAllowed { host: name }),
            _ => Ok(()),
        }
    }

    fn check_domain(&self, name: &str) -> Result<(), Refusal> {
        if name.is_empty() {
            return Err(Refusal::NoHost);
        }
        // RFC 6761 6.3 reserves the whole domain for loopback.
        let local = name == "localhost" || name.ends_with(".localhost");
        if local && !self.allow_loopback {
            return Err(Refusal::Localhost { host: name.to_owned() });
        }
        Ok(())
    }

    fn check_literal(&self, address: IpAddr) -> Result<(), Refusal> {
        self.check_address(address)
            .map_err(|class| Refusal::Address { address, class })
    }
}

/// Lower case, without the trailing dot of a fully qualified name.
fn normalise(host: &str) -> String {
    host.trim_end_matches('.').to_ascii_lowercase()
}

/// A list of host globs, as given to `--allowed-action-hosts` (contract 13.3).
#[derive(Debug, Clone)]
pub struct AllowedHosts {
    patterns: Arc<[HostPattern]>,
}

impl AllowedHosts {
    /// An allowlist of these patterns. An empty list allows nothing.
    #[must_use]
    pub fn new(patterns: Vec<HostPattern>) -> Self {
        Self {
            patterns: patterns.into(),
        }
    }

    /// Whether `host` (no port, any case, trailing dot or not) matches a pattern.
    #[must_use]
    pub fn contains(&self, host: &str) -> bool {
        let host = normalise(host);
        self.patterns.iter().any(|p| p.regex.is_match(&host))
    }
}

/// One host glob: `*` (also across dots), `?`, `[a-z]`, `[^a-z]`, `\x`. Case does not count.
#[derive(Debug, Clone)]
pub struct HostPattern {
    regex: Regex,
}

/// A host glob that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{pattern:?} is not a valid host glob: {cause}; use a form like \"*.example.com\"")]
pub struct PatternError {
    pattern: String,
    cause: &'static str,
}

impl HostPattern {
    /// Reads a glob.
    ///
    /// # Errors
    /// Names the pattern and what is wrong with it, so that a bad flag stops the start rather than matching nothing.
    pub fn parse(pattern: &str) -> Result<Self, PatternError> {
        let fail = |cause| PatternError {
            pattern: pattern.to_owned(),
            cause,
        };
        let expression = translate(&normalise(pattern.trim())).map_err(fail)?;
        let regex = RegexBuilder::new(&expression)
            .case_insensitive(true)
            .size_limit(1 << 18)
            .build()
            .map_err(|_| fail("a character range is malformed"))?;
        Ok(Self { regex })
    }
}

fn translate(glob: &str) -> Result<String, &'static str> {
    if glob.is_empty() {
        return Err("it is empty");
    }
    let mut out = String::from("^(?s:");
    let mut chars = glob.chars();
    while let Some(c) = chars.next() {
        match c {
            '*' => out.push_str(".*"),
            '?' => out.push('.'),
            '\\' => push_literal(&mut out, chars.next().ok_or("it ends in a backslash")?),
            '[' => translate_class(&mut out, &mut chars)?,
            _ => push_literal(&mut out, c),
        }
    }
    out.push_str(")$");
    Ok(out)
}

fn translate_class(out: &mut String, chars: &mut std::str::Chars<'_>) -> Result<(), &'static str> {
    out.push('[');
    let mut members = 0;
    loop {
        match chars.next().ok_or("a bracket is not closed")? {
            '^' if members == 0 && out.ends_with('[') => out.push('^'),
            ']' if members > 0 => break,
            ']' => return Err("a bracket is empty"),
            '-' => {
                out.push('-');
                members += 1;
            }
            '\\' => {
                push_literal(out, chars.next().ok_or("it ends in a backslash")?);
                members += 1;
            }
            c => {
                push_literal(out, c);
                members += 1;
            }
        }
    }
    out.push(']');
    Ok(())
}

fn push_literal(out: &mut String, c: char) {
    let mut buffer = [0; 4];
    out.push_str(&regex::escape(c.encode_utf8(&mut buffer)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn check(policy: &Policy, url: &str) -> Result<(), Refusal> {
        policy.check_url(&Url::parse(url).expect("a URL"))
    }

    /// Rules: run 12 url
    #[rstest]
    #[case("http://127.0.0.1/x", AddressClass::Loopback)]
    #[case("http://2130706433/", AddressClass::Loopback)]
    #[case("http://0x7f000001/", AddressClass::Loopback)]
    #[case("http://0x7f.1/", AddressClass::Loopback)]
    #[case("http://0177.0.0.1/", AddressClass::Loopback)]
    #[case("http://017700000001/", AddressClass::Loopback)]
    #[case("http://127.1/", AddressClass::Loopback)]
    #[case("http://127.0.0.1./", AddressClass::Loopback)]
    #[case("http://%31%32%37.0.0.1/", AddressClass::Loopback)]
    #[case("http://１２７.0.0.1/", AddressClass::Loopback)]
    #[case("http://user:pw@127.0.0.1:8080/", AddressClass::Loopback)]
    #[case("http://[::1]/", AddressClass::Loopback)]
    #[case("http://[0:0:0:0:0:0:0:1]/", AddressClass::Loopback)]
    #[case("http://[::ffff:7f00:1]/", AddressClass::Loopback)]
    #[case("http://169.254.169.254/latest/meta-data", AddressClass::LinkLocal)]
    #[case("http://2852039166/", AddressClass::LinkLocal)]
    #[case("http://0xa9.0xfe.0xa9.0xfe/", AddressClass::LinkLocal)]
    #[case("http://[fe80::1]/", AddressClass::LinkLocal)]
    #[case("http://[::ffff:169.254.169.254]/", AddressClass::LinkLocal)]
    #[case("https://0.0.0.0/", AddressClass::Unspecified)]
    #[case("https://0/", AddressClass::Unspecified)]
    #[case("https://[::]/", AddressClass::Unspecified)]
    #[case("http://224.0.0.1/", AddressClass::Multicast)]
    #[case("http://[64:ff9b::127.0.0.1]/", AddressClass::Embedded)]
    fn literal_is_refused(#[case] url: &str, #[case] expected: AddressClass) {
        match check(&Policy::default(), url) {
            Err(Refusal::Address { class, .. }) => assert_eq!(class, expected),
            other => panic!("{url}: {other:?}"),
        }
    }

    #[rstest]
    #[case("http://localhost/")]
    #[case("http://LOCALHOST/")]
    #[case("http://LocalHost.:8080/")]
    #[case("http://a.localhost/")]
    fn localhost_is_refused(#[case] url: &str) {
        assert!(matches!(check(&Policy::default(), url), Err(Refusal::Localhost { .. })));
    }

    /// Rules: run 12 url
    #[rstest]
    #[case("ftp://example.com/", "ftp")]
    #[case("file:///etc/passwd", "file")]
    #[case("data:text/plain,x", "data")]
    fn scheme_is_refused(#[case] url: &str, #[case] scheme: &str) {
        assert_eq!(
            check(&Policy::default(), url),
            Err(Refusal::Scheme {
                scheme: scheme.to_owned()
            })
        );
    }

    #[test]
    fn a_host_of_dots_is_no_host() {
        if let Ok(url) = Url::parse("http://./") {
            assert_eq!(Policy::default().check_url(&url), Err(Refusal::NoHost));
        }
    }

    #[rstest]
    #[case("HTTP://source-controller.flux-system.svc.cluster.local./x")]
    #[case("http://10.96.0.10:9090/x")]
    #[case("https://[fd00::1]/x")]
    #[case("http://notlocalhost/")]
    fn ordinary_is_allowed(#[case] url: &str) {
        assert_eq!(check(&Policy::default(), url), Ok(()));
    }

    #[test]
    fn allow_loopback_opens_loopback_only() {
        let policy = Policy {
            allow_loopback: true,
            allowed_hosts: None,
        };
        for url in [
            "http://127.0.0.1/",
            "http://[::1]/",
            "http://localhost/",
            "http://[::ffff:127.0.0.1]/",
        ] {
            assert_eq!(check(&policy, url), Ok(()), "{url}");
        }
        for url in [
            "http://169.254.169.254/",
            "http://0.0.0.0/",
            "http://[fe80::1]/",
            "http://224.0.0.1/",
            "http://100.100.100.200/",
            "http://[64:ff9b::127.0.0.1]/",
        ] {
            assert!(check(&policy, url).is_err(), "{url}");
        }
    }

    fn hosts(patterns: &[&str]) -> AllowedHosts {
        AllowedHosts::new(
            patterns
                .iter()
                .map(|p| HostPattern::parse(p).expect("a glob"))
                .collect(),
        )
    }

    #[rstest]
    #[case("*.slack.com", "hooks.slack.com", true)]
    #[case("*.slack.com", "a.b.slack.com", true)]
    #[case("*.slack.com", "slack.com", false)]
    #[case("*.slack.com", "hooks.slack.com.evil.example", false)]
    #[case("*.Slack.com", "HOOKS.slack.COM.", true)]
    #[case("*", "anything.example", true)]
    #[case("api?.example.com", "api1.example.com", true)]
    #[case("api?.example.com", "api.example.com", false)]
    #[case("api[0-9].example.com", "api7.example.com", true)]
    #[case("api[^0-9].example.com", "api7.example.com", false)]
    #[case("a.example.com", "aXexample.com", false)]
    #[case(r"a\*b", "a*b", true)]
    fn glob(#[case] pattern: &str, #[case] host: &str, #[case] expected: bool) {
        assert_eq!(hosts(&[pattern]).contains(host), expected);
    }

    #[rstest]
    #[case("")]
    #[case("[")]
    #[case("[]")]
    #[case("a\\")]
    #[case("[z-a]")]
    fn bad_glob_is_named(#[case] pattern: &str) {
        let error = HostPattern::parse(pattern).expect_err("must be refused");
        assert!(error.to_string().contains(&format!("{pattern:?}")));
    }

    #[test]
    fn allowlist_does_not_open_a_forbidden_address() {
        let policy = Policy {
            allow_loopback: false,
            allowed_hosts: Some(hosts(&["127.0.0.1", "localhost", "api.example.com"])),
        };
        assert!(matches!(
            check(&policy, "http://127.0.0.1/"),
            Err(Refusal::Address { .. })
        ));
        assert!(matches!(
            check(&policy, "http://localhost/"),
            Err(Refusal::Localhost { .. })
        ));
        assert_eq!(check(&policy, "https://api.example.com:8443/x"), Ok(()));
        assert_eq!(
            check(&policy, "https://other.example.com/"),
            Err(Refusal::NotAllowed {
                host: "other.example.com".to_owned()
            })
        );
    }
}
