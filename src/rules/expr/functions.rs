//! What can be called, and what comes out: enough to refuse a misspelt name or a result that can never be true
//! or false before anything is applied.

/// A type as far as it is known before evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Null,
    List,
    Map,
    Timestamp,
    Duration,
    Optional,
    Meta,
    /// Only known when evaluated.
    Dyn,
}

impl Type {
    /// The name CEL has for it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Null => "null_type",
            Self::List => "list",
            Self::Map => "map",
            Self::Timestamp => "timestamp",
            Self::Duration => "duration",
            Self::Optional => "optional_type",
            Self::Meta => "type",
            Self::Dyn => "dyn",
        }
    }

    /// Whether it can be true or false.
    pub(super) fn may_be_bool(self) -> bool {
        matches!(self, Self::Bool | Self::Dyn)
    }

    /// Whether a value of this type has a bounded size.
    pub(super) fn is_small(self) -> bool {
        !matches!(
            self,
            Self::String | Self::Bytes | Self::List | Self::Map | Self::Optional | Self::Dyn
        )
    }
}

/// A function: `name(..)`, `namespace.name(..)`, or a method `x.name(..)`.
pub(super) struct Function {
    name: &'static str,
    arguments: &'static [usize],
    pub(super) result: Type,
}

const fn function(name: &'static str, arguments: &'static [usize], result: Type) -> Function {
    Function {
        name,
        arguments,
        result,
    }
}

const GLOBAL: [Function; 12] = [
    function("size", &[1], Type::Int),
    function("int", &[1], Type::Int),
    function("uint", &[1], Type::Uint),
    function("double", &[1], Type::Double),
    function("string", &[1], Type::String),
    function("bytes", &[1], Type::Bytes),
    function("bool", &[1], Type::Bool),
    function("dyn", &[1], Type::Dyn),
    function("type", &[1], Type::Meta),
    function("duration", &[1], Type::Duration),
    function("timestamp", &[1], Type::Timestamp),
    function("matches", &[2], Type::Bool),
];

const NAMESPACED: [Function; 9] = [
    function("optional.of", &[1], Type::Optional),
    function("optional.none", &[0], Type::Optional),
    function("optional.ofNonZeroValue", &[1], Type::Optional),
    function("base64.encode", &[1], Type::String),
    function("base64.decode", &[1], Type::Bytes),
    function("strings.quote", &[1], Type::String),
    function("sets.contains", &[2], Type::Bool),
    function("sets.equivalent", &[2], Type::Bool),
    function("sets.intersects", &[2], Type::Bool),
];

const METHODS: [Function; 31] = [
    function("size", &[0], Type::Int),
    function("contains", &[1], Type::Bool),
    function("startsWith", &[1], Type::Bool),
    function("endsWith", &[1], Type::Bool),
    function("matches", &[1], Type::Bool),
    function("charAt", &[1], Type::String),
    function("indexOf", &[1, 2], Type::Int),
    function("lastIndexOf", &[1, 2], Type::Int),
    function("join", &[0, 1], Type::String),
    function("lowerAscii", &[0], Type::String),
    function("upperAscii", &[0], Type::String),
    function("trim", &[0], Type::String),
    function("reverse", &[0], Type::String),
    function("replace", &[2, 3], Type::String),
    function("split", &[1, 2], Type::List),
    function("substring", &[1, 2], Type::String),
    function("format", &[1], Type::String),
    function("value", &[0], Type::Dyn),
    function("hasValue", &[0], Type::Bool),
    function("or", &[1], Type::Optional),
    function("orValue", &[1], Type::Dyn),
    function("getFullYear", &[0, 1], Type::Int),
    function("getMonth", &[0, 1], Type::Int),
    function("getDayOfYear", &[0, 1], Type::Int),
    function("getDayOfMonth", &[0, 1], Type::Int),
    function("getDate", &[0, 1], Type::Int),
    function("getDayOfWeek", &[0, 1], Type::Int),
    function("getHours", &[0, 1], Type::Int),
    function("getMinutes", &[0, 1], Type::Int),
    function("getSeconds", &[0, 1], Type::Int),
    function("getMilliseconds", &[0, 1], Type::Int),
];

/// Functions whose cost is not in proportion to what goes in and comes out; [`super::env`] has its own.
const COUNTED: [&str; 5] = ["matches", "replace", "join", "indexOf", "lastIndexOf"];

/// How a call is written.
#[derive(Clone, Copy)]
pub(super) enum Form<'a> {
    Global,
    Namespaced(&'a str),
    Method,
}

/// Why there is no such call.
pub(super) enum NoCall {
    Name,
    Arguments,
}

/// Finds what a call calls.
pub(super) fn find(form: Form<'_>, name: &str, arguments: usize) -> Result<&'static Function, NoCall> {
    let found = match form {
        Form::Global => GLOBAL.iter().find(|f| f.name == name),
        Form::Method => METHODS.iter().find(|f| f.name == name),
        Form::Namespaced(space) => NAMESPACED.iter().find(|f| is_in(f, space, name)),
    };
    match found {
        None => Err(NoCall::Name),
        Some(function) if function.arguments.contains(&arguments) => Ok(function),
        Some(_) => Err(NoCall::Arguments),
    }
}

/// Whether there is a function `space.name`.
pub(super) fn is_namespaced(space: &str, name: &str) -> bool {
    NAMESPACED.iter().any(|f| is_in(f, space, name))
}

fn is_in(function: &Function, space: &str, name: &str) -> bool {
    function.name.split_once('.') == Some((space, name))
}

/// The name of our own implementation of a method or global function, where there is one. No user can write it.
pub(super) fn counted(name: &str) -> Option<String> {
    COUNTED.contains(&name).then(|| format!("@{name}"))
}

/// A call of every function with every number of arguments.
#[cfg(test)]
pub(super) fn samples() -> Vec<String> {
    let arguments = |count: usize| vec!["'a'"; count].join(", ");
    let calls = |f: &'static Function, before: &'static str| {
        f.arguments
            .iter()
            .map(move |count| format!("{before}{}({})", f.name, arguments(*count)))
    };
    let plain = GLOBAL.iter().chain(&NAMESPACED).flat_map(|f| calls(f, ""));
    plain.chain(METHODS.iter().flat_map(|f| calls(f, "'a'."))).collect()
}
