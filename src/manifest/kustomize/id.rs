//! Identity of a resource: group, version, kind, name, effective namespace.

/// Effective namespace of kinds known to be cluster-scoped.
pub const CLUSTER_SCOPE: &str = "_non_namespaceable_";
/// Effective namespace of objects without one.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Group, version and kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gvk<'a> {
    /// API group, empty for the core group.
    pub group: &'a str,
    /// API version.
    pub version: &'a str,
    /// Kind.
    pub kind: &'a str,
}

/// A resource id.
#[derive(Debug, Clone, Copy)]
pub struct Id<'a> {
    /// Type.
    pub gvk: Gvk<'a>,
    /// `metadata.name`.
    pub name: &'a str,
    /// Namespace as stored; for previous ids the effective one.
    pub namespace: &'a str,
}

impl<'a> Gvk<'a> {
    /// From `apiVersion` and `kind`.
    pub fn new(api_version: &'a str, kind: &'a str) -> Self {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Self { group, version, kind }
    }

    /// True for the kinds the schema embedded in kustomize 5.8.1 (Kubernetes 1.21.2) knows as cluster-scoped;
    /// everything else counts as namespaced.
    pub fn is_cluster_scoped(&self) -> bool {
        let stable = |beta: bool| self.version == "v1" || (beta && self.version == "v1beta1");
        match self.kind {
            "ComponentStatus" | "Namespace" | "Node" | "NodeProxyOptions" | "PersistentVolume" => {
                self.group.is_empty() && stable(false)
            }
            "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => {
                self.group == "admissionregistration.k8s.io" && stable(true)
            }
            "CustomResourceDefinition" => self.group == "apiextensions.k8s.io" && stable(true),
            "APIService" => self.group == "apiregistration.k8s.io" && stable(true),
            "CertificateSigningRequest" => self.group == "certificates.k8s.io" && stable(true),
            "FlowSchema" | "PriorityLevelConfiguration" => {
                self.group == "flowcontrol.apiserver.k8s.io" && self.version == "v1beta1"
            }
            "IngressClass" => self.group == "networking.k8s.io" && stable(true),
            "RuntimeClass" => self.group == "node.k8s.io" && stable(true),
            "PodSecurityPolicy" => self.group == "policy" && self.version == "v1beta1",
            "ClusterRole" | "ClusterRoleBinding" => self.group == "rbac.authorization.k8s.io" && stable(true),
            "PriorityClass" => self.group == "scheduling.k8s.io" && stable(true),
            "CSIDriver" | "CSINode" | "StorageClass" | "VolumeAttachment" => {
                self.group == "storage.k8s.io" && stable(true)
            }
            _ => false,
        }
    }

    /// True when every given part (empty means any) equals ours.
    pub fn is_selected_by(&self, group: &str, version: &str, kind: &str) -> bool {
        (group.is_empty() || group == self.group)
            && (version.is_empty() || version == self.version)
            && (kind.is_empty() || kind == self.kind)
    }
}

impl<'a> Id<'a> {
    /// The namespace that counts for identity.
    pub fn effective_namespace(&self) -> &'a str {
        if self.gvk.is_cluster_scoped() {
            CLUSTER_SCOPE
        } else if self.namespace.is_empty() {
            DEFAULT_NAMESPACE
        } else {
            self.namespace
        }
    }
}

impl PartialEq for Id<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.gvk == other.gvk && self.effective_namespace() == other.effective_namespace()
    }
}

impl std::fmt::Display for Id<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.gvk.group.is_empty() {
            write!(f, "{}/", self.gvk.group)?;
        }
        write!(f, "{} {} ", self.gvk.version, self.gvk.kind)?;
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(self.name)
    }
}
