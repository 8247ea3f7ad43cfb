//! Log records on stderr, one a line, as JSON or text (contract 11).

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::time::FormatTime;

struct Rfc3339;

impl FormatTime for Rfc3339 {
    fn format_time(&self, w: &mut tracing_subscriber::fmt::format::Writer<'_>) -> std::fmt::Result {
        write!(w, "{:.6}", jiff::Timestamp::now())
    }
}

/// Installs the process-wide subscriber. `level` and `format` are the flags' values.
///
/// # Errors
/// When a subscriber is installed already, or the level does not parse.
pub fn install(level: &str, format: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    // kube_client logs whole response bodies when one does not parse: those may hold Secrets.
    let filter = EnvFilter::try_new(format!(
        "{level},kube_client=off,kube_runtime={},hyper=warn,hyper_util=warn,rustls=warn,reqwest=warn,tower=warn",
        if level == "debug" { "info" } else { "warn" }
    ))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_timer(Rfc3339)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(false);
    match format {
        "text" => builder.compact().try_init(),
        _ => builder
            .json()
            .flatten_event(true)
            .with_current_span(true)
            .with_span_list(false)
            .try_init(),
    }
}
