//! How much is logged, and how. Each flag also goes by the name it has in controller-runtime (contract 2.5).

use clap::Args;

/// The flags about logging.
#[derive(Debug, Clone, Args)]
pub struct Logging {
    /// Log level: info where neither this nor --zap-log-level is given.
    #[arg(long, value_parser = ["debug", "info", "warn", "error"])]
    log_level: Option<String>,

    /// Log format: json where neither this nor --zap-encoder is given.
    #[arg(long, value_parser = ["json", "text"])]
    log_format: Option<String>,

    /// Another name of --log-level, which wins over it; a number above zero means debug, panic means error.
    #[arg(long, value_parser = zap_level)]
    zap_log_level: Option<&'static str>,

    /// Another name of --log-format, which wins over it; console means text.
    #[arg(long, value_parser = zap_encoder)]
    zap_encoder: Option<&'static str>,

    /// Accepted, and without effect.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    zap_devel: Option<bool>,

    /// Accepted, and without effect.
    #[arg(long)]
    zap_stacktrace_level: Option<String>,

    /// Accepted, and without effect: instants are always RFC 3339.
    #[arg(long)]
    zap_time_encoding: Option<String>,
}

impl Logging {
    /// `debug`, `info`, `warn` or `error`.
    pub fn level(&self) -> &str {
        self.log_level.as_deref().or(self.zap_log_level).unwrap_or("info")
    }

    /// `json` or `text`.
    pub fn format(&self) -> &str {
        self.log_format.as_deref().or(self.zap_encoder).unwrap_or("json")
    }
}

fn zap_level(text: &str) -> Result<&'static str, String> {
    match text.to_ascii_lowercase().as_str() {
        "debug" => Ok("debug"),
        "info" => Ok("info"),
        "warn" => Ok("warn"),
        "error" | "panic" => Ok("error"),
        number if number.parse::<u8>().is_ok_and(|n| n > 0) => Ok("debug"),
        _ => Err("want debug, info, warn, error, panic, or a number above zero for debug".into()),
    }
}

fn zap_encoder(text: &str) -> Result<&'static str, String> {
    match text {
        "json" => Ok("json"),
        "console" => Ok("text"),
        _ => Err("want json or console".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::config::Config;

    fn read(flags: &[&str]) -> (String, String) {
        let args = std::iter::once("stageset-controller").chain(flags.iter().copied());
        let logging = Config::try_parse_from(args).unwrap().logging;
        (logging.level().to_owned(), logging.format().to_owned())
    }

    fn both(level: &str, format: &str) -> (String, String) {
        (level.to_owned(), format.to_owned())
    }

    #[test]
    fn the_names_of_controller_runtime_are_accepted() {
        assert_eq!(read(&[]), both("info", "json"));
        assert_eq!(read(&["--log-level=warn", "--log-format=text"]), both("warn", "text"));
        assert_eq!(
            read(&["--zap-log-level=Debug", "--zap-encoder=console"]),
            both("debug", "text")
        );
        assert_eq!(read(&["--zap-log-level=3"]), both("debug", "json"));
        assert_eq!(read(&["--zap-log-level=panic"]), both("error", "json"));
        assert_eq!(
            read(&["--log-level=warn", "--zap-log-level=debug"]),
            both("warn", "json")
        );
        let silent = [
            "--zap-devel",
            "--zap-stacktrace-level=error",
            "--zap-time-encoding=iso8601",
        ];
        assert_eq!(read(&silent), both("info", "json"));
        assert_eq!(read(&["--zap-devel=false"]), both("info", "json"));
    }
}
