//! From a pinned artifact to the objects a stage wants: fetch, build, default the namespace, label.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::context::Context;
use super::outcome::{Failure, Remedy};
use super::slot;
use crate::api::names::{label, object_annotation};
use crate::api::{Patch, Stage, StageSetSpec};
use crate::cluster::watch::Owner;
use crate::cluster::{self, Target, Tenant};
use crate::manifest::substitute::substitute_objects;
use crate::manifest::{self, BuildOptions, PatchTarget, StagePatch, tree::FileTree};
use crate::rules::drift::IgnoreRule;
use crate::rules::inventory::ObjectId;
use crate::source::{Artifact, Tree};

/// How often a download under way looks whether it is still wanted.
const STILL_WANTED: Duration = Duration::from_secs(1);

/// The operation that the contract names where an artifact cannot be had.
pub const FETCH: &str = "fetch artifact";

/// What a stage wants to exist.
#[derive(Debug, Clone, Default)]
pub struct Rendered {
    pub objects: Vec<Value>,
    pub ids: BTreeSet<ObjectId>,
    pub warnings: Vec<String>,
    /// Objects that Helm would have run as hooks; here they are applied like any other.
    pub hooks: Vec<String>,
}

/// Digest over everything that decides what a stage applies: artifact, identity, the stage's own spec.
pub fn inputs_digest(artifact: &Artifact, spec: &StageSetSpec, stage: &Stage, variables: &str) -> String {
    let mut hasher = Sha256::new();
    let mut add = |text: &str| {
        hasher.update(text.len().to_be_bytes());
        hasher.update(text.as_bytes());
    };
    add(&artifact.digest);
    add(variables);
    add(spec.service_account_name.as_deref().unwrap_or_default());
    if let Some(reference) = &spec.kube_config {
        add(&serde_json::to_string(reference).unwrap_or_default());
    }
    // Field order is the declaration order, so the text is stable for a given release.
    add(&serde_json::to_string(&spec.ignore).unwrap_or_default());
    add(&serde_json::to_string(stage).unwrap_or_default());
    let hash = hasher.finalize();
    let hex: String = hash.iter().take(16).map(|b| format!("{b:02x}")).collect();
    format!("sha256:{hex}")
}

/// The files of an artifact. A download takes no slot, and is given up where the StageSet is changed or deleted.
///
/// # Errors
/// Why they cannot be had.
pub async fn fetch(ctx: &Context, owner: &Owner, stage: &Stage, artifact: &Artifact) -> Result<Arc<Tree>, Failure> {
    let tree = if ctx.artifacts.holds(artifact).await {
        Box::pin(ctx.artifacts.tree(artifact)).await
    } else {
        let download = async {
            tokio::select! {
                tree = ctx.artifacts.tree(artifact) => Some(tree),
                () = changes(ctx, owner) => None,
            }
        };
        match slot::given_up(Box::pin(download)).await {
            Some(tree) => tree,
            None => {
                let message = format!(
                    "the download of {} was given up: the StageSet changed",
                    artifact.object()
                );
                return Err(Failure {
                    remedy: Remedy::Stumble,
                    ..Failure::retried(FETCH, message)
                });
            }
        }
    };
    tree.map_err(|e| Failure::of_source(&conceal(owner, stage, e)))
}

/// Resolves once the StageSet's spec has changed, or it is to be deleted.
async fn changes(ctx: &Context, owner: &Owner) {
    let state = || {
        let set = ctx.sets.get(owner)?;
        Some((set.metadata.generation, set.metadata.deletion_timestamp.is_some()))
    };
    let before = state();
    while state() == before {
        tokio::time::sleep(STILL_WANTED).await;
    }
}

/// Fetches and builds one stage.
///
/// # Errors
/// A [`Failure`] naming the operation.
pub async fn stage(
    ctx: &Context,
    owner: &Owner,
    stage: &Stage,
    artifact: &Artifact,
    variables: BTreeMap<String, String>,
    tenant: &Tenant,
) -> Result<Rendered, Failure> {
    let tree = fetch(ctx, owner, stage, artifact).await?;
    let directory = tree
        .build_directory(stage.path())
        .map_err(|e| Failure::of_source(&crate::source::Error::Path(e)))?;
    let options = BuildOptions {
        patches: stage.patches.iter().map(stage_patch).collect(),
    };
    // Held to the end of the build, which nobody can break off.
    let turn = ctx.builds.clone().acquire_owned().await;
    let built = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        build(&tree, &directory, &options, &variables)
    });
    let built = built
        .await
        .map_err(|e| Failure::retried("build", format!("the build broke off: {e}")))??;
    let mut rendered = Rendered {
        warnings: built.warnings,
        ..Rendered::default()
    };
    if let Some(object) = built.objects.iter().find(|o| is_encrypted(o)) {
        return Err(still_encrypted(object));
    }
    let definitions = Definitions::of(&built.objects);
    for mut object in built.objects {
        if is_helm_hook(&object) {
            if !stage.applies_helm_hooks() {
                continue;
            }
            rendered.hooks.extend(ObjectId::of(&object).map(|id| id.to_string()));
        }
        settle_namespace(&mut object, owner, tenant, &definitions).await?;
        normalise(&mut object);
        stamp(&mut object, owner, &stage.name);
        if let Some(id) = ObjectId::of(&object) {
            if !rendered.ids.insert(id.clone()) {
                return Err(Failure::retried(
                    "build",
                    format!("{id} is rendered twice by the stage: remove one of the two"),
                ));
            }
            rendered.objects.push(object);
        }
    }
    Ok(rendered)
}

