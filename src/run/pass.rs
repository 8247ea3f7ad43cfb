//! One step of a run: the sequence, one call a line (run 3).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::context::{Context, Memory};
use super::gates::Windowed;
use super::hold::{Hold, sooner};
use super::outcome::{End, Failure, Remedy, Stop, Wake};
use super::variables::Variables;
use super::{pin, status};
use crate::api::names::{FINALIZER, annotation};
use crate::api::{Reason, Stage, StagePhase, StageSet, StageSetStatus, StageStatus, Step};
use crate::cluster::Tenant;
use crate::cluster::watch::{Owner, WatchKey};
use crate::rules::backoff::{self, Cadence, RBAC_LADDER};
use crate::rules::condition::{Situation, conditions, transition};
use crate::rules::next::Next;
use crate::rules::spec;
use crate::source::Artifact;

/// Progress texts are written at most this often (decisions 3.5).
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Steps in a row that a stumbling API server may cost before it counts as a failure: about a minute.
pub(super) const STUMBLES: u32 = 6;
/// From which of them on they are told.
const TOLD_FROM: u32 = 2;

/// The working state of one step.
pub struct Pass<'a> {
    pub(super) ctx: &'a Arc<Context>,
    pub(super) owner: &'a Owner,
    /// As the server last told it; status patches are made against it.
    pub(super) set: Arc<StageSet>,
    /// What the status is to become.
    pub(super) status: StageSetStatus,
    pub(super) memory: &'a mut Memory,
    /// What each stage deploys in this step: pinned by the run, or what the source offers.
    pub(super) artifacts: Vec<Artifact>,
    /// The cluster objects are applied to.
    pub(super) target: super::target::Aim,
    /// Each stage's variables, or why they cannot be resolved yet.
    pub(super) variables: Vec<Result<Variables, Failure>>,
    pub(super) requested: bool,
    /// Something newer than the unfinished run waits.
    pub(super) outdated: bool,
    /// A fresh override of the update windows, to be recorded once it has had its effect.
    pub(super) update_token: Option<String>,
    /// An update that is held: what was applied last is looked after meanwhile.
    pub(super) hold: Option<Hold>,
    /// A record was rebuilt in this pass: nothing is pruned before the next.
    pub(super) prune_deferred: bool,
    /// Watches this StageSet needs from now on.
    pub(super) needed: HashSet<WatchKey>,
    /// Whether a wait is behind us, so that the next effect wants its intent written first.
    pub(super) wrote_in_pass: bool,
    /// The run goes nowhere by itself: it failed, or is held.
    pub(super) resting: bool,
    /// An object that was deleted to be made anew is not gone yet.
    pub(super) comes_back: bool,
    /// What was pruned is not gone yet, and a namespace waits for that.
    pub(super) leaves: bool,
    /// When the last complete look ended before this step.
    pub(super) looked_at: Option<Instant>,
    /// The stage that was denied something in this step.
    pub(super) denied: Option<usize>,
}

impl<'a> Pass<'a> {
    /// A step for `set`.
    pub fn new(ctx: &'a Arc<Context>, owner: &'a Owner, set: Arc<StageSet>, memory: &'a mut Memory) -> Self {
        let status = set.status.clone().unwrap_or_default();
        memory.belong_to(&set);
        Self {
            ctx,
            owner,
            set,
            status,
            looked_at: memory.looked_at,
            memory,
            artifacts: Vec::new(),
            target: super::target::Aim::local(ctx),
            variables: Vec::new(),
            requested: false,
            outdated: false,
            update_token: None,
            hold: None,
            prune_deferred: false,
            needed: HashSet::new(),
            wrote_in_pass: false,
            resting: false,
            comes_back: false,
            leaves: false,
            denied: None,
        }
    }

    /// Runs the step and writes what it decided.
    ///
    /// # Errors
    /// Why nothing was decided.
    pub async fn run(mut self) -> Result<Wake, Stop> {
        self.ensure_finalizer().await?;
        match self.decide().await {
            Ok(end) => self.finish(end).await,
            Err(stop) => {
                self.tell_stumble(&stop).await;
                Err(stop)
            }
        }
    }

