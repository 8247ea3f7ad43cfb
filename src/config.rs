//! The controller's flags: the one place that knows every one of them.

mod logging;

use std::time::Duration;

use clap::{CommandFactory, Parser};

pub use self::logging::Logging;

/// Says which namespaces to watch where the flag does not.
pub const WATCH_NAMESPACES: &str = "STAGESET_WATCH_NAMESPACES";

/// Staged delivery for Kubernetes.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "stageset-controller",
    version,
    about,
    max_term_width = 100,
    args_override_self = true
)]
pub struct Config {
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Run leader election; only the holder of the lease reconciles.
    #[arg(long, num_args = 0..=1, default_value_t = false, default_missing_value = "true", require_equals = true, action = clap::ArgAction::Set)]
    pub leader_elect: bool,

    /// Address of the probes /healthz and /readyz; `0` or empty disables them.
    #[arg(long, default_value = ":8081", value_parser = bind_address)]
    pub health_probe_bind_address: Bind,

    /// Address of /metrics; `0` disables it.
    #[arg(long, default_value = ":8080", value_parser = metrics_address)]
    pub metrics_bind_address: Bind,

    /// Namespaces to watch, separated by commas. Empty means what the environment variable
    /// STAGESET_WATCH_NAMESPACES says, and the whole cluster where that is empty, too.
    #[arg(long, default_value = "", value_parser = namespaces)]
    pub watch_namespaces: Namespaces,

    /// Most entries in one StageInventory.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..))]
    pub inventory_shard_cap: u32,

    /// Reject sourceRef and dependsOn entries that name another namespace.
    #[arg(long, num_args = 0..=1, default_value_t = false, default_missing_value = "true", require_equals = true, action = clap::ArgAction::Set)]
    pub no_cross_namespace_refs: bool,

    /// Cadence of a StageSet without spec.interval.
    #[arg(long, default_value = "10m", value_parser = positive_duration)]
    pub default_interval: Duration,

    /// How long a teardown that gets no further keeps the finalizer; 0 means 1h.
    #[arg(long, default_value = "1h", value_parser = duration)]
    pub max_teardown_wait: Duration,

    /// Steps that run at once.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub concurrent: u32,

    /// Watches on applied objects at most; past it, waits poll.
    #[arg(long, default_value_t = 2000)]
    pub max_watches: usize,

    /// Bytes of fetched artifacts kept in memory.
    #[arg(long, default_value_t = 32 * 1024 * 1024)]
    pub artifact_cache_bytes: usize,

    /// A pass that would delete more than this share of a stage's objects holds the prune; 1 turns it off.
    #[arg(long, default_value_t = 0.5, value_parser = share)]
    pub prune_guard_share: f64,

    /// The prune guard only acts from this many objects on.
    #[arg(long, default_value_t = 20)]
    pub prune_guard_min: usize,

    /// Base address of the runbook links on Ready messages; empty drops the links.
    #[arg(long, default_value = "")]
    pub runbook_base_url: String,

    /// Where Flux events are POSTed, usually notification-controller; empty turns it off.
    #[arg(long, default_value = "", value_parser = events_address)]
    pub events_addr: EventsAddress,

    /// Open loopback addresses to artifact fetches. For local development only.
    #[arg(long, num_args = 0..=1, default_value_t = false, default_missing_value = "true", require_equals = true, action = clap::ArgAction::Set)]
    pub insecure_allow_loopback: bool,

    #[command(flatten)]
    pub logging: Logging,
}

/// What else the binary can do.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Command {
    /// Print the CustomResourceDefinitions, or write one file for each into a folder.
    Crds {
        /// Folder to write into; stdout when absent.
        #[arg(long)]
        out: Option<std::path::PathBuf>,
    },
}

/// A listener's address, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind(pub Option<std::net::SocketAddr>);

/// Where Flux events are POSTed, or nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventsAddress(pub Option<url::Url>);

/// The namespaces to watch; empty means all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Namespaces(pub Vec<String>);

impl Namespaces {
    /// Whether a namespace is watched.
    pub fn contains(&self, namespace: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|n| n == namespace)
    }
}

