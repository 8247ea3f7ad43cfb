//! The metric series (contract 9). Names, types and label names are wire contract.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

/// Upper bounds in seconds of the reconcile-time histogram.
const RECONCILE_BUCKETS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5,
    1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    300.0, 600.0, 900.0, 1800.0,
];

/// Name of the controller in runtime series.
const CONTROLLER: &str = "stageset";

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
    pub reconcile_panics: IntCounter,
    pub active_workers: IntGauge,
    pub max_concurrent: IntGauge,
    pub queue_depth: IntGauge,
    pub queue_adds: IntCounter,
    pub queue_retries: IntCounter,
    pub queue_time: Histogram,
    pub work_time: Histogram,
    pub leader: IntGaugeVec,
    known_stages: Known,
    known_reasons: Known,
}

impl Metrics {
    /// Registers every series.
    ///
    /// # Errors
    /// When two series share a name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let r = Registry::new();
        let object = &["namespace", "name"];
        let queue = |name: &str, help: &str| {
            Opts::new(name, help)
                .const_label("name", CONTROLLER)
                .const_label("controller", CONTROLLER)
        };
        let runtime = |name: &str, help: &str| Opts::new(name, help).const_label("controller", CONTROLLER);
        let ten = prometheus::exponential_buckets(1e-8, 10.0, 12)?;
        Ok(Self {
            reconciles: counters(
                &r,
                "stageset_reconcile_total",
                "Decided outcomes by final Ready reason.",
                &[object[0], object[1], "reason"],
            )?,
            stage_applied: counters(
                &r,
                "stageset_stage_applied_total",
                "Stages applied and verified.",
                &[object[0], object[1], "stage"],
            )?,
            drift_corrected: counters(
                &r,
                "stageset_drift_corrected_total",
                "Objects put back to what was applied.",
                &[object[0], object[1], "stage"],
            )?,
            update_deferred: counters(
                &r,
                "stageset_update_deferred_total",
                "Updates that a window began to hold.",
                object,
            )?,
            skipped_entries: counters(
                &r,
                "stageset_inventory_skipped_entries_total",
                "Malformed inventory entries skipped.",
                &["namespace", "stageset", "stage"],
            )?,
            watch_failures: counters(
                &r,
                "stageset_watch_engagement_failures_total",
                "Watches on producer kinds that could not be started.",
                &["gvk"],
            )?,
            teardown_forced: counters(
                &r,
                "stageset_teardown_force_drop_total",
                "Finalizers dropped although teardown failed.",
                &[object[0], object[1], "reason"],
            )?,
            reconcile_results: counters_with(
                &r,
                runtime("controller_runtime_reconcile_total", "Reconciles by result."),
                &["result"],
            )?,
            stage_ready: gauges(
                &r,
                Opts::new("stageset_stage_ready", "1 while the stage's phase is Ready."),
                &["namespace", "stageset", "stage"],
            )?,
            leader: gauges(
                &r,
                Opts::new("leader_election_master_status", "1 while this replica holds the lease."),
                &["name"],
            )?,
            watches: gauge(&r, Opts::new("stageset_object_watches", "Watches on applied objects."))?,
            reconcile_errors: counter(
                &r,
                runtime(
                    "controller_runtime_reconcile_errors_total",
                    "Reconciles that ended in an error.",
                ),
            )?,
            reconcile_panics: counter(
                &r,
                runtime("controller_runtime_reconcile_panics_total", "Reconciles that panicked."),
            )?,
            active_workers: gauge(&r, runtime("controller_runtime_active_workers", "Steps running now."))?,
            max_concurrent: gauge(
                &r,
                runtime(
                    "controller_runtime_max_concurrent_reconciles",
                    "Steps that may run at once.",
                ),
            )?,
            queue_depth: gauge(&r, queue("workqueue_depth", "StageSets waiting for a permit."))?,
            queue_adds: counter(&r, queue("workqueue_adds_total", "StageSets queued."))?,
            queue_retries: counter(
                &r,
                queue("workqueue_retries_total", "StageSets queued again after an error."),
            )?,
            reconcile_time: histogram(
                &r,
                runtime("controller_runtime_reconcile_time_seconds", "Seconds a step took."),
                RECONCILE_BUCKETS.to_vec(),
            )?,
            queue_time: histogram(
                &r,
                queue("workqueue_queue_duration_seconds", "Seconds waited for a permit."),
                ten.clone(),
            )?,
            work_time: histogram(
                &r,
                queue("workqueue_work_duration_seconds", "Seconds of work with a permit."),
                ten,
            )?,
            known_stages: Arc::default(),
            known_reasons: Arc::default(),
            registry: with_process(r)?,
        })
    }

    /// Publishes a counter that lives elsewhere as plain numbers.
    ///
    /// # Errors
    /// When the name is taken.
    pub fn register(&self, collector: Box<dyn prometheus::core::Collector>) -> Result<(), prometheus::Error> {
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

fn counters(r: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
    counters_with(r, Opts::new(name, help), labels)
}

fn counters_with(r: &Registry, opts: Opts, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
    let metric = IntCounterVec::new(opts, labels)?;
    r.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn gauges(r: &Registry, opts: Opts, labels: &[&str]) -> Result<IntGaugeVec, prometheus::Error> {
    let metric = IntGaugeVec::new(opts, labels)?;
    r.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn gauge(r: &Registry, opts: Opts) -> Result<IntGauge, prometheus::Error> {
    let metric = IntGauge::with_opts(opts)?;
    r.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn counter(r: &Registry, opts: Opts) -> Result<IntCounter, prometheus::Error> {
    let metric = IntCounter::with_opts(opts)?;
    r.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn histogram(r: &Registry, opts: Opts, buckets: Vec<f64>) -> Result<Histogram, prometheus::Error> {
    let metric = Histogram::with_opts(HistogramOpts {
        common_opts: opts,
        buckets,
    })?;
    r.register(Box::new(metric.clone()))?;
    Ok(metric)
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
