//! From a `sourceRef` to an artifact, in two pure steps: [`plan`] says what to read, [`Target::judge`] what it means.

use jiff::Timestamp;
use serde_json::Value;

use super::error::{Error, NotReady, ObjectName, ReadFailure};

/// API group of Flux sources.
pub const SOURCE_GROUP: &str = "source.toolkit.fluxcd.io";
/// API version read where a direct reference names none, and for the ExternalArtifacts of a producer.
pub const SOURCE_API_VERSION: &str = "source.toolkit.fluxcd.io/v1";
/// Kind of a reference that names none.
pub const EXTERNAL_ARTIFACT: &str = "ExternalArtifact";

/// Sources that carry `status.artifact` themselves.
const FLUX_KINDS: [&str; 3] = ["GitRepository", "OCIRepository", "Bucket"];

/// Longest condition message repeated in ours, in bytes.
const QUOTED: usize = 512;

/// A `sourceRef` as the spec has it (api 4.1).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reference {
    /// Group and version; required for a producer.
    pub api_version: Option<String>,
    /// Kind; `ExternalArtifact` where absent.
    pub kind: Option<String>,
    /// Name.
    pub name: String,
    /// Namespace; the StageSet's where absent.
    pub namespace: Option<String>,
}

/// Where a reference is resolved from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope<'a> {
    /// Namespace of the StageSet.
    pub namespace: &'a str,
    /// `--no-cross-namespace-refs`.
    pub no_cross_namespace_refs: bool,
}

/// Key under which a StageSet waits for a source, and under which a source event looks for StageSets (run 2.3).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceKey {
    /// API group; the version does not count.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl SourceKey {
    /// Key of a source object.
    #[must_use]
    pub fn of_object(object: &Value) -> Option<Self> {
        Some(Self {
            group: group(text(object, "/apiVersion")).to_owned(),
            kind: non_empty(object, "/kind")?.to_owned(),
            namespace: text(object, "/metadata/namespace").to_owned(),
            name: non_empty(object, "/metadata/name")?.to_owned(),
        })
    }

    /// Key of the producer that an ExternalArtifact points back at through `spec.sourceRef`. Only a producer of its own
    /// namespace counts: whoever may write artifacts elsewhere speaks for nobody here (run 8.2, contract 13.7).
    #[must_use]
    pub fn back_pointer(artifact: &Value) -> Option<Self> {
        let namespace = text(artifact, "/metadata/namespace");
        if non_empty(artifact, "/spec/sourceRef/namespace").is_some_and(|claimed| claimed != namespace) {
            return None;
        }
        Some(Self {
            group: group(text(artifact, "/spec/sourceRef/apiVersion")).to_owned(),
            kind: non_empty(artifact, "/spec/sourceRef/kind")?.to_owned(),
            namespace: namespace.to_owned(),
            name: non_empty(artifact, "/spec/sourceRef/name")?.to_owned(),
        })
    }
}

impl Reference {
    fn kind(&self) -> &str {
        self.kind
            .as_deref()
            .filter(|kind| !kind.is_empty())
            .unwrap_or(EXTERNAL_ARTIFACT)
    }

    fn api_version(&self) -> Option<&str> {
        self.api_version.as_deref().filter(|v| !v.is_empty())
    }

    fn namespace<'a>(&'a self, default: &'a str) -> &'a str {
        self.namespace
            .as_deref()
            .filter(|namespace| !namespace.is_empty())
            .unwrap_or(default)
    }

    /// The index key of this reference in a StageSet of `namespace`, defaults applied.
    #[must_use]
    pub fn key(&self, namespace: &str) -> SourceKey {
        let group = match self.direct_api_version() {
            Some(_) => SOURCE_GROUP,
            None => group(self.api_version().unwrap_or_default()),
        };
        SourceKey {
            group: group.to_owned(),
            kind: self.kind().to_owned(),
            namespace: self.namespace(namespace).to_owned(),
            name: self.name.clone(),
        }
    }

    /// The API version to read a direct reference by; `None` for a producer (run 8.1).
    fn direct_api_version(&self) -> Option<&str> {
        let given = self.api_version();
        let group = group(given.unwrap_or_default());
        if self.kind() == EXTERNAL_ARTIFACT {
            // Direct whatever its apiVersion says, so a foreign one cannot be meant.
            return Some(given.filter(|_| group == SOURCE_GROUP).unwrap_or(SOURCE_API_VERSION));
        }
        let flux = FLUX_KINDS.contains(&self.kind()) && (group.is_empty() || group == SOURCE_GROUP);
        flux.then(|| given.unwrap_or(SOURCE_API_VERSION))
    }
}

impl From<&crate::api::SourceReference> for Reference {
    fn from(wire: &crate::api::SourceReference) -> Self {
        Self {
            api_version: wire.api_version.clone(),
            kind: wire.kind.clone(),
            name: wire.name.clone(),
            namespace: wire.namespace.clone(),
        }
    }
}