/// The part that takes processor time and nothing else.
fn build(
    tree: &Tree,
    directory: &str,
    options: &BuildOptions,
    variables: &BTreeMap<String, String>,
) -> Result<manifest::Built, Failure> {
    let failed = |message: String| Failure::retried("build", message);
    let files = tree
        .files
        .iter()
        .map(|(path, content)| (path.as_str(), content.clone()));
    let files = FileTree::from_files(files).map_err(|e| failed(e.to_string()))?;
    let mut built = manifest::build_with_warnings(&files, directory, options).map_err(|e| failed(e.to_string()))?;
    built.objects = substitute_objects(built.objects, variables, true).map_err(|e| failed(e.to_string()))?;
    Ok(built)
}

fn stage_patch(patch: &Patch) -> StagePatch {
    StagePatch {
        patch: patch.patch.clone(),
        target: patch.target.as_ref().map(|target| PatchTarget {
            group: target.group.clone().unwrap_or_default(),
            version: target.version.clone().unwrap_or_default(),
            kind: target.kind.clone().unwrap_or_default(),
            name: target.name.clone().unwrap_or_default(),
            namespace: target.namespace.clone().unwrap_or_default(),
            label_selector: target.label_selector.clone().unwrap_or_default(),
            annotation_selector: target.annotation_selector.clone().unwrap_or_default(),
        }),
    }
}

/// Errors about a source of another namespace say nothing about it (decisions 7).
fn conceal(owner: &Owner, stage: &Stage, error: crate::source::Error) -> crate::source::Error {
    let reference = crate::source::Reference::from(&stage.source_ref);
    let scope = crate::source::Scope {
        namespace: &owner.namespace,
        no_cross_namespace_refs: false,
    };
    match crate::source::resolve::plan(&reference, scope) {
        Ok(target) => target.conceal(error),
        Err(_) => error,
    }
}

/// Scopes of custom kinds whose definitions the stage itself brings.
struct Definitions(Vec<(String, String, bool)>);

impl Definitions {
    fn of(objects: &[Value]) -> Self {
        let text = |o: &Value, p: &str| o.pointer(p).and_then(Value::as_str).unwrap_or_default().to_owned();
        Self(
            objects
                .iter()
                .filter(|o| text(o, "/kind") == "CustomResourceDefinition")
                .map(|o| {
                    (
                        text(o, "/spec/group"),
                        text(o, "/spec/names/kind"),
                        text(o, "/spec/scope") == "Namespaced",
                    )
                })
                .collect(),
        )
    }

    fn namespaced(&self, target: &Target) -> Option<bool> {
        self.0
            .iter()
            .find(|(g, k, _)| g == target.group() && *k == target.kind)
            .map(|(_, _, namespaced)| *namespaced)
    }
}

/// A namespaced object without a namespace belongs to the StageSet's; a cluster-scoped one has none.
async fn settle_namespace(
    object: &mut Value,
    owner: &Owner,
    tenant: &Tenant,
    definitions: &Definitions,
) -> Result<(), Failure> {
    let target = Target::of(object).map_err(|e| Failure::of_request("build", &e))?;
    let namespaced = match tenant.served(&target.api_version, &target.kind).await {
        Ok(served) => served.namespaced,
        Err(error @ cluster::Error::UnknownKind { .. }) => match definitions.namespaced(&target) {
            Some(namespaced) => namespaced,
            None => return Err(Failure::of_request("apply", &error)),
        },
        Err(error) => return Err(Failure::of_request("apply", &error)),
    };
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return Ok(());
    };
    if !namespaced {
        metadata.shift_remove("namespace");
    } else if target.namespace.is_none() {
        metadata.insert("namespace".into(), Value::String(owner.namespace.clone()));
    }
    Ok(())
}

/// Whether an object carries the metadata SOPS leaves in what it has encrypted.
fn is_encrypted(object: &Value) -> bool {
    object.pointer("/sops/mac").is_some()
}

/// Ciphertext in the cluster would replace a secret that works (run 28 B8).
fn still_encrypted(object: &Value) -> Failure {
    let id = ObjectId::of(object).map_or_else(|| "an object".to_owned(), |id| id.to_string());
    Failure::retried(
        "decrypt",
        format!(
            "{id} is encrypted with SOPS and this version has no decryption: publish it decrypted, or by another way"
        ),
    )
}

