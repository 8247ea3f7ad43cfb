//! The last steps of a build: what is dropped, the order, labels and annotations of the output.

use serde_json::Value;

use super::budget::{self, Allowance};
use super::config::Spec;
use super::error::Problem;
use super::file::{Kustomization, SortOptions};
use super::keep_annotation;
use super::order;
use super::origin::transformations_yaml;
use super::read;
use super::resource::Resource;
use super::transform::{set_entries, set_metadata};

const LOCAL_CONFIG: &str = "config.kubernetes.io/local-config";
const VALIDATED_BY: &str = "validated-by";

/// Drops local configuration, sorts, and leaves the annotations the root asks for.
pub(crate) fn finish(resources: &mut Vec<Resource>, root: &Kustomization, legacy_order: bool) -> Result<(), Problem> {
    for resource in &*resources {
        read::complete(&resource.root).map_err(|problem| Problem::Incomplete {
            id: resource.id().to_string(),
            problem,
        })?;
    }
    resources.retain(|r| {
        r.meta_text("annotations", LOCAL_CONFIG)
            .is_none_or(|value| value == "false")
    });
    sort(resources, root.sort_options.as_ref(), legacy_order)?;
    let asked = |word: &str| root.build_metadata.iter().any(|w| w == word);
    if asked("managedByLabel") {
        let label = [("app.kubernetes.io/managed-by".to_owned(), "kustomize-v5.8.1".to_owned())].into();
        let specs = [Spec::new("", "", "", "metadata/labels", true)];
        // One short label for each.
        let allowance = Allowance::of(budget::MOST);
        set_entries(resources, &label, &specs, &allowance)?;
    }
    let (origins, transformations) = (asked("originAnnotations"), asked("transformerAnnotations"));
    for resource in resources {
        resource.coerce_annotations(keep_annotation);
        let Some(provenance) = resource.origin.take() else {
            continue;
        };
        if let Some(origin) = provenance.origin.filter(|_| origins) {
            set_metadata(
                resource,
                "annotations",
                "config.kubernetes.io/origin",
                &origin.to_yaml(),
            );
        }
        if transformations && !provenance.transformations.is_empty() {
            let text = transformations_yaml(&provenance.transformations);
            set_metadata(
                resource,
                "annotations",
                "alpha.config.kubernetes.io/transformations",
                &text,
            );
        }
    }
    Ok(())
}

fn sort(resources: &mut [Resource], options: Option<&SortOptions>, legacy_order: bool) -> Result<(), Problem> {
    let Some(options) = options else {
        if legacy_order {
            order::sort_legacy(resources, None);
        }
        return Ok(());
    };
    match options.order.as_str() {
        "legacy" => order::sort_legacy(resources, options.legacy_sort_options.as_ref()),
        "fifo" if options.legacy_sort_options.is_some() => {
            return Err(Problem::Sort("legacySortOptions need order: legacy"));
        }
        "fifo" => {}
        _ => return Err(Problem::Sort("order must be fifo or legacy")),
    }
    Ok(())
}

/// The resources as values, without the label validators may add.
pub(crate) fn without_validation(resources: &[Resource]) -> Result<Vec<Value>, Problem> {
    resources
        .iter()
        .map(|resource| {
            let mut value = resource.clone().into_value()?;
            if let Some(Value::Object(labels)) = value.pointer_mut("/metadata/labels") {
                labels.shift_remove(VALIDATED_BY);
            }
            if value
                .pointer("/metadata/labels")
                .and_then(Value::as_object)
                .is_some_and(serde_json::Map::is_empty)
                && let Some(Value::Object(metadata)) = value.get_mut("metadata")
            {
                metadata.shift_remove("labels");
            }
            Ok(value)
        })
        .collect()
}
