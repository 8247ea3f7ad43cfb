//! The metric series (contract 9). Names, types and label names are wire contract.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::core::Collector;
use prometheus::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

use super::Work;

/// Upper bounds in seconds of the reconcile-time histogram.
const RECONCILE_BUCKETS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5,
    1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    300.0, 600.0, 900.0, 1800.0,
];

/// Name of the controller in runtime series.
const CONTROLLER: &str = "stageset";

const OBJECT: &[&str] = &["namespace", "name"];
const REASON: &[&str] = &["namespace", "name", "reason"];
const STAGE: &[&str] = &["namespace", "name", "stage"];
/// The other way in which the contract names a stage.
const STAGE_OF_SET: &[&str] = &["namespace", "stageset", "stage"];

/// Label values in use for each StageSet (namespace, name), so that its series can be dropped with it.
type Known = Arc<Mutex<HashMap<(String, String), Vec<String>>>>;

/// Every series of the process, in one registry.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    pub reconciles: IntCounterVec,
    pub stage_applied: IntCounterVec,
    pub drift_corrected: IntCounterVec,
    pub update_deferred: IntCounterVec,
    pub stage_ready: IntGaugeVec,
    pub skipped_entries: IntCounterVec,
    pub watch_failures: IntCounterVec,
    pub teardown_forced: IntCounterVec,
    pub watches: IntGauge,
    pub reconcile_time: Histogram,
    pub reconcile_results: IntCounterVec,
    pub reconcile_errors: IntCounter,
    pub reconcile_terminal_errors: IntCounter,
    pub reconcile_panics: IntCounter,
    pub active_workers: IntGauge,
    pub max_concurrent: IntGauge,
    pub queue_depth: IntGauge,
    pub queue_adds: IntCounter,
    pub queue_retries: IntCounter,
    pub queue_time: Histogram,
    pub work_time: Histogram,
    /// Requests to API servers, see [`crate::cluster::Counter`].
    pub requests: IntCounterVec,
    pub leader: IntGaugeVec,
    pub work: Work,
    known_stages: Known,
    known_reasons: Known,
}