/// What has to be read for a reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    /// One object, by name.
    Object {
        /// Group and version.
        api_version: String,
        /// Kind.
        kind: String,
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
    },
    /// All ExternalArtifacts ([`SOURCE_API_VERSION`]) of a namespace; the producer itself is not read.
    ExternalArtifacts {
        /// Namespace.
        namespace: String,
        /// The producer they are searched for.
        producer: SourceKey,
    },
}

/// A reference that may be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    lookup: Lookup,
    object: Box<ObjectName>,
    foreign: bool,
}

/// The artifact a reference resolved to. Identity is that of the object carrying it, not of a producer (run 8.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// Kind of the object carrying it.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// `status.artifact.revision`; may be empty.
    pub revision: String,
    /// `status.artifact.digest`, not yet parsed.
    pub digest: String,
    /// `status.artifact.url`.
    pub url: String,
    /// `status.artifact.size` in bytes.
    pub size: Option<u64>,
    /// `status.artifact.lastUpdateTime`.
    pub last_update: Option<Timestamp>,
}

impl Artifact {
    /// `<namespace>/<name>`, as in the published revision maps.
    #[must_use]
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// For messages.
    #[must_use]
    pub fn object(&self) -> Box<ObjectName> {
        Box::new(ObjectName {
            kind: self.kind.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        })
    }
}

/// Classifies a reference and says what to read (run 8.1, 8.2, 8.5).
///
/// # Errors
/// [`Error::ProducerWithoutApiVersion`]; [`Error::CrossNamespace`] where the flag forbids the namespace, before any
/// read.
pub fn plan(reference: &Reference, scope: Scope<'_>) -> Result<Target, Error> {
    let key = reference.key(scope.namespace);
    let object = Box::new(ObjectName {
        kind: key.kind.clone(),
        namespace: key.namespace.clone(),
        name: key.name.clone(),
    });
    let foreign = key.namespace != scope.namespace;
    let direct = reference.direct_api_version();
    if direct.is_none() && reference.api_version().is_none() {
        return Err(Error::ProducerWithoutApiVersion {
            kind: key.kind,
            name: key.name,
        });
    }
    if foreign && scope.no_cross_namespace_refs {
        return Err(Error::CrossNamespace {
            object,
            forbidden: true,
        });
    }
    let lookup = match direct {
        Some(api_version) => Lookup::Object {
            api_version: api_version.to_owned(),
            kind: key.kind,
            namespace: key.namespace,
            name: key.name,
        },
        None => Lookup::ExternalArtifacts {
            namespace: key.namespace.clone(),
            producer: key,
        },
    };
    Ok(Target {
        lookup,
        object,
        foreign,
    })
}

impl Target {
    /// What to read.
    #[must_use]
    pub fn lookup(&self) -> &Lookup {
        &self.lookup
    }

