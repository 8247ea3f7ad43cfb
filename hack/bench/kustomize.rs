//! How long a build takes and how much memory: our engine, the krusty library, the kustomize command, in one run
//! over the same files. Run it with `hack/bench/kustomize`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use stageset::manifest::{FileTree, Order, build_kustomization, build_one_by_one, yaml};

/// Counts live bytes and their peak.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system allocator unchanged; only numbers are kept.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SIZES: [usize; 5] = [10, 100, 1_000, 5_000, 10_000];

fn main() {
    let full = std::env::args().any(|argument| argument == "--full");
    // The first build fills the tables that are shared by all builds of a process.
    let _ = ours(&files(1));
    let krusty = std::env::var_os("STAGESET_KRUSTY").map(PathBuf::from);
    let binary = std::env::var_os("STAGESET_KUSTOMIZE").map(PathBuf::from);
    println!(
        "{:>8} {:>10} {:>12} {:>12} {:>12} {:>9} {:>9} {:>11} {:>11}",
        "objects", "input", "ours", "library", "command", "lib/ours", "cmd/ours", "text/input", "peak/input"
    );
    for size in SIZES {
        let files = files(size);
        let input: usize = files.iter().map(|(_, content)| content.len()).sum();
        let (ours, written, peak) = ours(&files);
        let folder = std::env::temp_dir().join(format!("stageset-bench-{}-{size}", std::process::id()));
        write(&files, &folder);
        let overlay = folder.join("overlay");
        // The reference takes time with the square of the objects: minutes from here on.
        let compared = full || size <= 1_000;
        let library = krusty
            .as_deref()
            .filter(|_| compared)
            .map(|program| library(program, &overlay, runs(size)));
        let command = binary
            .as_deref()
            .filter(|_| compared)
            .map(|program| command(program, &overlay, runs(size)));
        let _ = std::fs::remove_dir_all(&folder);
        let millis = |time: Option<f64>| time.map_or_else(|| "-".to_owned(), |t| format!("{t:.2} ms"));
        let times = |time: Option<f64>| time.map_or_else(|| "-".to_owned(), |t| format!("{:.1}x", t / ours));
        println!(
            "{size:>8} {:>7} KiB {:>12} {:>12} {:>12} {:>9} {:>9} {:>10.1}x {:>10.1}x",
            input / 1024,
            millis(Some(ours)),
            millis(library),
            millis(command),
            times(library),
            times(command),
            written as f64 / input as f64,
            peak as f64 / input as f64
        );
    }
}

fn runs(size: usize) -> usize {
    match size {
        0..=999 => 9,
        1_000 => 3,
        _ => 1,
    }
}

