//! Flags to clients, caches, servers and the controller; and the shutdown.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::cache::{Inventories, Sources, StageSets, owner_of};
use crate::cluster::watch::{self, Hub, Waker, Woken};
use crate::cluster::{Cluster, Clusters};
use crate::config::{Command, Config, WATCH_NAMESPACES};
use crate::controller::{self, Feeds, Lease};
use crate::run::{Context, Memories, Notifier};
use crate::telemetry::{self, Metrics};
use crate::{outbound, serve, source};

/// Where a pod finds its own namespace.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// How long a thread for blocking work waits for more of it.
const IDLE_THREAD: Duration = Duration::from_secs(1);
/// How long running steps may take to end after a signal.
const DRAIN: Duration = Duration::from_secs(30);

/// The controller's `main`: parses, validates, runs. Exit codes: 0 after a signal, 1 for a failure at start or
/// run time, 2 for bad flags (contract 1.1).
pub fn main() -> ExitCode {
    let environment = std::env::var(WATCH_NAMESPACES).ok();
    let config = match Config::read(go_style(std::env::args()), environment) {
        Ok(config) => config,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(2)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    let in_pod = std::path::Path::new(NAMESPACE_FILE).exists();
    if let Err(error) = config.validate(in_pod) {
        eprintln!("stageset-controller: {error}");
        return ExitCode::from(2);
    }
    if let Some(Command::Crds { out }) = &config.command {
        return print_crds(out.as_deref());
    }
    if let Err(error) = telemetry::install_logs(config.logging.level(), config.logging.format()) {
        eprintln!("stageset-controller: {error}");
        return ExitCode::FAILURE;
    }
    // Threads that unpack and build keep memory of their own for as long as they live: idle ones go soon.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_keep_alive(IDLE_THREAD)
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "the runtime cannot start");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error, "stopped");
            ExitCode::FAILURE
        }
    }
}

/// Go's flag package also takes long flags with one dash.
fn go_style(args: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
    args.map(|arg| {
        let long = arg.starts_with('-') && !arg.starts_with("--") && arg.len() > 2;
        if long { format!("-{arg}") } else { arg }
    })
}