    /// Says in a run under way what holds it up, once that is more than a moment: an admission webhook that does not
    /// answer looks like this for as long as it takes to count as a failure.
    async fn tell_stumble(&mut self, stop: &Stop) {
        let Stop::Stumbled(why) = stop else { return };
        // One that failed keeps saying why.
        let rests = self.position(|s| s.phase == Some(StagePhase::Failed)).is_some();
        if self.memory.undecided < TOLD_FROM || self.status.run.is_none() || rests {
            return;
        }
        let message = format!("{why}; trying again");
        if let Err(error) = self.write(&Situation::Unfinished { message }).await {
            tracing::debug!(%error, "what holds the run up could not be told");
        }
    }

    async fn decide(&mut self) -> Result<End, Stop> {
        if self.set.spec.suspend {
            return Ok(suspended());
        }
        self.take_request();
        if let Some(end) = self.refuse_invalid() {
            return Ok(end);
        }
        self.merge_stages();
        if self.status.run.is_none()
            && let Some(end) = self.dependencies().await?
        {
            return Ok(end);
        }
        let offered = match pin::resolve(self.ctx, &self.set).await? {
            Ok(offered) => offered,
            Err(unresolved) => return Ok(self.unresolved(&unresolved)),
        };
        self.note_attempted(&offered);
        let (offered, opening, hold) = match self.windows(offered) {
            Windowed::Open { artifacts, opening } => (artifacts, opening, None),
            Windowed::Held { applied, hold } => (applied, None, Some(hold)),
            Windowed::Closed(end) => return Ok(end),
        };
        self.hold = hold;
        let mut end = self.go_on(offered).await?;
        if let Some(opening) = opening {
            end.wake = sooner(end.wake, &opening);
        }
        Ok(self.with_hold(end))
    }

    /// Begins, resumes, or looks after what is deployed.
    async fn go_on(&mut self, offered: Vec<Artifact>) -> Result<End, Stop> {
        if let Some(end) = self.connect().await? {
            return Ok(end);
        }
        self.artifacts = self.pinned().unwrap_or_else(|| offered.clone());
        self.resolve_variables().await;
        if let Some(end) = self.unread_variables()? {
            return Ok(end);
        }
        match self.restore_records().await {
            Ok(restored) => self.prune_deferred = restored,
            Err((at, failure)) => {
                let end = self.failed(at, failure)?;
                return Ok(self.explain_denial(end).await);
            }
        }
        let next = self.next(&offered).await?;
        let end = match next {
            // Apart from each other: hundreds of steps may wait for a download in one of these, and none needs room for all.
            _ if let Some(end) = self.wait_with_update(next).boxed().await? => end,
            Next::Steady => {
                self.use_up_override();
                self.steady().boxed().await?
            }
            Next::Rest => self.rest().boxed().await?,
            Next::Resume => self.stages().await?,
            Next::Start { attempt } => {
                if self.status.run.is_some()
                    && let Some(end) = self.dependencies().await?
                {
                    self.memory.owed = true;
                    self.care_for_all().await;
                    return Ok(self.with_care(end));
                }
                self.memory.owed = false;
                self.start(offered, attempt).await?;
                self.stages().await?
            }
        };
        let end = self.explain_denial(end).await;
        Ok(self.with_care(self.give_way(end)))
    }

    /// Adds the finalizer by a patch of metadata alone, so that nothing an author wrote is rewritten.
    async fn ensure_finalizer(&mut self) -> Result<(), Stop> {
        let mut finalizers = self.set.metadata.finalizers.clone().unwrap_or_default();
        if finalizers.iter().any(|f| f == FINALIZER) {
            return Ok(());
        }
        finalizers.push(FINALIZER.to_owned());
        let body = serde_json::json!({"metadata": {
            "finalizers": finalizers,
            "resourceVersion": self.set.metadata.resource_version,
            "uid": self.set.metadata.uid,
        }});
        self.set = status::patch_set(self.ctx, self.owner, None, &body).await?;
        Ok(())
    }