impl Config {
    /// Reads the command line; `environment` is what [`WATCH_NAMESPACES`] holds.
    ///
    /// # Errors
    /// What clap has to say, also where that is the help.
    pub fn read(args: impl Iterator<Item = String>, environment: Option<String>) -> Result<Self, clap::Error> {
        let mut config = Self::try_parse_from(args)?;
        if config.watch_namespaces.0.is_empty() {
            let names = environment.unwrap_or_default();
            config.watch_namespaces = namespaces(&names).map_err(|why| {
                let text = format!("invalid value '{names}' of the environment variable {WATCH_NAMESPACES}: {why}");
                Self::command().error(clap::error::ErrorKind::ValueValidation, text)
            })?;
        }
        Ok(config)
    }

    /// Rules that span several flags, or need the environment.
    ///
    /// # Errors
    /// One line that names the flag and what to do.
    pub fn validate(&self, inside_a_pod: bool) -> Result<(), String> {
        if self.insecure_allow_loopback && inside_a_pod {
            return Err(
                "--insecure-allow-loopback is for local development and refused inside a pod: remove it".into(),
            );
        }
        Ok(())
    }

    /// The bound on a failing teardown; 0 on the flag means one hour.
    pub fn teardown_bound(&self) -> Duration {
        if self.max_teardown_wait.is_zero() {
            Duration::from_secs(3600)
        } else {
            self.max_teardown_wait
        }
    }
}

/// Every address of the machine, of both families: a cluster may have no IPv4, or no IPv6.
pub fn any_address(port: u16) -> std::net::SocketAddr {
    (std::net::Ipv6Addr::UNSPECIFIED, port).into()
}

fn bind_address(text: &str) -> Result<Bind, String> {
    if text.is_empty() || text == "0" {
        return Ok(Bind(None));
    }
    let address = match text.strip_prefix(':') {
        Some(port) => port.parse().ok().map(any_address),
        None => text.replacen("localhost:", "127.0.0.1:", 1).parse().ok(),
    };
    match address {
        Some(address) if address.port() != 0 => Ok(Bind(Some(address))),
        _ => Err("want HOST:PORT or :PORT with a port from 1 to 65535, or 0 to disable".into()),
    }
}

fn metrics_address(text: &str) -> Result<Bind, String> {
    bind_address(if text.is_empty() { ":8080" } else { text })
}

fn events_address(text: &str) -> Result<EventsAddress, String> {
    if text.is_empty() {
        return Ok(EventsAddress(None));
    }
    match url::Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") => Ok(EventsAddress(Some(url))),
        _ => Err("want a URL that begins with http:// or https://, or nothing to turn it off".into()),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed = crate::rules::duration::parse(text).map_err(|e| e.to_string())?;
    u64::try_from(parsed)
        .map(Duration::from_nanos)
        .map_err(|_| "a negative duration makes no sense here".into())
}

fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        d if d.is_zero() => Err("must be greater than zero".into()),
        d => Ok(d),
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("want a number from 0 to 1".into()),
    }
}