fn is_helm_hook(object: &Value) -> bool {
    let annotations = object.pointer("/metadata/annotations");
    annotations.and_then(|a| a.get(object_annotation::HELM_HOOK)).is_some()
}

/// Takes out what only a server writes, and folds `stringData` as the server would, so that what is
/// sent can be compared with what is stored (run 14.7).
fn normalise(object: &mut Value) {
    drop_stand_in(object);
    let is_secret = object.get("kind").and_then(Value::as_str) == Some("Secret")
        && object.get("apiVersion").and_then(Value::as_str) == Some("v1");
    let Some(root) = object.as_object_mut() else {
        return;
    };
    root.shift_remove("status");
    if let Some(metadata) = root.get_mut("metadata").and_then(Value::as_object_mut) {
        for key in [
            "creationTimestamp",
            "resourceVersion",
            "uid",
            "generation",
            "managedFields",
            "selfLink",
        ] {
            metadata.shift_remove(key);
        }
    }
    // What is no text is left where it is, for the server to refuse.
    let foldable = |plain: &Value| plain.as_object().is_some_and(|p| p.values().all(Value::is_string));
    if is_secret
        && root.get("stringData").is_some_and(foldable)
        && let Some(Value::Object(plain)) = root.shift_remove("stringData")
    {
        let data = root.entry("data").or_insert_with(|| Value::Object(Map::new()));
        if let Some(data) = data.as_object_mut() {
            for (key, value) in plain {
                let text = value.as_str().unwrap_or_default();
                data.insert(
                    key,
                    Value::String(base64::engine::general_purpose::STANDARD.encode(text)),
                );
            }
        }
    }
}

/// A `caBundle` that is none stands in for what somebody else, such as cert-manager, puts there: sent, it would be refused
/// or take the place of the real one.
fn drop_stand_in(object: &mut Value) {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    if text("kind") != "CustomResourceDefinition" || !text("apiVersion").starts_with("apiextensions.k8s.io/") {
        return;
    }
    let config = object.pointer_mut("/spec/conversion/webhook/clientConfig");
    let Some(config) = config.and_then(Value::as_object_mut) else {
        return;
    };
    // What is no text is left for the server to refuse.
    let bundle = config.get("caBundle").and_then(Value::as_str);
    if bundle.is_some_and(|bundle| !is_bundle(bundle)) {
        config.shift_remove("caBundle");
    }
}

/// Whether base64 text holds certificates in PEM, and nothing that only looks like one.
fn is_bundle(text: &str) -> bool {
    let text: String = text.chars().filter(|c| !matches!(c, '\n' | '\r')).collect();
    let Ok(pem) = base64::engine::general_purpose::STANDARD.decode(text) else {
        return false;
    };
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    found.is_ok_and(|certificates| !certificates.is_empty())
}

fn stamp(object: &mut Value, owner: &Owner, stage: &str) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    let labels = metadata.entry("labels").or_insert_with(|| Value::Object(Map::new()));
    if !labels.is_object() {
        *labels = Value::Object(Map::new());
    }
    if let Some(labels) = labels.as_object_mut() {
        for (key, value) in [
            (label::NAME, owner.name.as_str()),
            (label::NAMESPACE, &owner.namespace),
            (label::STAGE, stage),
        ] {
            labels.insert(key.to_owned(), Value::String(value.to_owned()));
        }
    }
}

/// Hash of what is sent for an object, and of the rules by which parts of it are left to others: without one of them the
/// same object means something else.
pub fn content_hash(object: &Value, ignore: &[IgnoreRule]) -> u64 {
    let mut hasher = DefaultHasher::new();
    object.to_string().hash(&mut hasher);
    for rule in ignore.iter().filter(|rule| rule.matches(object)) {
        rule.paths().hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_bundle_of_certificates_is_sent_as_one() {
        let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let block = |of: &str| format!("-----BEGIN {of}-----\nMIIB\n-----END {of}-----\n");
        let real = encode(&block("CERTIFICATE"));
        let (wrapped, twice) = (
            format!("{}\n{}\n", &real[..8], &real[8..]),
            block("CERTIFICATE").repeat(2),
        );
        for (bundle, stays) in [
            (json!(real), true),
            (json!(wrapped), true),
            (json!(encode(&twice)), true),
            (json!(5), true),
            (json!("Cg=="), false),
            (json!(""), false),
            (json!("not base64"), false),
            (json!(encode(&block("PUBLIC KEY"))), false),
        ] {
            let mut definition = json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "spec": { "conversion": { "webhook": { "clientConfig": { "caBundle": bundle } } } },
            });
            normalise(&mut definition);
            let config = &definition["spec"]["conversion"]["webhook"]["clientConfig"];
            assert_eq!(config.get("caBundle").is_some(), stays, "{bundle}");
            // Nobody's business in any other kind.
            let mut other = json!({ "apiVersion": "v1", "kind": "Other", "spec": { "conversion": { "webhook": { "clientConfig": { "caBundle": "Cg==" } } } } });
            normalise(&mut other);
            assert_eq!(
                other["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"],
                "Cg=="
            );
        }
    }
}