    /// Whether the reference leaves the StageSet's namespace.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.foreign
    }

    /// Judges what was read for [`Target::lookup`]: the object (empty when absent), or all ExternalArtifacts of the
    /// namespace.
    ///
    /// # Errors
    /// The resolution errors of run 8.4, already concealed where the reference leaves the namespace.
    pub fn judge(&self, found: Result<&[&Value], ReadFailure>) -> Result<Artifact, Error> {
        let judged = match found {
            Err(failure) => Err(self.read_failed(failure)),
            Ok(objects) => self.pick(objects).and_then(|source| self.extract(source)),
        };
        judged.map_err(|error| self.conceal(error))
    }

    /// Replaces an error of resolving or fetching by the one text allowed for another namespace; leaves it as it is
    /// within the namespace (run 8.5, decisions 7).
    #[must_use]
    pub fn conceal(&self, error: Error) -> Error {
        if !self.foreign || matches!(error, Error::Path(_)) {
            return error;
        }
        Error::CrossNamespace {
            object: self.object.clone(),
            forbidden: false,
        }
    }

    fn pick<'a>(&self, objects: &[&'a Value]) -> Result<&'a Value, Error> {
        match &self.lookup {
            Lookup::Object { name, .. } => objects
                .iter()
                .find(|object| text(object, "/metadata/name") == name)
                .copied()
                .ok_or_else(|| Error::Missing {
                    object: self.object.clone(),
                }),
            Lookup::ExternalArtifacts { producer, .. } => self.pick_produced(objects, producer),
        }
    }

    fn pick_produced<'a>(&self, objects: &[&'a Value], producer: &SourceKey) -> Result<&'a Value, Error> {
        let matches: Vec<&Value> = objects
            .iter()
            .copied()
            .filter(|artifact| SourceKey::back_pointer(artifact).as_ref() == Some(producer))
            .collect();
        match matches[..] {
            [] => Err(Error::NoArtifact {
                producer: self.object.clone(),
                group: producer.group.clone(),
            }),
            [one] => Ok(one),
            _ => {
                let mut artifacts: Vec<String> = matches
                    .iter()
                    .map(|artifact| text(artifact, "/metadata/name").to_owned())
                    .collect();
                artifacts.sort();
                Err(Error::Ambiguous {
                    producer: self.object.clone(),
                    artifacts,
                })
            }
        }
    }

    /// Accepts or refuses a source object and takes its artifact (run 8.3, 28 B35). Kind and namespace are those it was
    /// looked up by: items of a list carry no kind.
    fn extract(&self, source: &Value) -> Result<Artifact, Error> {
        let (kind, namespace) = match &self.lookup {
            Lookup::Object { kind, namespace, .. } => (kind.as_str(), namespace),
            Lookup::ExternalArtifacts { namespace, .. } => (EXTERNAL_ARTIFACT, namespace),
        };
        let object = ObjectName {
            kind: kind.to_owned(),
            namespace: namespace.clone(),
            name: text(source, "/metadata/name").to_owned(),
        };
        if let Some(state) = not_ready(source) {
            let object = Box::new(object);
            return Err(Error::NotReady { object, state });
        }
        Ok(Artifact {
            kind: object.kind,
            namespace: object.namespace,
            name: object.name,
            revision: text(source, "/status/artifact/revision").to_owned(),
            digest: text(source, "/status/artifact/digest").trim().to_owned(),
            url: text(source, "/status/artifact/url").trim().to_owned(),
            size: source.pointer("/status/artifact/size").and_then(Value::as_u64),
            last_update: text(source, "/status/artifact/lastUpdateTime").parse().ok(),
        })
    }

    fn read_failed(&self, failure: ReadFailure) -> Error {
        let object = self.object.clone();
        match failure {
            ReadFailure::Forbidden(message) => Error::Forbidden { object, message },
            ReadFailure::Other(message) => Error::Read { object, message },
            ReadFailure::NotServed => match &self.lookup {
                Lookup::Object { api_version, .. } => Error::NotServed {
                    object,
                    api_version: api_version.clone(),
                },
                // It is the artifact kind that is missing, not the producer's.
                Lookup::ExternalArtifacts { namespace, .. } => Error::NotServed {
                    object: Box::new(ObjectName {
                        kind: EXTERNAL_ARTIFACT.to_owned(),
                        namespace: namespace.clone(),
                        name: "*".to_owned(),
                    }),
                    api_version: SOURCE_API_VERSION.to_owned(),
                },
            },
        }
    }
}

/// Why a source object must not be used, if so: Ready, then current, then published.
#[must_use]
pub fn not_ready(source: &Value) -> Option<NotReady> {
    let Some(ready) = ready_condition(source) else {
        return Some(NotReady::NoCondition);
    };
    let status = text(ready, "/status");
    if status != "True" {
        return Some(NotReady::Condition {
            status: status.to_owned(),
            reason: text(ready, "/reason").to_owned(),
            message: shorten(text(ready, "/message")),
        });
    }
    if let Some((generation, observed)) = lag(source, ready) {
        return Some(NotReady::Stale { generation, observed });
    }
    [
        ("/status/artifact/url", "status.artifact.url"),
        ("/status/artifact/digest", "status.artifact.digest"),
    ]
    .into_iter()
    .find(|(pointer, _)| text(source, pointer).trim().is_empty())
    .map(|(_, field)| NotReady::Unpublished { field })
}

/// Generation and observed generation where the status lags behind the spec.
///
/// A suspended source is exempt: suspending it is itself a new generation, which its controller leaves unobserved on
/// purpose, and the artifact it froze is the one that is wanted. ExternalArtifact has no `status.observedGeneration`;
/// there the condition's own counts, where the producer sets it.
fn lag(source: &Value, ready: &Value) -> Option<(i64, i64)> {
    if source.pointer("/spec/suspend") == Some(&Value::Bool(true)) {
        return None;
    }
    let generation = source.pointer("/metadata/generation")?.as_i64()?;
    let observed = source
        .pointer("/status/observedGeneration")
        .or_else(|| ready.pointer("/observedGeneration"))?
        .as_i64()
        .filter(|observed| *observed != 0)?;
    (observed < generation).then_some((generation, observed))
}

fn ready_condition(source: &Value) -> Option<&Value> {
    source
        .pointer("/status/conditions")?
        .as_array()?
        .iter()
        .find(|condition| text(condition, "/type") == "Ready")
}

fn group(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn non_empty<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    Some(text(value, pointer)).filter(|t| !t.is_empty())
}

fn shorten(message: &str) -> String {
    if message.len() <= QUOTED {
        return message.to_owned();
    }
    let cut = message.floor_char_boundary(QUOTED);
    format!("{}...", &message[..cut])
}

#[cfg(test)]
mod tests;
