//! Requests as one identity against one cluster.

use std::ops::ControlFlow;
use std::sync::Arc;

use futures::FutureExt;
use http::{HeaderMap, HeaderValue};
use kube::client::Body;
use kube::core::params::{DeleteParams, Patch, PatchParams};
use kube::core::request::Request;
use serde_json::{Value, json};

use super::connect::IMPERSONATE_USER;
use super::kinds::segment;
use super::transport::{Most, values_in};
use super::{Cluster, Error, Identity, Served, Target, bounded};

/// A resourceVersion that no object ever has. The server compares it only with that of an object it has: where there is
/// none, it creates one.
const NO_VERSION: &str = "9223372036854775807";

/// Pages of one list, of 500 objects each.
const PAGES: usize = 1000;
/// Bytes of one list, all pages together, from a server that is not the controller's own.
const FOREIGN_LIST: usize = 2 * Most::ANY.bytes;

/// Whole objects.
const WHOLE: &str = "application/json";
/// Metadata alone, from servers that know how.
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1, application/json";

/// What must still hold for a delete to go ahead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preconditions {
    pub uid: Option<String>,
    pub resource_version: Option<String>,
}

/// What becomes of the objects that a deleted object owns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Dependents {
    /// The garbage collector deletes them afterwards.
    #[default]
    Deleted,
    /// They stay, without an owner.
    Orphaned,
}

/// A cluster's connections, bound to an identity.
#[derive(Clone)]
pub struct Tenant {
    cluster: Arc<Cluster>,
    identity: Identity,
    /// Namespace of the StageSet that the controller's own rights are lent to.
    lent_to: Option<Arc<str>>,
}

impl Tenant {
    pub(super) fn new(cluster: Arc<Cluster>, identity: Identity) -> Self {
        Self {
            cluster,
            identity,
            lent_to: None,
        }
    }

    /// The same, lent to a StageSet of `namespace`.
    pub(super) fn lent(self, namespace: &str) -> Self {
        Self {
            lent_to: Some(namespace.into()),
            ..self
        }
    }

    pub(super) fn lent_to(&self) -> Option<&str> {
        self.lent_to.as_deref()
    }

    /// On whose behalf the requests go out.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The cluster they go to.
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// Opens a stream, over connections that many streams share.
    pub(super) async fn stream(&self, mut request: http::Request<Body>) -> Result<http::Response<Body>, kube::Error> {
        self.assume(request.headers_mut())?;
        self.cluster.watch_client().send(request).await
    }

    /// Names the identity in the headers of a request, which nothing else does.
    fn assume(&self, headers: &mut HeaderMap) -> Result<(), kube::Error> {
        if let Some(user) = self.identity.user() {
            let user = HeaderValue::from_str(&user).map_err(|e| kube::Error::HttpError(e.into()))?;
            headers.insert(IMPERSONATE_USER, user);
        }
        Ok(())
    }

    /// How a kind is addressed on this cluster.
    ///
    /// # Errors
    /// [`Error::UnknownKind`], or the failed discovery.
    pub async fn served(&self, api_version: &str, kind: &str) -> Result<Served, Error> {
        let client = self.cluster.own_client();
        let kinds = self.cluster.kinds();
        let served = kinds.resolve(&client, api_version, kind);
        self.cluster.patiently(served.boxed()).await
    }

    /// The same for the kind of one object. Its names come from artifacts and records: one that would lead to another
    /// path, or to what is not to be lent, is refused here, where every request passes.
    async fn place(&self, target: &Target) -> Result<Served, Error> {
        target.check_names()?;
        self.lend(target).await?;
        self.served(&target.api_version, &target.kind).await
    }

