//! Control planes for tests: one shared by the whole test process, more on demand.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use super::process;

/// A running control plane and what `testenv env` says about it.
#[derive(Debug)]
pub struct ControlPlane {
    /// The instance's name.
    pub name: String,
    /// Every variable of `testenv env`.
    pub env: BTreeMap<String, String>,
}

static SHARED: OnceLock<Result<ControlPlane, String>> = OnceLock::new();

impl ControlPlane {
    /// The instance all tests of this process share; the first caller starts it.
    pub async fn shared() -> &'static Self {
        tokio::task::spawn_blocking(|| {
            let name = if reuse() {
                "it".to_owned()
            } else {
                format!("it-{}", std::process::id())
            };
            match SHARED.get_or_init(|| Self::up(&name)) {
                Ok(plane) => plane,
                Err(problem) => panic!("no control plane to test against: {problem}"),
            }
        })
        .await
        .expect("the control plane is up")
    }

    /// Another instance, for tests that break one or need a remote cluster. Taken down with the test process.
    pub async fn dedicated(suffix: &str) -> Self {
        let name = format!("it-{}-{suffix}", std::process::id());
        tokio::task::spawn_blocking(move || Self::up(&name))
            .await
            .expect("the starting thread")
            .unwrap_or_else(|problem| panic!("no control plane to test against: {problem}"))
    }

    fn up(name: &str) -> Result<Self, String> {
        process::run(testenv().args(["up", "--name", name, "--with", "flux"]))?;
        let json = process::run(testenv().args(["env", "--name", name, "--json"]))?;
        let env = serde_json::from_str(&json).map_err(|e| format!("testenv env --json: {e}: {json}"))?;
        let plane = Self {
            name: name.to_owned(),
            env,
        };
        if !reuse() {
            plane.take_down_with_this_process();
        }
        plane.install()?;
        Ok(plane)
    }

    /// A small watcher of its own process group outlives a panic, Ctrl-C and SIGKILL of the tests.
    fn take_down_with_this_process(&self) {
        let script = r#"while kill -0 "$0" 2>/dev/null; do sleep 1; done
            for pid in $(cat "$3" 2>/dev/null); do
                case "$(readlink "/proc/$pid/exe")" in */stageset-controller*) kill -9 "$pid" ;; esac
            done
            "$1" down --name "$2"; rm -f "$3""#;
        let watcher = Command::new("sh")
            .args(["-c", script, &std::process::id().to_string()])
            .arg(testenv_path())
            .arg(&self.name)
            .arg(children_file())
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        assert!(
            watcher.is_ok(),
            "the watcher that takes {} down: {watcher:?}",
            self.name
        );
    }

    /// Our CRDs, the fixtures' CRDs and the controller's rights.
    fn install(&self) -> Result<(), String> {
        let crds = process::root().join("crds");
        let has_crds = fs::read_dir(&crds).is_ok_and(|mut files| files.next().is_some());
        if has_crds {
            self.kubectl(&[
                "apply",
                "--server-side",
                "--force-conflicts",
                "-f",
                &crds.display().to_string(),
            ])?;
        }
        let fixtures = process::root().join("tests/it/fixtures");
        self.kubectl(&[
            "apply",
            "--server-side",
            "--force-conflicts",
            "-f",
            &fixtures.display().to_string(),
        ])?;
        self.kubectl(&["wait", "--for=condition=Established", "--timeout=30s", "crd", "--all"])?;
        Ok(())
    }

    /// A variable of `testenv env`; its absence means that the instance offers no such thing.
    pub fn var(&self, name: &str) -> &str {
        self.env.get(name).unwrap_or_else(|| {
            let names: Vec<&str> = self.env.keys().map(String::as_str).collect();
            panic!(
                "testenv env {} gives no {name}; it gives {}",
                self.name,
                names.join(", ")
            )
        })
    }

    /// Admin kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        Path::new(self.var("KUBECONFIG"))
    }

    /// A program that comes with the control plane (`kubectl`, `ocipush`, `s3put`), in its environment.
    pub fn tool(&self, name: &str) -> Command {
        let mut command = Command::new(Path::new(self.var("TESTENV_BIN")).join(name));
        command.envs(&self.env);
        command
    }

    /// Runs kubectl as admin.
    pub fn kubectl(&self, args: &[&str]) -> Result<String, String> {
        process::run(self.tool("kubectl").args(args))
    }
}

/// `STAGESET_TESTENV_REUSE=1` keeps the instance up for the next run.
fn reuse() -> bool {
    std::env::var("STAGESET_TESTENV_REUSE").is_ok_and(|v| v == "1")
}

fn testenv_path() -> PathBuf {
    std::env::var_os("STAGESET_TESTENV").map_or_else(|| process::root().join("hack/testenv/testenv"), PathBuf::from)
}

fn testenv() -> Command {
    Command::new(testenv_path())
}

/// Process ids of controllers, so that the watcher finds those a dying test left behind.
fn children_file() -> PathBuf {
    std::env::temp_dir().join(format!("stageset-it-{}.pids", std::process::id()))
}

/// Remembers a controller for the watcher.
pub fn remember_child(pid: u32) {
    use std::io::Write as _;
    if let Ok(mut file) = fs::OpenOptions::new().create(true).append(true).open(children_file()) {
        let _ = writeln!(file, "{pid}");
    }
}
