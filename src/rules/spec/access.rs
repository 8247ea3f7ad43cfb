//! Identity, target cluster, decryption and dependencies: rules D1, D2, K1 to K3, O1, O2.

use crate::api::common::non_empty;
use crate::api::{Decryption, Dependency, KubeConfig, LocalRef, SecretKeyRef, StageSet};
use crate::rules::version;

use super::names;
use super::report::Report;

pub(super) fn check(report: &mut Report, set: &StageSet) {
    service_account(
        report,
        "spec.serviceAccountName",
        set.spec.service_account_name.as_ref(),
    );
    for (index, dependency) in set.spec.depends_on.iter().enumerate() {
        depends_on(report, set, &format!("spec.dependsOn[{index}]"), dependency);
    }
    if let Some(config) = &set.spec.kube_config {
        kube_config(report, config);
    }
    if let Some(decryption) = &set.spec.decryption {
        decrypt(report, decryption);
    }
}

/// The name becomes part of the user that is impersonated, so it must be one.
pub(super) fn service_account(report: &mut Report, path: &str, name: Option<&String>) {
    report.optional_syntax(path, name, names::dns_subdomain);
}

fn depends_on(report: &mut Report, set: &StageSet, path: &str, dependency: &Dependency) {
    let name_path = format!("{path}.name");
    if report.non_empty(&name_path, &dependency.name, &format!("the dependency {path}")) {
        report.syntax(&name_path, &dependency.name, names::dns_subdomain);
    }
    report.optional_syntax(
        &format!("{path}.namespace"),
        dependency.namespace.as_ref(),
        names::dns_label,
    );
    let own_namespace = set.metadata.namespace.as_deref();
    let same_namespace = non_empty(&dependency.namespace).is_none_or(|namespace| Some(namespace) == own_namespace);
    if same_namespace && !dependency.name.is_empty() && set.metadata.name.as_ref() == Some(&dependency.name) {
        let name = &dependency.name;
        report.invalid(
            path,
            format!("\"{name}\" is this StageSet itself, which would wait for itself for ever; remove it"),
        );
    }
    if let Some(minimum) = non_empty(&dependency.min_version)
        && let Err(cause) = version::check_version(minimum)
    {
        report.invalid(
            format!("{path}.minVersion"),
            format!(
                "dependency \"{}\": \"{minimum}\" is no version: {cause}",
                dependency.name
            ),
        );
    }
}

fn kube_config(report: &mut Report, config: &KubeConfig) {
    const BOTH: &str = "spec.kubeConfig.secretRef and spec.kubeConfig.configMapRef";
    match (&config.secret_ref, &config.config_map_ref) {
        (Some(_), Some(_)) => report.invalid("spec.kubeConfig", format!("{BOTH} exclude each other; set one of them")),
        (None, None) => report.invalid(
            "spec.kubeConfig",
            format!("set one of {BOTH}; without spec.kubeConfig the local cluster is the target"),
        ),
        _ => {}
    }
    if let Some(reference) = &config.secret_ref {
        secret_key(report, "spec.kubeConfig.secretRef", reference);
    }
    if let Some(reference) = &config.config_map_ref {
        local(report, "spec.kubeConfig.configMapRef", reference);
    }
}

fn decrypt(report: &mut Report, decryption: &Decryption) {
    report.known("spec.decryption.provider", Some(&decryption.provider));
    if let Some(reference) = &decryption.secret_ref {
        local(report, "spec.decryption.secretRef", reference);
    }
}

/// A reference by name to an object in the namespace of the StageSet.
pub(super) fn local(report: &mut Report, path: &str, reference: &LocalRef) {
    object_name(report, path, &reference.name);
}

/// A reference to a Secret whose key may be left out.
pub(super) fn secret_key(report: &mut Report, path: &str, reference: &SecretKeyRef) {
    object_name(report, path, &reference.name);
    report.optional_syntax(&format!("{path}.key"), reference.key.as_ref(), names::data_key);
}

fn object_name(report: &mut Report, path: &str, name: &str) {
    let name_path = format!("{path}.name");
    if report.non_empty(&name_path, name, path) {
        report.syntax(&name_path, name, names::dns_subdomain);
    }
}