impl Metrics {
    /// Registers every series.
    ///
    /// # Errors
    /// When two series share a name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let new = Series(Registry::new());
        Ok(Self {
            reconciles: new.counters(
                plain("stageset_reconcile_total", "Decided outcomes by final reason."),
                REASON,
            )?,
            stage_applied: new.counters(
                plain("stageset_stage_applied_total", "Stages applied and verified."),
                STAGE,
            )?,
            drift_corrected: new.counters(plain("stageset_drift_corrected_total", "Objects put back."), STAGE)?,
            update_deferred: new.counters(
                plain("stageset_update_deferred_total", "Updates that were held."),
                OBJECT,
            )?,
            skipped_entries: new.counters(
                plain(
                    "stageset_inventory_skipped_entries_total",
                    "Malformed inventory entries skipped.",
                ),
                STAGE_OF_SET,
            )?,
            watch_failures: new.counters(
                plain(
                    "stageset_watch_engagement_failures_total",
                    "Watches on producer kinds that failed to start.",
                ),
                &["gvk"],
            )?,
            teardown_forced: new.counters(
                plain(
                    "stageset_teardown_force_drop_total",
                    "Finalizers dropped although teardown failed.",
                ),
                REASON,
            )?,
            stage_ready: new.gauges(
                plain("stageset_stage_ready", "1 while the phase is Ready."),
                STAGE_OF_SET,
            )?,
            leader: new.gauges(
                plain("leader_election_master_status", "1 while this one leads."),
                &["name"],
            )?,
            watches: new.gauge(plain("stageset_object_watches", "Watches on applied objects."))?,
            reconcile_results: new.counters(runtime("reconcile_total", "Reconciles by result."), &["result"])?,
            reconcile_errors: new.counter(runtime("reconcile_errors_total", "Reconciles that ended in an error."))?,
            reconcile_terminal_errors: new.counter(runtime(
                "terminal_reconcile_errors_total",
                "Reconciles that ended in an error no retry can help.",
            ))?,
            reconcile_panics: new.counter(runtime("reconcile_panics_total", "Reconciles that panicked."))?,
            active_workers: new.gauge(runtime("active_workers", "Steps running now."))?,
            max_concurrent: new.gauge(runtime("max_concurrent_reconciles", "Steps that may run at once."))?,
            reconcile_time: new.histogram(
                runtime("reconcile_time_seconds", "Seconds a step took."),
                RECONCILE_BUCKETS.to_vec(),
            )?,
            queue_depth: new.gauge(queue("depth", "StageSets waiting for a slot."))?,
            queue_adds: new.counter(queue("adds_total", "StageSets queued."))?,
            queue_retries: new.counter(queue("retries_total", "StageSets queued again after an error."))?,
            queue_time: new.histogram(
                queue("queue_duration_seconds", "Seconds waited for a slot."),
                tenfold()?,
            )?,
            work_time: new.histogram(queue("work_duration_seconds", "Seconds of work in a slot."), tenfold()?)?,
            work: new.work()?,
            requests: new.requests()?,
            known_stages: Arc::default(),
            known_reasons: Arc::default(),
            registry: with_process(new.0)?,
        })
    }

    /// Publishes a counter that lives elsewhere as plain numbers.
    ///
    /// # Errors
    /// When the name is taken.
    pub fn register(&self, collector: Box<dyn Collector>) -> Result<(), prometheus::Error> {
        self.registry.register(collector)
    }

    /// Counts one decided outcome.
    pub fn outcome(&self, namespace: &str, name: &str, reason: &str) {
        self.reconciles.with_label_values(&[namespace, name, reason]).inc();
        let mut known = self.known_reasons.lock().unwrap_or_else(PoisonError::into_inner);
        let reasons = known.entry((namespace.to_owned(), name.to_owned())).or_default();
        if !reasons.iter().any(|r| r == reason) {
            reasons.push(reason.to_owned());
        }
    }

    /// Mirrors the stages' phases; stages that left the spec lose their series.
    pub fn stages<'a>(&self, namespace: &str, name: &str, stages: impl Iterator<Item = (&'a str, bool)>) {
        let mut now = Vec::new();
        for (stage, ready) in stages {
            self.stage_ready
                .with_label_values(&[namespace, name, stage])
                .set(i64::from(ready));
            now.push(stage.to_owned());
        }
        let mut known = self.known_stages.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known
            .insert((namespace.to_owned(), name.to_owned()), now.clone())
            .unwrap_or_default();
        for stage in before.iter().filter(|s| !now.contains(s)) {
            self.drop_stage(namespace, name, stage);
        }
    }

    /// Counts a stage that is through.
    pub fn applied(&self, namespace: &str, name: &str, stage: &str) {
        self.know_stage(namespace, name, stage);
        self.stage_applied.with_label_values(&[namespace, name, stage]).inc();
    }

    /// Counts objects of a stage that were put back.
    pub fn corrected(&self, namespace: &str, name: &str, stage: &str, objects: u64) {
        self.know_stage(namespace, name, stage);
        self.drift_corrected
            .with_label_values(&[namespace, name, stage])
            .inc_by(objects);
    }

    /// Only what is known can be dropped later.
    fn know_stage(&self, namespace: &str, name: &str, stage: &str) {
        let mut known = self.known_stages.lock().unwrap_or_else(PoisonError::into_inner);
        let stages = known.entry((namespace.to_owned(), name.to_owned())).or_default();
        if !stages.iter().any(|s| s == stage) {
            stages.push(stage.to_owned());
        }
    }

    /// Drops every series of a StageSet that is gone, except those that must outlive it.
    pub fn forget(&self, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        let stages = self
            .known_stages
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&key);
        for stage in stages.unwrap_or_default() {
            self.drop_stage(namespace, name, &stage);
        }
        let _ = self.update_deferred.remove_label_values(&[namespace, name]);
        let reasons = self
            .known_reasons
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&key);
        for reason in reasons.unwrap_or_default() {
            let _ = self.reconciles.remove_label_values(&[namespace, name, &reason]);
        }
    }

    fn drop_stage(&self, namespace: &str, name: &str, stage: &str) {
        let labels = [namespace, name, stage];
        let _ = self.stage_ready.remove_label_values(&labels);
        let _ = self.stage_applied.remove_label_values(&labels);
        let _ = self.drift_corrected.remove_label_values(&labels);
        let _ = self.skipped_entries.remove_label_values(&labels);
    }

    /// The exposition text of every series.
    ///
    /// # Errors
    /// When a series cannot be encoded.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        self.work.publish();
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

#[cfg(target_os = "linux")]
fn with_process(registry: Registry) -> Result<Registry, prometheus::Error> {
    registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
    Ok(registry)
}

#[cfg(not(target_os = "linux"))]
fn with_process(registry: Registry) -> Result<Registry, prometheus::Error> {
    Ok(registry)
}

fn plain(name: &str, help: &str) -> Opts {
    Opts::new(name, help)
}