    /// Reads one object; `None` when it does not exist.
    ///
    /// # Errors
    /// The failed request.
    pub async fn get(&self, target: &Target) -> Result<Option<Value>, Error> {
        let served = self.place(target).await?;
        let request = http::Request::get(served.path(target, Some(&target.name)))
            .body(Vec::new())
            .map_err(|e| Error::Client(e.to_string()))?;
        match self.send(|| format!("get {target}"), request).await {
            Ok(object) => Ok(Some(object)),
            Err(e) if e.path_not_served() => {
                self.still_served(target, &served).await?;
                Ok(None)
            }
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// A path that was served and is not any more says nothing about the object: it may live on under another version.
    async fn still_served(&self, target: &Target, before: &Served) -> Result<(), Error> {
        self.cluster.kinds().forget(target.group(), &target.kind, before);
        self.served(&target.api_version, &target.kind).await.map(drop)
    }

    /// Server-side apply with forced ownership. `dry_run` asks without storing.
    ///
    /// # Errors
    /// The failed request, with the server's Status where it refused.
    pub async fn apply(&self, object: &Value, manager: &str, dry_run: bool) -> Result<Value, Error> {
        self.apply_to(object, manager, dry_run).await
    }

    /// The same, but an object that exists has to be at `version`. One that is gone is created.
    ///
    /// # Errors
    /// A conflict where it is at another; else as for [`Self::apply`].
    pub async fn apply_at(&self, object: &Value, version: &str, manager: &str) -> Result<Value, Error> {
        self.apply_to(&at_version(object, version), manager, false).await
    }

    /// The same, but only where there is no such object: one request that looks and creates.
    ///
    /// # Errors
    /// [`Error::needs_a_look`] where there is one, and for other refusals; else as for [`Self::apply`].
    pub async fn apply_new(&self, object: &Value, manager: &str) -> Result<Value, Error> {
        self.apply_at(object, NO_VERSION, manager).await
    }

    async fn apply_to(&self, object: &Value, manager: &str, dry_run: bool) -> Result<Value, Error> {
        let target = Target::of(object)?;
        let served = self.place(&target).await?;
        let mut params = PatchParams::apply(manager).force();
        params.dry_run = dry_run;
        let request = Request::new(served.path(&target, None))
            .patch(&segment(&target.name), &params, &Patch::Apply(object))
            .map_err(|e| Error::Client(e.to_string()))?;
        let verb = if dry_run { "dry-run apply" } else { "apply" };
        self.send(|| format!("{verb} {target}"), request).await
    }

    /// Merge-patches an object, or one of its subresources.
    ///
    /// # Errors
    /// The failed request; a conflict when the patch carries an outdated resourceVersion.
    pub async fn merge(
        &self,
        target: &Target,
        subresource: Option<&str>,
        patch: &Value,
        manager: &str,
    ) -> Result<Value, Error> {
        let served = self.place(target).await?;
        let params = PatchParams {
            field_manager: Some(manager.to_owned()),
            ..PatchParams::default()
        };
        let base = Request::new(served.path(target, None));
        let request = match subresource {
            Some(sub) => base.patch_subresource(sub, &segment(&target.name), &params, &Patch::Merge(patch)),
            None => base.patch(&segment(&target.name), &params, &Patch::Merge(patch)),
        }
        .map_err(|e| Error::Client(e.to_string()))?;
        self.send(|| format!("patch {target}"), request).await
    }

    /// JSON-patches an object (RFC 6902).
    ///
    /// # Errors
    /// The failed request; a conflict when it sets an outdated resourceVersion.
    pub async fn json_patch(&self, target: &Target, patch: &Value, manager: &str) -> Result<Value, Error> {
        let served = self.place(target).await?;
        let path = format!("{}?fieldManager={manager}", served.path(target, Some(&target.name)));
        let body = serde_json::to_vec(patch).map_err(|source| Error::Decode {
            what: format!("patch {target}"),
            source,
        })?;
        let request = http::Request::patch(path)
            .header(http::header::CONTENT_TYPE, "application/json-patch+json")
            .body(body)
            .map_err(|e| Error::Client(e.to_string()))?;
        self.send(|| format!("patch {target}"), request).await
    }

    /// Asks whether an object could be created, without storing it.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn try_create(&self, object: &Value, manager: &str) -> Result<(), Error> {
        let target = Target::of(object)?;
        let served = self.place(&target).await?;
        let path = format!("{}?dryRun=All&fieldManager={manager}", served.path(&target, None));
        self.send_json(|| format!("dry-run create {target}"), http::Method::POST, path, object)
            .await
            .map(drop)
    }

    /// Creates an object, named or with a `generateName`.
    ///
    /// # Errors
    /// The failed request; `AlreadyExists` when the name is taken.
    pub async fn create(&self, object: &Value, manager: &str) -> Result<Value, Error> {
        let target = Target::of_new(object)?;
        let served = self.place(&target).await?;
        let path = format!("{}?fieldManager={manager}", served.path(&target, None));
        self.send_json(|| format!("create {target}"), http::Method::POST, path, object)
            .await
    }

    /// Replaces an object; the body carries the resourceVersion it was read at.
    ///
    /// # Errors
    /// The failed request; a conflict when somebody else wrote meanwhile.
    pub async fn replace(&self, object: &Value, manager: &str) -> Result<Value, Error> {
        let target = Target::of(object)?;
        let served = self.place(&target).await?;
        let path = format!("{}?fieldManager={manager}", served.path(&target, Some(&target.name)));
        self.send_json(|| format!("update {target}"), http::Method::PUT, path, object)
            .await
    }

    /// Deletes in the background. `true` when the object was there.
    ///
    /// # Errors
    /// The failed request; a conflict when a precondition no longer holds.
    pub async fn delete(&self, target: &Target, only_if: &Preconditions) -> Result<bool, Error> {
        self.delete_with(target, only_if, Dependents::Deleted).await
    }

    /// Deletes in the background, and says what becomes of what the object owns. `true` when the object was there.
    ///
    /// # Errors
    /// The failed request; a conflict when a precondition no longer holds.
    pub async fn delete_with(
        &self,
        target: &Target,
        only_if: &Preconditions,
        dependents: Dependents,
    ) -> Result<bool, Error> {
        let served = self.place(target).await?;
        let mut params = match dependents {
            Dependents::Deleted => DeleteParams::background(),
            Dependents::Orphaned => DeleteParams::orphan(),
        };
        if only_if != &Preconditions::default() {
            params.preconditions = Some(kube::core::params::Preconditions {
                uid: only_if.uid.clone(),
                resource_version: only_if.resource_version.clone(),
            });
        }
        let request = Request::new(served.path(target, None))
            .delete(&segment(&target.name), &params)
            .map_err(|e| Error::Client(e.to_string()))?;
        match self.send(|| format!("delete {target}"), request).await {
            Ok(_) => Ok(true),
            Err(e) if e.is_not_found() => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Lists the objects of a kind, all namespaces when the target names none.
    ///
    /// # Errors
    /// The failed request; [`Error::TooLarge`] where a server does not come to an end.
    pub async fn list(&self, kind: &Target, label_selector: Option<&str>) -> Result<Vec<Value>, Error> {
        let mut items = Vec::new();
        let (mut bytes, mut values) = (0, 0);
        let mut next = Some(String::new());
        for _ in 0..PAGES {
            let Some(token) = next else {
                return Ok(items);
            };
            let page = self.page(kind, label_selector, &token, WHOLE).await?;
            bytes += page.bytes;
            values += page.values;
            self.bear(kind, bytes, values)?;
            items.extend(page.items);
            next = page.next;
        }
        Err(endless(kind))
    }

    /// Looks at the metadata of the objects of a kind, page by page and without keeping any, until `each` breaks.
    ///
    /// # Errors
    /// The failed request; [`Error::TooLarge`] where a server does not come to an end.
    pub async fn scan(
        &self,
        kind: &Target,
        label_selector: Option<&str>,
        mut each: impl FnMut(Value) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let mut next = Some(String::new());
        for _ in 0..PAGES {
            let Some(token) = next else {
                return Ok(());
            };
            let page = self.page(kind, label_selector, &token, METADATA).await?;
            self.bear(kind, page.bytes, page.values)?;
            if page.items.into_iter().try_for_each(&mut each).is_break() {
                return Ok(());
            }
            next = page.next;
        }
        Err(endless(kind))
    }

    /// Refuses what a server that a tenant named may not take of our memory.
    fn bear(&self, kind: &Target, bytes: usize, values: usize) -> Result<(), Error> {
        let limit = match (bytes > FOREIGN_LIST, values > Most::ANY.values) {
            _ if self.cluster.is_local() => return Ok(()),
            (true, _) => "32 MiB",
            (_, true) => Most::ANY.values_told,
            _ => return Ok(()),
        };
        Err(Error::TooLarge {
            what: format!("list {}", kind.kind),
            limit,
        })
    }

    async fn page(
        &self,
        kind: &Target,
        label_selector: Option<&str>,
        token: &str,
        accept: &str,
    ) -> Result<Page, Error> {
        let served = self.place(kind).await?;
        let what = || format!("list {}", kind.kind);
        let path = format!("{}?{}", served.path(kind, None), page_query(label_selector, token));
        let request = http::Request::get(path)
            .header(http::header::ACCEPT, accept)
            .body(Vec::new())
            .map_err(|e| Error::Client(e.to_string()))?;
        let text = self.text(what(), request).boxed().await?;
        let mut values = 0;
        let mut page = self.parse(what, &text, &mut values)?;
        let items = match page.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => items,
            _ => Vec::new(),
        };
        let next = page.pointer("/metadata/continue").and_then(Value::as_str);
        Ok(Page {
            bytes: text.len(),
            values,
            next: next.filter(|t| !t.is_empty()).map(str::to_owned),
            items,
        })
    }

    /// Asks whether this identity may do `verb` on an object: a SelfSubjectAccessReview.
    ///
    /// # Errors
    /// The failed request.
    pub async fn may(&self, verb: &str, target: &Target) -> Result<bool, Error> {
        let served = self.served(&target.api_version, &target.kind).await?;
        match self.lend(target).await {
            Ok(()) => {}
            Err(Error::NotLent { .. }) => return Ok(false),
            Err(other) => return Err(other),
        }
        let attributes = json!({
            "verb": verb,
            "group": target.group(),
            "resource": served.plural,
            "namespace": target.namespace.clone().unwrap_or_default(),
            "name": target.name,
        });
        self.review(&format!("{verb} {target}"), &attributes).await
    }

    pub(super) async fn send_json(
        &self,
        what: impl Fn() -> String,
        method: http::Method,
        path: String,
        body: &Value,
    ) -> Result<Value, Error> {
        let bytes = serde_json::to_vec(body).map_err(|source| Error::Decode { what: what(), source })?;
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(bytes)
            .map_err(|e| Error::Client(e.to_string()))?;
        self.send(what, request).await
    }

    async fn send(&self, what: impl Fn() -> String, mut request: http::Request<Vec<u8>>) -> Result<Value, Error> {
        request.extensions_mut().insert(Most::OBJECT);
        // Every request of a step passes here: what waits for its answer is kept apart, and the step stays small.
        let text = self.text(what(), request).boxed().await?;
        self.parse(what, &text, &mut 0)
    }

    /// `values` counts those of all pages of one answer.
    fn parse(&self, what: impl Fn() -> String, text: &str, values: &mut usize) -> Result<Value, Error> {
        if !self.cluster.is_local() {
            *values += values_in(text.as_bytes());
        }
        if *values > Most::ANY.values {
            return Err(Error::TooLarge {
                what: what(),
                limit: Most::ANY.values_told,
            });
        }
        serde_json::from_str(text).map_err(|source| Error::Decode { what: what(), source })
    }

    async fn text(&self, what: String, mut request: http::Request<Vec<u8>>) -> Result<String, Error> {
        let assumed = self.assume(request.headers_mut());
        assumed.map_err(|e| Error::from_kube(what.clone(), e))?;
        let client = self.cluster.own_client();
        let answer = bounded(what.clone(), client.request_text(request));
        let answer = self.cluster.patiently(answer.boxed()).await;
        let text = answer.and_then(|text| text.map_err(|e| Error::from_kube(what, e)));
        self.cluster.note_answer(text.as_ref().is_err_and(Error::is_silence));
        text
    }
}

fn at_version(object: &Value, version: &str) -> Value {
    let mut object = object.clone();
    if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        meta.insert("resourceVersion".into(), Value::from(version));
    }
    object
}

/// A page of a list.
struct Page {
    items: Vec<Value>,
    next: Option<String>,
    /// Of its text.
    bytes: usize,
    values: usize,
}

fn endless(kind: &Target) -> Error {
    Error::TooLarge {
        what: format!("list {}", kind.kind),
        limit: "a thousand pages",
    }
}

fn page_query(label_selector: Option<&str>, token: &str) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.append_pair("limit", "500");
    if let Some(selector) = label_selector {
        query.append_pair("labelSelector", selector);
    }
    if !token.is_empty() {
        query.append_pair("continue", token);
    }
    query.finish()
}