/// Median milliseconds of a build with its output as YAML, as the library does it; the peaks of the
/// heap above what the files take: while the objects are written one by one, and while all are made.
fn ours(files: &[(String, String)]) -> (f64, usize, usize) {
    let tree = FileTree::from_files(files.iter().map(|(p, c)| (p, c.clone()))).expect("the paths are clean");
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let mut text = String::new();
    for object in build_one_by_one(&tree, "overlay", Order::Accumulation).expect("the case builds") {
        text.push_str(&yaml::to_string(&object.expect("the object is one")).expect("objects can be written"));
    }
    drop(text);
    let written = PEAK.load(Ordering::Relaxed) - before;
    PEAK.store(before, Ordering::Relaxed);
    let built = build_kustomization(&tree, "overlay", Order::Accumulation).expect("the case builds");
    let peak = PEAK.load(Ordering::Relaxed) - before;
    drop(built);
    let mut taken: Vec<f64> = (0..9)
        .map(|_| {
            let begin = Instant::now();
            let built = build_kustomization(&tree, "overlay", Order::Accumulation).expect("the case builds");
            let mut length = 0;
            for object in &built.objects {
                length += yaml::to_string(object).expect("objects can be written").len();
            }
            assert!(length > 0);
            begin.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    taken.sort_by(f64::total_cmp);
    (taken[taken.len() / 2], written, peak)
}

fn library(program: &Path, overlay: &Path, times: usize) -> f64 {
    let output = Command::new(program)
        .arg(overlay)
        .arg(times.to_string())
        .output()
        .expect("krusty runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse::<f64>()
        .expect("microseconds")
        / 1e3
}

fn command(program: &Path, overlay: &Path, times: usize) -> f64 {
    let mut taken: Vec<f64> = (0..times)
        .map(|_| {
            let begin = Instant::now();
            let output = Command::new(program)
                .args([
                    "build",
                    "--load-restrictor",
                    "LoadRestrictionsNone",
                    "--reorder",
                    "none",
                ])
                .arg(overlay)
                .output()
                .expect("kustomize runs");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            begin.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    taken.sort_by(f64::total_cmp);
    taken[taken.len() / 2]
}

fn write(files: &[(String, String)], folder: &Path) {
    for (path, content) in files {
        let target = folder.join(path);
        std::fs::create_dir_all(target.parent().expect("files are in folders")).expect("a folder can be made");
        std::fs::write(target, content).expect("a file can be written");
    }
}

/// A base of deployments, services, config maps and accounts in files of fifty objects, and an overlay with name
/// prefix, labels, one generator and two patches.
fn files(objects: usize) -> Vec<(String, String)> {
    let mut files = Vec::new();
    let mut list = String::from("resources:\n");
    let mut text = String::new();
    for index in 0..objects {
        object(index, &mut text);
        if index % 50 == 49 || index + 1 == objects {
            let name = format!("part-{}.yaml", index / 50);
            writeln!(list, "- {name}").expect("text grows");
            files.push((format!("base/{name}"), std::mem::take(&mut text)));
        }
    }
    files.push(("base/kustomization.yaml".to_owned(), list));
    files.push((
        "overlay/kustomization.yaml".to_owned(),
        "resources: [../base]\nnamePrefix: prod-\nlabels:\n- pairs: {team: a}\n  includeSelectors: true\n\
         configMapGenerator:\n- name: generated\n  literals: [a=b]\npatches:\n\
         - patch: '[{\"op\": \"add\", \"path\": \"/metadata/annotations/patched\", \"value\": \"true\"}]'\n  target: {kind: Service}\n\
         - path: patch.yaml\n"
            .to_owned(),
    ));
    files.push((
        "overlay/patch.yaml".to_owned(),
        "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web-0\nspec:\n  template:\n    spec:\n      \
         containers:\n      - name: main\n        env:\n        - name: ADDED\n          value: \"1\"\n"
            .to_owned(),
    ));
    files
}

fn object(index: usize, text: &mut String) {
    let group = index / 4;
    let result = match index % 4 {
        0 => write!(
            text,
            "---\napiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web-{group}\n  labels:\n    app: web-{group}\nspec:\n  \
             replicas: 2\n  selector:\n    matchLabels:\n      app: web-{group}\n  template:\n    metadata:\n      labels:\n        \
             app: web-{group}\n    spec:\n      serviceAccountName: account-{group}\n      containers:\n      - name: main\n        \
             image: registry.example.com/team/web:1.2.{group}\n        ports:\n        - containerPort: 8080\n          name: http\n        \
             env:\n        - name: LOG_LEVEL\n          value: info\n        - name: SETTING\n          valueFrom:\n            \
             configMapKeyRef:\n              name: config-{group}\n              key: setting\n        resources:\n          requests:\n            \
             cpu: 100m\n            memory: 128Mi\n      volumes:\n      - name: config\n        configMap:\n          name: config-{group}\n"
        ),
        1 => write!(
            text,
            "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: web-{group}\nspec:\n  selector:\n    app: web-{group}\n  ports:\n  \
             - port: 80\n    targetPort: http\n    protocol: TCP\n"
        ),
        2 => write!(
            text,
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: config-{group}\ndata:\n  setting: value-{group}\n  file.txt: |\n    \
             first line of the file\n    second line of the file\n"
        ),
        _ => write!(
            text,
            "---\napiVersion: v1\nkind: ServiceAccount\nmetadata:\n  name: account-{group}\n"
        ),
    };
    result.expect("text grows");
}
