//! kustomize and Go's YAML libraries as one program that answers many questions: `hack/diff/reference`.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};

use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use stageset::manifest::yaml::Mode;

/// A release says its version in the label of `buildMetadata`.
const VERSION: &str = "-X sigs.k8s.io/kustomize/api/provenance.version=v5.8.1";
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/hack/diff");
const SOURCES: [&str; 3] = [
    include_str!("../../../hack/diff/reference/main.go"),
    include_str!("../../../hack/diff/go.mod"),
    include_str!("../../../hack/diff/go.sum"),
];

#[derive(Debug, Deserialize)]
struct Answer {
    text: Option<String>,
    #[serde(default, deserialize_with = "given")]
    value: Option<Value>,
    error: Option<String>,
    panic: Option<String>,
}

/// A null that is there is a value.
fn given<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// What kustomize makes of a folder, as YAML text.
pub fn build(folder: &Path, reorder: &str) -> Result<String, String> {
    let answer = ask(&json!({"build": folder, "reorder": reorder}));
    answer.failed().map(|()| answer.text.unwrap_or_default())
}

/// What Go makes of the first document of a text.
pub fn read(text: &str, mode: Mode) -> Result<Value, String> {
    let rules = match mode {
        Mode::Kustomize => "kustomize",
        Mode::Kubectl => "kubectl",
    };
    let answer = ask(&json!({"read": text, "rules": rules}));
    answer.failed().map(|()| answer.value.unwrap_or_default())
}

/// How Go writes an object: `kustomize` or `kyaml`.
pub fn write(object: &Value, by: &str) -> Result<String, String> {
    let answer = ask(&json!({"write": object, "by": by}));
    answer.failed().map(|()| answer.text.unwrap_or_default())
}

impl Answer {
    fn failed(&self) -> Result<(), String> {
        match (&self.error, &self.panic) {
            (_, Some(cause)) => Err(format!("panic: {cause}")),
            (Some(error), None) => Err(error.clone()),
            (None, None) => Ok(()),
        }
    }
}

struct Oracle {
    _child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Oracle {
    fn start() -> Result<Self, String> {
        let program = program()?;
        let mut child = Command::new(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("cannot run {}: {e}", program.display()))?;
        let input = child.stdin.take().ok_or("no stdin")?;
        let output = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        Ok(Self {
            _child: child,
            input,
            output,
        })
    }

    fn ask(&mut self, question: &Value) -> Answer {
        serde_json::to_writer(&mut self.input, question).unwrap();
        self.input.write_all(b"\n").unwrap();
        self.input.flush().unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("answer {line:?} to {question}: {e}"))
    }
}

fn ask(question: &Value) -> Answer {
    static ORACLE: LazyLock<Result<Mutex<Oracle>, String>> = LazyLock::new(|| Oracle::start().map(Mutex::new));
    match &*ORACLE {
        Ok(oracle) => oracle.lock().unwrap_or_else(PoisonError::into_inner).ask(question),
        Err(message) => panic!("{message}"),
    }
}

/// The program: named by `STAGESET_REFERENCE`, or built into the cache folder of `hack/testenv`.
fn program() -> Result<PathBuf, String> {
    if let Some(given) = std::env::var_os("STAGESET_REFERENCE") {
        return Ok(given.into());
    }
    let mut hasher = Sha256::new();
    SOURCES.iter().for_each(|text| hasher.update(text));
    hasher.update(VERSION);
    let hash: String = hasher.finalize().iter().take(6).map(|b| format!("{b:02x}")).collect();
    let folder = cache()?.join(format!("reference-{hash}"));
    let program = folder.join("reference");
    if !program.exists() {
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        compile(&folder.join(format!("building-{}", std::process::id())), &program)?;
    }
    Ok(program)
}

fn cache() -> Result<PathBuf, String> {
    let var = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    var("STAGESET_TESTENV_CACHE")
        .or_else(|| Some(var("XDG_CACHE_HOME")?.join("stageset-testenv")))
        .or_else(|| Some(var("HOME")?.join(".cache/stageset-testenv")))
        .ok_or_else(|| "set STAGESET_TESTENV_CACHE, XDG_CACHE_HOME or HOME: there is no place for a cache".to_owned())
}

fn compile(temporary: &Path, program: &Path) -> Result<(), String> {
    const HELP: &str = "comparing with kustomize needs Go 1.26 or newer (https://go.dev/dl) and its modules; \
                        or set STAGESET_REFERENCE to a built hack/diff/reference";
    let built = Command::new("go")
        .args([
            "build",
            "-trimpath",
            "-buildvcs=false",
            "-mod=readonly",
            "-ldflags",
            VERSION,
            "-o",
        ])
        .arg(temporary)
        .arg("./reference")
        .current_dir(FOLDER)
        .output()
        .map_err(|e| format!("cannot run go: {e}; {HELP}"))?;
    if !built.status.success() {
        return Err(format!("{}; {HELP}", String::from_utf8_lossy(&built.stderr)));
    }
    std::fs::rename(temporary, program).map_err(|e| format!("{}: {e}", program.display()))
}