fn print_crds(out: Option<&std::path::Path>) -> ExitCode {
    let definitions = match crate::api::crd::render() {
        Ok(definitions) => definitions,
        Err(error) => {
            eprintln!("stageset-controller: {error}");
            return ExitCode::FAILURE;
        }
    };
    for (name, yaml) in definitions {
        let written = match out {
            Some(folder) => std::fs::write(folder.join(&name), yaml),
            None => writeln!(std::io::stdout(), "---\n{}", yaml.trim_end()),
        };
        if let Err(error) = written {
            eprintln!("stageset-controller: cannot write {name}: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

async fn run(config: Config) -> Result<(), String> {
    tracing::info!(logger = "setup", version = env!("CARGO_PKG_VERSION"), "starting");
    if config.insecure_allow_loopback {
        tracing::warn!(
            logger = "setup",
            "--insecure-allow-loopback: artifacts may come from loopback addresses; for local development only"
        );
    }
    let stop = CancellationToken::new();
    watch_signals(stop.clone()).map_err(|e| format!("signals cannot be watched: {e}"))?;
    let kube_config = kube_config().await?;
    let namespace = own_namespace(&kube_config);
    let metrics = Metrics::new().map_err(|e| e.to_string())?;
    let cluster = Cluster::connect_counted(kube_config, Some(metrics.requests.clone())).map_err(|e| e.to_string())?;
    let (wake, woken) = watch::queue();
    let ctx = context(config, &cluster, metrics, &wake)?;
    let feeds = Feeds::start(&ctx, wake.clone());
    serve_probes(&ctx, &feeds, &stop).await?;
    tokio::spawn(controller::watch_over(ctx.clone()));
    let lease = Lease::new(cluster, &namespace);
    let work = lead(&ctx, &feeds, lease, Queue { wake, woken }, &stop);
    tokio::select! {
        result = work => result,
        why = controller::until_restored(&ctx) => Err(why),
    }
}

/// Both ends of the queue of StageSets that are to be looked at.
struct Queue {
    wake: Waker,
    woken: Woken,
}

/// Waits for the lease where there is one to be had, and reconciles until `stop`.
async fn lead(
    ctx: &Arc<Context>,
    feeds: &Feeds,
    mut lease: Lease,
    queue: Queue,
    stop: &CancellationToken,
) -> Result<(), String> {
    let Queue { wake, mut woken } = queue;
    if ctx.config.leader_elect {
        tokio::select! {
            () = emptying(&mut woken, lease.acquire()) => {}
            () = stop.cancelled() => return Ok(()),
        }
        // A standby has no use for what changes: whatever it knows by now is looked at once it leads.
        for owner in ctx.sets.all().iter().filter_map(|set| owner_of(set)) {
            wake.wake(owner);
        }
        ctx.metrics
            .leader
            .with_label_values(&["stageset-controller.stages.metio.wtf"])
            .set(1);
        tracing::info!(logger = "setup", "became leader");
        ctx.notifier.send(lease.taken());
    }
    // The lease is kept from the start: filling the caches may take longer than it holds.
    let working = async {
        wait_for_caches(feeds, stop).await;
        controller::run(ctx.clone(), woken, stop.clone()).await;
    };
    tokio::pin!(working);
    tokio::select! {
        () = &mut working => return Ok(()),
        () = lease.keep(), if ctx.config.leader_elect => return Err("the lease was lost".into()),
        () = stop.cancelled() => {}
    }
    tracing::info!(logger = "setup", "shutting down");
    // The lease is kept while steps drain: a successor must not begin beside them.
    tokio::select! {
        drained = tokio::time::timeout(DRAIN, &mut working) => {
            if drained.is_err() {
                tracing::warn!(logger = "setup", "steps were still running after the drain timeout; they resume at the next start");
            }
            Ok(())
        }
        () = lease.keep(), if ctx.config.leader_elect => Err("the lease was lost while steps were ending".into()),
    }
}

/// Waits for `until`, and keeps a queue empty meanwhile that nobody works off.
async fn emptying<T>(queue: &mut Woken, until: impl Future<Output = T>) -> T {
    tokio::pin!(until);
    loop {
        tokio::select! {
            result = &mut until => return result,
            _ = queue.next() => {}
        }
    }
}

fn context(config: Config, cluster: &Arc<Cluster>, metrics: Metrics, wake: &Waker) -> Result<Arc<Context>, String> {
    let policy = outbound::Policy {
        allow_loopback: config.insecure_allow_loopback,
        allowed_hosts: None,
    };
    let http = outbound::Client::new(policy).map_err(|e| e.to_string())?;
    let sets = Arc::new(StageSets::default());
    let sources = Sources::new(
        cluster.clone(),
        config.watch_namespaces.clone(),
        sets.clone(),
        wake.clone(),
        metrics.clone(),
    );
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let budget = u64::try_from(config.artifact_cache_bytes).unwrap_or(u64::MAX);
    Ok(Arc::new(Context {
        hub: Hub::new(wake.clone(), config.max_watches),
        artifacts: source::Cache::new(http.clone(), source::Limits::default(), budget),
        notifier: Notifier::start(cluster.clone(), http, config.events_addr.0.clone()),
        inventories: Arc::new(Inventories::default()),
        memories: Memories::default(),
        builds: Arc::new(Semaphore::new(cores)),
        clusters: Clusters::new(cluster.clone(), config.insecure_allow_loopback),
        cluster: cluster.clone(),
        sets,
        sources,
        metrics,
        config,
    }))
}

async fn serve_probes(ctx: &Arc<Context>, feeds: &Arc<Feeds>, stop: &CancellationToken) -> Result<(), String> {
    if let Some(address) = ctx.config.health_probe_bind_address.0 {
        let feeds = feeds.clone();
        let router = serve::health(Arc::new(move || feeds.unsynced()));
        serve::start("probes", address, router, stop.clone()).await?;
    }
    if let Some(address) = ctx.config.metrics_bind_address.0 {
        serve::start("metrics", address, serve::metrics(ctx.metrics.clone()), stop.clone()).await?;
    }
    Ok(())
}

async fn wait_for_caches(feeds: &Feeds, stop: &CancellationToken) {
    while feeds.hold_up() && !stop.is_cancelled() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// In a pod the ServiceAccount mount, elsewhere `KUBECONFIG` or the user's kubeconfig (contract 1.3).
async fn kube_config() -> Result<kube::Config, String> {
    if std::env::var_os("KUBECONFIG").is_none() && std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return kube::Config::incluster().map_err(|e| format!("the pod's ServiceAccount cannot be used: {e}"));
    }
    let options = kube::config::KubeConfigOptions::default();
    kube::Config::from_kubeconfig(&options)
        .await
        .map_err(|e| format!("no kubeconfig can be used: {e}; set KUBECONFIG to one"))
}

fn own_namespace(config: &kube::Config) -> String {
    std::env::var("POD_NAMESPACE")
        .ok()
        .or_else(|| std::fs::read_to_string(NAMESPACE_FILE).ok())
        .map(|ns| ns.trim().to_owned())
        .filter(|ns| !ns.is_empty())
        .unwrap_or_else(|| config.default_namespace.clone())
}

/// The first signal begins the shutdown, a second one ends the process at once (contract 1.2).
fn watch_signals(stop: CancellationToken) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        for second in [false, true] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if second {
                std::process::exit(1);
            }
            stop.cancel();
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_queue_does_not_grow_while_nobody_works_it_off() {
        let (wake, mut woken) = watch::queue();
        for at in 0..10_000 {
            wake.wake(watch::Owner {
                namespace: "ns".into(),
                name: format!("gone-{at}"),
            });
        }
        let until_empty = async {
            while wake.waiting() > 0 {
                tokio::task::yield_now().await;
            }
        };
        let emptied = tokio::time::timeout(Duration::from_secs(20), emptying(&mut woken, until_empty));
        emptied.await.unwrap();
    }

    #[test]
    fn one_dash_is_as_good_as_two() {
        let args = ["x", "-leader-elect", "--log-level=info", "-h", "crds"].map(String::from);
        let seen: Vec<String> = go_style(args.into_iter()).collect();
        assert_eq!(seen, ["x", "--leader-elect", "--log-level=info", "-h", "crds"]);
    }
}