    fn take_request(&mut self) {
        let token = self
            .annotation(annotation::REQUESTED_AT)
            .filter(|t| !t.is_empty())
            .map(str::to_owned);
        if token.is_some() && token != self.status.last_handled_reconcile_at {
            self.requested = true;
            self.memory.requested_at = Some(Instant::now());
            self.memory.answering.clone_from(&token);
            self.status.last_handled_reconcile_at = token;
        }
    }

    /// A StageSet annotation.
    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        self.set.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    fn refuse_invalid(&self) -> Option<End> {
        let violations = spec::check(&self.set, &spec::Supported::this_release());
        let (reason, message) = spec::outcome(&violations)?;
        Some(End {
            situation: Situation::Terminal { reason, message },
            wake: Wake::OnChange,
        })
    }

    /// One status entry for each stage of the spec, in its order; entries of stages that left are dropped.
    fn merge_stages(&mut self) {
        self.memory.keep_stages(&self.set.spec.stages);
        let known = std::mem::take(&mut self.status.stages);
        self.status.stages = self
            .set
            .spec
            .stages
            .iter()
            .map(|stage| {
                known
                    .iter()
                    .find(|s| s.name == stage.name)
                    .cloned()
                    .unwrap_or_else(|| StageStatus::named(&stage.name))
            })
            .collect();
    }

    fn unresolved(&self, unresolved: &pin::Unresolved) -> End {
        let outcome = unresolved.error.outcome();
        let reason = Reason::from_word(outcome.reason).unwrap_or(Reason::ResolveFailed);
        let message = format!("stage \"{}\": {}", unresolved.stage, outcome.message);
        let cadence = self.cadence();
        match (outcome.class, reason) {
            (crate::source::Class::Terminal, _) => End {
                situation: Situation::Terminal { reason, message },
                wake: Wake::In(jittered(cadence.interval)),
            },
            (_, Reason::SourceNotReady | Reason::ArtifactNotFound) => End {
                situation: Situation::Held {
                    reason,
                    message,
                    retrying: true,
                    deployed: false,
                },
                wake: Wake::In(jittered(cadence.retry)),
            },
            _ => End {
                situation: Situation::Failed { reason, message },
                wake: Wake::In(jittered(cadence.retry.min(RBAC_LADDER.last))),
            },
        }
    }

    fn note_attempted(&mut self, offered: &[Artifact]) {
        self.status.last_attempted_revisions = offered.iter().map(|a| (a.key(), a.revision.clone())).collect();
    }

    /// What the unfinished run has pinned, when it pins every stage of the spec.
    pub(super) fn pinned(&self) -> Option<Vec<Artifact>> {
        let run = self.status.run.as_ref()?;
        self.set
            .spec
            .stages
            .iter()
            .map(|stage| pin::recorded(run, &stage.name))
            .collect()
    }

    /// Whether the objects the stage awaits are known in this process.
    pub(super) fn knows_inputs(&self, at: usize) -> bool {
        let stage = &self.status.stages[at];
        let memory = self.memory.stages.get(&stage.name);
        memory.is_some_and(|m| Some(&m.inputs) == stage.inputs_digest.as_ref())
    }

    /// Whether a stage is through with exactly these inputs.
    pub(super) fn is_done(&self, at: usize, inputs: &str) -> bool {
        let entry = &self.status.stages[at];
        entry.phase == Some(StagePhase::Ready)
            && entry.inputs_digest.as_deref() == Some(inputs)
            && pin::is_applied(entry, &self.artifacts[at])
    }

    /// Whether nothing is to be rolled out: the deployed state is what is wanted now.
    pub(super) fn settled(&self) -> bool {
        let spec = &self.set.spec;
        self.status.observed_generation == self.set.metadata.generation
            && !self.status.last_applied_revisions.is_empty()
            && (0..spec.stages.len()).all(|at| {
                let inputs = self.inputs(at);
                self.is_done(at, &inputs) || (self.is_deployed(at, &inputs) && self.is_unhealthy(at))
            })
    }