fn namespaces(text: &str) -> Result<Namespaces, String> {
    let names: Vec<String> = text
        .split(',')
        .map(str::trim)
        .filter(|n| !n.is_empty())
        .map(str::to_owned)
        .collect();
    if names.is_empty() && !text.trim().is_empty() {
        return Err("names no namespace: leave it empty to watch the whole cluster".into());
    }
    let valid = |n: &String| {
        n.len() <= 63
            && n.bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !n.starts_with('-')
            && !n.ends_with('-')
    };
    match names.iter().find(|n| !valid(n)) {
        Some(bad) => Err(format!(
            "{bad:?} is no namespace name (lower-case letters, digits and hyphens, 63 at most)"
        )),
        None => Ok(Namespaces(names)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Config, clap::Error> {
        Config::try_parse_from(std::iter::once("stageset-controller").chain(args.iter().copied()))
    }

    #[test]
    fn defaults_are_the_contract() {
        let config = parse(&[]).unwrap();
        assert_eq!(config.health_probe_bind_address.0.unwrap().port(), 8081);
        assert_eq!(config.metrics_bind_address.0.unwrap().port(), 8080);
        assert_eq!(config.default_interval, Duration::from_secs(600));
        assert_eq!(config.teardown_bound(), Duration::from_secs(3600));
        assert_eq!(config.concurrent, 16);
        assert!(!config.insecure_allow_loopback);
    }

    #[test]
    fn go_style_values_are_accepted() {
        let config = parse(&[
            "--leader-elect",
            "--no-cross-namespace-refs=false",
            "--health-probe-bind-address=",
            "--default-interval=1h30m",
            "--watch-namespaces= a ,,b",
        ])
        .unwrap();
        assert!(config.leader_elect);
        assert!(!config.no_cross_namespace_refs);
        assert_eq!(config.health_probe_bind_address, Bind(None));
        assert_eq!(config.default_interval, Duration::from_secs(5400));
        assert_eq!(config.watch_namespaces.0, ["a", "b"]);
    }

    #[test]
    fn bad_values_are_refused() {
        for bad in [
            "--watch-namespaces=,",
            "--watch-namespaces=Prod",
            "--default-interval=0",
            "--default-interval=5",
            "--max-teardown-wait=-1s",
            "--inventory-shard-cap=0",
            "--metrics-bind-address=:0",
            "--metrics-bind-address=nonsense",
            "--log-level=INFO",
            "--events-addr=notification-controller",
            "--events-addr=localhost:9292",
            "--events-addr=http://",
            "--zap-log-level=loud",
            "--zap-log-level=0",
            "--zap-encoder=xml",
            "--prune-guard-share=1.5",
            "--concurrent=0",
        ] {
            assert!(parse(&[bad]).is_err(), "{bad} was accepted");
        }
    }

    #[test]
    fn what_is_wrong_with_a_value_is_said_with_its_flag() {
        let said = parse(&["--events-addr=localhost:9292"]).unwrap_err().to_string();
        assert!(
            said.contains("--events-addr") && said.contains("localhost:9292") && said.contains("http://"),
            "{said}"
        );
    }

    #[test]
    fn without_a_host_every_address_of_both_families_is_meant() {
        let config = parse(&["--health-probe-bind-address=:9000"]).unwrap();
        assert_eq!(
            config.health_probe_bind_address.0.unwrap().to_string(),
            "[::]:9000",
            "a cluster may have no IPv4 at all"
        );
    }

    #[test]
    fn of_a_repeated_flag_the_last_one_counts() {
        let config = parse(&[
            "--default-interval=1m",
            "--leader-elect",
            "--default-interval=2m",
            "--leader-elect=false",
        ])
        .unwrap();
        assert_eq!(config.default_interval, Duration::from_secs(120));
        assert!(!config.leader_elect);
    }

    #[test]
    fn the_environment_counts_where_the_flag_names_no_namespace() {
        let read = |flags: &[&str], environment: &str| {
            let args = std::iter::once("stageset-controller").chain(flags.iter().copied());
            Config::read(args.map(str::to_owned), Some(environment.to_owned())).map(|config| config.watch_namespaces.0)
        };
        assert_eq!(read(&[], "a, b").unwrap(), ["a", "b"]);
        assert_eq!(read(&["--watch-namespaces="], "a").unwrap(), ["a"]);
        assert_eq!(read(&["--watch-namespaces= "], "a").unwrap(), ["a"]);
        assert_eq!(read(&["--watch-namespaces=b"], "a").unwrap(), ["b"]);
        assert!(read(&[], " ").unwrap().is_empty());
        let said = read(&[], "Prod").unwrap_err().to_string();
        assert!(said.contains(WATCH_NAMESPACES) && said.contains("\"Prod\""), "{said}");
    }

    /// Rules: run 12 url
    #[test]
    fn loopback_is_refused_in_a_pod() {
        let config = parse(&["--insecure-allow-loopback"]).unwrap();
        assert!(config.validate(true).unwrap_err().contains("--insecure-allow-loopback"));
        assert!(config.validate(false).is_ok());
    }
}
