//! A place in an object, kept so that it can be followed in values and in field sets alike.

use std::fmt;

use serde_json::Value;

/// One step of a path.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step<'a> {
    Field(&'a str),
    /// An item of a list: its index and the item itself, which carries the keys it is known by.
    Item(usize, &'a Value),
    /// An item known by its key alone.
    Key(&'a str),
}

/// A path from the root of an object.
#[derive(Debug, Clone, Default)]
pub(super) struct Path<'a> {
    steps: Vec<Step<'a>>,
}

/// Fields whose children are quantities (`resources.limits.cpu`).
const QUANTITY_MAPS: [&str; 11] = [
    "limits",
    "requests",
    "capacity",
    "allocatable",
    "hard",
    "default",
    "defaultRequest",
    "max",
    "min",
    "maxLimitRequestRatio",
    "podFixed",
];

/// Fields that are quantities themselves.
const QUANTITIES: [&str; 4] = ["sizeLimit", "divisor", "averageValue", "targetAverageValue"];

impl<'a> Path<'a> {
    pub(super) fn root() -> Self {
        Path::default()
    }

    fn with<'b>(&self, step: Step<'b>) -> Path<'b>
    where
        'a: 'b,
    {
        let mut steps: Vec<Step<'b>> = self.steps.clone();
        steps.push(step);
        Path { steps }
    }

    pub(super) fn field<'b>(&self, name: &'b str) -> Path<'b>
    where
        'a: 'b,
    {
        self.with(Step::Field(name))
    }

    pub(super) fn item<'b>(&self, index: usize, item: &'b Value) -> Path<'b>
    where
        'a: 'b,
    {
        self.with(Step::Item(index, item))
    }

    pub(super) fn key<'b>(&self, key: &'b str) -> Path<'b>
    where
        'a: 'b,
    {
        self.with(Step::Key(key))
    }

    pub(super) fn steps(&self) -> &[Step<'a>] {
        &self.steps
    }

    /// The value at the path; items are followed by index.
    pub(super) fn find<'v>(&self, object: &'v Value) -> Option<&'v Value> {
        self.steps.iter().try_fold(object, |value, step| match step {
            Step::Field(name) => value.get(*name),
            Step::Item(index, _) => value.get(*index),
            Step::Key(_) => None,
        })
    }

    /// True where the API keeps a quantity at the path, which it writes back in its own form (`0.5` as `500m`).
    pub(super) fn holds_quantity(&self, kind: &str) -> bool {
        let field = |back: usize| match self.steps.iter().rev().nth(back) {
            Some(Step::Field(name)) => Some(*name),
            _ => None,
        };
        let inside = |name: &str| {
            self.steps
                .iter()
                .any(|step| matches!(step, Step::Field(found) if *found == name))
        };
        let Some(last) = field(0) else { return false };
        if inside("metadata") || inside("data") {
            return false;
        }
        QUANTITIES.contains(&last)
            || field(1).is_some_and(|parent| QUANTITY_MAPS.contains(&parent))
            || (last == "value" && kind == "HorizontalPodAutoscaler")
    }
}

/// A JSON pointer (RFC 6901).
impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            match step {
                Step::Field(name) | Step::Key(name) => write!(f, "/{}", name.replace('~', "~0").replace('/', "~1"))?,
                Step::Item(index, _) => write!(f, "/{index}")?,
            }
        }
        Ok(())
    }
}