    fn is_deployed(&self, at: usize, inputs: &str) -> bool {
        let entry = &self.status.stages[at];
        entry.inputs_digest.as_deref() == Some(inputs)
            && entry.applied_digest.as_deref() == Some(&self.artifacts[at].digest)
    }

    /// A deployed stage that turned unready later; there is no run.
    pub(super) fn is_unhealthy(&self, at: usize) -> bool {
        let entry = &self.status.stages[at];
        self.status.run.is_none()
            && matches!(entry.phase, Some(StagePhase::Verifying | StagePhase::Failed))
            && entry.step == Some(Step::Done)
    }

    /// Puts a stage at a step, beginning now.
    pub(super) fn enter(&mut self, at: usize, phase: StagePhase, step: Step) {
        let entry = &mut self.status.stages[at];
        entry.phase = Some(phase);
        entry.step = Some(step);
        entry.step_started_at = Some(MicroTime(Timestamp::now()));
        entry.waiting_for = None;
        entry.message = None;
    }

    /// `stage "web" (2/3): applying`.
    pub(super) fn progress(&self, at: usize, what: &str) -> String {
        let entry = &self.status.stages[at];
        format!(
            "stage \"{}\" ({}/{}): {what}",
            entry.name,
            at + 1,
            self.status.stages.len()
        )
    }

    /// The tenant a stage acts as.
    pub(super) fn tenant(&self, stage: &Stage) -> Tenant {
        let account = crate::api::common::non_empty(&stage.service_account_name)
            .or(crate::api::common::non_empty(&self.set.spec.service_account_name));
        self.target.cluster.acting_for(&self.owner.namespace, account)
    }

    /// The intervals of this StageSet, defaults applied.
    pub(super) fn cadence(&self) -> Cadence {
        let spec = &self.set.spec;
        let read = |d: Option<&crate::api::Duration>| crate::rules::duration::set(d.map(|d| d.0.as_str()));
        Cadence::resolve(
            read(spec.interval.as_ref()),
            read(spec.retry_interval.as_ref()),
            read(spec.drift_detection_interval.as_ref()),
            self.ctx.config.default_interval,
        )
    }

    /// Writes the status with the conditions of `situation`.
    pub(super) async fn write(&mut self, situation: &Situation) -> Result<(), Stop> {
        self.mask_stages();
        let situation = &situation.clone().saying(self.mask(situation.message()));
        let generation = self.set.metadata.generation.unwrap_or_default();
        let base = &self.ctx.config.runbook_base_url;
        let before = self
            .set
            .status
            .as_ref()
            .map(|s| s.conditions.clone())
            .unwrap_or_default();
        self.status.conditions = conditions(&before, situation, generation, Timestamp::now(), base);
        if situation.observes_generation() {
            self.status.observed_generation = Some(generation);
        }
        self.set = status::write(self.ctx, self.owner, &self.set, &self.status, self.memory).await?;
        self.wrote_in_pass = true;
        let settled = !matches!(situation, Situation::Unfinished { .. });
        let token = settled.then(|| self.memory.answering.take()).flatten();
        if let Some(event) = transition(&before, situation) {
            self.tell_transition(event, situation, token);
        }
        Ok(())
    }

    async fn finish(mut self, end: End) -> Result<Wake, Stop> {
        let namespace = &self.owner.namespace;
        self.publish_stages();
        self.mask_stages();
        let progress = matches!(end.situation, Situation::Unfinished { .. });
        let too_soon = self
            .memory
            .wrote_at
            .and_then(|at| PROGRESS_EVERY.checked_sub(at.elapsed()));
        if progress
            && self.only_texts_changed()
            && let Some(rest) = too_soon
        {
            self.ctx.hub.keep_only(self.owner, &self.needed);
            return Ok(earlier(end.wake, rest));
        }
        self.write(&end.situation).await?;
        if !progress {
            let metrics = &self.ctx.metrics;
            metrics.outcome(namespace, &self.owner.name, end.situation.reason().as_str());
            if matches!(end.situation, Situation::Terminal { .. }) {
                metrics.reconcile_terminal_errors.inc();
            }
        }
        self.ctx.hub.keep_only(self.owner, &self.needed);
        self.ctx
            .metrics
            .watches
            .set(i64::try_from(self.ctx.hub.len()).unwrap_or(i64::MAX));
        self.memory.undecided = 0;
        Ok(end.wake)
    }

