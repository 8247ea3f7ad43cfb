//! The real controller as a child process.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use super::{PATIENCE, controlplane, look, process};

/// How to start a controller.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// What the log file is named after.
    pub name: String,
    pub kubeconfig: PathBuf,
    /// Flags beyond the listeners and `--insecure-allow-loopback`.
    pub flags: Vec<String>,
    /// Environment beyond `KUBECONFIG`.
    pub env: BTreeMap<String, String>,
    /// Leaves `--insecure-allow-loopback` out, as in production.
    pub guarded: bool,
}

/// A running controller; killed when dropped.
pub struct Controller {
    launch: Launch,
    child: Option<Child>,
    health: u16,
    metrics: u16,
    log: PathBuf,
    starts: u32,
    client: reqwest::Client,
}

impl Controller {
    /// Starts the binary and returns at once; see [`Self::until_ready`].
    pub fn start(launch: Launch) -> Self {
        super::install_crypto();
        let client = reqwest::Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(10))
            .build()
            .expect("a client");
        let log = log_file(&launch.name);
        let (health, metrics) = (process::free_port(), process::free_port());
        let mut controller = Self {
            launch,
            child: None,
            health,
            metrics,
            log,
            starts: 0,
            client,
        };
        controller.spawn();
        controller
    }

    fn spawn(&mut self) {
        self.starts += 1;
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .expect("the controller's log file");
        let mut command = Command::new(binary());
        command
            .arg(format!("--health-probe-bind-address=127.0.0.1:{}", self.health))
            .arg(format!("--metrics-bind-address=127.0.0.1:{}", self.metrics))
            .args(&self.launch.flags)
            .env("KUBECONFIG", &self.launch.kubeconfig)
            .env("RUST_BACKTRACE", "1")
            .envs(&self.launch.env)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the log file twice"))
            .stderr(log);
        if !self.launch.guarded {
            command.arg("--insecure-allow-loopback");
        }
        let child = command.spawn().expect("the controller starts");
        controlplane::remember_child(child.id());
        self.child = Some(child);
    }

    /// Process id; a test that asks for it has a running controller.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map(Child::id).expect("the controller is running")
    }

    /// Whether the process has not ended.
    pub fn running(&mut self) -> bool {
        matches!(self.child.as_mut().map(Child::try_wait), Some(Ok(None)))
    }

    /// Waits until `/readyz` says so.
    pub async fn until_ready(&mut self) {
        let seen = loop {
            let ready = look(Duration::from_millis(500), || async {
                match self.get("readyz").await {
                    Ok((200, _)) => Ok(()),
                    Ok((code, body)) => Err(format!("{code}: {body}")),
                    Err(problem) => Err(problem),
                }
            });
            match tokio::time::timeout(PATIENCE, ready).await {
                Ok(Ok(())) => return,
                Ok(Err(_)) if self.running() && self.young() => {}
                Ok(Err(seen)) => break seen,
                Err(_) => break "no answer".to_owned(),
            }
        };
        panic!("the controller never became ready: {seen}\n{}", self.tail(60));
    }

    fn young(&self) -> bool {
        self.child.as_ref().is_some_and(|child| {
            let started = fs::metadata(format!("/proc/{}", child.id())).and_then(|m| m.modified());
            started.is_ok_and(|at| at.elapsed().is_ok_and(|age| age < PATIENCE))
        })
    }

    /// `GET` on the health port: status and body.
    pub async fn get(&self, path: &str) -> Result<(u16, String), String> {
        self.fetch(self.health, path).await
    }

    async fn fetch(&self, port: u16, path: &str) -> Result<(u16, String), String> {
        let url = format!("http://127.0.0.1:{port}/{}", path.trim_start_matches('/'));
        let response = self.client.get(&url).send().await.map_err(|e| format!("{url}: {e}"))?;
        let code = response.status().as_u16();
        Ok((code, response.text().await.map_err(|e| format!("{url}: {e}"))?))
    }

    /// The text of `/metrics`.
    pub async fn metrics_text(&self) -> String {
        let (code, body) = self.fetch(self.metrics, "metrics").await.expect("a scrape");
        assert_eq!(code, 200, "GET /metrics");
        body
    }

    /// Sum of a metric's samples whose labels contain all of `labels` (`key="value"`).
    pub async fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        sum(&self.metrics_text().await, name, labels)
    }

    /// SIGKILL, and the process is gone on return.
    pub fn kill(&mut self) {
        if let Some(child) = self.child.as_mut() {
            let _ = child.kill();
        }
        self.reap();
    }

    /// Collects a process that something else has killed.
    pub fn reap(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
    }

    /// Waits for the process to end by itself.
    pub async fn until_ended(&mut self, patience: Duration) -> Option<ExitStatus> {
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            if let Ok(Some(status)) = self.child.as_mut()?.try_wait() {
                self.child = None;
                return Some(status);
            }
            if tokio::time::Instant::now() > deadline {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// SIGTERM and the exit status; a controller that outlives its 30 s grace fails the test.
    pub async fn stop(&mut self) -> ExitStatus {
        process::terminate(self.pid());
        match self.until_ended(Duration::from_secs(40)).await {
            Some(status) => status,
            None => panic!("the controller ignores SIGTERM for 40 s\n{}", self.tail(60)),
        }
    }

    /// Starts the process again after it has ended, with the same flags.
    pub fn start_again(&mut self) {
        assert!(!self.running(), "the controller is still running");
        self.spawn();
    }

    /// Kills and starts again, and waits until it is ready.
    pub async fn crash_and_restart(&mut self) {
        self.kill();
        self.start_again();
        self.until_ready().await;
    }

    pub fn rss_kib(&self) -> u64 {
        process::rss_kib(self.pid())
    }

    pub fn cpu_time(&self) -> Duration {
        process::cpu_time(self.pid())
    }

    /// Everything it has logged, over all starts.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// The log's last lines.
    pub fn tail(&self, lines: usize) -> String {
        tail(&self.log, lines)
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The controller of this build, or the one `STAGESET_CONTROLLER` names: benchmarks measure a release build.
pub fn binary() -> PathBuf {
    std::env::var_os("STAGESET_CONTROLLER").map_or_else(
        || PathBuf::from(env!("CARGO_BIN_EXE_stageset-controller")),
        PathBuf::from,
    )
}

/// Sums samples of the Prometheus text format.
pub fn sum(text: &str, name: &str, labels: &[&str]) -> f64 {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let metric = series.split('{').next()?;
            let hit = metric == name && labels.iter().all(|label| series.contains(label));
            hit.then(|| value.parse::<f64>().ok())?
        })
        .sum()
}

/// The last lines of a log file, under its name.
pub fn tail(path: &Path, lines: usize) -> String {
    let log = fs::read_to_string(path).unwrap_or_default();
    let all: Vec<&str> = log.lines().collect();
    format!(
        "--- {} (last {lines} lines)\n{}\n",
        path.display(),
        all[all.len().saturating_sub(lines)..].join("\n")
    )
}

fn log_file(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("it-logs");
    fs::create_dir_all(&folder).expect("the folder for logs");
    let file = folder.join(format!("{name}.log"));
    let _ = fs::remove_file(&file);
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_by_label() {
        let text = "# HELP x y\nx{a=\"1\",b=\"2\"} 3\nx{a=\"1\",b=\"3\"} 4\nx_total{a=\"1\"} 9\nx 1\n";
        assert!((sum(text, "x", &["a=\"1\""]) - 7.0).abs() < f64::EPSILON);
        assert!((sum(text, "x", &[]) - 8.0).abs() < f64::EPSILON);
    }
}
