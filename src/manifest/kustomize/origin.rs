//! Where a resource came from and what changed it, for `buildMetadata`.

/// One entry of origin or transformation annotations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// File the resource was read from, relative to the build directory.
    pub path: String,
    /// Kustomization file or plugin configuration responsible.
    pub configured_in: String,
    /// apiVersion, kind, name and namespace of the plugin.
    pub configured_by: Option<[String; 4]>,
}

/// Origin and transformations of one resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Provenance {
    /// Where it came from.
    pub origin: Option<Origin>,
    /// What changed it, in order.
    pub transformations: Vec<Origin>,
}

impl Origin {
    /// The YAML lines of this entry.
    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.path.is_empty() {
            lines.push(format!("path: {}", self.path));
        }
        if !self.configured_in.is_empty() {
            lines.push(format!("configuredIn: {}", self.configured_in));
        }
        if let Some([api_version, kind, name, namespace]) = &self.configured_by {
            lines.push("configuredBy:".to_owned());
            for (key, value) in [
                ("apiVersion", api_version),
                ("kind", kind),
                ("name", name),
                ("namespace", namespace),
            ] {
                if !value.is_empty() {
                    lines.push(format!("  {key}: {value}"));
                }
            }
        }
        lines
    }

    /// The annotation text of an origin.
    pub fn to_yaml(&self) -> String {
        let mut text = self.lines().join("\n");
        text.push('\n');
        text
    }
}

/// The annotation text of a list of transformations.
pub fn transformations_yaml(entries: &[Origin]) -> String {
    let mut text = String::new();
    for entry in entries {
        for (i, line) in entry.lines().iter().enumerate() {
            text.push_str(if i == 0 { "- " } else { "  " });
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// Joins two relative paths as Go's `filepath.Join` does; leading `..` stay.
pub fn join(base: &str, path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in base.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}
