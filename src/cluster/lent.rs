//! The controller's own rights, where a StageSet names no account: what it may do for its own work is lent to nobody, or
//! whoever may write a StageSet could take over those of others, and read any Secret (contract 13.8).

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::{Error, Target, Tenant};

/// How long the answer holds that the controller may do everything.
const GRANTED_FOR: Duration = Duration::from_secs(5 * 60);
/// The same for any other answer: a grant should show soon.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// API groups the controller writes for its own work. What it writes of RBAC, the server holds against all its rights.
const OWN_GROUPS: [&str; 5] = [
    "admissionregistration.k8s.io",
    "coordination.k8s.io",
    "events.k8s.io",
    "rbac.authorization.k8s.io",
    "stages.metio.wtf",
];

/// Whether the controller may do everything on its cluster, as last answered: then its rights are meant to be lent.
#[derive(Debug, Default)]
pub(super) struct Lending {
    answer: Mutex<Option<(Instant, bool)>>,
}

impl Lending {
    /// Asks the server, unless it has answered a moment ago. Where it does not answer, nothing is lent for now; that is no
    /// refusal, which would let a teardown give up.
    async fn is_open(&self, controller: &Tenant) -> Result<bool, Error> {
        let mut answer = self.answer.lock().await;
        if let Some((at, open)) = *answer
            && at.elapsed() < if open { GRANTED_FOR } else { REFUSED_FOR }
        {
            return Ok(open);
        }
        let open = controller.may_do_everything().await?;
        *answer = Some((Instant::now(), open));
        Ok(open)
    }
}

/// How an object is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// It is read, applied or deleted.
    Any,
    /// Its state is told to whoever named it.
    Judged,
}

/// Whether reaching `target` may rest on rights that the controller has for its own work. `home` is the namespace of the
/// StageSet.
fn is_own_work(target: &Target, home: &str, of: Use) -> bool {
    let elsewhere = target.namespace.as_deref() != Some(home);
    match (target.group(), target.kind.as_str()) {
        ("", "Event") => true,
        ("", "Secret") => elsewhere || of == Use::Judged,
        (group, _) if OWN_GROUPS.contains(&group) => true,
        _ => of == Use::Judged && elsewhere && target.namespace.is_some(),
    }
}

impl Tenant {
    /// Refuses what only the controller's own work is for, where this is the controller acting for a StageSet.
    ///
    /// # Errors
    /// [`Error::NotLent`]; the failed request, where the server was asked.
    pub async fn lend(&self, target: &Target) -> Result<(), Error> {
        self.lend_for(target, Use::Any).await
    }

    /// The same for an object that is not the StageSet's and whose state it is told.
    ///
    /// # Errors
    /// [`Error::NotLent`]; the failed request, where the server was asked.
    pub async fn lend_for_check(&self, target: &Target) -> Result<(), Error> {
        self.lend_for(target, Use::Judged).await
    }

    async fn lend_for(&self, target: &Target, of: Use) -> Result<(), Error> {
        let Some(home) = self.lent_to() else {
            return Ok(());
        };
        if !is_own_work(target, home, of) {
            return Ok(());
        }
        let cluster = self.cluster();
        let controller = cluster.tenant(super::Identity::Controller);
        if cluster.lending().is_open(&controller).await? {
            return Ok(());
        }
        Err(Error::NotLent {
            object: target.to_string(),
            namespace: home.to_owned(),
        })
    }

    async fn may_do_everything(&self) -> Result<bool, Error> {
        let everything = json!({"verb": "*", "group": "*", "resource": "*"});
        self.review("everything", &everything).await
    }

    /// A SelfSubjectAccessReview.
    pub(super) async fn review(&self, what: &str, attributes: &Value) -> Result<bool, Error> {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        });
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews".to_owned();
        let answer = self
            .send_json(|| format!("review {what}"), http::Method::POST, path, &review)
            .await?;
        Ok(answer.pointer("/status/allowed") == Some(&Value::Bool(true)))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("v1", "ConfigMap", Some("other"), false, true)]
    #[case("v1", "ConfigMap", Some("home"), false, false)]
    #[case("v1", "Secret", Some("home"), false, true)]
    #[case("v1", "Secret", Some("other"), true, true)]
    #[case("v1", "Secret", None, true, true)]
    #[case("v1", "Event", Some("home"), true, true)]
    #[case("v1", "Namespace", None, false, false)]
    #[case("v1", "ServiceAccount", Some("home"), false, false)]
    #[case("apps/v1", "Deployment", Some("other"), false, true)]
    #[case("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, false, false)]
    #[case("stages.metio.wtf/v1", "StageSet", Some("home"), true, true)]
    #[case("stages.metio.wtf/v2", "Whatever", None, true, true)]
    #[case("coordination.k8s.io/v1", "Lease", Some("home"), true, true)]
    #[case("events.k8s.io/v1", "Event", Some("home"), true, true)]
    #[case(
        "admissionregistration.k8s.io/v1",
        "ValidatingWebhookConfiguration",
        None,
        true,
        true
    )]
    #[case("rbac.authorization.k8s.io/v1", "RoleBinding", Some("home"), true, true)]
    #[case("example.com/v1", "Secret", Some("home"), false, false)]
    fn what_the_controllers_own_work_is_for(
        #[case] api_version: &str,
        #[case] kind: &str,
        #[case] namespace: Option<&str>,
        #[case] any: bool,
        #[case] judged: bool,
    ) {
        let target = Target {
            api_version: api_version.into(),
            kind: kind.into(),
            namespace: namespace.map(str::to_owned),
            name: "x".into(),
        };
        assert_eq!(is_own_work(&target, "home", Use::Any), any);
        assert_eq!(is_own_work(&target, "home", Use::Judged), judged);
    }
}