/// The series that controller-runtime publishes, under the same names.
fn runtime(name: &str, help: &str) -> Opts {
    Opts::new(format!("controller_runtime_{name}"), help).const_label("controller", CONTROLLER)
}

/// The series of client-go's work queues, under the same names.
fn queue(name: &str, help: &str) -> Opts {
    Opts::new(format!("workqueue_{name}"), help)
        .const_label("name", CONTROLLER)
        .const_label("controller", CONTROLLER)
}

/// Bounds of the queue's histograms: 10 ns to 1,000 s, in seconds.
fn tenfold() -> Result<Vec<f64>, prometheus::Error> {
    prometheus::exponential_buckets(1e-8, 10.0, 12)
}

/// Makes series, each registered.
struct Series(Registry);

impl Series {
    fn work(&self) -> Result<Work, prometheus::Error> {
        let unfinished = queue(
            "unfinished_work_seconds",
            "Seconds that the steps under way have taken, together.",
        );
        let longest = queue(
            "longest_running_processor_seconds",
            "Seconds that the longest step under way has taken.",
        );
        Ok(Work::new(self.seconds(unfinished)?, self.seconds(longest)?))
    }

    fn requests(&self) -> Result<IntCounterVec, prometheus::Error> {
        let help = "Requests to API servers by status code, method and host.";
        self.counters(plain("rest_client_requests_total", help), &["code", "method", "host"])
    }

    fn counters(&self, opts: Opts, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
        self.register(IntCounterVec::new(opts, labels)?)
    }

    fn gauges(&self, opts: Opts, labels: &[&str]) -> Result<IntGaugeVec, prometheus::Error> {
        self.register(IntGaugeVec::new(opts, labels)?)
    }

    fn seconds(&self, opts: Opts) -> Result<Gauge, prometheus::Error> {
        self.register(Gauge::with_opts(opts)?)
    }

    fn gauge(&self, opts: Opts) -> Result<IntGauge, prometheus::Error> {
        self.register(IntGauge::with_opts(opts)?)
    }

    fn counter(&self, opts: Opts) -> Result<IntCounter, prometheus::Error> {
        self.register(IntCounter::with_opts(opts)?)
    }

    fn histogram(&self, common_opts: Opts, buckets: Vec<f64>) -> Result<Histogram, prometheus::Error> {
        self.register(Histogram::with_opts(HistogramOpts { common_opts, buckets })?)
    }

    fn register<C: Collector + Clone + 'static>(&self, metric: C) -> Result<C, prometheus::Error> {
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_a_gone_stageset_are_dropped_but_the_forced_teardown_stays() {
        let m = Metrics::new().unwrap();
        m.outcome("a", "b", "Succeeded");
        m.stages("a", "b", [("one", true), ("two", false)].into_iter());
        m.teardown_forced.with_label_values(&["a", "b", "permanent"]).inc();
        assert!(
            m.text()
                .unwrap()
                .contains(r#"stageset_stage_ready{namespace="a",stage="two",stageset="b"} 0"#)
        );
        m.stages("a", "b", [("one", true)].into_iter());
        assert!(!m.text().unwrap().contains(r#"stage="two""#));
        m.forget("a", "b");
        let text = m.text().unwrap();
        assert!(!text.contains("stageset_reconcile_total{"));
        assert!(!text.contains("stageset_stage_ready{"));
        assert!(text.contains(r#"stageset_teardown_force_drop_total{name="b",namespace="a",reason="permanent"} 1"#));
    }

    #[test]
    fn steps_under_way_are_seen_before_they_have_ended() {
        let m = Metrics::new().unwrap();
        let value = |series: &str| -> f64 {
            let text = m.text().unwrap();
            let line = text.lines().find(|l| l.starts_with(&format!("workqueue_{series}{{")));
            line.and_then(|l| l.rsplit(' ').next()).unwrap().parse().unwrap()
        };
        let (one, other) = (m.work.begin(), m.work.begin());
        while value("longest_running_processor_seconds") == 0.0 {}
        let longest = value("longest_running_processor_seconds");
        assert!(value("unfinished_work_seconds") > longest);
        drop((one, other));
        assert!(value("unfinished_work_seconds") == 0.0 && value("longest_running_processor_seconds") == 0.0);
    }

    #[test]
    fn runtime_series_carry_the_controller_name() {
        let m = Metrics::new().unwrap();
        m.queue_depth.set(3);
        assert!(
            m.text()
                .unwrap()
                .contains(r#"workqueue_depth{controller="stageset",name="stageset"} 3"#)
        );
    }
}