    /// Whether the status to be written differs from the stored one in progress texts alone.
    fn only_texts_changed(&self) -> bool {
        let Some(stored) = &self.set.status else {
            return false;
        };
        let strip = |status: &StageSetStatus| {
            let mut status = status.clone();
            status.conditions.clear();
            for stage in &mut status.stages {
                stage.waiting_for = None;
            }
            status
        };
        strip(stored) == strip(&self.status)
    }

    fn publish_stages(&self) {
        let stages = self
            .status
            .stages
            .iter()
            .map(|s| (s.name.as_str(), s.phase == Some(StagePhase::Ready)));
        self.ctx.metrics.stages(&self.owner.namespace, &self.owner.name, stages);
    }

    /// Ends the step with a failed stage; the run stays, for its next attempt. A stumble of the API server is no
    /// failure before it has gone on for a while.
    ///
    /// # Errors
    /// [`Stop::Stumbled`]: nothing is decided yet.
    pub(super) fn failed(&mut self, at: usize, mut failure: Failure) -> Result<End, Stop> {
        failure.message = self.mask(&failure.message);
        if failure.remedy == Remedy::Stumble && self.memory.undecided < STUMBLES {
            return Err(Stop::Stumbled(stage_message(&self.status.stages[at].name, &failure)));
        }
        let entry = &mut self.status.stages[at];
        let name = entry.name.clone();
        entry.phase = Some(StagePhase::Failed);
        entry.step_started_at = Some(MicroTime(Timestamp::now()));
        entry.waiting_for = None;
        entry.message = Some(failure.told());
        self.memory.remedies.insert(name.clone(), failure.remedy);
        self.memory.reasons.insert(name.clone(), failure.reason);
        self.memory.attempt_due = None;
        if at < self.artifacts.len() {
            let inputs = self.inputs(at);
            self.memory.failed_inputs.insert(name.clone(), inputs);
        }
        self.denied = self.lacks(&name, failure.missing.clone()).then_some(at);
        let message = stage_message(&name, &failure);
        tracing::error!(
            stage = name,
            op = failure.operation,
            error = failure.message,
            terminal = failure.remedy == Remedy::Change,
            "stage failed"
        );
        let reason = failure.reason;
        Ok(End {
            situation: match failure.remedy {
                Remedy::Change => Situation::Terminal { reason, message },
                _ => Situation::Failed { reason, message },
            },
            wake: Wake::In(self.again_in(at, Duration::ZERO)),
        })
    }
}

/// `stage "web" apply: …`, or `stage "web": …` where no operation is named.
pub(super) fn stage_message(name: &str, failure: &Failure) -> String {
    let colon = if failure.operation.is_empty() { ":" } else { "" };
    format!("stage \"{name}\"{colon} {}", failure.told())
}

fn suspended() -> End {
    End {
        situation: Situation::Suspended {
            message: "suspended by spec.suspend; set it to false to go on".into(),
        },
        wake: Wake::OnChange,
    }
}

/// The earlier of two wake-ups.
pub(super) fn earlier(wake: Wake, other: Duration) -> Wake {
    match wake {
        Wake::OnChange => Wake::In(other),
        Wake::In(first) => Wake::In(first.min(other)),
    }
}

/// An interval spread by its jitter.
pub(super) fn jittered(interval: Duration) -> Duration {
    backoff::with_jitter(interval, rand::random::<f64>())
}

/// Time from a recorded instant to now; zero when it lies ahead.
pub(super) fn elapsed(since: &MicroTime, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since.0)).unwrap_or(Duration::ZERO)
}
