//! String enums on the wire.

/// An enum that travels as a string and may hold a value this release does not know.
pub trait WireEnum {
    /// The values the schema allows, in schema order.
    const ALLOWED: &'static [&'static str];

    /// The value as it is written on the wire.
    fn text(&self) -> &str;

    /// Whether this release knows the value.
    fn is_known(&self) -> bool;
}

/// Defines an enum that travels as a JSON string. Its schema lists the known values, so an API
/// server refuses others; a stored object may still carry one (from another release), so decoding
/// keeps it as `Unknown` and the rules refuse it by name.
macro_rules! wire_enum {
    (
        $(#[$meta:meta])*
        $name:ident { $( $(#[$variant_meta:meta])* $variant:ident = $text:literal ),+ $(,)? }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $( $(#[$variant_meta])* $variant, )+
            /// A value this release does not know, kept verbatim.
            Unknown(String),
        }

        impl $name {
            /// The values the schema allows, in schema order.
            pub const VALUES: &'static [&'static str] = &[$($text),+];

            /// The value as it is written on the wire.
            pub fn as_str(&self) -> &str {
                match self {
                    $( Self::$variant => $text, )+
                    Self::Unknown(text) => text,
                }
            }

            /// Whether this release knows the value.
            pub fn is_known(&self) -> bool {
                !matches!(self, Self::Unknown(_))
            }
        }

        impl $crate::api::WireEnum for $name {
            const ALLOWED: &'static [&'static str] = Self::VALUES;

            fn text(&self) -> &str {
                self.as_str()
            }

            fn is_known(&self) -> bool {
                Self::is_known(self)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                match text {
                    $( $text => Self::$variant, )+
                    other => Self::Unknown(other.to_owned()),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(deserializer)?;
                Ok(Self::from(text.as_ref()))
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "enum": [$($text),+] })
            }
        }
    };
}
